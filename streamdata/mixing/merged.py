"""The top of every tree: a mixture of sources as a torch dataset."""

import logging
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from streamdata.errors import StateError
from streamdata.fields import CURSOR
from streamdata.mixing.agreement import verify_mixture_agrees
from streamdata.mixing.check_sources import check_sources
from streamdata.mixing.child import Run
from streamdata.mixing.control import Control
from streamdata.mixing.counting import check_countable, count_samples
from streamdata.mixing.deals import Deals
from streamdata.mixing.default_collate import refuse_default_collate
from streamdata.mixing.elastic import begin_deal
from streamdata.mixing.lane_iterator import LaneIterator, LanePlan, Reader
from streamdata.mixing.mixture import Mixture
from streamdata.mixing.tree import MixtureSettings, Node, tree_of
from streamdata.mixing.wrapped import check_not_wrapped
from streamdata.progress import (
    LaneKey,
    LaneLink,
    LaneState,
    Progress,
    Shape,
    Tree,
    announce,
    check_complete,
    describe_changes,
    header,
    marked,
    warn_once,
)
from streamdata.recipe.named_source import Percent
from streamdata.run import MAX_WORKERS, DataParallel, Lane, find_data_parallel
from streamdata.run.topology import data_parallel_at_fork, data_parallel_of, remember_data_parallel_at_fork
from streamdata.run.trainer import end_with_trainer
from streamdata.sources.functions import StreamFn
from streamdata.sources.skip import SkipList, Skips
from streamdata.sources.source import Sample

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

logger = logging.getLogger("streamdata")

_STOP_RULES = ("first_exhausted", "all_exhausted")
_MAX_PASS = 2**53


class MergedDataset(IterableDataset[Sample], MixtureSettings):
    """One stream out of many sources: mixed by weight, split over ranks and workers, resumable from its samples.

    Each sample is a dict that carries its state; `states.update(to_state(batch))` collects it,
    `set_dataloader_states(states)` goes on there. A source is a map-style dataset, one of streamdata's own, or
    another MergedDataset, with the attributes `name` and `percent`; of a map-style one also `single_process_fn`,
    `process_fn` and `max_bad` apply. The `max_bad` of a mixture is for its `customized_yield_fn`. Of a source of
    records `max_epochs` bounds how many epochs it has: where they are over it is at its end, also if `cyclic`.

    Args:
        datasets: The sources.
        cyclic: Let each source begin its next epoch when one ends. Otherwise the stream is finite, and `stop` says
        when it ends.
        shuffle_unstreaming_subsets: Shuffle the map-style sources.
        shuffle_streaming_subsets: Shuffle the sources of shards.
        seed: Of all orders.
        customized_yield_fn: A stream function over the merged stream, such as one that joins several samples to one.
        stop: `first_exhausted` ends the stream when a draw finds a source at its end, `all_exhausted` leaves that
        source out.
        skip: Records that are left out and counted as `skipped`, of the top mixture alone: a list, or a JSONL file, of
            `{source, index}` or `{source, url, key}`, which are a sample's `__datasetname__`, `__index__`, `__url__`
            and `__key__`. It is no part of the order, and may differ at each resume: what a process function had begun
            is finished as it was.
        cost: What a sample adds to its source's clock, such as its number of tokens: a function of it, or the name of
        a field; 1 where not given.
        name: Its name in another mixture, without a ".".
        percent: Its weight there.

    Raises:
        ValueError: No sources, a source twice, a name that is missing, double or holds a ".", a `percent` that is
            missing or not one; a `max_epochs` that is not a whole number from 1 on; an entry of `skip` that does not
            name a record.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        cyclic: bool = True,
        shuffle_unstreaming_subsets: bool = True,
        shuffle_streaming_subsets: bool = True,
        seed: int = 0,
        customized_yield_fn: StreamFn | None = None,
        stop: str = "first_exhausted",
        *,
        skip: SkipList | None = None,
        cost: Callable[[Sample], float] | str | None = None,
        name: str | None = None,
        percent: Percent | None = None,
    ) -> None:
        super().__init__(name, percent)
        if stop not in _STOP_RULES:
            raise ValueError(f"MergedDataset: expected stop to be one of {_STOP_RULES}, got {stop!r}")
        self.datasets = list(datasets)
        self.cyclic, self.stop, self.seed = cyclic, stop, _checked_seed(seed)
        self.shuffle_unstreaming_subsets = shuffle_unstreaming_subsets
        self.shuffle_streaming_subsets = shuffle_streaming_subsets
        self.customized_yield_fn, self.cost = customized_yield_fn, cost
        self.skip = skip
        check_sources(self)
        nodes = () if skip is None else tree_of(self).walk()
        self._skips = Skips(skip, {node.path: node.dataset for node in nodes if not node.is_mixture})
        self._data_parallel: DataParallel | None = None
        self._group_of_sender: DataParallel | None = None
        self._received_in: int | None = None
        remember_data_parallel_at_fork()
        self._dynamic_objects: list[tuple[str, object]] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._progress = Progress({})
        """What the states say that were set; made once here, and sent to the workers."""
        self._from_window = False
        self._version = 0
        self._iterated_in: int | None = None
        self._control = Control()

    def finite(self) -> "MergedDataset":
        """The same recipe read once, for an evaluation: another dataset, without states; this one stays as it is.

        Each source comes to its end, once whatever its `max_epochs` is, in the order in which it lies, and of the same
        `part`. No mixture is cyclic, and each goes on until all of its sources have ended.
        """
        once = object.__new__(type(self))  # not copied by pickling, which is for workers
        once.__dict__.update(self.__dict__)
        once.datasets = [_read_once(dataset) for dataset in self.datasets]
        once.cyclic, once.stop = False, "all_exhausted"
        once.shuffle_unstreaming_subsets = once.shuffle_streaming_subsets = False
        once._begin_anew()
        return once

    def set_data_parallel(
        self,
        dp_size: int | None = None,
        dp_rank: int | None = None,
        *,
        mesh: "DeviceMesh | None" = None,
        dims: str | Sequence[str] | None = None,
    ) -> None:
        """Say which data-parallel replica this is, instead of torch.distributed or RANK and WORLD_SIZE.

        What another one has ended does not count for it: it begins with the first pass, or with that of the states.

        Args:
            dp_size: How many replicas there are.
            dp_rank: Which of them this is.
            mesh: Instead of both, torch's DeviceMesh. Ranks that differ in tensor, pipeline or context parallelism
                alone are one replica, and read the same samples.
            dims: The names of its data-parallel dimensions; to be left out where they have usual names, such as `dp`,
                `dp_replicate`, `dp_shard` or `fsdp` beside `tp`, `pp`, `cp`, or where it has one dimension.

        Raises:
            ValueError: Not 0 <= dp_rank < dp_size; neither both nor a mesh; or the mesh does not say it.
        """
        if mesh is not None and dp_size is None and dp_rank is None:
            group = data_parallel_of(mesh, dims)
        elif mesh is None and dims is None and dp_size is not None and dp_rank is not None:
            group = DataParallel(dp_size=dp_size, dp_rank=dp_rank)
        else:
            raise ValueError(
                f"set_data_parallel: expected dp_size and dp_rank, or a mesh, got dp_size={dp_size!r}, "
                f"dp_rank={dp_rank!r}, mesh={mesh!r}, dims={dims!r}\n  Give one of the two; dims are those of a mesh."
            )
        if group != self._data_parallel:
            self._version = self._control.version = self._control.version + 1
        self._data_parallel = group

    def set_epoch(self, epoch: int | None) -> None:
        """Let each iteration be pass number `epoch` (from 0), until this is called again; with None as if it never was.

        Without it passes count up by themselves: an iteration that came to its end is followed by the next pass, the
        whole stream again in another order; one that was left before its end begins again where it began. It also
        reaches persistent workers. States of another pass do not apply.

        Raises:
            ValueError: `epoch` is negative or no int; or a loader that divides the stream among ranks calls this.
        """
        if epoch is not None and (type(epoch) is not int or not 0 <= epoch < _MAX_PASS):
            raise ValueError(f"set_epoch: expected an int >= 0 and below 2**53, got {epoch!r}")
        check_not_wrapped((self._data_parallel or find_data_parallel()).dp_size)
        self._control.epoch_pass = epoch

    def set_dataloader_states(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> None:
        """Go on where `states`, collected by `to_state`, say that the trainer stood.

        They are for iterations that begin from now on; those under way are not touched. Once one has come to the end
        of their pass, they are done with, and the next pass begins at its start.

        Args:
            states: Of this rank, or of all ranks, joined by `merge_states`. Empty means from the start.
            reload_from_url_level: Go back to the start of the earliest window in which something is undelivered, with
                the process functions afresh: for a run whose sequence length changed.

        Raises:
            StateError: They are of another dataset or seed, lack entries of what was delivered, or are no states.
        """
        progress, top = Progress(states), tree_of(self)
        tree = top.tree()
        progress.check_nodes(tree.nodes)
        least = partial(_least, top, progress, self._skips.num_records)
        check_complete(progress, Shape(joins=top.joins(), is_endless=top.is_endless, least=least))
        for line in describe_changes(progress, tree):
            logger.warning("%s", line)
        self._progress, self._from_window = progress, reload_from_url_level
        self._version = self._control.version = self._control.version + 1

    @property
    def progress(self) -> Progress:
        """What the states say that were set."""
        return self._progress

    def lane(self, num_workers: int) -> Lane:
        """The first lane of this rank in a run with so many DataLoader workers; asked in the trainer's process."""
        group = self._data_parallel or find_data_parallel()
        return Lane(dp_size=group.dp_size, dp_rank=group.dp_rank, num_workers=max(1, num_workers), worker=0)

    def next_pass(self, num_workers: int) -> int:
        """The pass that an iteration with so many workers reads if it begins now."""
        progress, top, lane = self._progress, tree_of(self), self.lane(num_workers)
        if not progress.is_under(lane):
            progress, _ = begin_deal(progress, top, top.tree(), lane)
        return self._pass(lane, progress, top, self._version)[0]

    def verify_agreement(self) -> None:
        """Compare what this rank is about to read with what the others are; call it on every rank, with states set.

        Of states that hold only their own rank, the headers are compared.

        Raises:
            StateError: Some rank has other states, another recipe, seed or number of ranks than most; on every rank.
        """
        verify_mixture_agrees(self, self._data_parallel or find_data_parallel(), self._progress.entries.columns)

    def samples_left(self, num_workers: int) -> npt.NDArray[np.int64]:
        """How many samples each lane of each rank gets yet of the pass that the next iteration reads.

        Nothing is read. Of a part of a source the records are counted one by one, by their identities.

        Args:
            num_workers: Of the DataLoader of each rank.

        Returns:
            int64 (dp_size, max(1, num_workers)).

        Raises:
            ValueError: It is not known: the stream is endless, or some source may not give one sample for each record;
                the message names the source.
            StateError: The states hold nothing of some rank.
        """
        group, top = self._data_parallel or find_data_parallel(), tree_of(self)
        tree, progress = top.tree(), self._progress
        first = Lane(dp_size=group.dp_size, dp_rank=0, num_workers=max(1, num_workers), worker=0)
        if not progress.is_under(first):
            progress, _ = begin_deal(progress, top, tree, first)
        left = np.zeros((first.dp_size, first.num_workers), np.int64)
        for rank, worker in np.ndindex(left.shape):
            lane = replace(first, dp_rank=rank, worker=worker)
            if not worker:
                epoch_pass, of_pass, deals, sharing = self._pass(lane, progress, top, self._version)
                self._check_rank(of_pass, rank, sharing)
            run = self._run(lane, epoch_pass, of_pass, deals, tree, self._from_window)
            check_countable(run, top)
            if not (of_pass.is_finished(epoch_pass) or of_pass.has_given_all(run.key, tree)):
                left[rank, worker] = count_samples(run, top)
        return left

    def __iter_from__(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> Iterator[Sample]:
        """`set_dataloader_states`, then iterate."""
        self.set_dataloader_states(states, reload_from_url_level)
        return iter(self)

    def __iter__(self) -> LaneIterator:
        """Iterate over this lane's samples: those of the rank and of the DataLoader worker that calls.

        Raises:
            StateError: The states hold nothing of this rank, or cannot go on under another topology.
            SourceError: A source has no records.
            ValueError: WORLD_SIZE is set without a usable RANK; or a loader that divides the stream among ranks calls.
            RuntimeError: A persistent worker does not have the states that were set since.
        """
        top = tree_of(self)
        tree = top.tree()
        self._progress.check_nodes(tree.nodes)
        lane = self._lane()
        check_not_wrapped(lane.dp_size)
        version = None if self._lacks_states() else self._version
        reader = Reader(
            lane=lane,
            top=top,
            tree=tree,
            progress=self._progress,
            plan=partial(self._plan, lane, top, tree, version, self._from_window),
            begin=partial(self._begin, top, tree, self._version, self._from_window),
            resume=partial(self._control.resume, self._version),
        )
        return LaneIterator(reader)

    def state_dict(self) -> NoReturn:
        """Raise: only who receives batches knows which were delivered, while workers read ahead of them.

        Raises:
            StateError: Always.
        """
        raise StateError(
            "MergedDataset: it cannot know which of its samples the trainer has received, so it has no state of its own"
            "\n  Use StreamLoader(dataset, …), whose state_dict() knows it; or collect states.update(to_state(batch)), "
            "and go on with set_dataloader_states(states)."
        )

    def _plan(
        self,
        lane: Lane,
        top: Node,
        tree: Tree,
        version: int | None,
        from_window: bool,
        progress: Progress,
        loaded: LaneState | None,
    ) -> LanePlan:
        """What the lane is about to read, as far as can be said now.

        `version` is that of the states, None in a worker that does not have those that were set.
        """
        refuse_default_collate()
        if version is None:  # raised here: a persistent worker that fails in `iter` dies, and nobody is told why
            raise RuntimeError(
                "MergedDataset: states were set after this worker began, or another rank, so it does not have them\n"
                "  With persistent workers, delete the DataLoader and make a new one after set_dataloader_states."
            )
        change = None
        if not progress.is_under(lane):
            if from_window:
                old = progress.topology()
                raise StateError(
                    "states: reload_from_url_level goes back within lanes, and another topology has other lanes\n"
                    f"  Resume once with dp_size={old.dp_size} and num_workers={old.num_workers}, which wrote them, or "
                    "without it."
                )
            progress, change = begin_deal(progress, top, tree, lane)
        if loaded is None or self._control.epoch_pass not in (None, loaded.epoch_pass):
            epoch_pass, progress, deals, sharing = self._pass(lane, progress, top, version)
            loaded = None
        else:
            workers = range(lane.num_workers)
            epoch_pass = loaded.epoch_pass if loaded.is_begun else self._control.resumed_pass(version, workers)
            deals, sharing = _dealt(lane, progress, top, epoch_pass)
        self._check_rank(progress, lane.dp_rank, sharing)
        if loaded is not None and loaded.is_begun:
            lane = loaded.lane
        else:  # a DataLoader asks worker 0 first, always: it takes the lane whose turn it is
            last = progress.last_worker(epoch_pass, lane.dp_rank)
            turn = 0 if last is None else last + 1
            lane = replace(lane, worker=(lane.worker + turn) % lane.num_workers)
        key = LaneKey(epoch_pass, lane.dp_rank, lane.worker)
        gave_all = progress.is_finished(epoch_pass) or progress.has_given_all(key, tree)
        return LanePlan(
            lane=lane,
            key=key,
            progress=progress,
            deals=deals,
            generation=progress.generation(tree),
            header=header(tree, lane, progress.of_deal, top.anomalies()),
            change=change,
            gave_all=gave_all or (loaded is not None and loaded.is_ended),
        )

    def _begin(
        self, top: Node, tree: Tree, version: int, from_window: bool, plan: LanePlan, note_end: Callable[[], None]
    ) -> Iterator[Sample]:
        """The lane's stream; note that it begins, and at its end that it has ended."""
        lane, key, progress = plan.lane, plan.key, plan.progress
        beginning = self._control.begin(version, lane, key.epoch_pass)
        if beginning is not None:
            change = plan.change
            beginning = beginning._replace(change=change and change(plan.deals.num_pieces(top)))
            if get_worker_info() is None:
                announce(beginning)
                if beginning.was_left:
                    warn_once(beginning)
        note_batches = partial(self._control.note_batches, version, lane.worker)
        run = replace(
            self._run(lane, key.epoch_pass, progress, plan.deals, tree, from_window),
            header=plan.header,
            link=LaneLink(progress.batches_before(key), beginning, note_batches),
        )
        mixture = Mixture(run, top)
        samples = mixture.draw(0) if self.customized_yield_fn is None else self._yielded(run, mixture)
        if plan.gave_all:
            samples = iter(())

        def end() -> None:
            self._control.end(version, lane, key.epoch_pass)
            note_end()

        return samples if mixture.endless else _with_end(samples, end)

    def _run(self, lane: Lane, epoch_pass: int, progress: Progress, deals: Deals, tree: Tree, from_window: bool) -> Run:
        key = LaneKey(epoch_pass, lane.dp_rank, lane.worker)
        return Run(
            lane=lane,
            key=key,
            progress=progress,
            entries=progress.lane(key),
            generation=progress.generation(tree),
            base=progress.base(epoch_pass),
            deals=deals,
            tree=tree,
            from_window=from_window,
            skips=self._skips,
        )

    def _check_rank(self, progress: Progress, dp_rank: int, sharing: list[int]) -> None:
        """Refuse states that hold other ranks, and nothing of one that has a share of the pass."""
        if sharing and progress.lacks_rank(self._control.epoch_pass, dp_rank):
            raise StateError(
                f"states: they hold nothing of rank {dp_rank}, only of ranks {progress.ranks()}\n"
                "  Load this rank's own states, or those of all ranks, joined by merge_states."
            )

    def _pass(self, lane: Lane, progress: Progress, top: Node, version: int) -> tuple[int, Progress, Deals, list[int]]:
        """The pass to read, and where it stands: at its start where it was ended since the states were set.

        Returns:
            The pass, its states, how it is dealt out, and which workers have a share of it.
        """
        epoch_pass = self._control.epoch_pass
        newest = progress.newest_pass(lane.dp_rank)
        begins = progress.first_pass if newest is None else newest
        _, sharing = _dealt(lane, progress, top, begins)
        # Of all workers: one without a share of the pass comes to its end at once, and notes that too.
        unended = self._control.first_unended(version, range(lane.num_workers))
        if epoch_pass is None:
            if newest is not None and newest >= unended and progress.has_ended(newest, lane.dp_rank, sharing):
                begins += 1
            epoch_pass = max(begins, unended)
        if epoch_pass < unended:
            progress = progress.without_cursors(epoch_pass)
        return epoch_pass, progress, *_dealt(lane, progress, top, epoch_pass)

    def remember_dynamic_objects(self, uses: list[tuple[str, object]]) -> None:
        """Keep the recipe's dynamic objects with their locations, to name the one that cannot be pickled to workers."""
        self._dynamic_objects = list(uses)

    def __getstate__(self) -> dict[str, Any]:
        for location, value in self._dynamic_objects:
            try:
                ForkingPickler(BytesIO()).dump(value)
            except Exception as error:
                error.add_note(
                    f"{location}: this dynamic object, of type {type(value).__name__}, cannot be pickled to workers"
                )
                raise
        return {**self.__dict__, "_group_of_sender": self._data_parallel or find_data_parallel()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _received_in=os.getpid())
        remember_data_parallel_at_fork()

    def _found_data_parallel(self, *, in_worker: bool) -> DataParallel:
        """The group as the trainer sees it: a worker was sent it, or was forked and has it from then."""
        if not in_worker:
            return find_data_parallel()
        sent = self._group_of_sender if self._received_in == os.getpid() else None
        return sent or data_parallel_at_fork()

    def _yielded(self, run: Run, top: Mixture) -> Iterator[Sample]:
        """The samples of a top with a yield function, which has an entry of its own."""
        key = run.node_key("", 0)
        standing = run.entries.standing("")
        draws = standing.draws if standing else 0
        for sample, cursor in top.start(0, standing.cursor if standing else None):
            draws += 1
            sample[CURSOR] = ((key, draws, 0.0, cursor, 0, None, 0.0),)
            yield sample

    def _lane(self) -> Lane:
        """The lane of this process, before the turns of its workers are known."""
        worker = get_worker_info()
        group = self._data_parallel or self._found_data_parallel(in_worker=worker is not None)
        if worker is None:
            return Lane(dp_size=group.dp_size, dp_rank=group.dp_rank, num_workers=1, worker=0)
        if worker.num_workers > MAX_WORKERS:
            raise ValueError(
                f"MergedDataset: expected at most {MAX_WORKERS} DataLoader workers, got {worker.num_workers}"
            )
        end_with_trainer()
        return Lane(dp_size=group.dp_size, dp_rank=group.dp_rank, num_workers=worker.num_workers, worker=worker.id)

    def _lacks_states(self) -> bool:
        """Whether this is a worker that lives on, and has the states that were set when it was made, not the newest."""
        is_first, self._iterated_in = self._iterated_in != os.getpid(), os.getpid()
        return not is_first and get_worker_info() is not None and self._version != self._control.version


def _read_once(dataset: Any) -> Any:
    """A source of a finite pass: it has one epoch."""
    if isinstance(dataset, MergedDataset):
        return dataset.finite()
    if getattr(dataset, "max_epochs", None) is None:
        return dataset
    once = copy(dataset)
    once.max_epochs = None
    return once


def _dealt(lane: Lane, progress: Progress, top: Node, epoch_pass: int) -> tuple[Deals, list[int]]:
    """How a pass is dealt out, and which workers of the rank have a share of it."""
    deals = Deals(progress, epoch_pass, lane.count)
    if top.is_endless:  # not found anew for each worker
        return deals, list(range(lane.num_workers))
    lanes = {worker: replace(lane, worker=worker).index for worker in range(lane.num_workers)}
    return deals, [worker for worker, index in lanes.items() if deals.has_share(top, index)]


def _least(top: Node, progress: Progress, skipped: int, lane: Lane, epoch_pass: int) -> float:
    """How many samples a lane got at least in a pass that its rank has come through, where so many were skipped."""
    deals = Deals(progress, epoch_pass, lane.count)
    # Sources that were not there all the time may have given nothing.
    return max(0, top.least_samples(partial(deals.num_blocks, lane.index), progress.paths_always_there()) - skipped)


def _with_end(samples: Iterator[Sample], note_end: Callable[[], None]) -> Iterator[Sample]:
    """Mark the last sample, so that states can tell an ended pass from one whose end was not delivered yet.

    The end is noted here, where an error does not get: a worker goes on asking after one, and what broke off has not
    ended.
    """
    ahead = next(samples, None)
    if ahead is not None:
        try:
            for following in samples:
                sample, ahead = ahead, following
                yield sample
        except Exception:
            yield ahead  # it comes before the error, as it would have without looking ahead
            raise
        ahead[CURSOR] = marked(ahead[CURSOR], ended=True)
        yield ahead
    note_end()


def _checked_seed(seed: Any) -> int:
    try:
        return operator.index(seed)
    except TypeError:
        raise ValueError(f"MergedDataset: expected an integer as seed, got {seed!r}") from None
