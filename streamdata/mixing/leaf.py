"""A source of records in one lane: its samples, each with the cursor after it."""

from collections.abc import Iterator

from streamdata.errors import StateError
from streamdata.mixing.child import Pairs, Run
from streamdata.mixing.tree import Node
from streamdata.progress import Cursor, Position, check_position
from streamdata.sources import BlockOrder, Source
from streamdata.sources.functions import Feed, PerRecordFn, StreamFn, call_per_record, run_bursts
from streamdata.sources.source import ReadTask, Record


class Leaf:
    """Reads a source; under an endless parent it rolls from epoch to epoch, else round r is its epoch r.

    Args:
        run: The lane and where it stood.
        node: The source; its dataset's `single_process_fn`, `process_fn` and `max_bad` apply.
        source: The same, as blocks of records.
        parent_endless: Whether its parent is endless.
    """

    is_mixture = False

    def __init__(self, run: Run, node: Node, source: Source, parent_endless: bool) -> None:
        self.path, self.endless = node.path, parent_endless
        self._run, self._node, self._source, self._tally = run, node, source, run.tally(node)
        self._single: PerRecordFn | None = getattr(node.dataset, "single_process_fn", None)
        self._stream: StreamFn | None = getattr(node.dataset, "process_fn", None)

    def has_records(self, round_: int) -> bool:
        return self.endless or self._order(round_).share(round_) > 0

    def epoch_paths(self) -> Iterator[str]:
        yield self.path

    def start(self, round_: int, cursor: Cursor | None) -> Pairs:
        """Its samples, from the cursor on.

        Raises:
            SourceError: A whole epoch of the lane's share gave no sample.
            StateError: The cursor stands where there is nothing, or a function does not do again what it did.
        """
        order, at = self._order(round_), cursor or Cursor(0 if self.endless else round_)
        self._check_cursor(at, order)
        has_function = self._single is not None or self._stream is not None
        task = ReadTask(self.path, self._run.lane, order, self._tally, with_indices=has_function)
        if self._run.from_window:
            at = Cursor(*self._source.window_start(task, at.position))
        records = self._source.read(task, at.position)
        if not has_function and not self._tally.max_bad:
            return records  # every record is a sample, and its position the whole cursor
        return self._processed(task, records, at)

    def _order(self, round_: int) -> BlockOrder:
        seeds = (*self._node.seeds, self._run.key.epoch_pass)
        only_epoch = None if self.endless else round_
        return BlockOrder(self._source.num_blocks, self._run.lane, seeds, self._node.shuffle, only_epoch)

    def _check_cursor(self, at: Cursor, order: BlockOrder) -> None:
        if order.only_epoch not in (None, at.epoch):
            raise StateError(
                f"source {self.path!r}: states in epoch {at.epoch}, expected {order.only_epoch}\n"
                "  Restore the states as they were saved."
            )
        last = self._source.num_windows(order, at.epoch)
        check_position(self.path, f"in window {at.window} of epoch {at.epoch}", at.window, last)

    def _processed(self, task: ReadTask, records: Iterator[tuple[Record, Position]], at: Cursor) -> Pairs:
        self._outputs = self._outputs_before = 0
        # The first epoch is judged if it is read from its start; of one that a resume enters, part was seen before.
        self._whole_epoch = not (at.window or at.taken or at.part or at.given)
        self._feed: Feed[Position] | None = None
        task.on_epoch_end = self._end_epoch
        if self._single is not None:
            records = call_per_record(self._single, records, at.part, self._tally, self._source.start_of)
        outputs = self._with_counts(records) if self._stream is None else self._bursts(self._stream, records, at)
        for output in outputs:
            self._outputs += 1
            yield output
        self._check_epoch("the stream")

    def _with_counts(self, records: Iterator[tuple[Record, Position]]) -> Pairs:
        for sample, position in records:
            yield sample, (*position, 0, None, self._tally.dropped, self._tally.bad)

    def _bursts(self, function: StreamFn, records: Iterator[tuple[Record, Position]], at: Cursor) -> Pairs:
        feed = self._feed = Feed(records, at.position, _latest, at.given, self._tally, "process_fn")
        for sample in run_bursts(function, feed, at.function):
            yield sample, (*feed.start, feed.given, feed.state, self._tally.dropped, self._tally.bad)

    def _end_epoch(self, epoch: int) -> None:
        """Raise when a whole epoch led to no sample."""
        # A finite stream is not judged before its very end: there a function may still return what it holds.
        if self.endless:
            # Nor is an epoch whose records a stateful function says that it still holds, such as a packer's.
            if self._feed is None or not self._feed.holds_records():
                self._check_epoch(f"a whole epoch (number {epoch})")
            self._whole_epoch, self._outputs_before = True, self._num_outputs()

    def _num_outputs(self) -> int:
        # A stream function's own count: on resume the first of its outputs are not passed on, but were given.
        return self._outputs if self._feed is None else self._feed.outputs

    def _check_epoch(self, what: str) -> None:
        if self._whole_epoch and self._num_outputs() == self._outputs_before:
            passed_over = "" if self._feed is None else self._feed.passed_over()
            raise self._tally.silence(f"{what} of this lane's share", passed_over)


def _latest(_: Position, after: Position) -> Position:
    return after
