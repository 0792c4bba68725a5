"""Every record of a recipe, read once: `recipe → sources → tasks (a shard, or a run of records) → faults by kind`.

Nothing stops at the first fault: after a record that cannot be read the next one is, after a damaged shard the next
shard, as far as its format allows. Records of both parts of a holdout are read, and those that a run would skip.
"""

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count, repeat
from os import PathLike
from typing import Any, Final, NamedTuple

from PIL import Image

from streamdata.errors import RecipeError, ShardError, StreamdataError, one_line, printable, shown
from streamdata.fields import DATASET_NAME, DP_RANK, SEED, WORKER_ID
from streamdata.io.remote.addresses import options_of_source, signed_url
from streamdata.recipe.build import authorised_recipe, build_node
from streamdata.recipe.limits import ShardLimits, read_limits
from streamdata.recipe.load import RecipeFile, attributes
from streamdata.recipe.named_source import for_all
from streamdata.recipe.resolve import Dynamic
from streamdata.recipe.targets import MIXTURE, public_name
from streamdata.recipe.yaml_tree import Path
from streamdata.run.processes import ForkReport, ProcessDiedError, forks
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.urls import find_shards
from streamdata.sources.files.shard_datasets import SHARD_SUFFIXES
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.foreign.named import is_own_stream, leave_out_filtered
from streamdata.sources.functions.images import IMAGE_FIELDS, decode_image
from streamdata.sources.functions.process_functions import Feed, PerRecordFn, call_per_record, complete, run_bursts
from streamdata.sources.functions.tally import Tally
from streamdata.sources.source import Record, describe_record
from streamdata.tools.data_check.data_records import (
    Findings,
    Kind,
    described,
    map_style_records,
    shard_records,
    streamed_records,
    tar_records,
)

_REMEDY = re.compile(r"\.?\n  (?=\S)")
"""Where a message goes on with what to do."""


@dataclass(frozen=True, kw_only=True)
class RecipeSource:
    """A source as a recipe describes it.

    Attributes:
        name: Its dotted name below the top mixture; "" of a root that is a source, or of one without a name.
        file: Its file.
        path: Its place there.
        above: The params of the mixtures above it, the outermost first.
        variables: Those of the recipe.
        allow: Which targets the recipe may name.
    """

    name: str
    file: RecipeFile
    path: Path
    above: tuple[Mapping[str, Any], ...]
    variables: Mapping[str, Any]
    allow: Collection[str] | None

    @property
    def target(self) -> str:
        """The name of what builds it, of streamdata's own the public one."""
        target = str(self.file.mappings(self.path)[-1][2].get("target"))
        return public_name(target) or target

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters, as the recipe has them."""
        params = self.file.mappings(self.path)[-1][2].get("params")
        return params if isinstance(params, dict) else {}

    def build(self, **params: object) -> Any:
        """The source, with some of its parameters replaced.

        Raises:
            RecipeError: It cannot be built; the cause is the original error.
        """
        values = {name: Dynamic(value) for name, value in params.items()}
        file, node = _changed(self.file, self.path, values)
        with self.settings():
            return build_node(file, node, self.path, self.allow, self.variables)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Put in force what the mixtures above it say for all."""
        with ExitStack() as stack:
            for params in self.above:
                stack.enter_context(for_all(params))
            yield


def _sources_in(node: RecipeSource) -> Iterator[RecipeSource]:
    """Yield the sources of records in a mixture; a source of records is the only one in itself."""
    if node.target != MIXTURE:
        yield node
        return
    holder, at, _ = node.file.mappings(node.path)[-1]
    params, above = node.params, (*node.above, node.params)
    datasets = params.get("datasets")
    for number, child in enumerate(datasets if isinstance(datasets, list) else ()):
        if isinstance(child, dict):
            path = (*at, "params", "datasets", number)
            name = f"{node.name}.{_name_of(holder, path)}".lstrip(".")
            yield from _sources_in(replace(node, name=name, file=holder, path=path, above=above))


def _name_of(file: RecipeFile, path: Path) -> str:
    """The name of a source: an attribute, or a parameter."""
    for _, _, node in file.mappings(path):
        params = node.get("params")
        for mapping in (attributes(node), params if isinstance(params, dict) else {}):
            if isinstance(mapping.get("name"), str):
                return str(mapping["name"])
    return ""


def _changed(file: RecipeFile, path: Path, params: Mapping[str, object]) -> tuple[RecipeFile, dict[Any, Any]]:
    """Copies of a file and of what stands at a path of it, with other parameters."""
    node, included = file.mappings(path)[0][2], file.includes.get(path)
    if included is None:
        return file, {**node, "params": {**(node.get("params") or {}), **params}}
    inner, value = _changed(included, (), params)
    return replace(file, includes={**file.includes, path: replace(inner, value=value)}), node


_STREAM_FUNCTION: Final = "process_fn"
_RECORDS_OF_TASK: Final = 10_000
"""Records of a map-style dataset that one task reads."""
_TAR: Final = "streamdata.MetaDistributedWebDataset"
_READ_ALONE: Final = "\n  Its records up to what is wrong with it are read without a sidecar, and given to no function."


class DataTask(NamedTuple):
    """A shard, or records of a dataset, that are read at once.

    Attributes:
        source: The number of the source in the recipe.
        url: Its shard, as it is to be reached; None where it has none, or all are read at once.
        first: The first record of a map-style dataset.
        last: After its last one.
    """

    source: int
    url: str | None = None
    first: int = 0
    last: int = 0


class DataCheck:
    """Reads the records of a recipe. Each process builds the sources that it reads: an open file must not be shared.

    Args:
        recipe: The file.
        variables: Its variables.
        allow: See `instantiate_from_yaml`.
        include_roots: See `instantiate_from_yaml`.

    Raises:
        RecipeError: The recipe cannot be read, or names a target that may not be imported.
    """

    def __init__(
        self,
        recipe: str | PathLike[str],
        variables: Mapping[str, Any],
        allow: Collection[str] | None,
        include_roots: Sequence[str] = (),
    ) -> None:
        file = authorised_recipe(recipe, variables, {}, allow, include_roots)
        top = RecipeSource(name="", file=file, path=(), above=(), variables=variables, allow=allow)
        self.sources = list(_sources_in(top)) if isinstance(file.value, dict) else []
        """The sources of records, in the recipe's order; nothing is built yet."""
        self._built: dict[int, Any] = {}

    def tasks(self, found: Findings) -> Iterator[DataTask]:
        """Yield what is to be read; note sources without files.

        Raises:
            RecipeError: A source cannot be built.
        """
        for number, source in enumerate(self.sources):
            try:
                if source.target in SHARD_SUFFIXES and "path" in source.params:
                    yield from (DataTask(number, url) for url in dict.fromkeys(_shards(source, source.params["path"])))
                    continue
                dataset = source.build()
                if isinstance(dataset, ShardDataset) or is_own_stream(dataset):
                    yield DataTask(number)
                    continue
                for first in range(0, len(dataset), _RECORDS_OF_TASK):
                    yield DataTask(number, None, first, min(len(dataset), first + _RECORDS_OF_TASK))
            except (StreamdataError, OSError) as error:
                if isinstance(error, RecipeError) and not _is_of_data(error.__cause__):
                    raise
                found.add("damaged", source.name, str(error))

    def __call__(self, task: DataTask, report: ForkReport) -> Findings:
        """Read a task's records, and hand them to the source's functions.

        Each fault is sent as it is found, with the task; what is returned, and marked before, has their counts alone.

        Raises:
            RecipeError: The source cannot be built.
        """
        source = self.sources[task.source]
        reading = _Reading(task, source.name, report)
        note = reading.add_fault
        try:
            dataset = self._dataset(task)
        except RecipeError as error:
            if not _is_of_data(error.__cause__):
                raise
            told, is_tar = str(error.__cause__), source.target == _TAR and isinstance(error.__cause__, ShardError)
            note("damaged", told + (_READ_ALONE if is_tar and task.url else "\n  Nothing of it was read."))
            if is_tar and task.url:
                limits = read_limits(source.params.get("limits"), ShardLimits, source.target)
                tar = SequentialTar(_shards(source, [signed_url(task.url)]), limits=limits)  # without its sidecar
                _process(None, reading, tar_records(tar, told, note), None)
            return reading.found
        if isinstance(dataset, ShardDataset):
            records = shard_records(dataset, note)
        elif is_own_stream(dataset):
            records = streamed_records(dataset, source.name, note)
        else:
            leave_out_filtered(dataset)
            records = map_style_records(dataset, task.first, task.last, source.name, note)
        _process(dataset, reading, records, source.above[-1].get("cost") if source.above else None)
        return reading.found

    def note_death(self, task: DataTask, error: ProcessDiedError, found: Findings) -> None:
        """Note that the process that read a task died, and at which record; what it had counted counts."""
        counted, record = Findings.from_mark(error.marked)
        found.join(counted)
        at = f"at {printable(record)}" if record else "before its first record"
        place = task.url or (f"records {task.first:,} to {task.last:,}" if task.last else "all of its records")
        found.add(
            "process died",
            self.sources[task.source].name,
            f"{place}: expected the process that reads it to finish, got: {error} {at}; "
            "the records after that were not checked\n"
            "  A function or a library ended it, or the memory ran out: then use fewer processes (-j).",
        )

    def _dataset(self, task: DataTask) -> Any:
        """The source of a task: of all, or of one shard, whose functions are those of the first one that was built."""
        source, first = self.sources[task.source], self._built.get(task.source)
        if task.url is None:
            dataset = first if first is not None else source.build()
        else:
            names = ("process_fn", "single_process_fn")
            functions = {} if first is None else {name: getattr(first, name) for name in names if name in source.params}
            folders = {"include_dirs": None} if "include_dirs" in source.params else {}
            dataset = source.build(path=[signed_url(task.url)], **folders, **functions)
        self._built.setdefault(task.source, dataset)
        return dataset


def _shards(source: RecipeSource, path: Any) -> list[str]:
    """The shards that a path finds, as the source reaches them."""
    with source.settings():
        options = options_of_source(source.params.get("storage_options"), source.target)
        folders = source.params.get("include_dirs") if path is source.params.get("path") else None
        return find_shards(path, SHARD_SUFFIXES[source.target], folders, options).urls


def _is_of_data(error: BaseException | None) -> bool:
    return isinstance(error, StreamdataError | OSError) and not isinstance(error, RecipeError)


class _Reading(Tally):
    """The faults of a task so far; those of functions are forgiven.

    Its process may die at any record: each fault is sent, the counts are marked.
    """

    def __init__(self, task: DataTask, name: str, report: ForkReport) -> None:
        super().__init__(name, max_bad=0)
        self.found, self._task, self._report, self._record = Findings(), task, report, ""
        self._last_failure = 0
        self.images = ""
        """The files of the last record's images, as a part of a message."""

    def begin(self, record: Record) -> None:
        """Count a record that was read."""
        self.found.num_records += 1
        images = (getattr(value, "filename", None) for value in record.values())
        self.images = "".join(f" (image {shown(name)})" for name in images if isinstance(name, str) and name)
        self._record = describe_record(record) + self.images
        self._report.mark(self.found.mark(self._record))

    def add_fault(self, kind: Kind, message: str) -> None:
        """Note a fault."""
        fault = self.found.add(kind, self.name, message)
        self._report.mark(self.found.mark(self._record))
        if fault is not None:
            self.found.faults.clear()
            self._report.send((self._task, fault))

    def drop(self, record: str, reason: str) -> None:
        """Count a record of which a function made nothing."""
        super().drop(record, reason)
        self.found.num_dropped = self.dropped

    def fail(self, error: Exception | SystemExit, record: str, what: str) -> None:
        """Note the failure of a function.

        Raises:
            Exception: `error` itself, of a stream function that would fail without end: it took no record since.
        """
        if what == _STREAM_FUNCTION:
            if self.found.num_records == self._last_failure:
                raise error
            self._last_failure = self.found.num_records
        self.add_fault("function", f"{record}{self.images}: {what} raised {described(error)}")


def _looked_at(records: Iterator[Record], reading: _Reading) -> Iterator[Record]:
    """Count records, give them the fields of a lane, and note images that do not decode."""
    for record in records:
        reading.begin(record)
        for field in (*IMAGE_FIELDS, "image"):
            try:
                if isinstance(data := record.get(field), bytes):
                    decode_image(data).load()
                elif isinstance(data, Image.Image):
                    data.load()
            except Exception as error:  # Pillow raises many kinds
                at = describe_record(record) + reading.images
                reading.add_fault("image", f"{at}: field {shown(field)}: {described(error)}")
        yield record | {DATASET_NAME: reading.name, DP_RANK: 0, WORKER_ID: 0, SEED: 0}


def _process(dataset: Any, reading: _Reading, read: Iterator[Record], cost: object) -> None:
    """Hand records to the functions of a source, and forget what they make of them.

    Of samples without the field that is their cost the first is noted.
    """
    records = _looked_at(read, reading)
    single, stream = (getattr(dataset, attribute, None) for attribute in ("single_process_fn", "process_fn"))
    pairs: Any = zip(records, ((0, 0, number, 0) for number in count(1)), strict=False)
    if single is not None:
        pairs = call_per_record(
            _checked(single, reading.name), pairs, 0, reading, lambda after: (*after[:2], after[2] - 1, 0)
        )
    if stream is not None:
        feed = Feed(pairs, (0, 0, 0, 0), 0, reading, _STREAM_FUNCTION)
        pairs = zip(run_bursts(stream, feed, None), repeat(None), strict=False)
    try:
        for sample, _ in pairs:
            if isinstance(cost, str) and cost not in sample:
                reading.add_fault("cost", f"{describe_record(sample)}: expected the field {shown(cost)} in each sample")
                cost = None
    except (Exception, SystemExit) as error:  # such as a stream function that ends before its records do
        reading.add_fault("function", f"{described(error)}; it was given no more records")
        for _ in records:  # to look at, without it
            pass


def _checked(function: PerRecordFn, name: str) -> PerRecordFn:
    """A function whose failure it also is to return what is no sample."""

    def call(record: Record) -> Any:
        output = function(record)
        for sample in output if isinstance(output, list) else [] if output is None else [output]:
            complete(sample, record, f"source {shown(name)}: single_process_fn")
        return output

    return call


def read_tasks(check: DataCheck, parts: dict[DataTask, Findings], num_processes: int) -> Iterator[int]:
    """Fill in the findings of each task, and yield how many tasks are done.

    Where a process dies that is a fault of its task, and new processes do the others.
    """
    waiting = dict.fromkeys(parts)
    while waiting:
        parts.update((task, Findings()) for task in waiting)  # what is under way when a process dies is read again
        try:
            # One reads in a process of its own, too: a function that ends it must not end the command.
            with forks(check, num_processes) as team:
                for task, read in team.run(tuple(waiting), report=lambda told: parts[told[0]].faults.append(told[1])):
                    parts[task].join(read)
                    del waiting[task]
                    yield len(parts) - len(waiting)
        except ProcessDiedError as error:
            check.note_death(error.task, error, parts[error.task])
            del waiting[error.task]
            yield len(parts) - len(waiting)


def progress_line(done: int, parts: Collection[Findings], began: float) -> str:
    """How many tasks are done, and how fast records and faults come."""
    num_records = sum(part.num_records for part in parts)
    rate = num_records / max(time.monotonic() - began, 1e-9)
    share = f"{done / len(parts):.0%} of {len(parts):,} shards and runs"
    return f"{share}  {num_records:,} records  {rate:,.0f}/s  {sum(part.counts.total() for part in parts):,} faults"


def fault_lines(found: Findings) -> Iterator[str]:
    """The faults, by source and kind."""
    for fault in sorted(found.faults, key=lambda fault: (fault.source, fault.kind)):  # stable: in the files' order
        source = f" {one_line(fault.source)}:" if fault.source else ""
        # A fault is a line: what to do about it stands in the same one, other line ends are escaped.
        yield f"error: {fault.kind}:{source} {one_line(_REMEDY.sub('. ', fault.message))}"
    if unlisted := found.counts.total() - len(found.faults):
        yield f"… and {unlisted:,} more, of which each shard lists the first of their kind alone"
