"""The contract of a source: `Source`, records in blocks, and `ReadTask`, who reads which of them for a lane."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError, StateError, names_text, shown
from streamdata.fields import DATASET_NAME, DP_RANK, INDEX, KEY, RECORD, STATES, URL, WORKER_ID
from streamdata.run import Lane
from streamdata.shards.ahead.read_ahead import Upcoming
from streamdata.shards.readers import DamagedRecordError
from streamdata.sources.functions.tally import Tally
from streamdata.sources.order.blocks import BlockOrder, Part
from streamdata.states.cursor import Cursor, PlainCursor, Position
from streamdata.states.headers import BlockCut

Record: TypeAlias = dict[str, Any]
Sample: TypeAlias = dict[str, Any]
OrderAt: TypeAlias = tuple[BlockOrder, Position]
"""Blocks of a lane, and the position in them from which on they are read."""


def walk(
    windows: Callable[[int, int], Iterator[npt.NDArray[np.int64]]],
    position: Position,
    next_epoch: Callable[[int], int | None],
) -> Iterator[tuple[Position, npt.NDArray[np.int64]]]:
    """Yield all windows from a position on, each with its starting position and its blocks.

    Args:
        windows: Gives the blocks of each window of an epoch, from one of a number on.
        position: Where the first one begins.
        next_epoch: The epoch after one that was walked through; None at the end. Who reads judges there what was read,
            and who looks ahead does not.
    """
    epoch: int | None = position[0]
    _, window, taken, _ = position
    while epoch is not None:
        for blocks in windows(epoch, window):
            yield (epoch, window, taken, 0), blocks
            window, taken = window + 1, 0
        epoch, window = next_epoch(epoch), 0


class Source(ABC):
    """A source as a lane sees it: records in blocks. Lanes call only `read`.

    The defaults are those of a source whose windows are single blocks, of which nobody knows how many records they
    have before they are read.
    """

    num_blocks: int
    """Blocks in an epoch; 0 means that there are no records."""
    blocks_per_window: int = 1
    """How many blocks a window has, but the last of an epoch, which may have fewer."""
    records_per_block: int | None = None
    """How many records each block has, where all have as many."""

    @abstractmethod
    def describe(self, shuffle: bool) -> str:
        """Describe what determines the order of the source's records, in a line that a resume compares."""

    @abstractmethod
    def read(self, task: "ReadTask", position: Position) -> Iterator[tuple[Record, Position]]:
        """Yield each record from `position` on, with the position after it, until the order ends.

        A record carries the fields of `streamdata.fields`. Positions count all records; where there is a `task.part`,
        those of the other one are not read.
        """

    def fetch(
        self, numbers: Sequence[int], part: Part | None = None
    ) -> "Iterator[Record | DamagedRecordError | None] | None":
        """Read records by their numbers in the source, from 0; None if nobody can.

        Args:
            numbers: Ascending; of one that comes twice, each record is its own.
            part: That the records are of.

        Returns:
            For each number its record, with what names it but `RECORD`, or the error that says how it is damaged; None
            where the part has no such record.
        """
        return None

    def identify(self, number: int) -> Record | None:
        """Name a record by its number in the source, from 0: `url` and `key`, or `index`; None if nobody can.

        Raises:
            IndexError: There is no such record.
        """
        if (fetched := self.fetch([number])) is None:
            return None
        if (record := next(fetched)) is None:
            raise IndexError(number)
        return place_of(record)

    def anomalies(self) -> dict[str, int]:
        """Counts, by kind, of what is known before reading not to be a whole record."""
        return {}

    @property
    def cut(self) -> BlockCut:
        """How the source is divided into blocks and windows, so that it can be dealt out while it is absent."""
        return BlockCut(self.num_blocks, 1, 0, divides=0, epochs=0)

    def count(self, blocks: npt.NDArray[np.int64], part: Part | None) -> int | None:
        """The number of the part's records in these blocks; None if only reading shows it."""
        return None

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        """The number of the part's records before the position in its window; only if `count` is known."""
        raise AssertionError("nobody knows how many records there are")

    def start_of(self, after: Position) -> Position:
        """The position before a record, given the position after it."""
        epoch, window, taken, _ = after
        return epoch, window, taken - 1, 0

    def window_start(self, order: BlockOrder, position: Position) -> Position:
        """The start of the window that contains the next record at `position`."""
        return (*position[:2], 0, 0)


_FIELDS = Cursor()
_Taken = tuple[int, int, int]
"""A position without its output: all outputs of a record have one state, that before it."""


class StreamStates:
    """The states of one source's iterable in one lane, from the start of its open burst.

    Args:
        epoch_pass: The pass.
        start: Where the lane begins to read.
        state: Of the iterable there, None where it said nothing.
    """

    def __init__(self, epoch_pass: int, start: Position, state: list[Any] | None) -> None:
        self.epoch_pass = epoch_pass
        self._held: deque[tuple[_Taken, list[Any] | None]] = deque([(start[:3], state)])

    def beginning(self, taken: _Taken) -> list[Any] | None:
        """The oldest state that is kept, if it was taken at `taken`; else None."""
        at, state = self._held[0]
        return state if at == taken else None

    def note(self, taken: _Taken, state: list[Any] | None) -> None:
        """Keep the iterable's state after a record."""
        if state is not None:
            self._held.append((taken, state))

    def join(self, pairs: Iterator[tuple[dict[str, Any], PlainCursor]]) -> Iterator[tuple[dict[str, Any], PlainCursor]]:
        """Yield each sample with its cursor, to which the iterable's state there is added."""
        for sample, cursor in pairs:
            # Cursors only go on, so what lies before one is never asked for again.
            while len(self._held) > 1 and self._held[0][0] < cursor[:3]:
                self._held.popleft()
            state = self.beginning(cursor[:3])
            yield sample, cursor if state is None else (*cursor, *_FIELDS[len(cursor) : -1], state)


class ReadTask:
    """A lane's task of reading one source: its blocks in an order, and what reading needs.

    Args:
        name: The source's path of names.
        number: Of the source among those of the tree, sorted by path.
        lane: Who reads.
        order: The lane's blocks.
        tally: Where the source's failures are counted.
        part: Which records are read; None for all.
        upcoming: Makes windows before they are needed; None where that is off.
    """

    def __init__(
        self,
        name: str,
        number: int,
        lane: Lane,
        order: BlockOrder,
        tally: Tally,
        part: Part | None = None,
        upcoming: Upcoming | None = None,
    ) -> None:
        self.name, self.number, self.order, self.tally, self.part = name, number, order, tally, part
        self.upcoming = upcoming
        self.later: Callable[[], Iterator[OrderAt]] = lambda: iter(())
        """Returns the orders that the lane reads after this one has ended."""
        self.num_found = 0
        """Records of the part, where there is one, counted before they are read, a few at a time; or of an iterable."""
        self._found_before = self._empty_epochs = 0
        self.lane = lane
        self.stream: StreamStates | None = None
        """Keeps where an iterable says that it is; None of other sources."""
        self.fields: Record = {DATASET_NAME: name, DP_RANK: lane.dp_rank, WORKER_ID: lane.worker}
        self.keeps_damaged = False
        """Whether a `DamagedRecord` is passed on; else its error is raised."""
        self.on_epoch_end: Callable[[int], None] | None = None
        """Called with the epoch that was read to its end, before the next one begins or the stream ends."""
        self.noting: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] | None = None
        """Makes of a function that gets records one that notes which ones; None where nobody wants to know."""
        self._ahead = 1

    def reading(self, order: BlockOrder) -> "ReadTask":
        """Return a copy of the task with the order of a leftover; ends of its epochs are not reported."""
        task = copy(self)
        task.order, task.on_epoch_end = order, None
        return task

    def orders(self, position: Position) -> Iterator[OrderAt]:
        """The orders that are read from the position on, as copies that nobody else uses."""
        return chain([(copy(self.order), position)], self.later())

    def next_epoch(self, epoch: int) -> int | None:
        """End an epoch; return the next one in which the lane has a share, or None at the end of its stream."""
        if self.on_epoch_end is not None and self.order.is_whole(epoch) and self.order.share(epoch):
            self.on_epoch_end(epoch)
        if self.part is not None:
            self._empty_epochs = 0 if self.num_found > self._found_before else self._empty_epochs + 1
            self._found_before = self.num_found
        # It would look on without end for a record of the part. Blocks that are not shuffled are dealt alike after at
        # most as many epochs as there are lanes; shuffled ones reach each lane some time. The first epoch may have been
        # entered in its middle.
        if self._empty_epochs > self.lane.count and not self.order.shuffle and math.isinf(self.order.epochs.end):
            raise SourceError(
                f"source {shown(self.name)}: expected records of the {self.part}, got none in {self._empty_epochs} "
                "epochs of this lane's share, which is the same in each\n"
                "  Shuffle it, raise its holdout, read it to its end once (finite()), or take fewer ranks or workers."
            )
        return self.order.next_epoch(epoch)

    def sound_or_damaged(self, record: Record | DamagedRecordError) -> Record:
        """Return a sound record, or a `DamagedRecord` for a damaged one if the task keeps these.

        Raises:
            DamagedRecordError: The record is damaged, and the task does not keep these.
        """
        if not isinstance(record, DamagedRecordError):
            return record
        if not self.keeps_damaged:
            raise record
        return DamagedRecord(record, "reading", **{**self.fields, URL: record.url, KEY: record.key})

    def grow(self, most: int) -> int:
        """The number of records to read ahead now: it grows from 1, for a fast first sample, to `most`."""
        # Doubled: what reading ahead saves is had after a few samples, and the first does not wait for 32 records.
        now = min(self._ahead, most)
        self._ahead = max(self._ahead, 2 * now)
        return now


class DamagedRecord(dict[str, Any]):
    """Stands for a record that could not be read; it has the fields that identify it.

    Attributes:
        error: Why.
        what: What failed.
    """

    def __init__(self, error: Exception | SystemExit, what: str, **fields: object) -> None:
        super().__init__(fields)
        self.error, self.what = error, what


def fields_of(item: object, name: str) -> Record:
    """The fields of a dataset's item; an item that is not a dict is put under `data`.

    Raises:
        SourceError: The item has the reserved field in which an output carries the states of what was pulled for it.
    """
    if not isinstance(item, dict):
        return {"data": item}
    if STATES in item:  # taken for ours, it would go into the checkpoint
        raise SourceError(
            f"source {shown(name)}: expected records without the field {STATES!r}, which streamdata sets "
            "itself, got one "
            "with it\n  Rename the field."
        )
    return item


def no_record(dataset: object, name: str) -> SourceError:
    """Make the error for a dataset that gave None, which would be trained on as `{"data": None}`."""
    return SourceError(
        f"source {shown(name)} ({type(dataset).__name__}): expected a record, got None\n"
        "  Give it a single_process_fn, which gets it as {'data': None} and may leave it out by returning None."
    )


def check_position(name: str, what: str, got: int, last: int) -> None:
    """Raise StateError if the states stand beyond the end: `got` is greater than `last`.

    Raises:
        StateError: The states stand beyond the end.
    """
    if got > last:
        raise StateError(
            f"source {shown(name)}: states {what}, expected at most {last}\n  Restore the states as they were saved."
        )


def place_of(record: Record | DamagedRecordError) -> Record:
    """Name a record of a shard: `url` and `key`."""
    if isinstance(record, DamagedRecordError):
        return {"url": record.url, "key": record.key}
    return {"url": str(record[URL]), "key": record[KEY]}


def describe_record(record: object) -> str:
    """Identify a record in a message: by url and key, or by index."""
    if not isinstance(record, dict):
        return "a record without fields"
    if URL in record:
        return f"{record[URL]}, key {shown(record.get(KEY))}"
    if INDEX in record:
        return f"index {record[INDEX]}"
    return f"record {record[RECORD][2]}" if RECORD in record else f"a record with {names_text(record)}"
