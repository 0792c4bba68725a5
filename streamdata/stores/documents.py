"""Where documents begin in a window, as attention kernels for variable lengths want it."""

from typing import Any

import numpy as np
import torch

from streamdata.errors import StoreError
from streamdata.stores.dtypes import Int64s
from streamdata.stores.store import Store


class DocumentMarks:
    """The documents in windows of a store.

    Args:
        store: Whose.
        key: Of its tokens.
        size: Of a window, in tokens.
        eod_token: The id with which each document ends; None to take what the store records.

    Raises:
        StoreError: The store does not record its documents, and there is no `eod_token`.
    """

    def __init__(self, store: Store, key: str, size: int, eod_token: int | None) -> None:
        self._store, self._key, self._size, self._eod_token = store, key, size, eod_token
        if eod_token is None and any(segment.documents is None for segment in store.column(key).segments):
            raise StoreError(
                f"store '{store.path}': expected to find recorded where documents begin in {key!r}, got nothing\n"
                "  Give eod_token, the id with which each document ends."
            )

    def of_window(self, begin: int, tokens: Int64s) -> dict[str, Any]:
        """`cu_seqlens` int32 (documents + 1,), `max_seqlen`, `position_ids` int64 (window,) of the window there."""
        starts = self._starts(begin, tokens)
        marks = np.concatenate(([0], starts, [self._size]))
        lengths = np.diff(marks)
        positions = np.arange(self._size) - np.repeat(marks[:-1], lengths)
        return {
            "cu_seqlens": torch.from_numpy(marks.astype(np.int32)),
            "max_seqlen": int(lengths.max()),
            "position_ids": torch.from_numpy(positions),
        }

    def _starts(self, begin: int, tokens: Int64s) -> Int64s:
        if self._eod_token is not None:
            return np.flatnonzero(tokens[:-1] == self._eod_token) + 1
        return self._store.document_starts(self._key, begin, begin + self._size) - begin
