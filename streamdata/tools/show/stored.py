"""Records of a store → their views, without torch, and without transformers where it adds nothing."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamdata.prepare.finished_runs import manifest_of
from streamdata.prepare.preview import stored_record
from streamdata.stores.dtypes import SOURCES
from streamdata.stores.factory import open_store
from streamdata.tools.show.fields import FieldRenderer
from streamdata.tools.show.model import ON_PAGE, Limits, Page, ShownSample
from streamdata.tools.show.tokens import load_token_texts

if TYPE_CHECKING:
    from streamdata.tools.show.page import BrowsePages

_WINDOW: Final = 1024
"""Tokens at once of a store that does not say where its records begin."""


def tokenizer_of_store(path: str | Path) -> str | None:
    """The tokenizer of the run which wrote a store; None where nothing says it."""
    manifest = manifest_of(path)
    return None if manifest is None else manifest["tokenizer"]["name"]


class StoredRecords:
    """The records of a store, as they are shown; of one that does not say where they begin, windows of 1,024 tokens.

    Args:
        path: What `DatasetFactory.load` takes, or what `streamdata prepare` wrote.
        first: The record that is shown first.
        limits: How much of each is shown.
        tokenizer: A directory or a name; None for that of the run which wrote it; without both there are ids alone.
        dtype: Of the tokens, for a file that does not say it.

    Raises:
        StoreError: It is not a store, or is damaged.
        FileNotFoundError: There is nothing.
    """

    def __init__(
        self,
        path: Path,
        first: int = 0,
        limits: Limits = ON_PAGE,
        tokenizer: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self._first = first
        self._store = open_store(path, dtype=dtype)
        name = tokenizer or tokenizer_of_store(path)
        self._renderer = FieldRenderer(limits, None if name is None else load_token_texts(name))
        keys = {keys.tokens for sources in SOURCES.values() for keys in sources.values()} & {*self._store.keys}
        undivided = (key for key in keys if any(one.is_undivided for one in self._store.column(key).segments))
        self._windowed = next(undivided, None)

    def __len__(self) -> int:
        """How many records, or windows."""
        if self._windowed is not None:
            return math.ceil(len(self._store.column(self._windowed)) / _WINDOW)
        return min(self._store.column(key).num_records for key in self._store.keys)

    def shown(self, index: int) -> ShownSample:
        """Show a record.

        Raises:
            ValueError: There is no such record.
            StoreError: The store is damaged.
        """
        if self._windowed is None:
            found, where = stored_record(self._store, index), f"record {index}"
        else:
            begin, stop = index * _WINDOW, min((index + 1) * _WINDOW, len(self._store.column(self._windowed)))
            where = f"tokens {begin} to {stop}"
            found = {self._windowed: self._store.array(self._windowed, begin, stop)}
        return ShownSample(number=index, where=where, index=index, fields=self._renderer.of(found))

    def page(self, title: str, count: int, tick: Callable[[int], None] = lambda _: None) -> Page:
        """The first records; `tick` is called with the number of those that were read."""
        samples: list[ShownSample] = []
        for number in range(self._first, min(self._first + count, len(self))):
            samples.append(self.shown(number))
            tick(len(samples))
        about = f"records {self._first:,} to {self._first + len(samples) - 1:,} of {len(self):,}"
        return Page(title=title, about=about, samples=samples)

    def browsed(self, title: str, per_page: int = 20) -> "BrowsePages":
        """The pages of a browser, of so many records each."""
        from streamdata.tools.show.page import BrowsePages  # with what a terminal does not need
        from streamdata.tools.show.reading import BrowseSteps, PagePlace, Sample

        def read(record: int, _: int) -> Iterator[tuple[int, Sequence[Sample]]]:
            return ((number, [{}]) for number in range(record, len(self)))

        return BrowsePages(
            title=title,
            steps=BrowseSteps(read, lambda _, __, record: self.shown(record), per_page, first=0),
            begin=PagePlace(step=self._first),
            num_steps=len(self),
            unit="Record",
        )
