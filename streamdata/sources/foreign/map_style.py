"""Any map-style dataset as a source: its blocks are single records, unless some belong together."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError, shown
from streamdata.fields import INDEX, RECORD, SEED
from streamdata.recipe.named_source import SEED as SEED_PARTS
from streamdata.recipe.named_source import PartRange, Span
from streamdata.run import Permutation, stable_seed
from streamdata.sources.functions.tally import raise_noted
from streamdata.sources.order.blocks import MAP_STYLE_SEED, BlockOrder, Part, selection_of
from streamdata.sources.source import DamagedRecord, ReadTask, Record, Source, check_position, fields_of, no_record
from streamdata.states.cursor import Position
from streamdata.states.headers import UNIT, BlockCut

logger = logging.getLogger("streamdata")

# Blocks permuted at once. A call of `Permutation` takes 33 µs for 64 numbers and 84 µs for 1,024, a sixth for each: few
# at first, so that the first sample is not late. 4,096 would save 30 ns more for each, but every source holds a chunk.
_FIRST_CHUNK, _CHUNK = 64, 1024
# As Python's integers, which take more memory than NumPy's: the positions of whole chunks of a thousand sources took
# 216 MB.
_LISTED = 64
# A bound on what a lane holds that nobody has asked for yet, and on what a resume reads for nothing.
_LOOK_AHEAD = 32

Indices = npt.NDArray[np.int64]
IndexedPosition = tuple[int, Position]
"""A record's index, and the position after it."""


class MapStyleSource(Source):
    """Reads a dataset by `__getitem__`, or ahead in the lane's own order by `__getitems__`.

    Args:
        dataset: Has `__len__` and `__getitem__`. An item that is not a dict is delivered under `data`; a dict is
            copied; None is a failure, unless its `single_process_fn` takes it. As many records as its
            `records_per_block` says, by default 1, stay side by side and in order in one lane. Its `source_identity`, a
            short str that it need not have, says what determines its records beside
            their number: a resume compares it. It must not say where the data lie, so that they can be moved. Its
            `parts`, `parts_by` and `part`, if it has such, say which of its blocks are read.

    Raises:
        ValueError: Its length is not a multiple of its `records_per_block`, or its part has no records.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._takes_none = dataset, getattr(dataset, "single_process_fn", None) is not None
        who = f"source {shown(getattr(dataset, 'name', None))}"
        self.records_per_block: int = int(getattr(dataset, "records_per_block", 1))
        try:
            self._num_all = len(dataset)
        except (Exception, SystemExit) as error:
            raise_noted(error, f"{who}: its __len__ failed")
        if self.records_per_block < 1 or self._num_all % self.records_per_block:
            raise ValueError(
                f"{who}: expected a length that its records_per_block {self.records_per_block} divides, "
                f"got {self._num_all}\n  Give each block as many records."
            )

        selected = selection_of(dataset)  # what is held out, the lane asks for
        self._parts = selected if isinstance(selected, PartRange) else None
        num_blocks = self._num_all // self.records_per_block
        self._first, self._last = Span(0, num_blocks) if self._parts is None else self._parts.span(num_blocks)
        self.num_blocks = self._last - self._first
        if self._parts is not None and not self.num_blocks:
            raise ValueError(
                f"{who}: expected records of the {self._parts}, got none of {self._num_all}\n"
                "  Give it a larger share, or more records."
            )
        # Of the number of blocks alone: training and validation may mix with different seeds.
        spread = self._parts is not None and self._parts.by == SEED_PARTS
        self._spread = Permutation(num_blocks, stable_seed("parts", num_blocks)) if spread else None

    @property
    def num_records(self) -> int:
        """The number of records in the part that is read."""
        return self.num_blocks * self.records_per_block

    def describe(self, shuffle: bool) -> str:
        blocks = f" in blocks of {self.records_per_block}" if self.records_per_block > 1 else ""
        identity = getattr(self._dataset, "source_identity", None)
        of_what = "" if identity is None else f" of {identity}"
        parts = "" if self._parts is None else f", {self._parts}"
        return f"map-style, {self._num_all} records{of_what}{blocks}, shuffle {shuffle}{parts}"

    def fetch(self, numbers: Sequence[int], part: Part | None = None) -> Iterator[Record | None]:
        name = str(getattr(self._dataset, "name", None))
        for index in numbers:
            place = self.block_of(index) if index < self._num_all else None
            if place is None or not (part is None or part.holds(np.array(place[:1]), MAP_STYLE_SEED).all()):
                yield None
                continue
            try:
                item = self._dataset[index]
                if item is None and not self._takes_none:
                    raise no_record(self._dataset, name)
            except (Exception, SystemExit) as error:
                raise_noted(error, f"source {shown(name)}: __getitem__ failed at index {index}")
            yield {**fields_of(item, name), INDEX: index}

    def identify(self, number: int) -> Record:
        return {"index": range(self._num_all)[number]}

    def start_of(self, after: Position) -> Position:
        epoch, window, taken, _ = after
        # After the last record of a block stands the start of the next one.
        return (epoch, window, taken - 1, 0) if taken else (epoch, window - 1, self.records_per_block - 1, 0)

    @property
    def cut(self) -> BlockCut:
        return BlockCut(self.num_blocks, 1, self.records_per_block * UNIT, divides=0, epochs=0)

    def count(self, blocks: Indices, part: Part | None) -> int:
        # Records that belong together are of one part: copies of a prompt would else be trained on and evaluated with.
        num_blocks = len(blocks) if part is None else int(np.count_nonzero(part.holds(blocks, MAP_STYLE_SEED)))
        return num_blocks * self.records_per_block

    def count_taken(self, order: BlockOrder, position: Position, part: Part | None) -> int:
        return position[2]  # of one block: who took some of it took all of the part

    def block_of(self, index: int) -> tuple[int, int] | None:
        """The block of a record, and the record's number in the block; None if the record is of another part."""
        block = index // self.records_per_block
        if self._spread is not None:
            block = int(self._spread.inverse(np.array([block]))[0])
        return (block - self._first, index % self.records_per_block) if self._first <= block < self._last else None

    def place(self, order: BlockOrder, epoch: int, window: int, block: int, offset: int) -> int:
        """The position, in a window's shuffled order, of a record given by its block and offset."""
        return offset

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        ahead = getattr(self._dataset, "__getitems__", None)
        taken = position[2]
        check_position(task.name, f"at record {taken} of a block", taken, self.records_per_block - 1)
        for epoch, number, blocks in _chunks(task, position):
            task.fields[SEED] = task.order.seed(epoch)
            positions = islice(self._positions(task, epoch, number, blocks), taken, None)
            taken = 0
            if ahead is None:
                yield from self._singly(task, epoch, positions)
            else:
                yield from self._ahead(ahead if task.noting is None else task.noting(ahead), task, epoch, positions)

    def _positions(self, task: ReadTask, epoch: int, number: int, blocks: Indices) -> Iterator[IndexedPosition]:
        """The records of the lane's blocks from number `number` on, none made before it is due."""
        size, placed = self.records_per_block, blocks
        if self._parts is not None:
            placed = blocks + self._first if self._spread is None else self._spread(blocks + self._first)
        numbers, nexts = _listed(placed), iter(range(number + 1, number + 1 + len(blocks)))
        if task.part is not None:
            kept = np.flatnonzero(task.part.holds(blocks, MAP_STYLE_SEED))
            task.num_found += len(kept) * size
            numbers, nexts = _listed(blocks[kept]), _listed(kept + number + 1)
        if size == 1:
            return zip(numbers, zip(repeat(epoch), nexts, repeat(0), repeat(0), strict=False), strict=True)
        return (
            (block * size + offset, (epoch, later - 1, offset + 1, 0) if offset + 1 < size else (epoch, later, 0, 0))
            for block, later in zip(numbers, nexts, strict=True)
            for offset in range(size)
        )

    def _singly(
        self, task: ReadTask, epoch: int, positions: Iterable[IndexedPosition]
    ) -> Iterator[tuple[Record, Position]]:
        name, source, common = task.name, task.number, task.fields
        get = self._dataset.__getitem__ if task.noting is None else task.noting(self._dataset.__getitem__)
        for index, after in positions:
            try:
                item = get(index)
                if item is None and not self._takes_none:
                    raise no_record(self._dataset, name)
            except (Exception, SystemExit) as error:  # a user's dataset may raise anything; the tally decides
                if task.keeps_damaged:
                    fields = {**common, INDEX: index, RECORD: (source, epoch, index, 0)}
                    yield DamagedRecord(error, "__getitem__", **fields), after
                else:
                    task.tally.fail(error, f"index {index}", "__getitem__")
                continue
            # Filled in steps: a dict with these in its display would be made anew twice while it grows.
            record = {**fields_of(item, name), **common}
            record[INDEX] = index
            record[RECORD] = (source, epoch, index, 0)
            yield record, after

    def _ahead(
        self,
        get: Callable[[list[int]], Sequence[Any]],
        task: ReadTask,
        epoch: int,
        positions: Iterator[IndexedPosition],
    ) -> Iterator[tuple[Record, Position]]:
        while some := list(islice(positions, task.grow(_LOOK_AHEAD))):
            indices = [index for index, _ in some]
            try:
                items = get(indices)
            except (Exception, SystemExit) as error:  # one of them is bad: find out which, one by one
                logger.warning(
                    "source %s: __getitems__ of %s raised %s; reading one by one",
                    shown(task.name),
                    indices,
                    shown(error),
                )
                yield from self._singly(task, epoch, some)
            else:
                _check_items(items, indices, task.name)
                for (index, after), item in zip(some, items, strict=True):
                    if item is None and not self._takes_none:
                        task.tally.fail(no_record(self._dataset, task.name), f"index {index}", "__getitems__")
                        continue
                    record = {**fields_of(item, task.name), **task.fields}
                    record[INDEX] = index
                    record[RECORD] = (task.number, epoch, index, 0)
                    yield record, after


def _check_items(items: object, indices: list[int], name: str) -> None:
    size = len(items) if isinstance(items, Sized) and not isinstance(items, Mapping) else None
    if size != len(indices):
        got = f"a {type(items).__name__}" if size is None else f"{size} items"
        raise SourceError(
            f"source {shown(name)}: __getitems__ gave {got} for the {len(indices)} indices {indices}\n"
            "  It must give a list with an item for each index, in their order; drop items in single_process_fn."
        )


def _listed(blocks: Indices) -> Iterator[int]:
    """The blocks as Python's integers, few of them at a time."""
    return chain.from_iterable(blocks[first : first + _LISTED].tolist() for first in range(0, len(blocks), _LISTED))


def _chunks(task: ReadTask, position: Position) -> Iterator[tuple[int, int, Indices]]:
    """Yield (epoch, number of the first, blocks): the permutation is computed for many at once, few at the start."""
    order = task.order
    epoch: int | None = position[0]
    first, size = position[1], _FIRST_CHUNK
    while epoch is not None:
        while len(blocks := order.blocks(epoch, first, first + size)):
            yield epoch, first, blocks
            first, size = first + len(blocks), min(4 * size, _CHUNK)
        epoch, first = task.next_epoch(epoch), 0
