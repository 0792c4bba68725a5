"""Records of a store → their views, without torch, and without transformers where it adds nothing."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np

from streamdata.prepare.finished_runs import manifest_of
from streamdata.prepare.preview import Piece, Shown, stored_record
from streamdata.stores.dtypes import SOURCES
from streamdata.stores.factory import open_store
from streamdata.stores.store import Store
from streamdata.tools.show.views.model import FieldView, Limits, NumbersView, SampleView
from streamdata.tools.show.views.token_sequence import TokenSequence, TokenTexts, load_token_texts

_WINDOW: Final = 1024
"""Tokens at once of a store that does not say where its records begin."""


class StoredViews:
    """The records of a store, as views; of one that does not say where they begin, windows of 1,024 tokens.

    Args:
        path: What `DatasetFactory.load` takes, or what `streamdata prepare` wrote.
        tokenizer: A directory or a name; None for that of the run which wrote it; without both there are ids alone.
        limits: How much of each record is shown.
        dtype: Of the tokens, for a file that does not say it.

    Raises:
        StoreError: It is not a store, or is damaged.
        FileNotFoundError: There is nothing.
    """

    def __init__(self, path: Path, tokenizer: str | None, limits: Limits, dtype: str | None = None) -> None:
        self._store, self._limits = open_store(path, dtype=dtype), limits
        manifest = manifest_of(path)
        name = tokenizer or (manifest["tokenizer"]["name"] if manifest else None)
        self._texts = None if name is None else load_token_texts(name)
        self._windowed = _undivided_key(self._store)

    def __len__(self) -> int:
        """How many records, or windows."""
        if self._windowed is not None:
            return math.ceil(len(self._store.column(self._windowed)) / _WINDOW)
        return min(self._store.column(key).num_records for key in self._store.keys)

    def view(self, index: int) -> SampleView:
        """The view of a record.

        Raises:
            ValueError: There is no such record.
            StoreError: The store is damaged.
        """
        if self._windowed is None:
            found, where = list(stored_record(self._store, index)), f"record {index}"
        else:
            begin, stop = index * _WINDOW, min((index + 1) * _WINDOW, len(self._store.column(self._windowed)))
            ids = self._store.array(self._windowed, begin, stop)
            where = f"tokens {begin} to {stop}"
            found = [Shown(where, self._windowed, [Piece(ids, None)])]
        fields = tuple(field for shown in found for field in tokens_fields(shown, self._texts, self._limits))
        return SampleView(number=index, source="", where=where, index=index, fields=fields)


def tokens_fields(shown: Shown, texts: TokenTexts | None, limits: Limits) -> Iterator[FieldView]:
    """Views of tokens that are stored, or would be: of a row of documents, or of each of several sequences."""
    groups = [[piece] for piece in shown.pieces] if shown.are_apart else [shown.pieces] if shown.pieces else []
    for number, pieces in enumerate(groups[: limits.items]):
        view = _sequence(pieces).view(texts, limits.tokens)
        name = f"{shown.key}[{number}]" if shown.are_apart else shown.key
        shape, dtype = (view.num_tokens,), str(pieces[0].ids.dtype)
        yield FieldView(name=name, kind="tokens", type="", value=view, shape=shape, dtype=dtype)
    if shown.note:
        yield FieldView(name=shown.key, kind="numbers", type="", value=NumbersView(text=shown.note))


def _sequence(pieces: Sequence[Piece]) -> TokenSequence:
    masks = [piece.train for piece in pieces if piece.train is not None]
    return TokenSequence(
        ids=np.concatenate([piece.ids for piece in pieces]).astype(np.int64),
        train=np.concatenate(masks).astype(np.bool_) if len(masks) == len(pieces) else None,
        trained_reason="trained",
        masked_reason="not trained: masked in the store",
        borders=list(accumulate(len(piece.ids) for piece in pieces))[:-1],
    )


def _undivided_key(store: Store) -> str | None:
    for key in (keys.tokens for sources in SOURCES.values() for keys in sources.values()):
        if key in store.keys and any(segment.is_undivided for segment in store.column(key).segments):
            return key
    return None
