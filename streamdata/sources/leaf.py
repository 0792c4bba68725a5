"""One source in one lane: its samples, each with the cursor after it."""

from collections.abc import Iterator
from typing import Any

from streamdata.errors import SourceError, StateError
from streamdata.progress import Cursor, PlainCursor, Position, check_position
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
        StateError: The cursor stands where there is nothing, or a function does not do again what it did.
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
        at = Cursor(order.only_epoch or 0) if cursor is None else cursor
        self._start, self._given, self._state = at.position, at.given, at.function
        epoch, window = at.epoch, at.window
        if order.only_epoch not in (None, epoch):
            raise StateError(
                f"source {tally.name!r}: states in epoch {epoch}, expected {order.only_epoch}\n"
                "  Restore the states as they were saved."
            )
        check_position(tally.name, f"in window {window} of epoch {epoch}", window, source.num_windows(order, epoch))
        with_places = self._single is not None or self._stream is not None
        self._task = ReadTask(tally.name, lane, order, tally, with_places)
        if from_window:
            self._start, self._given, self._state = source.window_start(self._task, self._start), 0, None
        _, *within_epoch = self._start
        self._whole_epoch = not any(within_epoch) and not self._given
        self._is_endless = order.only_epoch is None
        self._feed: Feed[Position] | None = None
        self._outputs = self._outputs_before = 0

    def __iter__(self) -> Iterator[tuple[Sample, PlainCursor]]:
        records = self._source.read(self._task, self._start)
        if not self._task.with_places and not self._tally.max_bad:
            return records  # every record is a sample, and its position the whole cursor
        return self._counted(records)

    def _counted(self, records: Iterator[tuple[Record, Position]]) -> Iterator[tuple[Sample, PlainCursor]]:
        self._task.on_epoch_end = self._end_epoch
        if self._single is not None:
            records = call_per_record(self._single, records, self._start, self._tally, self._source.start_of)
        outputs = self._with_counts(records) if self._stream is None else self._bursts(self._stream, records)
        for output in outputs:
            self._outputs += 1
            yield output
        self._check_epoch("the stream")

    def _with_counts(self, records: Iterator[tuple[Record, Position]]) -> Iterator[tuple[Sample, PlainCursor]]:
        for sample, position in records:
            yield sample, (*position, 0, None, self._tally.dropped, self._tally.bad)

    def _bursts(
        self, function: StreamFn, records: Iterator[tuple[Record, Position]]
    ) -> Iterator[tuple[Sample, PlainCursor]]:
        feed = Feed(records, self._start, _latest, self._given, self._tally, "process_fn")
        self._feed = feed
        for sample in Bursts(function, feed, self._state, self._tally, "process_fn"):
            yield sample, (*feed.start, feed.given, feed.state, self._tally.dropped, self._tally.bad)

    def _end_epoch(self, epoch: int) -> None:
        """Raise when a whole epoch led to no sample; what a finite stream gives at its very end is waited for."""
        if self._is_endless:
            if self._feed is None or not self._feed.holds_records():
                self._check_epoch(f"a whole epoch (number {epoch})")
            self._whole_epoch, self._outputs_before = True, self._all_outputs()

    def _all_outputs(self) -> int:
        """Samples given so far; a stream function's own count, since on resume the first of them are not passed on."""
        return self._outputs if self._feed is None else self._feed.outputs

    def _check_epoch(self, what: str) -> None:
        if self._whole_epoch and self._all_outputs() == self._outputs_before:
            passed_over = "" if self._feed is None else f"; {self._feed.passed_over()}"
            raise SourceError(
                f"source {self._tally.name!r}: {what} of this lane's share gave no sample: "
                f"{self._tally.summary()}{passed_over}\n"
                "  Mend the data or the process function, or give the lane more records (fewer ranks or workers)."
            )


def _latest(_: Position, after: Position) -> Position:
    return after
