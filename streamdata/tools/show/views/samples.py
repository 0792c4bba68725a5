"""Samples of a mixture → their views: the tokenizer of each source, and the records that were read for each."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from streamdata.chats.chat_dataset import ChatDataset
from streamdata.chats.prompts import RLHFDataset
from streamdata.fields import DATASET_NAME, INDEX, KEY, URL
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.tools.show.views.fields import FieldsView
from streamdata.tools.show.views.model import ON_PAGE, Limits, RecordView, SampleView
from streamdata.tools.show.views.token_fields import chat_tokens
from streamdata.tools.show.views.token_sequence import TokenSequence, TokenTexts, load_token_texts

RECORDS: Final = "__records__"
"""Private. In a sample of a watched function: the raw records that were read for it."""
_MOST: Final = 64
"""Records that are kept for a sample: a function may pass over millions."""

Record = dict[str, Any]


class WatchedRecord:
    """A `single_process_fn` whose samples carry their record.

    Args:
        function: The one of the recipe.
    """

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self._function = function

    def __call__(self, record: Record) -> Any:
        """Call the function, and add the record to its samples."""
        kept = [dict(record)]  # the function may change it
        made = self._function(record)
        if isinstance(made, list):
            return [_with_records(sample, kept) for sample in made]
        return made if made is None else _with_records(made, kept)


# A partial: at each start of a stream function `fresh` copies what a partial is of, so that the function which is
# watched has collections of its own then, as it would have by itself.
class WatchedStream(functools.partial[Any]):
    """A `process_fn` whose samples carry the records that were pulled since the one before, or the last one."""

    def __call__(self, records: Iterable[Record], /, *_: Any, **__: Any) -> Iterator[Any]:
        """Call the function, and add to each sample the records that were read for it."""
        pulled: list[Record] = []
        last: list[Record] = []
        for sample in self.func(_noting(records, pulled), *self.args, **self.keywords):
            last = pulled[:_MOST] or last
            pulled.clear()
            yield _with_records(sample, last[-_MOST:])

    def __getattr__(self, name: str) -> Any:
        # Whether it has a state, and which one.
        return getattr(self.func, name)


def _noting(records: Iterable[Record], pulled: list[Record]) -> Iterator[Record]:
    for record in records:
        if len(pulled) < _MOST:
            pulled.append(dict(record))
        yield record


def _with_records(sample: Any, records: list[Record]) -> Any:
    return {**sample, RECORDS: records} if isinstance(sample, Mapping) else sample


_FUNCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "single_process_fn": WatchedRecord,
    "process_fn": WatchedStream,
}


class SampleViews:
    """Makes views of a mixture's samples.

    It watches the process functions of its sources, so that a sample comes with the records that were read for it: make
    it before the mixture is iterated. The stream and its states are as without it.

    Args:
        dataset: The top.
        limits: How much of each sample is shown.
    """

    def __init__(self, dataset: MergedDataset, limits: Limits = ON_PAGE) -> None:
        self._limits = limits
        self._sources = {node.path: node.dataset for node in tree_of(dataset).leaves()}
        self._texts: dict[str, TokenTexts | None] = {}
        self._tokenizers: dict[str, Any] = {path: _tokenizer_of(source) for path, source in self._sources.items()}
        for source in self._sources.values():
            _watch(source)

    def view(self, sample: Mapping[str, Any], number: int, step: int | None = None) -> SampleView:
        """The view of a sample.

        Args:
            sample: As the mixture gave it.
            number: In what is shown.
            step: Of the run, if it is known.
        """
        path = str(sample.get(DATASET_NAME, ""))
        records, known = self._known(path, sample)
        fields = FieldsView(self._limits, self._texts_of(path)).of(sample, known)
        return SampleView(
            number=number,
            source=path,
            where=where(sample),
            url=str(sample.get(URL, "")),
            key=str(sample.get(KEY, "")),
            index=sample.get(INDEX) if isinstance(sample.get(INDEX), int) else None,
            fields=fields,
            records=tuple(self._record(record) for record in records[: self._limits.records]),
            num_records=len(records),
            step=step,
        )

    def _known(
        self, path: str, sample: Mapping[str, Any]
    ) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, TokenSequence]]:
        """The raw records of a sample, and what its source says of its tokens."""
        source, index = self._sources.get(path), sample.get(INDEX)
        if RECORDS in sample or not isinstance(index, int):
            return sample.get(RECORDS, ()), {}
        if isinstance(source, ChatDataset):
            explained = source.explain(index)
            return [explained.row], chat_tokens(sample, explained.chats)
        return [source.row(index)] if isinstance(source, RLHFDataset) else (), {}

    def _record(self, record: Mapping[str, Any]) -> RecordView:
        return RecordView(
            where=where(record), fields=FieldsView(replace(self._limits, chars=self._limits.chars // 2)).of(record)
        )

    def _texts_of(self, path: str) -> TokenTexts | None:
        if path not in self._texts:
            found = self._tokenizers.get(path)
            if isinstance(found, str | os.PathLike):
                self._texts[path] = load_token_texts(os.fspath(found))
            else:
                self._texts[path] = None if found is None else TokenTexts(found)
        return self._texts[path]


def where(fields: Mapping[str, Any]) -> str:
    """Url and key, or index, of a record."""
    if URL in fields:
        return f"{fields[URL]} {fields.get(KEY, '')}".rstrip()
    return f"index {fields[INDEX]}" if INDEX in fields else ""


def _watch(source: Any) -> None:
    for name, watched in _FUNCTIONS.items():
        function = getattr(source, name, None)
        if function is not None and not isinstance(function, WatchedRecord | WatchedStream):
            setattr(source, name, watched(function))


def _tokenizer_of(source: Any) -> Any:
    """The tokenizer of a source, or its name: that of a process function, else the dataset's own; None without any."""
    for owner in (getattr(source, "single_process_fn", None), getattr(source, "process_fn", None), source):
        function = getattr(owner, "func", owner)  # of a partial
        for name in ("tokenizer_name", "tokenizer"):
            found = getattr(function, name, None)
            if found is not None:
                return found
    return None
