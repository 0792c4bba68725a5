"""One source in one lane: its samples, each with the cursor after it."""

from collections.abc import Iterator
from typing import Any

from streamdata.errors import SourceError
from streamdata.progress import Cursor, FunctionState, Position, whole
from streamdata.run import Lane
from streamdata.sources.functions import Bursts, Feed, PerRecordFn, StreamFn, call_per_record
from streamdata.sources.order import BlockOrder
from streamdata.sources.source import ReadTask, Record, Sample, Source
from streamdata.sources.tally import Tally


class Leaf:
    """Iterates over (sample, cursor after it) of one source in one lane.

    Args:
        dataset: What the recipe names: its attributes `single_process_fn`, `process_fn` and `max_bad` apply.
        source: The same, as blocks of records.
        lane: Who reads.
        order: The lane's blocks.
        tally: Counts what is not delivered.
        cursor: Where to go on; None at the beginning.
        from_window: Go back to the start of the window instead, with the process function afresh.

    Raises:
        SourceError: A whole epoch of the lane's share gave no sample.
    """

    def __init__(
        self,
        dataset: Any,
        source: Source,
        lane: Lane,
        order: BlockOrder,
        tally: Tally,
        cursor: Cursor | None,
        from_window: bool,
    ) -> None:
        self._single: PerRecordFn | None = getattr(dataset, "single_process_fn", None)
        self._stream: StreamFn | None = getattr(dataset, "process_fn", None)
        self._source, self._tally = source, tally
        self._start, self._given, self._state = _resumed(cursor, order)
        with_places = self._single is not None or self._stream is not None
        self._task = ReadTask(tally.name, lane, order, tally, with_places)
        if from_window:
            self._start, self._given, self._state = source.window_start(self._task, self._start), 0, None
        self._epoch: int | None = None
        self._from_its_start = self._start[1:] == (0, 0, 0) and not self._given
        self._feed: Feed[Position] | None = None
        self._outputs = self._outputs_before = 0

    def __iter__(self) -> Iterator[tuple[Sample, Cursor]]:
        records = self._source.read(self._task, self._start)
        if not self._task.with_places and not self._tally.max_bad:
            return records  # the position alone is the whole cursor
        if self._single is None and self._stream is None:
            return self._with_counts(records)
        return self._processed(records)

    def _with_counts(self, records: Iterator[tuple[Record, Position]]) -> Iterator[tuple[Sample, Cursor]]:
        for sample, position in records:
            yield sample, (*position, 0, None, self._tally.dropped, self._tally.bad)

    def _processed(self, records: Iterator[tuple[Record, Position]]) -> Iterator[tuple[Sample, Cursor]]:
        records = self._watched(records)
        if self._single is not None:
            records = call_per_record(self._single, records, self._start, self._tally)
        outputs = self._with_counts(records) if self._stream is None else self._bursts(self._stream, records)
        for output in outputs:
            self._outputs += 1
            yield output
        if self._epoch is not None:
            self._check_epoch(self._epoch)

    def _bursts(
        self, function: StreamFn, records: Iterator[tuple[Record, Position]]
    ) -> Iterator[tuple[Sample, Cursor]]:
        feed = Feed(records, self._start, _latest)
        self._feed = feed
        for sample in Bursts(function, feed, self._given, self._state, self._tally, "process_fn"):
            yield sample, (*feed.start, feed.given, feed.state, self._tally.dropped, self._tally.bad)

    def _watched(self, records: Iterator[tuple[Record, Position]]) -> Iterator[tuple[Record, Position]]:
        """Pass the records on, and raise when a whole epoch of them led to no sample."""
        for record, after in records:
            if after[0] != self._epoch:
                if self._epoch is not None:
                    if not self._holds_records():
                        self._check_epoch(self._epoch)
                    self._from_its_start, self._outputs_before = True, self._all_outputs()
                self._epoch = after[0]
            yield record, after

    def _all_outputs(self) -> int:
        """Samples given so far; a stream function's own count, since on resume the first of them are not passed on."""
        return self._outputs if self._feed is None else self._feed.outputs

    def _holds_records(self) -> bool:
        stateful = self._feed.stateful if self._feed is not None else None
        return stateful is not None and stateful.state_dict().get("rewind", 0) > 0

    def _check_epoch(self, epoch: int) -> None:
        if self._from_its_start and self._all_outputs() == self._outputs_before:
            raise SourceError(
                f"source {self._tally.name!r}: a whole epoch (number {epoch}) of this lane's share gave no sample: "
                f"{self._tally.summary()}\n"
                "  Mend the process function or its filter, or give the lane more records (fewer ranks or workers)."
            )


def _latest(_: Position, after: Position) -> Position:
    return after


def _resumed(cursor: Cursor | None, order: BlockOrder) -> tuple[Position, int, FunctionState | None]:
    """The cursor as position, outputs given and function state."""
    if cursor is None:
        return (order.only_epoch or 0, 0, 0, 0), 0, None
    epoch, window, taken, part, given, function, _, _ = whole(cursor)
    return (epoch, window, taken, part), given, function
