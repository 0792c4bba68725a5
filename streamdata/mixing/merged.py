"""The top of every tree: a mixture of sources as a torch dataset."""

import json
import logging
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from streamdata.errors import StateError, shown
from streamdata.io.remote.addresses import CacheSetting, read_cache_settings
from streamdata.io.remote.network import network
from streamdata.mixing.checks import check_not_wrapped, check_picklable, check_sources, checked_pass, checked_stall_s
from streamdata.mixing.control import Control
from streamdata.mixing.deals import Deals, header_of
from streamdata.mixing.lane_iterator import LaneIterator
from streamdata.mixing.leaf import ReadArguments, read_again
from streamdata.mixing.lengths import check_lengths, lengths_text
from streamdata.mixing.live_weights import live_after, live_at_resume
from streamdata.mixing.reading import Reading
from streamdata.mixing.tree import MixtureSettings, name_record, named_nodes, source_names, tree_of
from streamdata.recipe.named_source import PART_NAMES, Percent, default_of
from streamdata.run import MAX_WORKERS, DataParallel, Lane, find_data_parallel
from streamdata.run.lane_link import Traffic, note_deal, noted_deal, times_of, traffic_of
from streamdata.run.topology import data_parallel_at_fork, data_parallel_of, remember_data_parallel_at_fork
from streamdata.run.trainer import end_with_trainer
from streamdata.shards.ahead.read_ahead import ahead_settings, own_traffic
from streamdata.sources.alone import Alone
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.named import check_dataset, is_own_stream, named
from streamdata.sources.functions.process_functions import StreamFn
from streamdata.sources.functions.tally import end_where_batches_are_lost
from streamdata.sources.skip import SkipList, Skips
from streamdata.sources.source import Sample
from streamdata.states.checks import check_complete, check_nodes, describe_changes
from streamdata.states.cursor import States
from streamdata.states.headers import canonical, digest_of, read_deal
from streamdata.states.joining import verify_ranks_agree
from streamdata.states.progress import Progress
from streamdata.states.saving import remember, watched

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from streamdata.recipe.load import Recipe

logger = logging.getLogger("streamdata")

_STOP_RULES = ("first_exhausted", "all_exhausted")


class MergedDataset(IterableDataset[Sample], MixtureSettings):
    """Mixes many sources into one stream: by weight, split over ranks and workers, resumable from its samples.

    Each sample is a dict that carries its state. `states.update(to_state(batch))` collects the states, and
    `set_dataloader_states(states)` continues from them. A source is a map-style dataset, one of streamdata's own, or
    another MergedDataset, with the attributes `name` and `percent`. On a map-style dataset you can also set
    `single_process_fn`, `process_fn` and `max_bad`. The `max_bad` of a mixture is for its `customized_yield_fn`. The
    attribute `max_epochs` ends a source of records after so many epochs, even if `cyclic`.

    Args:
        datasets: The sources.
        cyclic: Let each source begin its next epoch when one ends. Otherwise the stream is finite, and `stop` says
            when it ends. A finite mixture may only be inside a finite one.
        shuffle_unstreaming_subsets: Shuffle the map-style sources.
        shuffle_streaming_subsets: Shuffle the sources of shards.
        seed: The seed of all orders.
        customized_yield_fn: A stream function over the merged stream, such as one that joins several samples to one.
        stop: `first_exhausted` ends the stream when a draw finds a source at its end, `all_exhausted` leaves that
            source out.
        skip: For the top mixture only: records to leave out and count as `skipped`. A list, or a JSONL file, of
            `{source, index}` or `{source, url, key}`, which are a sample's `__datasetname__`, `__index__`, `__url__`
            and `__key__`. It may differ at each resume; bursts that were open are finished as they were begun.
        cost: What a sample adds to its source's clock, such as its number of tokens: a function of the sample, or the
            name of a field. By default 1.
        cache: Where pages of remote shards are kept on the node, `{path, max_bytes}`, for all sources without a
            setting of their own; see `docs/guides/object-stores.md`.
        read_ahead_bytes: For the top mixture only: the bytes of shards that a process holds at most, those being read
            included; 0 turns read-ahead off. By default STREAMDATA_READ_AHEAD_BYTES of the environment, or 256 MiB.
            It does not change the stream, and may differ at each resume.
        name: Its name in another mixture, without a ".".
        percent: Its weight there.
        storage_options: In a recipe, the options of all sources that set none of their own.
        connections: For the top mixture only: the connections of a node to remote stores, shared by its ranks and
            their workers. By default STREAMDATA_CONNECTIONS of the environment, or 64.
        stall_s: For the top mixture only: a record that takes longer than so many seconds, to be read or in a process
            function, is named with its stack in the log of its process, once. By default nothing is watched. It does
            not change the stream.

    Raises:
        ValueError: There are no sources, or a source twice, a name that is missing, double or holds a ".", a `percent`
            that is missing or not one; a finite mixture within an endless one; a `max_epochs` that is not a whole
            number from 1 on; an entry of `skip` that does not name a record; a `read_ahead_bytes`, `connections` or
            `stall_s` that is out of range.
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
        cache: CacheSetting = None,
        read_ahead_bytes: int | None = None,
        name: str | None = None,
        percent: Percent | None = None,
        storage_options: Mapping[str, Any] | None = None,
        connections: int | None = None,
        stall_s: float | None = None,
    ) -> None:
        super().__init__(name, percent)
        self.connections = connections
        self.stall_s = None if stall_s is None else checked_stall_s(stall_s, "MergedDataset")
        if storage_options is not None and default_of("storage_options") is not storage_options:
            raise ValueError(
                "MergedDataset: storage_options: expected them in a recipe, whose sources take them over, got them\n"
                "  Give them to each source."
            )
        if stop not in _STOP_RULES:
            raise ValueError(f"MergedDataset: expected stop to be one of {_STOP_RULES}, got {shown(stop)}")
        self.datasets = list(datasets)
        self.cyclic, self.stop = cyclic, stop
        try:
            self.seed = operator.index(seed)
        except TypeError:
            raise ValueError(f"MergedDataset: expected an integer as seed, got {shown(seed)}") from None
        self.shuffle_unstreaming_subsets = shuffle_unstreaming_subsets
        self.shuffle_streaming_subsets = shuffle_streaming_subsets
        self.customized_yield_fn, self.cost = customized_yield_fn, cost
        self.skip = skip
        settings = read_cache_settings(cache)
        self.read_ahead_bytes = read_ahead_bytes
        ahead_settings(read_ahead_bytes, connections)  # what is wrong with them is said here
        check_sources(self)
        for dataset in self.datasets:
            if isinstance(dataset, Alone):
                dataset.is_within_mixture()
        # Those that are left out, too: they may be given weights later.
        sources = {path: node for path, node in named_nodes(self).items() if not isinstance(node, MixtureSettings)}
        for source in () if settings is None else sources.values():  # mixtures below gave theirs before
            if isinstance(source, ShardDataset) and source.cache is None:
                source.cache = settings
        self.skips = Skips(skip, sources)
        """The records that are left out."""
        self._is_for_evaluation = False
        self._data_parallel: DataParallel | None = None
        self._group_of_sender: DataParallel | None = None
        self._received_in: int | None = None
        remember_data_parallel_at_fork()
        self._dynamic_objects: list[tuple[str, object]] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.progress = Progress({})
        """The states that were set; read once here, and sent to the workers."""
        self._from_window = False
        self._version = self._weights_set = 0
        self.live = {}
        self._iterated_in: int | None = None
        self._control = Control()
        watched.add(self)

    def finite(self) -> "MergedDataset":
        """Return a dataset that reads the same recipe once, for an evaluation, without states; this one stays as it is.

        Each source comes to its end, once whatever its `max_epochs` is, in the order in which it lies, and of the same
        `part`. No mixture is cyclic, and each goes on until all of its sources have ended.
        """
        once = object.__new__(type(self))  # not copied by pickling, which is for workers
        once.__dict__.update(self.__dict__)
        once.datasets = []
        for dataset in self.datasets:
            own: Any = dataset.finite() if isinstance(dataset, MergedDataset) else dataset
            if getattr(own, "max_epochs", None) is not None:
                own = copy(own)
                own.max_epochs = None
            once.datasets.append(own)
        once.cyclic, once.stop = False, "all_exhausted"
        once.shuffle_unstreaming_subsets = once.shuffle_streaming_subsets = False
        once._begin_anew()
        once._is_for_evaluation = True
        return once

    def is_to_be_saved(self) -> bool:
        """Whether the dataset's states matter: it has given samples, and is neither `finite()` nor held-out data."""
        if self._is_for_evaluation or not self._control.has_given:
            return False
        return all(getattr(node.dataset, "part", None) in (None, PART_NAMES[0]) for node in tree_of(self).walk())

    def set_data_parallel(
        self,
        dp_size: int | None = None,
        dp_rank: int | None = None,
        *,
        mesh: "DeviceMesh | None" = None,
        dims: str | Sequence[str] | None = None,
    ) -> None:
        """Set which data-parallel replica this is, in place of torch.distributed or RANK and WORLD_SIZE.

        Passes that another replica has ended do not count: this one begins with the first pass, or with that of the
        states.

        Args:
            dp_size: How many replicas there are.
            dp_rank: Which of them this is.
            mesh: Instead of both, torch's DeviceMesh. Ranks that differ in tensor, pipeline or context parallelism
                alone are one replica, and read the same samples.
            dims: The names of its data-parallel dimensions; to be left out where they have usual names, such as `dp`,
                `dp_replicate`, `dp_shard` or `batch` beside `tp`, `pp`, `cp`, or where it has one dimension, unless
                that is one of the latter, or may hold both kinds, as `fsdp` and `dp_shard_cp` do.

        Raises:
            ValueError: Not 0 <= dp_rank < dp_size; neither a mesh nor both numbers are given; or the mesh is ambiguous.
        """
        if mesh is not None and dp_size is None and dp_rank is None:
            group = data_parallel_of(mesh, dims)
        elif mesh is None and dims is None and dp_size is not None and dp_rank is not None:
            group = DataParallel(dp_size=dp_size, dp_rank=dp_rank)
        else:
            raise ValueError(
                f"set_data_parallel: expected dp_size and dp_rank, or a mesh, got dp_size={shown(dp_size)}, "
                f"dp_rank={shown(dp_rank)}, mesh={shown(mesh)}, dims={shown(dims)}\n  Give one of the two; dims "
                "are those of a mesh."
            )
        if group != self._data_parallel:
            self._version = self._control.version = self._control.version + 1
        self._data_parallel = group

    def set_epoch(self, epoch: int | None) -> None:
        """Make every iteration read pass number `epoch` (from 0) from now on; None lets passes count up again.

        Without it passes count up by themselves: an iteration that came to its end is followed by the next pass, the
        whole stream again in another order; one that was left before its end begins again where it began. It also
        reaches persistent workers. States of another pass do not apply.

        Raises:
            ValueError: `epoch` is negative or no int; or a loader that divides the stream among ranks calls this.
        """
        epoch = None if epoch is None else checked_pass(epoch, "set_epoch")
        check_not_wrapped((self._data_parallel or find_data_parallel()).dp_size)
        self._control.epoch_pass = epoch

    def set_dataloader_states(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> None:
        """Make iterations continue where `states`, collected by `to_state`, say that the trainer stood.

        The states apply to iterations that begin from now on, not to running ones. Once an iteration has come to the
        end of their pass, they are used up, and the next pass begins at its start.

        Args:
            states: Those of this rank, or of all ranks, joined by `merge_states`. Empty means from the start.
            reload_from_url_level: Go back to the start of the earliest window in which something is undelivered, with
                the process functions afresh: for a run whose sequence length changed.

        Raises:
            StateError: The states are of another dataset or seed, lack entries of what was delivered, or are no states.
        """
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise StateError(
                f"set_dataloader_states: it was called in worker {worker.id} of {worker.num_workers}, which knows what "
                "its own lane has delivered, not what the rank has\n"
                "  Call it in the trainer's process, before the DataLoader is iterated; or give the MergedDataset "
                "itself to a StatefulDataLoader, whose workers' iterators have states of their own."
            )
        progress = Progress(states)
        live, forgotten = live_at_resume(self, progress)
        top = tree_of(self, live=live)
        tree = top.tree
        check_nodes(progress, tree.nodes)
        check_complete(
            progress,
            is_endless=top.is_endless,
            # What was skipped may all have been of one lane.
            least=lambda lane, epoch_pass: (
                (Deals(progress, epoch_pass, progress.topology().lanes).least_samples(top, lane) or 0)
                - self.skips.num_records
            ),
        )
        for line in (*forgotten, *describe_changes(progress, tree)):
            logger.warning("%s", line)
        # Here, and not in each of the workers that are forked from this process.
        group = self._data_parallel or find_data_parallel()
        is_same = not progress or progress.topology().dp_size == group.dp_size
        _ = (progress.before if is_same else header_of(progress, top, tree)).entry
        remember(progress.table)
        self.progress, self._from_window, self.live = progress, reload_from_url_level, live
        self._version = self._control.version = self._control.version + 1

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Give sources other percents from the next iteration on, as if the recipe had them.

        They are not in the states: set them again after a resume. `StreamLoader.set_weights` acts within an iteration,
        and its weights are in the states.

        Args:
            weights: Percents by the path of a source, or of a mixture within this one; 0 leaves it out. A schedule is
                replaced.

        Raises:
            ValueError: No such source, a percent that is negative or not finite, all of a mixture at 0, or some of one
                whose percents follow from sizes. Nothing is changed then.
        """
        live_after(self, weights, 0.0)  # checks them
        nodes = named_nodes(self)
        for path, percent in weights.items():
            nodes[path].percent = float(percent)
        self.live = {path: live for path, live in self.live.items() if path not in weights}
        self._control.weights_set = self._weights_set = self._control.weights_set + 1

    def time(self, num_workers: int, progress: Progress) -> float:
        """The time of schedules where states say that this rank stands."""
        return replace(self._reading(self.lane(num_workers)), progress=progress).time()

    def lane(self, num_workers: int) -> Lane:
        """The first lane of this rank in a run with `num_workers` DataLoader workers; for the trainer's process."""
        group = self._data_parallel or find_data_parallel()
        return Lane(dp_size=group.dp_size, dp_rank=group.dp_rank, num_workers=max(1, num_workers), worker=0)

    def next_pass(self, num_workers: int) -> int:
        """The pass that an iteration with `num_workers` workers would read if it began now."""
        return self._reading(self.lane(num_workers)).next_pass()

    def verify_agreement(self) -> None:
        """Check that all ranks are about to read the same; call it on every rank, with states set.

        If the states hold only their own rank, their headers are compared.

        Raises:
            StateError: Some rank has other states, another recipe, `skip`, seed or number of ranks than most. It is
                raised on every rank.
        """
        top, group = tree_of(self), self._data_parallel or find_data_parallel()
        tree = top.tree
        # Of the whole tree: a nested mixture has a seed of its own, and orders of its own by it.
        seeds = {node.path: node.dataset.seed for node in top.walk() if node.is_mixture}
        # Without the seeds, which a mixture's line names: who has another seed has no other recipe.
        nodes = {path: text.replace(f"seed {seeds.get(path)},", "seed,") for path, text in tree.nodes.items()}
        # Seeds and sizes as text, which a message can show; trees are long, and told by their digest.
        of_paths = [f"{seed} of {shown(path)}" if path else str(seed) for path, seed in sorted(seeds.items())]
        facts = {
            "topology": f"{group.dp_size} ranks",
            "seed": ", ".join(of_paths),
            "recipe": digest_of(canonical([nodes, dict(tree.weights)])),
            "skip": f"{self.skips.num_records} records, digest {self.skips.digest('')}",
        }
        verify_ranks_agree(facts, self.progress.table, group)

    def samples_left(self, num_workers: int, *, whole_pass: bool = False) -> npt.NDArray[np.int64]:
        """The number of samples that each lane still gets of the pass that the next iteration reads.

        No data is read. If only a part of a source is read, its records are counted one by one, by their identities.

        Args:
            num_workers: The DataLoader workers of each rank.
            whole_pass: Count the whole pass, as if nothing of it had been delivered.

        Returns:
            int64 (dp_size, max(1, num_workers)).

        Raises:
            ValueError: The number is not known: the stream is endless, or some source may not give one sample for
                each record; the message names the source.
            StateError: The states hold nothing of some rank.
        """
        reading = self._reading(replace(self.lane(num_workers), dp_rank=0))
        return (replace(reading, progress=Progress({})) if whole_pass else reading).samples_left()

    def headers(self, num_workers: int) -> States:
        """The headers, as states hold them, of the generation that an iteration with `num_workers` workers reads."""
        return self._reading(self.lane(num_workers)).headers()

    def idle_rank(self, num_workers: int, passes: Iterable[int], ranks: Iterable[int]) -> int | None:
        """The first of `ranks` that has no share of any of these passes, each read from its start; None if all have.

        No data is read, so samples that functions will drop are not considered.
        """
        return self._reading(self.lane(num_workers)).idle_rank(passes, ranks)

    def __iter_from__(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> Iterator[Sample]:
        """Set states by `set_dataloader_states`, then iterate."""
        self.set_dataloader_states(states, reload_from_url_level)
        return iter(self)

    def __iter__(self) -> LaneIterator:
        """Iterate over this lane's samples: those of the rank and of the DataLoader worker that calls.

        Raises:
            StateError: The states hold nothing of this rank, or cannot go on under another topology.
            SourceError: A source has no records; it may be raised with the first sample.
            ValueError: WORLD_SIZE is set without a usable RANK; or a loader that divides the stream among ranks calls.
            RuntimeError: A persistent worker does not have the states that were set since.
        """
        lane = self._lane()
        is_first, self._iterated_in = self._iterated_in != os.getpid(), os.getpid()
        # A worker that lives on has the states that were set when it was made.
        lives_on = not is_first and get_worker_info() is not None
        is_as_set = (self._version, self._weights_set) == (self._control.version, self._control.weights_set)
        reading = self._reading(lane, is_stale=lives_on and not is_as_set)
        if self.progress:
            check_nodes(self.progress, reading.top.tree.nodes)
        check_not_wrapped(reading.lane.dp_size)
        return LaneIterator(reading)

    def _reading(self, lane: Lane, *, is_stale: bool = False) -> Reading:
        top, progress = tree_of(self), self.progress
        if not progress and (deal := noted_deal(self._control.name, self._version)) is not None:
            progress = progress.under_next_size(read_deal(json.loads(deal.text)))
        return Reading(
            lane=lane,
            top=top,
            progress=progress,
            version=self._version,
            is_stale=is_stale,
            from_window=self._from_window,
            control=self._control,
            skips=self.skips,
            ahead=ahead_settings(self.read_ahead_bytes, self.connections),
            stall_s=self.stall_s,
        )

    @property
    def source_names(self) -> tuple[str, ...]:
        """The dotted names of all sources of records, sorted; `source_ids` of batches are numbers of these."""
        return tuple(source_names(self))

    def describe_record(self, source: int | str, record_id: Sequence[int]) -> dict[str, Any]:
        """Look up which record a document is.

        Args:
            source: Its number, as in `source_ids`, or its name.
            record_id: A row of `record_ids`: epoch, record, output.

        Returns:
            `url` and `key` of a record of a shard; `index` in a map-style dataset.

        Raises:
            ValueError: There is no such source, or no such record in it.
            SourceError: It is another library's iterable, whose records nobody can look up.
        """
        return name_record(tree_of(self), source, record_id)

    def read(self, source: int | str, record_id: Sequence[int], epoch_pass: int | None = None) -> Sample:
        """Read a sample again, as the stream gives it; see `read_many`."""
        return self.read_many([(source, record_id, epoch_pass)])[0]

    def read_many(self, samples: Iterable[ReadArguments]) -> list[Sample]:
        """Read samples again, as the stream gives them.

        Each is the same but for private fields: `__dprank__` and `__workerid__` are 0, and it carries no state. No
        iteration is needed, and none that is under way is changed. It takes the reading of one record, or of a row
        group of parquet; shards that can only be read from their start are read once, up to the last sample of each.

        Args:
            samples: For each `(source, record_id)` or `(source, record_id, epoch_pass)`: the number or name of its
                source, as in `source_ids`; a row of `record_ids`: epoch, record, output; and the pass that it is of, by
                default the one that an iteration would read if it began now.

        Returns:
            The samples, in the order asked for.

        Raises:
            ValueError: There is no such source, record or output; or `skip` leaves the record out.
            SourceError: A stream function of the source, or of a mixture that it is in, makes the samples; or it is
                another library's iterable, whose records nobody can look up.
            Exception: What reading a record, or its `single_process_fn`, raises.
        """
        network().limit(ahead_settings(self.read_ahead_bytes, self.connections).connections)
        return read_again(self, samples, self._pass_to_read, self.skips)

    def _pass_to_read(self) -> int:
        chosen, progress = self._control.epoch_pass, self.progress
        # Without states, notes of lanes that there are none of count as those of all lanes.
        workers = progress.topology().num_workers if progress else MAX_WORKERS
        return self.next_pass(workers) if chosen is None else chosen

    def check_length(self, required: float) -> list[dict[str, Any]]:
        """Compute how often a run of `required` samples of this mixture reads each source.

        Args:
            required: The samples that the run takes, over all ranks; with a yield function, those that it pulls.

        Returns:
            A dict for each source of records: `name` (its path), `share` (of the whole stream, on average over the
            run), `length` (its attribute of that name, or its records), `multiplier` and `divisor` (`length_multiplier`
            and `length_divisor`), `epochs` and `advice`.

        Raises:
            ValueError: `required` is not a number above 0, or the length of a source is not known.
        """
        return check_lengths(tree_of(self), required)

    def print_dataset_length_stats(self, required: float | None = None) -> None:
        """Print the result of `check_length` as a table; without `required`, only shares and lengths."""
        print(lengths_text(check_lengths(tree_of(self), required)))  # noqa: T201  what it is for

    def forget_workers(self) -> None:
        """Make `note_dead_workers` ignore the workers of earlier iterations."""
        self._control.places.clear()

    def note_dead_workers(self, error: Exception) -> None:
        """Add a note to an error: the workers that died before the end of their stream, each with its last record."""
        for pid, record in self._control.places.of_dead().items():
            at = f"a function of it was last given {record}" if record else "no function of it was at a record"
            error.add_note(
                f"MergedDataset: worker process {pid} was killed; {at}\n"
                "  If for lack of memory, the system's log says so: take fewer workers or smaller batches."
            )

    def traffic(self) -> Traffic:
        """Counts of requests to remote stores for the batches received by this process, and the time spent waiting.

        All requests of this process itself are included. Those of a worker are counted up to its last batch.
        """
        return traffic_of(self._control.name, own_traffic())

    def times(self) -> dict[str, float]:
        """Seconds spent reading each source for the batches received by this process, as plain numbers.

        Returns:
            For each source, `reading_s/NAME`: seconds from its records to samples; and `waiting_s/NAME`: how much of
            that was spent waiting for remote stores. Both are sums over the workers. An inner mixture has the sums of
            all its sources.
        """
        found = times_of(self._control.name).items()
        reading = {f"reading_s/{path}": times[0] for path, times in found}
        return reading | {f"waiting_s/{path}": times[1] for path, times in found}

    def state_dict(self) -> NoReturn:
        """Always raises: the dataset cannot know which batches were delivered, since workers read ahead.

        Raises:
            StateError: Always.
        """
        raise StateError(
            "MergedDataset: it cannot know which of its samples the trainer has received, so it has no state of its own"
            "\n  Use StreamLoader(dataset, …), whose state_dict() knows it; or collect states.update(to_state(batch)), "
            "and go on with set_dataloader_states(states)."
        )

    def remember_dynamic_objects(self, uses: list[tuple[str, object]]) -> None:
        """Keep the recipe's dynamic objects with their locations, to name one that cannot be pickled for workers."""
        self._dynamic_objects = list(uses)

    def __getstate__(self) -> dict[str, Any]:
        check_picklable(tree_of(self).walk() if get_spawning_popen() is not None else (), self._dynamic_objects)
        sent = {"_group_of_sender": self._data_parallel or find_data_parallel()}
        return {**self.__dict__, **sent, "_deal": noted_deal(self._control.name, self._version)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        deal = state.pop("_deal")
        self.__dict__.update(state, _received_in=os.getpid())
        note_deal(self._control.name, self._version, deal)
        watched.add(self)
        remember_data_parallel_at_fork()

    def _lane(self) -> Lane:
        """The lane of this process, before the turns of its workers are known."""
        worker = get_worker_info()
        if worker is None:
            return self.lane(1)
        # The group as the trainer sees it: a worker was sent it, or was forked and has it from then.
        sent = self._group_of_sender if self._received_in == os.getpid() else None
        group = self._data_parallel or sent or data_parallel_at_fork()
        if worker.num_workers > MAX_WORKERS:
            raise ValueError(
                f"MergedDataset: expected at most {MAX_WORKERS} DataLoader workers, got {worker.num_workers}"
            )
        end_with_trainer()
        end_where_batches_are_lost()
        return Lane(dp_size=group.dp_size, dp_rank=group.dp_rank, num_workers=worker.num_workers, worker=worker.id)


def top_of(dataset: Any, who: str) -> MergedDataset:
    """Return a mixture as it is; wrap a source as `MergedDataset([source], cyclic=False)`.

    A source without a name has that of its class, and without a percent 1.

    Args:
        dataset: A mixture or a source of any kind.
        who: Who asks, for the message.

    Raises:
        ValueError: `dataset` is neither, or its mixture is refused.
    """
    match dataset:
        case MergedDataset():
            return dataset
        case Alone():
            mixture: MergedDataset = dataset.mixture()  # the one that it has, whose states and passes are its own
            return mixture
    if not isinstance(dataset, Mapping):  # whose message below is of mixtures too
        check_dataset(dataset, who)
    # Texts, lists and dicts have those too: more likely a path, several sources, or splits of which one must be named.
    has_records = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if is_own_stream(dataset) or (has_records and not isinstance(dataset, Sequence | Mapping)):
        name, percent = getattr(dataset, "name", type(dataset).__name__), getattr(dataset, "percent", 1.0)
        return MergedDataset([named(dataset, name=name, percent=percent)], cyclic=False)
    raise ValueError(
        f"{who}: expected a MergedDataset or a source, got {type(dataset).__name__}\n"
        "  A source has __len__ and __getitem__, or is a torch IterableDataset."
    )


def instantiate_from_yaml(
    config_path: "Recipe",
    variables: Mapping[str, Any] | None = None,
    dynamic_objs: Mapping[str, object] | None = None,
    *,
    allow: Collection[str] | None = None,
    include_roots: Sequence[str | os.PathLike[str]] = (),
    limits: Mapping[str, int] | None = None,
) -> MergedDataset:
    """Builds the objects that a YAML recipe describes.

    A mapping with ``target`` and ``params`` becomes ``target(**params)``, its other keys become attributes; ``target``
    alone is the imported thing itself; ``include`` names another recipe. The whole recipe is read, and every target's
    name authorised, before anything is imported.

    Type checkers see a MergedDataset, as most recipes build one; for another, write
    ``cast(Other, instantiate_from_yaml(…))``.

    Args:
        config_path: The recipe's file, or its content as a dict or DictConfig.
        variables: Values for ``${variables:x}``: text, numbers, paths, lists, tuples and dicts.
        dynamic_objs: Objects for ``${dynamic_objs:x}``, delivered by identity.
        allow: The packages whose targets are accepted, beside streamdata; by default all but the standard library.
        include_roots: Folders with files that it may include, beside its own folder and the working directory.
        limits: Bounds of the recipe's size: `file_bytes` (1 MiB) of each file, and `num_nodes` (100,000) mappings,
            lists and values of all.

    Raises:
        RecipeError: The recipe cannot be read or built; the message says where, and the cause is the original error.
    """
    from streamdata.recipe.build import authorised_recipe, build_node  # and OmegaConf, which no spawned worker needs

    variables = variables or {}
    file = authorised_recipe(config_path, variables, dynamic_objs or {}, allow, include_roots, limits)
    built: MergedDataset = build_node(file, file.value, (), allow, variables)
    return built
