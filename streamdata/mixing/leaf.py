"""A source of records in one lane: its samples, each with the cursor after it.

`Run` is what all nodes of the tree share while a lane is read. `read_again` gives samples by their ids, without a lane.
"""

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, count, takewhile
from numbers import Real
from operator import itemgetter
from typing import Any, NamedTuple, Self, TypeAlias

from streamdata.errors import SourceError, StateError, shown
from streamdata.fields import DATASET_NAME, DP_RANK, RECORD, SEED, WEIGHT, WORKER_ID
from streamdata.mixing.checks import checked_pass
from streamdata.mixing.control import WorkerPlace
from streamdata.mixing.deals import Deals
from streamdata.mixing.tree import (
    MixtureSettings,
    Node,
    find_leaf,
    leaves_by_name,
    named_nodes,
    no_such_record,
    not_numbered,
    source_names,
    tree_of,
)
from streamdata.run import Lane, stable_seed
from streamdata.run.lane_link import LaneLink, SourceTimes
from streamdata.run.stalls import StallWatch
from streamdata.shards.ahead.read_ahead import LaneAhead, Upcoming
from streamdata.shards.readers import DamagedRecordError
from streamdata.sources import Burst, DealtLane
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.sources.functions.process_functions import Feed, PerRecordFn, StreamFns, call_per_record, run_bursts
from streamdata.sources.functions.starts import is_stateful
from streamdata.sources.functions.tally import Tally, counts_of, raise_noted
from streamdata.sources.skip import Skipping, Skips
from streamdata.sources.source import DamagedRecord, ReadTask, Record, Sample, StreamStates, describe_record
from streamdata.states.cursor import Cursor, LaneEntries, LaneKey, NodeKey, PlainCursor, Position
from streamdata.states.headers import Base, Tree
from streamdata.states.progress import Progress
from streamdata.states.table import COUNTS

Counts: TypeAlias = dict[str, dict[str, Any]]
"""Counts of nodes: by path, then by name; `cost` is a float."""

Pairs = Iterator[tuple[Sample, PlainCursor]]
"""Samples, each with the cursor after it."""

ShareAt = Callable[[float], float]
"""The share of a source in its mixture at a time."""


@dataclass
class Present:
    """The present time of the schedules in a lane, shared by all of its nodes.

    The top sets it when it draws of a source that such a mixture is in.
    """

    time: float = 0.0
    """Samples (or cost) that the job has drawn of the top by now."""
    unit: float = 1.0
    """Mean count, in the top, of a sample of the source that is being drawn: its cost, if there is a cost."""
    weigh: Callable[[Sample], float] | None = None
    """The top's cost."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Facts shared by all nodes of the tree while one lane is iterated."""

    lane: Lane
    key: LaneKey
    progress: Progress
    entries: LaneEntries
    """This lane's entries in this pass, out of `progress`."""
    generation: int
    base: Base
    deals: Deals
    tree: Tree
    numbers: Mapping[str, int]
    """By path, of the sources of records."""
    skips: Skips
    from_window: bool = False
    header: str = ""
    link: LaneLink | None = None
    present: Present = field(default_factory=Present)
    ahead: LaneAhead = field(default_factory=LaneAhead)
    place: WorkerPlace | None = None
    """Where a worker notes which record it is at."""
    watch: StallWatch | None = None
    """Names records that take too long, where somebody wants to know."""
    times: SourceTimes = field(default_factory=dict)
    """How long sources were read; drawing adds to it."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By path, of the nodes."""
    ends: defaultdict[str, Counter[str]] = field(default_factory=partial(defaultdict, Counter))
    """By path, where a yield function came to its end: `draws`, `tokens` and `cost` of the nodes below it, and how many
    outputs of its last burst it had `given`."""
    repeated: Counts = field(default_factory=dict)
    """Counts of outputs of a yield function over all, whose bursts were drawn anew: they are delivered twice and count
    twice, and are in the entries of the nodes below once."""

    @classmethod
    def at(cls, progress: Progress, epoch_pass: int, lane: Lane, deals: Deals, tree: Tree, skips: Skips) -> Self:
        """Make the facts of a lane from where the states say that it stands in a pass."""
        key = LaneKey(epoch_pass, lane.dp_rank, lane.worker)
        return cls(
            lane=lane,
            key=key,
            progress=progress,
            entries=progress.lane(key),
            generation=progress.generation(tree),
            base=progress.base(epoch_pass),
            deals=deals,
            tree=tree,
            numbers=dict(zip(tree.sources, count(), strict=False)),
            skips=skips,
        )

    @property
    def begins_generation(self) -> bool:
        """Whether the lane stands in an earlier generation, and gives the first sample of this one next."""
        return bool(self.entries.cursors) and self.generation not in self.entries.cursors.get("", {})

    def node_key(self, path: str) -> NodeKey:
        """The `NodeKey` that all entries of a node in this lane share."""
        return NodeKey(self.header, self.generation, self.key, path, self.link)

    def tally(self, node: Node) -> Tally:
        """Make the tally of what a node does not deliver, continued from the states."""
        state = self.entries.node_state(node.path)
        at = None if state is None else state.cursor
        counts = self.deals.counts(node.path, self.lane.index) if at is None else [getattr(at, name) for name in COUNTS]
        max_bad = int(getattr(node.dataset, "max_bad", 0))
        tally = self.tallies[node.path] = Tally(node.path or "the top", max_bad, *counts)
        tally.note = None if self.place is None else self.place.noting(tally.name)
        if self.watch is not None:
            tally.note = self.watch.noting(tally.name, tally.note or (lambda _: None))
        return tally


Records = Iterator[tuple[Record, Position]]

_MAX_SKIPPED = 1000
"""Records in a row that `skip` may leave out of an endless lane, over at least as many epochs as there are lanes."""


class Leaf:
    """Reads one source in a lane, epoch after epoch, up to the recipe's `max_epochs`.

    Args:
        run: The lane and where it stood.
        node: The source; its dataset's `single_process_fn`, `process_fn` and `max_bad` apply.
    """

    is_mixture = False

    def __init__(self, run: Run, node: Node) -> None:
        self.path, self.endless = node.path, node.is_endless
        self._run, self._tally = run, run.tally(node)
        self._lane = run.deals.lane(node, run.lane.index)
        self._part, self._is_left_out = node.part, run.skips.of(node.path)
        self._skipping: Skipping | None = None
        # Where one source has weights, all have: a batch of any of them has the same fields.
        self._has_weights, self._weight_field = any(run.tree.sources.values()), run.tree.sources[node.path]
        self._single: PerRecordFn | None = getattr(node.dataset, "single_process_fn", None)
        self._stream: StreamFns | None = getattr(node.dataset, "process_fn", None)
        self._tally.counts_outputs = hasattr(self._stream, "ended_pulls") and is_stateful(self._stream)
        is_of_shards = isinstance(node.dataset, ShardDataset)
        self._reads_ahead = is_of_shards and run.ahead.settings.read_ahead_bytes > 0
        self._remote = node.dataset.source if is_of_shards and node.dataset.source.shards.has_remote else None
        # Before any of them reads: the first one may not take the room that the others will need.
        run.ahead.expect(is_remote=self._remote is not None)

    def has_records(self) -> bool:
        return self.endless or self._lane.has_records()

    def beginning(self) -> PlainCursor:
        return (*self._lane.start, 0, None, *counts_of(self._tally), None)

    def start(self, cursor: Cursor | None) -> Pairs:
        """Yield the source's samples from a cursor on, or from the lane's start.

        Raises:
            SourceError: A whole epoch of the lane's share gave no sample.
            StateError: The cursor stands where there is nothing, or a function does not do again what it did.
        """
        lane = self._lane
        at = cursor or Cursor(*lane.start)
        if cursor is not None:
            lane.check(at.position)
        if lane.bursts and self._stream is None:
            raise StateError(
                f"source {shown(self.path)}: the states hold records that its process_fn had been given and not "
                "answered, got no process_fn\n  Resume with the process_fn that it had."
            )
        has_function = self._single is not None or self._stream is not None
        number, upcoming = self._run.numbers[self.path], Upcoming(self._run.ahead) if self._reads_ahead else None
        task = ReadTask(self.path, number, self._run.lane, lane.order, self._tally, self._part, upcoming)
        if (watch := self._run.watch) is not None:
            task.noting = partial(watch.noting, self.path)
        if isinstance(self._lane.dealt.source, OwnStreamSource):
            task.stream = StreamStates(self._run.key.epoch_pass, at.position, at.stream)
        if self._run.from_window:
            at = Cursor(*lane.window_start(at.position))
        if self._remote is not None and upcoming is not None and not lane.bursts:
            task.later = partial(lane.after, at.position, -1)
            self._remote.begin_ahead(task, upcoming)
        if has_function or self._tally.max_bad or self._is_left_out is not None:
            pairs = self._processed(lane, task, at)
        else:  # every record is a sample, and its position the whole cursor
            segments = lane.segments(task, at.position)
            pairs = chain.from_iterable(map(itemgetter(1), self._weighed(segments) if self._has_weights else segments))
            if watch is not None:
                pairs = watch.reading(self.path, pairs)
        return pairs if task.stream is None else task.stream.join(pairs)

    def _processed(self, lane: DealtLane, task: ReadTask, at: Cursor) -> Pairs:
        # A stream function's: what was forgiven is fed again with the open burst, whatever is forgiven by now.
        forgives = self._tally.max_bad > 0 or self._stream is not None
        self._task, task.keeps_damaged = task, forgives or self._is_left_out is not None
        for burst in lane.bursts:
            place = lane.start[0], burst.number
            if place >= at[:2]:
                yield from self._burst(lane, task, burst, max(at.given if place == at[:2] else 0, burst.given))
        position = lane.after_bursts(at.position)
        if position != at.position:
            at = Cursor(*position)
        self._outputs = self._outputs_before = 0
        self._given_before, self._skipped_epochs, self._skipped_before = 0, 0, self._tally.skipped
        self._found_before = task.num_found
        # The first epoch is judged if it is read from its start; of one that a resume enters, part was seen before.
        # Nor is a lane that was dealt nothing but open bursts.
        self._whole_epoch = not any(at[1:6]) and lane.order.is_whole(at.epoch) and lane.has_blocks()
        self._feed: Feed[Position] | None = None
        task.on_epoch_end = self._end_epoch
        self._skipping = self._skip(at.left_out)
        segments = lane.segments(task, at.position)
        records = chain.from_iterable(self._fed(self._weighed(segments) if self._has_weights else segments))
        if self._stream is not None:
            outputs = self._bursts(self._stream, records, at)
        else:
            tally = self._tally
            outputs = ((sample, (*position, 0, None, *counts_of(tally), None)) for sample, position in records)
        try:
            for output in outputs:
                self._outputs += 1
                yield output
            self._check_epoch("the stream")
        finally:
            # Both hold the leaf: in a cycle, what its source holds open would stay so until a collection.
            self._feed, task.on_epoch_end = None, None

    def _skip(self, left_out: str) -> Skipping | None:
        """The filter of left-out records, if there are any: first those of the open burst, then those of the list."""
        if self._is_left_out is None and not left_out:
            return None
        digest = self._run.skips.digest(self.path)
        return Skipping(self._is_left_out, digest, self._tally, None if self._stream is None else left_out)

    def _weighed(self, segments: Iterator[tuple[int, Records]]) -> Iterator[tuple[int, Records]]:
        """The segments, their records with weights."""
        return ((given, _with_weights(records, self._weight_field, self.path)) for given, records in segments)

    def _fed(self, segments: Iterator[tuple[int, Records]]) -> Iterator[Records]:
        """The records that the stream function is given, or that are delivered where there is none."""
        for given, read in segments:
            found = read if self._run.watch is None else self._run.watch.reading(self.path, read)
            records = found if self._skipping is None else self._skipping.filter(found, is_begun=given > 0)
            if self._single is not None:
                yield call_per_record(self._single, records, given, self._tally, self._lane.dealt.source.start_of)
            elif self._task.keeps_damaged:  # so it is for a stream function, of which all that it is given is counted
                yield _sound(records, self._tally, counts=self._stream is not None)
            else:
                yield records

    def _burst(self, lane: DealtLane, task: ReadTask, burst: Burst, given: int) -> Pairs:
        """The rest of the burst of another lane: the function is fed exactly its records, and sees their end."""
        assert self._stream is not None, "a source without a stream function has no bursts"
        self._skipping = self._skip(burst.left_out)
        section = lane.section(task, burst)
        records: Records = chain.from_iterable(self._fed(self._weighed(section) if self._has_weights else section))
        if burst.outputs:
            end = burst.end
            records = takewhile(lambda pair: pair[1] <= end, records)
        start = (lane.start[0], burst.number, 0, 0)
        feed = Feed(records, start, given, self._tally, "process_fn", is_one_burst=True)
        for sample in run_bursts(self._stream, feed, burst.function):
            yield sample, (*start, feed.given, None, *counts_of(self._tally), None)

    def _bursts(self, function: StreamFns, records: Records, at: Cursor) -> Pairs:
        feed = self._feed = Feed(records, at.position, at.given, self._tally, "process_fn")
        samples = run_bursts(function, feed, at.function)
        tally, skipping = self._tally, self._skipping
        for sample in samples:
            left_out = () if skipping is None else (skipping.code_since(feed.start), 0)
            yield sample, (*feed.start, feed.given, feed.state, *counts_of(tally), feed.pulled, *left_out)

    def _end_epoch(self, epoch: int) -> None:
        """Raise when a whole epoch led to no sample."""
        # A finite stream is not judged before its very end: there a function may still return what it holds.
        if self.endless:
            # Nor is an epoch whose records a stateful function says that it still holds, such as a packer's.
            if self._feed is None or not self._feed.holds_records():
                self._check_epoch(f"a whole epoch (number {epoch})")
            self._whole_epoch, self._outputs_before = True, self._num_outputs()
            self._given_before = 0 if self._skipping is None else self._skipping.num_given
            self._found_before = self._task.num_found

    def _num_outputs(self) -> int:
        # A stream function's own count: on resume the first of its outputs are not passed on, but were given.
        return self._outputs if self._feed is None else self._feed.outputs

    def _check_epoch(self, what: str) -> None:
        if not self._whole_epoch or self._num_outputs() != self._outputs_before:
            self._skipped_epochs, self._skipped_before = 0, self._tally.skipped
            return
        may_be_empty = self._part is not None or self._task.stream is not None
        if may_be_empty and self._task.num_found == self._found_before:
            return  # all of the share was of the other part, or there was none: the functions were given nothing
        # A share of which all was to be skipped is not one that a function gave nothing for: a small share can be that
        # by chance, and in the next epoch it is another one. An endless stream must not go on so without end.
        if self._skipping is not None and self._skipping.num_given == self._given_before:
            self._skipped_epochs += 1
            few = self._tally.skipped - self._skipped_before < _MAX_SKIPPED
            if not self.endless or few or self._skipped_epochs <= self._run.lane.count:
                return
        passed_over = "" if self._feed is None else self._feed.passed_over()
        raise self._tally.silence(f"{what} of this lane's share", passed_over)


ReadArguments: TypeAlias = tuple[int | str, Sequence[int]] | tuple[int | str, Sequence[int], int | None]
"""A source, a row of record_ids, and perhaps a pass: what a sample is read again by."""


class _Wanted(NamedTuple):
    """A sample that is to be read again; records are read in the order of their numbers."""

    number: int
    place: int
    epoch: int
    output: int
    epoch_pass: int


def read_again(
    mixture: MixtureSettings, samples: Iterable[ReadArguments], pass_to_read: Callable[[], int], skips: Skips
) -> list[Sample]:
    """Read samples by their ids; see `MergedDataset.read_many`."""
    names, default_pass = source_names(mixture), cache(pass_to_read)
    top = tree_of(mixture, weights=dict.fromkeys(named_nodes(mixture), 1.0))  # with those that are left out
    nodes, leaves = {node.path: node for node in top.walk()}, leaves_by_name(top)
    wanted = dict[str, list[_Wanted]]()
    for place, arguments in enumerate(samples):
        try:
            source, record_id, *given = arguments
            (epoch, number, output), (epoch_pass,) = map(operator.index, record_id), given or (None,)
        except (TypeError, ValueError):
            raise ValueError(
                "read: expected a source, three integers (epoch, record, output) and perhaps a pass, got "
                f"{shown(arguments)}\n  Give a row of record_ids, or the last three numbers of __record__."
            ) from None
        node = find_leaf(leaves, source, "read")
        if not 0 <= number < 1 << 63:
            raise no_such_record(node, "read", number)
        if not 0 <= epoch < node.epochs.end:
            last = "on" if node.is_endless else f"to {int(node.epochs.end) - 1}"
            raise ValueError(
                f"read: source {shown(node.path)}: expected an epoch from 0 {last}, got {epoch}\n"
                "  Give a row of record_ids as this dataset gave it; -1 stands for padding."
            )
        epoch_pass = default_pass() if epoch_pass is None else checked_pass(epoch_pass, "read, epoch_pass")
        wanted.setdefault(node.path, []).append(_Wanted(number, place, epoch, output, epoch_pass))
    found = dict[int, Sample]()
    are_weighed = any(getattr(node.dataset, "weight_field", None) for node in tree_of(mixture).leaves())
    for path, some in wanted.items():
        refuse_streams(nodes, path)
        found |= _samples_of(leaves[path], names.index(path), sorted(some), skips.of(path), are_weighed=are_weighed)
    return [found[place] for place in range(len(found))]


def refuse_streams(nodes: Mapping[str, Node], path: str) -> None:
    """Raise SourceError if a stream function makes the samples of a source, one of the nodes by path."""
    names = path.split(".")
    for depth in range(len(names) + 1):  # from the top down
        node = nodes[".".join(names[:depth])]
        kind = "customized_yield_fn" if node.is_mixture else "process_fn"
        if getattr(node.dataset, kind, None) is not None:
            raise SourceError(
                f"read: source {shown(path)}: expected one whose samples are made of one record each, got the {kind} "
                f"of {shown(node.path) if node.path else 'the top'}, a stream function: what it yields depends on the "
                "records that it was given before\n"
                "  Make samples by a single_process_fn; describe_record names the record."
            )


def _samples_of(
    node: Node, source: int, wanted: list[_Wanted], is_left_out: Callable[[Record], bool] | None, *, are_weighed: bool
) -> Iterator[tuple[int, Sample]]:
    """Yield the samples of one source, each with its place."""
    who, tally = f"read: source {shown(node.path)}", Tally(node.path, 0)
    weight_field: str | None = getattr(node.dataset, "weight_field", None)
    single: PerRecordFn | None = getattr(node.dataset, "single_process_fn", None)
    assert node.source is not None, "a leaf"
    fetched = node.source.fetch([one.number for one in wanted], node.part)
    if fetched is None:
        raise not_numbered(node, "read")
    for (number, place, epoch, output, epoch_pass), record in zip(wanted, fetched, strict=True):
        if record is None:
            raise no_such_record(node, "read", number)
        if isinstance(record, DamagedRecordError):
            raise_noted(record, f"{who}: reading failed")
        if is_left_out is not None and is_left_out(record):
            raise ValueError(f"{who}: {describe_record(record)} is left out by `skip`\n  Take it off that list.")
        record |= {DATASET_NAME: node.path, DP_RANK: 0, WORKER_ID: 0, RECORD: (source, epoch, number, 0)}
        record[SEED] = stable_seed(*node.seeds, epoch_pass, epoch)  # as `BlockOrder` has it
        pairs: Records = iter([(record, (epoch, 0, 0, 0))])
        if are_weighed or weight_field is not None:
            pairs = _with_weights(pairs, weight_field, node.path)
        if single is not None:
            pairs = call_per_record(single, pairs, 0, tally, lambda after: after)
        outputs = [sample for sample, _ in pairs]
        if not 0 <= output < len(outputs):
            raise ValueError(
                f"{who}: expected the number of one of the {len(outputs)} samples of {describe_record(record)}, got "
                f"{output}\n  Its single_process_fn must do the same again: draw from record_rng alone."
            )
        yield place, outputs[output]


def _sound(records: Records, tally: Tally, *, counts: bool) -> Records:
    """The records that could be read, counted if they are to be; of the others the tally decides."""
    for pair in records:
        record = pair[0]
        if counts and not tally.replaying:
            tally.records += isinstance(record, DamagedRecord) or not tally.counts_outputs
        if isinstance(record, DamagedRecord):
            tally.fail(record.error, describe_record(record), record.what)
            continue
        yield pair


def _with_weights(records: Records, field: str | None, path: str) -> Records:
    """Give each record the weight that a field says, 1 where there is none."""
    for record, after in records:
        weight: Any = None if field is None else record.get(field)
        weight = 1.0 if weight is None else weight  # a row of parquet lacks a value by null
        if type(weight) is bool or not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
            raise ValueError(
                f"source {shown(path)}: expected a number from 0 on in its weight_field {shown(field)}, got "
                f"{shown(weight)} at {describe_record(record)}\n"
                "  Mend the record, or leave its field out: then it counts as 1."
            )
        record[WEIGHT] = float(weight)
        yield record, after
