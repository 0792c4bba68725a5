"""Plans and reads one lane: which pass of the stream, from where, and how its samples tell that it ends."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from streamdata.errors import StateError
from streamdata.fields import CURSOR, STATES, TOKEN_FIELDS
from streamdata.mixing.checks import refuse_default_collate
from streamdata.mixing.control import Control, WorkerPlace
from streamdata.mixing.deals import Deals, begin_deal
from streamdata.mixing.leaf import Run
from streamdata.mixing.lengths import check_countable, count_samples
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import Node
from streamdata.run import Lane
from streamdata.run.lane_link import LaneLink, announce, log_once, warn_once
from streamdata.run.stalls import StallWatch
from streamdata.shards.ahead.read_ahead import AheadSettings, LaneAhead, Meter
from streamdata.sources.functions.tally import Tally, num_tokens
from streamdata.sources.skip import Skips
from streamdata.sources.source import Sample
from streamdata.states.cursor import Cursor, Entry, NodeState, PlainEntry, States, marked
from streamdata.states.headers import header
from streamdata.states.lane_state import LaneState
from streamdata.states.progress import Progress
from streamdata.states.table import COUNTS

Entries: TypeAlias = Mapping[str, PlainEntry]
"""By path, the newest of each node."""

_LOAD_OWN = "Load this rank's own states, or those of all ranks, joined by merge_states."
_JOIN_ALL = "What each rank has left follows from the states of all: join them by merge_states or gather_states."


class LanePlan(NamedTuple):
    """The pass that a lane is about to read, and its starting point."""

    run: Run
    """Without what is there only once it is read."""
    change: str | None
    """The change of size in words, if there is one."""
    gave_all: bool
    """Whether nothing of the pass is left in the lane."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A dataset as one iteration sees it."""

    lane: Lane
    """The process's own lane: which lane it reads is known when the pass is."""
    top: Node
    progress: Progress
    """Progress of the states that were set."""
    version: int
    """How often states had been set by then."""
    is_stale: bool
    """Whether a worker that lives on does not have those that were set since."""
    from_window: bool
    control: Control
    skips: Skips
    ahead: AheadSettings
    stall_s: float | None = None

    def plan(self, progress: Progress, loaded: LaneState | None) -> LanePlan:
        """Plan what the lane will read, as far as it is known now.

        Planning changes nothing; a later plan may differ.

        Args:
            progress: What the states say: those that were set, or that the iterator loaded.
            loaded: What the iterator loaded.

        Raises:
            StateError: The states hold nothing of this rank, or cannot go on under another topology.
            RuntimeError: A persistent worker does not have the states that were set since.
        """
        refuse_default_collate()
        if self.is_stale:  # raised here: a persistent worker that fails in `iter` dies, and nobody is told why
            raise RuntimeError(
                "MergedDataset: states or weights were set after this worker began, or another rank, so it does not "
                "have them\n"
                "  With persistent workers, delete the DataLoader and make a new one after set_dataloader_states and "
                "set_weights."
            )
        lane, top, change = self.lane, self.top, None
        if not progress.is_under(lane):
            if self.from_window:
                old = progress.topology()
                raise StateError(
                    "states: reload_from_url_level goes back within lanes, and another topology has other lanes\n"
                    f"  Resume once with dp_size={old.dp_size} and num_workers={old.num_workers}, which wrote them, or "
                    "without it."
                )
            progress, change = begin_deal(progress, top, self.top.tree, lane)
        if loaded is None or self.control.epoch_pass not in (None, loaded.epoch_pass):
            epoch_pass, progress = self._pass(lane, progress)
            loaded = None
        else:
            epoch_pass = loaded.epoch_pass
            if not loaded.is_begun:
                epoch_pass = self.control.resumed_pass(self.version, lane.num_workers)
        deals = Deals(progress, epoch_pass, lane.count)
        self._check_rank(progress, deals, lane.dp_rank)
        if loaded is not None and loaded.is_begun:
            lane = loaded.lane
        else:  # a DataLoader asks worker 0 first, always: it takes the lane whose turn it is
            last = progress.last_workers.get((epoch_pass, lane.dp_rank))
            turn = 0 if last is None else last + 1
            lane = replace(lane, worker=(lane.worker + turn) % lane.num_workers)
        run = Run.at(progress, epoch_pass, lane, deals, self.top.tree, self.skips)
        text = header(self.top.tree, lane, progress.before, top.anomalies())
        gave_all = progress.has_given_all(run.key, self.top.tree) or (loaded is not None and loaded.is_ended)
        return LanePlan(replace(run, from_window=self.from_window, header=text), change, gave_all)

    def begin(
        self, plan: LanePlan, ahead: LaneAhead, note_end: Callable[[], None], given: Sequence[Entries]
    ) -> Iterator[Sample]:
        """Return the lane's stream; record its beginning and end, and call `note_end` at its end.

        In `given` are by then the entries of what it gave, the later ones last; all but those of its last sample.
        """
        lane, key, progress = plan.run.lane, plan.run.key, plan.run.progress
        worker = get_worker_info()
        is_here, place = worker is None, None if worker is None else self.control.places.of(worker.id)
        beginning = self.control.begin(self.version, lane, key.epoch_pass)
        if beginning is not None:
            beginning = beginning._replace(change=plan.change, deal=progress.before.entry)
            if is_here:
                announce(beginning)
                if beginning.was_left:
                    warn_once(beginning)
        meter = Meter(self.control.name, lane, self.ahead)

        def note_batches(number: int) -> None:
            self.control.note_batches(self.version, lane.worker, number)
            if is_here and (limit := meter.limit()) is not None:  # from elsewhere it comes with the batch
                log_once(self.control.name, limit)

        link = LaneLink(progress.batches_before(key), beginning, note_batches, meter.report)
        watch = None if self.stall_s is None else StallWatch(self.stall_s, lane)
        run = replace(plan.run, ahead=ahead, times=meter.times, place=place, watch=watch, link=link)
        samples = iter(()) if plan.gave_all else lane_samples(run, self.top)
        if watch is not None:
            samples = watch.over(samples)
        if place is not None:
            samples = _cleared_by_errors(samples, place)

        def end(is_empty: bool) -> None:
            if place is not None:
                place.clear()
            self.control.end(self.version, lane, key.epoch_pass, is_empty=is_empty)
            note_end()

        return samples if self.top.is_endless else _with_end(samples, end, run, given)

    def headers(self) -> States:
        """The headers, as states hold them, of the generation that the rank would read if it began now."""
        progress = self._present()
        text = header(self.top.tree, self.lane, progress.before, self.top.anomalies())
        found = {f"generation/{progress.generation(self.top.tree)}": text}
        found |= dict([progress.before.entry] if progress.before.entry else ())
        return {key: json.loads(text) for key, text in found.items()}

    def time(self) -> float:
        """The time of schedules, samples (or cost) that the job has drawn of the top, by what this rank has drawn."""
        progress = self._present()
        epoch_pass, progress = self._pass(self.lane, progress)
        time = progress.base(epoch_pass).time
        if not progress.generations:
            return time
        name = "draws" if self.top.dataset.cost is None else "cost"
        first = self.lane.dp_rank * self.lane.num_workers
        own = slice(first, first + self.lane.num_workers)
        sources = (path for path in progress.paths() if path and "." not in path)
        drawn = sum(progress.last(epoch_pass, path)[name][own].sum().item() for path in sources)
        return time + float(drawn) * self.lane.dp_size

    def next_pass(self) -> int:
        """The pass that the rank would read if it began now."""
        return self._pass(self.lane, self._present())[0]

    def samples_left(self) -> npt.NDArray[np.int64]:
        """The number of samples that each lane of each rank still gets of the next pass to be read.

        Returns:
            int64 (dp_size, num_workers).

        Raises:
            ValueError: The number is not known; the message names the source.
            StateError: The states hold nothing of some rank.
        """
        progress = self._present()
        left = np.zeros((self.lane.dp_size, self.lane.num_workers), np.int64)
        for rank, worker in np.ndindex(left.shape):
            lane = replace(self.lane, dp_rank=rank, worker=worker)
            if not worker:
                epoch_pass, of_pass = self._pass(lane, progress)
                deals = Deals(of_pass, epoch_pass, lane.count)
                self._check_rank(of_pass, deals, rank, _JOIN_ALL)
            run = Run.at(of_pass, epoch_pass, lane, deals, self.top.tree, self.skips)
            run = replace(run, from_window=self.from_window)
            check_countable(run, self.top)
            if not of_pass.has_given_all(run.key, self.top.tree):
                left[rank, worker] = count_samples(run, self.top)
        return left

    def idle_rank(self, passes: Iterable[int], ranks: Iterable[int]) -> int | None:
        """The first of `ranks` that has no share of any of these passes, each dealt out from its start.

        The result depends only on the sources, not on states, so all ranks find the same.
        """
        fresh, num_workers = Progress({}), self.lane.num_workers
        dealt = [Deals(fresh, epoch_pass, self.lane.count) for epoch_pass in passes]
        idle = (rank for rank in ranks if not any(deals.sharing(self.top, rank, num_workers) for deals in dealt))
        return next(idle, None)

    def _present(self) -> Progress:
        """The progress under the topology of this run."""
        if self.progress.is_under(self.lane):
            return self.progress
        return begin_deal(self.progress, self.top, self.top.tree, self.lane)[0]

    def _pass(self, lane: Lane, progress: Progress) -> tuple[int, Progress]:
        """The pass to read, and where it stands: at its start where it was ended since the states were set."""
        epoch_pass, rank = self.control.epoch_pass, lane.dp_rank
        newest = progress.newest_passes.get(rank)
        # Of all workers: one without a share of the pass comes to its end at once, and notes that too.
        unended = self.control.first_unended(self.version, lane.num_workers)
        if epoch_pass is None:
            begins = progress.before.first_pass if newest is None else newest
            if newest is not None and newest >= unended:
                sharing = Deals(progress, newest, lane.count).sharing(self.top, rank, lane.num_workers)
                begins += progress.has_ended(newest, rank, sharing)
            epoch_pass = max(begins, unended)
        if epoch_pass < unended:
            progress = progress.without_cursors(epoch_pass)
        return epoch_pass, progress

    def _check_rank(self, progress: Progress, deals: Deals, dp_rank: int, remedy: str = _LOAD_OWN) -> None:
        """Refuse states that hold other ranks, and nothing of one that has a share of the pass."""
        epoch_pass = self.control.epoch_pass
        if not progress.passes or not (epoch_pass is None or epoch_pass in progress.passes):
            return
        # Without entries it would begin at the start, and deliver again what others, or it itself, had delivered.
        is_known = dp_rank in progress.newest_passes or dp_rank in progress.idle
        if not is_known and deals.sharing(self.top, dp_rank, self.lane.num_workers):
            ranks = sorted(progress.newest_passes)
            raise StateError(f"states: they hold nothing of rank {dp_rank}, only of ranks {ranks}\n  {remedy}")


def lane_samples(run: Run, top: Node) -> Iterator[Sample]:
    """Yield the samples of a lane, from where its entries say that it stands."""
    mixture = Mixture(run, top)
    if top.dataset.customized_yield_fn is not None:
        return _yielded(run, mixture)
    return _begun(mixture) if run.begins_generation else mixture.draw()


def _begun(top: Mixture) -> Iterator[Sample]:
    """The samples of a top that begins a generation: the first one says so of all nodes."""
    entries, samples = tuple(top.beginnings()), top.draw()
    for sample in samples:
        sample[CURSOR] = (*entries, *sample[CURSOR])
        yield sample
        break
    yield from samples


def _yielded(run: Run, top: Mixture) -> Iterator[Sample]:
    """The samples of a top with a yield function, which has an entry of its own."""
    key = run.node_key("")
    state = run.entries.node_state("")
    draws, tokens, cost = (state.draws, state.tokens, state.cost) if state else (0, 0, 0.0)
    for sample, cursor in top.start(state.cursor if state else None):
        draws += 1
        cost += top.output_cost
        tokens += sum(num_tokens(sample[name]) for name in TOKEN_FIELDS if name in sample)
        sample[CURSOR] = ((key, draws, 0.0, cursor, 0, top.mark, cost, tokens),)
        yield sample


def _cleared_by_errors(samples: Iterator[Sample], place: WorkerPlace) -> Iterator[Sample]:
    """Pass samples on; clear the worker's place at an error.

    A worker that raised ends before its trainer has heard of the error: it was not killed.
    """
    try:
        yield from samples
    except Exception:
        place.clear()
        raise


def _with_end(
    samples: Iterator[Sample], note_end: Callable[[bool], None], run: Run, given: Sequence[Entries]
) -> Iterator[Sample]:
    """Mark the last sample, so that states can tell an ended pass from one whose end was not delivered yet.

    With the mark comes what was read and dropped after the nodes' last entries. It is not in their own entries: from
    these a lane to which a source is added goes on, and reads that again.

    The end is noted here, where an error does not get: a worker goes on asking after one, and what broke off has not
    ended.
    """
    before = {path: _counted(tally, run.entries.node_state(path)) for path, tally in run.tallies.items()}
    ahead = next(samples, None)
    if ahead is not None:
        try:
            for following in samples:
                sample, ahead = ahead, following
                yield sample
        except Exception:
            yield ahead  # it comes before the error, as it would have without looking ahead
            raise
        entries = (*chain(*(part.values() for part in given)), *ahead.get(STATES, ()), *ahead[CURSOR])
        for entry in entries:  # in the sequence of samples: a node's last one counts
            last = Entry(*entry)
            before[last.node.path] = _counted(Cursor(*last.cursor), last)
        # Counts only grow: of two the larger one is the later one.
        tails = {path: (_counted(run.tallies[path]) | run.ends[path]) - counts for path, counts in before.items()}
        for path, counts in run.repeated.items():
            tails[path] = tails.get(path, Counter()) + Counter(counts)
        tail = {path: dict(counts) for path, counts in tails.items() if counts}
        ahead[CURSOR] = marked(ahead[CURSOR], ended=True, tail=tail)
        yield ahead
    note_end(ahead is None)


def _counted(counts: Tally | Cursor, drawn: Entry | NodeState | None = None) -> Counter[str]:
    """The `COUNTS` of a node, and how much was drawn of it."""
    found: dict[str, Any] = {name: getattr(counts, name) for name in COUNTS}
    if drawn is not None:
        found |= {"draws": drawn.draws, "tokens": drawn.tokens, "cost": drawn.cost}
    return Counter(found)
