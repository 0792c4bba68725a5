"""The top of every tree: a mixture of sources as a torch dataset."""

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from streamdata.errors import SourceError, StateError
from streamdata.mixing.check_sources import check_sources
from streamdata.mixing.control import Control
from streamdata.mixing.leaf_child import LeafChild
from streamdata.mixing.mixture import Blend, Child, Mixture, Run, path_below
from streamdata.progress import Progress, Tree, header
from streamdata.progress.fields import CURSOR
from streamdata.run import DataParallel, Lane, find_data_parallel
from streamdata.run.topology import data_parallel_at_fork, remember_data_parallel_at_fork
from streamdata.run.trainer import end_with_trainer
from streamdata.sources import MapStyleSource, Source
from streamdata.sources.functions import StreamFn
from streamdata.sources.shard_source import ShardDataset
from streamdata.sources.source import Sample

_STOP_RULES = ("first_exhausted", "all_exhausted")
_NO_VERSION = -1


class MergedDataset(IterableDataset[Sample]):
    """One stream out of many sources: mixed by weight, split over ranks and workers, resumable from its samples.

    Each sample is a dict that carries its state; `states.update(to_state(batch))` collects it,
    `set_dataloader_states(states)` goes on there. A source is a map-style dataset, one of streamdata's own, or
    another MergedDataset, with the attributes `name` and `percent`; of a map-style one also `single_process_fn`,
    `process_fn` and `max_bad` apply. The `max_bad` of a mixture is for its `customized_yield_fn`.

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
        cost: What a sample adds to its source's clock, such as its number of tokens; 1 where not given.

    Raises:
        ValueError: No sources, a source twice, a name that is missing, double or holds a ".", a `percent` that is
            missing or not a positive number.
    """

    name: str
    percent: float

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
        cost: Callable[[Sample], float] | None = None,
    ) -> None:
        if stop not in _STOP_RULES:
            raise ValueError(f"MergedDataset: expected stop to be one of {_STOP_RULES}, got {stop!r}")
        self.datasets = list(datasets)
        check_sources(self.datasets, MergedDataset)
        if not cyclic and stop == "all_exhausted":
            _check_ends(self.datasets)
        self.cyclic, self.stop, self.seed = cyclic, stop, _checked_seed(seed)
        self.shuffle_unstreaming_subsets = shuffle_unstreaming_subsets
        self.shuffle_streaming_subsets = shuffle_streaming_subsets
        self.customized_yield_fn, self.cost = customized_yield_fn, cost
        self._data_parallel: DataParallel | None = None
        self._group_of_sender: DataParallel | None = None
        self._received_in: int | None = None
        remember_data_parallel_at_fork()
        self._states: Mapping[str, Any] = {}
        self._from_window = False
        self._version = 0
        self._dynamic_objects: list[tuple[str, object]] = []
        self._control = Control()

    def set_data_parallel(self, dp_size: int, dp_rank: int) -> None:
        """Say which data-parallel replica this is, instead of torch.distributed or RANK and WORLD_SIZE.

        Raises:
            ValueError: Not 0 <= dp_rank < dp_size.
        """
        self._data_parallel = DataParallel(dp_size=dp_size, dp_rank=dp_rank)

    def set_epoch(self, epoch: int) -> None:
        """Begin pass number `epoch` (from 0) with the next iteration: the whole stream again, in another order.

        It also reaches persistent workers. States of another pass do not apply to it.

        Raises:
            ValueError: `epoch` is negative or no int.
        """
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"set_epoch: expected an int >= 0, got {epoch!r}")
        self._control.epoch_pass = epoch

    def set_dataloader_states(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> None:
        """Go on where `states`, collected by `to_state`, say that the trainer stood.

        Args:
            states: Of this rank, or of all ranks, joined by `merge_states`. Empty means from the start.
            reload_from_url_level: Go back to the start of the earliest window in which something is undelivered, with
                the process functions afresh: for a run whose sequence length changed.

        Raises:
            StateError: They are of another dataset or seed, or no states. Another topology is found when iteration
            starts.
            RuntimeError: Workers that iterate over this dataset would not see them.
        """
        self._check_no_workers()
        Progress(states).check_nodes(self._describe())
        self._states, self._from_window = dict(states), reload_from_url_level
        self._version += 1
        self._control.version = self._version

    def __iter_from__(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> Iterator[Sample]:
        """`set_dataloader_states`, then iterate."""
        self.set_dataloader_states(states, reload_from_url_level)
        return iter(self)

    def __iter__(self) -> Iterator[Sample]:
        """Iterate over this lane's samples: those of the rank and of the DataLoader worker that calls.

        Raises:
            StateError: The states were written under another topology.
            SourceError: A source has no records.
            ValueError: WORLD_SIZE is set without a usable RANK.
        """
        self._check_version(self._version)
        progress, tree = Progress(self._states), Tree(self._describe(), self._weights())
        progress.check_nodes(tree.nodes)
        explicit = self._control.epoch_pass
        epoch_pass = progress.newest_pass if explicit is None else explicit
        lane = self._lane(progress, epoch_pass)
        progress.check_lane(lane)
        knows_rank = progress.knows_rank(epoch_pass, lane.dp_rank)
        run = Run(
            lane=lane,
            progress=progress,
            generation=progress.generation(tree),
            epoch_pass=epoch_pass,
            tree=tree,
            header=header(tree, lane),
            from_window=self._from_window,
            watched=self._control.watch_version(),
            version=self._version if knows_rank else _NO_VERSION,
            refuse=partial(self._refuse, lane, progress, self._version),
        )
        top = self._mixture(run, "", (self.seed,), parent_endless=False)
        return top.draw(0) if self.customized_yield_fn is None else self._yielded(run, top)

    def remember_dynamic_objects(self, uses: list[tuple[str, object]]) -> None:
        """Keep the recipe's dynamic objects with their places, to name the one that cannot be pickled to workers."""
        self._dynamic_objects = list(uses)

    def __getstate__(self) -> dict[str, Any]:
        for place, value in self._dynamic_objects:
            try:
                ForkingPickler(BytesIO()).dump(value)
            except Exception as error:
                error.add_note(
                    f"{place}: this dynamic object, of type {type(value).__name__}, cannot be pickled to workers"
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
        key = top.key("", 0)
        standing = run.progress.find(run.lane, run.epoch_pass, "")
        draws = standing.draws if standing else 0
        for sample, cursor in top.start(0, standing.cursor if standing else None):
            draws += 1
            sample[CURSOR] = ((key, draws, 0.0, cursor),)
            if run.watched[0] != run.version:
                run.refuse()
            yield sample

    def _refuse(self, lane: Lane, progress: Progress, version: int) -> NoReturn:
        self._check_version(version)
        raise StateError(
            f"states: they hold nothing of rank {lane.dp_rank}, only of ranks {progress.ranks()}\n"
            "  Load this rank's own states, or those of all ranks, joined by merge_states."
        )

    def _lane(self, progress: Progress, epoch_pass: int) -> Lane:
        worker = get_worker_info()
        group = self._data_parallel or self._found_data_parallel(in_worker=worker is not None)
        num_workers, number = (worker.num_workers, worker.id) if worker is not None else (1, 0)
        if worker is not None:
            end_with_trainer()
            self._control.enlist(worker.id)
        if progress:
            # A DataLoader asks worker 0 first, always: it takes the lane whose turn it is.
            number = (number + progress.last_worker(epoch_pass, group.dp_rank) + 1) % num_workers
        return Lane(dp_size=group.dp_size, dp_rank=group.dp_rank, num_workers=num_workers, worker=number)

    def _check_no_workers(self) -> None:
        alive = self._control.living_workers()
        if alive:
            raise RuntimeError(
                f"set_dataloader_states: {alive} DataLoader workers already iterate over this dataset and would "
                "not see them\n"
                "  Set states before the DataLoader starts; with persistent workers, delete it and make a new one."
            )

    def _check_version(self, version: int) -> None:
        if version != self._control.version:
            raise RuntimeError(
                "states were set after this worker or iterator started, so it does not have them\n"
                "  Set states first, then iterate; with persistent workers, delete that DataLoader and make a new one."
            )

    def _describe(self, path: str = "") -> dict[str, str]:
        """What determines the order of each node of the tree, by path."""
        joins = self.customized_yield_fn is not None
        own = f"mixture, seed {self.seed}, cyclic {self.cyclic}, stop {self.stop}, yield function {joins}"
        nodes = {path: own}
        for dataset in self.datasets:
            below = path_below(path, dataset.name)
            if isinstance(dataset, MergedDataset):
                nodes.update(dataset._describe(below))  # noqa: SLF001 (the same class)
            else:
                nodes[below] = self._source(dataset, below).describe(self._shuffles(dataset))
        return nodes

    def _weights(self, path: str = "") -> dict[str, float]:
        """The weight of each node below the top in its parent, by path."""
        weights = {}
        for dataset in self.datasets:
            below = path_below(path, dataset.name)
            weights[below] = float(dataset.percent)
            if isinstance(dataset, MergedDataset):
                weights.update(dataset._weights(below))  # noqa: SLF001 (the same class)
        return weights

    def _source(self, dataset: Any, path: str) -> Source:
        source: Source = dataset.source if isinstance(dataset, ShardDataset) else MapStyleSource(dataset)
        if not source.num_blocks:
            raise SourceError(
                f"source {path!r}: expected at least one record, got an empty source\n  Remove it, or give it records."
            )
        return source

    def _shuffles(self, dataset: Any) -> bool:
        streaming = isinstance(dataset, ShardDataset)
        return self.shuffle_streaming_subsets if streaming else self.shuffle_unstreaming_subsets

    def _max_bad(self, path: str) -> int:
        most = int(getattr(self, "max_bad", 0))
        if most and self.customized_yield_fn is None:
            raise ValueError(
                f"source {path or 'the top'!r}: max_bad={most} of a mixture is for its customized_yield_fn, got none\n"
                "  Give max_bad to the sources that it is meant for."
            )
        return most

    def _mixture(self, run: Run, path: str, seeds: tuple[object, ...], parent_endless: bool) -> Mixture:
        endless = self.cyclic
        blend = Blend(
            names=[dataset.name for dataset in self.datasets],
            weights=[float(dataset.percent) for dataset in self.datasets],
            seeds=seeds,
            cyclic=self.cyclic,
            stop_at_first=self.stop == "first_exhausted",
            yield_fn=self.customized_yield_fn,
            max_bad=self._max_bad(path),
            cost=self.cost,
        )
        children: list[Child] = []
        for dataset in self.datasets:
            below = path_below(path, dataset.name)
            if isinstance(dataset, MergedDataset):
                inner_seeds = (*seeds, dataset.name, dataset.seed)
                children.append(dataset._mixture(run, below, inner_seeds, endless))  # noqa: SLF001 (the same class)
            else:
                order_seeds = (*seeds, dataset.name, run.epoch_pass)
                source, shuffle = self._source(dataset, below), self._shuffles(dataset)
                children.append(LeafChild(run, below, dataset, source, order_seeds, shuffle, endless))
        return Mixture(run, path, blend, children, parent_endless)


def _checked_seed(seed: Any) -> int:
    try:
        return operator.index(seed)
    except TypeError:
        raise ValueError(f"MergedDataset: expected an integer as seed, got {seed!r}") from None


def _check_ends(datasets: Sequence[Any]) -> None:
    for dataset in datasets:
        if isinstance(dataset, MergedDataset) and dataset.cyclic:
            raise ValueError(
                f"MergedDataset: stop='all_exhausted' waits for ever for {dataset.name!r}, which is cyclic\n"
                "  Give that mixture cyclic=False, or stop at the first that is exhausted."
            )
