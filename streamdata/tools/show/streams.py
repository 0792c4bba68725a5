"""Samples of a mixture that are shown: `dataset, states, rank, step, source → samples, as delivered, with raw records`.

Process functions of the sources are watched, so that a sample comes with the records that were read for it; the stream
and its states are as without that.
"""

import functools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from streamdata.chats.chat_dataset import ChatDataset
from streamdata.chats.prompts import RLHFDataset
from streamdata.errors import SourceError, StoreError, listing, one_line, shown, text_of
from streamdata.fields import DATASET_NAME, INDEX, KEY, PROVENANCE, URL
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.prepare.finished_runs import manifest_of
from streamdata.prepare.preview import stored_record
from streamdata.recipe.targets import import_target
from streamdata.shards.listing import JSON_SUFFIXES
from streamdata.sources.files.image_datasets import FILE_FORMATS, IMAGE_SUFFIXES
from streamdata.sources.files.shard_datasets import SHARD_SUFFIXES
from streamdata.sources.foreign.named import named
from streamdata.sources.functions.images import open_image
from streamdata.sources.source import Sample
from streamdata.states.progress import Progress
from streamdata.stores.dtypes import SOURCES
from streamdata.stores.factory import detect_format, open_store
from streamdata.tools.show.fields import FieldRenderer
from streamdata.tools.show.model import ON_PAGE, Limits, Page, ShownSample
from streamdata.tools.show.page import BrowsePages, BrowseSteps, PagePlace, is_of
from streamdata.tools.show.tokens import TokenTexts, load_token_texts
from streamdata.tools.trace.era import document_name, documents_of, record_of
from streamdata.tools.trace.trace import Trace

logger = logging.getLogger("streamdata")
RECORDS: Final = "__records__"
"""Private. In a sample of a watched function: the raw records that were read for it."""
_MOST: Final = 64
"""Records that are kept for a sample: a function may pass over millions."""
_WINDOW: Final = 1024
"""Tokens at once of a store that does not say where its records begin."""
_NAMING: Final = {"source": DATASET_NAME, "url": URL, "key": KEY, "index": INDEX}
"""The fields of a sample that name its record, by what `record_of` calls them."""

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a run to begin.

    Attributes:
        step: The first step that is shown, from 1; None for the beginning, or for what comes after the states.
        rank: Whose samples.
        dp_size: How many ranks there are; None for as many as in the states, or 1.
        batch: Samples of a rank in a step; None for as in the states, or 1.
        states: Of the run, oldest first; none of one that has not begun.
        source: The path of the source whose samples are shown; "" for all.
    """

    step: int | None = None
    rank: int = 0
    dp_size: int | None = None
    batch: int | None = None
    states: Sequence[Mapping[str, Any]] = ()
    source: str = ""

    def steps(self, dataset: MergedDataset) -> Trace:
        """The steps of the run."""
        return Trace(dataset, self.states, batch=self.batch, dp_size=self.dp_size or 1)


def delivered(dataset: MergedDataset, place: Place) -> Iterator[tuple[int | None, Sample]]:
    """The samples of a rank from a place on, with the step of each, where that is known. The dataset is used up by it.

    Raises:
        SourceError: There is no such source.
        StateError: The states are not of this dataset.
    """
    nodes = [node for node in tree_of(dataset).walk() if node.path]
    if place.source and place.source not in (paths := [node.path for node in nodes]):
        raise SourceError(f"source {shown(place.source)}: expected one of {listing(paths)}")
    if place.step is None and not place.states:
        dataset.set_data_parallel(place.dp_size or 1, place.rank)
        if place.source:
            # The stream is of one source alone, in the order that it has: that depends on its path alone.
            for node in nodes:
                path, wanted = f"{node.path}.", f"{place.source}."
                node.dataset.percent = int(path.startswith(wanted) or wanted.startswith(path))
        return ((None, sample) for sample in dataset if is_of(sample, place.source))
    steps = place.steps(dataset)
    batches = steps.batches(place.step or steps.num_steps + 1, place.rank)
    return ((step, sample) for step, batch in batches for sample in batch if is_of(sample, place.source))


def with_record(function: Callable[[Record], Any], record: Record) -> Any:
    """Call a recipe's `single_process_fn`, and add the record to its samples."""
    kept = [dict(record)]  # the function may change it
    made = function(record)
    return [_with(sample, kept) for sample in made] if isinstance(made, list) else _with(made, kept)


# A partial: at each start of a stream function `fresh` copies what a partial is of, so that the function which is
# watched has collections of its own then, as it would have by itself.
class WatchedStream(functools.partial[Any]):
    """A `process_fn` whose samples carry the records that were pulled since the one before, or the last one."""

    def __call__(self, records: Iterable[Record], /, *_: Any, **__: Any) -> Iterator[Any]:
        """Call the function, and add to each sample the records that were read for it."""
        pulled: list[Record] = []
        last: list[Record] = []

        def noting() -> Iterator[Record]:
            for record in records:
                if len(pulled) < _MOST:
                    pulled.append(dict(record))
                yield record

        for sample in self.func(noting(), *self.args, **self.keywords):
            last = [*pulled] or last
            pulled.clear()
            yield _with(sample, last)

    def __getattr__(self, name: str) -> Any:
        # Whether it has a state, and which one.
        return getattr(self.func, name)


def _with(sample: Any, records: list[Record]) -> Any:
    return {**sample, RECORDS: records} if isinstance(sample, Mapping) else sample


class MixtureSamples:
    """Shows a mixture's samples.

    It watches the process functions of its sources: make it before the mixture is iterated.

    Args:
        dataset: The top.
        place: Which of its runs, and what is shown first.
        limits: How much of each sample is shown.
        tokenizer: Of sources whose functions name none; by default that of the run which wrote their store.
    """

    def __init__(
        self, dataset: MergedDataset, place: Place, limits: Limits = ON_PAGE, tokenizer: str | None = None
    ) -> None:
        self._dataset, self._place, self._limits = dataset, place, limits
        self._top = tree_of(dataset)
        self._sources = {node.path: node.dataset for node in self._top.leaves()}
        self._texts = {path: _tokenizer_of(source, tokenizer) for path, source in self._sources.items()}
        for source in self._sources.values():
            if (single := getattr(source, "single_process_fn", None)) is not None:
                source.single_process_fn = functools.partial(with_record, single)
            if (stream := getattr(source, "process_fn", None)) is not None:
                source.process_fn = WatchedStream(stream)

    def shown(self, sample: Mapping[str, Any], number: int, step: int | None = None) -> ShownSample:
        """Show a sample.

        Args:
            sample: As the mixture gave it.
            number: In what is shown.
            step: Of the run, if it is known.
        """
        fields = {name: value for name, value in sample.items() if name not in PROVENANCE}
        records = sample.get(RECORDS, ())
        if documents := documents_of(sample, self._top):
            places = (f"tokens {one['begin']} to {one['end'] - 1}: {document_name(one)}" for one in documents)
            fields["documents"] = "\n".join(places)
            names = {document_name(one) for one in documents}
            # What else it carries is of the records that were pulled last, which a packer may put into later rows.
            records = [record for record in records if document_name(record_of(record)) in names]
            sample = {**sample, **{field: documents[-1].get(name) for name, field in _NAMING.items()}}
        path, index = str(sample.get(DATASET_NAME, "")), sample.get(INDEX)
        source = self._sources.get(path)
        if RECORDS not in sample and isinstance(index, int) and isinstance(source, ChatDataset | RLHFDataset):
            records = [source.row(index)]
        texts = self._texts.get(path)
        if isinstance(texts, str | os.PathLike):
            texts = self._texts[path] = load_token_texts(os.fspath(texts))
        of_record = FieldRenderer(replace(self._limits, chars=self._limits.chars // 2))
        shown_records = [
            ShownSample(number=at, where=_where(record), fields=of_record.of(record))
            for at, record in enumerate(records[: self._limits.records])
        ]
        return ShownSample(
            number=number,
            step=step,
            source=path,
            where=_where(sample),
            url=str(sample.get(URL) or ""),
            key=str(sample.get(KEY) or ""),
            index=index if isinstance(index, int) else None,
            fields=FieldRenderer(self._limits, texts).of(fields),
            num_records=len(records),
            records=tuple(shown_records),
        )

    def page(self, title: str, count: int, tick: Callable[[int], None] = lambda _: None) -> Page:
        """The first samples, in the order of delivery. The dataset is used up by it.

        Args:
            title: What they are of.
            count: How many.
            tick: Called with the number of samples that were read.

        Raises:
            Exception: What reading them raised.
        """
        place, samples = self._place, list[ShownSample]()
        for step, sample in islice(delivered(self._dataset, place), count):
            samples.append(self.shown(sample, len(samples), step))
            tick(len(samples))
        ranks = "" if place.dp_size is None else f" of {place.dp_size}"
        where = "" if place.step is None else f", from step {place.step:,}"
        return Page(
            title=title,
            about=f"{len(samples):,} samples of rank {place.rank}{ranks}{where}, in the order of delivery",
            samples=samples,
            sources=[*self._sources],
        )

    def browsed(self, title: str, per_page: int = 20) -> BrowsePages:
        """The pages of a browser, of so many samples each.

        Raises:
            StateError: The states are not of one run of the mixture.
        """
        place, steps = self._place, self._place.steps(self._dataset)
        return BrowsePages(
            title=title,
            steps=BrowseSteps(steps.batches, self.shown, per_page),
            begin=PagePlace(step=place.step or steps.num_steps + 1, rank=place.rank, source=place.source),
            num_steps=steps.num_steps,
            sources=[*self._sources],
            ranks=steps.shape.dp_size,
            marks=sorted({Progress(states).step() for states in place.states}),
        )


def _where(fields: Mapping[str, Any]) -> str:
    """Url and key, or index, of a record."""
    if fields.get(URL) is not None:
        return f"{fields[URL]} {fields.get(KEY, '')}".rstrip()
    return "" if fields.get(INDEX) is None else f"index {fields[INDEX]}"


def _tokenizer_of(source: Any, given: str | None) -> TokenTexts | str | os.PathLike[str] | None:
    """The tokenizer of a source, or its name: of its functions or its own, else that given, else that of its store."""
    for owner in (getattr(source, "single_process_fn", None), getattr(source, "process_fn", None), source):
        function = getattr(owner, "func", owner)  # of a partial
        for name in ("tokenizer_name", "tokenizer"):
            found = getattr(function, name, None)
            if found is not None:
                return found if isinstance(found, str | os.PathLike) else TokenTexts(found)
    stores = (getattr(each, "store", None) for each in (source, *getattr(source, "datasets", ())))
    paths = [path for store in stores if (path := getattr(store, "path", None))]
    own = given or next((found["tokenizer"]["name"] for path in paths if (found := manifest_of(path))), None)
    try:
        return None if own is None else load_token_texts(own)
    except (OSError, ValueError) as error:
        if given:
            raise
        logger.warning("store '%s': shown as ids: %s", one_line(paths[0]), text_of(error).partition("\n")[0])
        return None


@dataclass(eq=False)
class Pictures:
    """Image files, as a map-style dataset."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.paths[index]
        return {"image": open_image(path, FILE_FORMATS), "file": "/".join(path.parts[-2:])}


class StoredRecords:
    """The records of a store, as a map-style dataset; of one that does not say where they begin, windows of tokens.

    Args:
        path: What `DatasetFactory.load` takes, or what `streamdata prepare` wrote.
        dtype: Of the tokens, for a file that does not say it.

    Raises:
        StoreError: It is damaged.
    """

    def __init__(self, path: Path, dtype: str | None) -> None:
        self.store = open_store(path, dtype=dtype)
        keys = {keys.tokens for sources in SOURCES.values() for keys in sources.values()} & {*self.store.keys}
        undivided = (key for key in keys if any(one.is_undivided for one in self.store.column(key).segments))
        self._windowed = next(undivided, None)

    def __len__(self) -> int:
        if self._windowed is not None:
            return math.ceil(len(self.store.column(self._windowed)) / _WINDOW)
        return min(self.store.column(key).num_records for key in self.store.keys)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._windowed is None:
            return stored_record(self.store, index)
        end = min((index + 1) * _WINDOW, len(self.store.column(self._windowed)))
        return {self._windowed: self.store.array(self._windowed, index * _WINDOW, end)}


def dataset_at(path: Path, dtype: str | None) -> MergedDataset:
    """The records of a store, a file or a folder, in their order, by the source that reads such files.

    Raises:
        StoreError: Nothing reads them, or a store is damaged.
    """
    source: Any
    try:
        detect_format(path)
    except StoreError as error:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        # Tars before lines: beside a tar, these are what is known of it.
        kinds = [(target, SHARD_SUFFIXES[target]) for target in reversed(SHARD_SUFFIXES)]
        kinds += [("streamdata.JsonlIterableDataset", JSON_SUFFIXES)] if path.is_file() else []
        found = (target for target, suffixes in kinds if any(file.name.endswith(suffixes) for file in files))
        if target := next(found, None):
            make: Any = import_target(target)
            source = make([str(path)], shuffle_buffer=0)
        elif pictures := [file for file in files if file.name.lower().endswith(IMAGE_SUFFIXES)]:
            source = Pictures(pictures)
        else:
            error.add_note("  Nor is there JSONL, CSV, parquet, a tar or an image.")
            raise
    else:
        source = StoredRecords(path, dtype)
    source = named(source, name=path.name.partition(".")[0] or "data", percent=1)
    return MergedDataset([source], cyclic=False, shuffle_unstreaming_subsets=False, shuffle_streaming_subsets=False)
