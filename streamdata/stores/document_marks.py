"""What a window says of the documents in it: where they begin, positions within them, which ends are not trained on."""

from typing import Any, NamedTuple

import numpy as np
import torch

from streamdata.stores.dtypes import Int64s
from streamdata.stores.store import Store


class MarkNames(NamedTuple):
    """Which marks samples get.

    Attributes:
        documents: `cu_seqlens` and `max_seqlen`.
        positions: `position_ids`.
        loss: `loss_mask`.
    """

    documents: bool
    positions: bool
    loss: bool


class DocumentMarks:
    """Where documents begin in windows, as attention kernels for sequences of several lengths take it.

    Args:
        store: Whose.
        key: Of its tokens.
        size: Of a window, in tokens.
        eod_token: The id with which each document ends; None to take what the store records.
        names: Which marks there are.

    Raises:
        StoreError: The store does not record its documents, and there is no `eod_token`.
    """

    def __init__(self, store: Store, key: str, size: int, eod_token: int | None, names: MarkNames) -> None:
        self._store, self._key, self._size, self._eod_token, self._names = store, key, size, eod_token, names
        if eod_token is None and any(segment.documents is None for segment in store.column(key).segments):
            raise store.no_documents(key)

    def of_window(self, begin: int | None, tokens: Int64s) -> dict[str, Any]:
        """The marks of a window.

        Args:
            begin: Where it lies in the store; None where it does not lie there in one piece, with an `eod_token` then.
            tokens: Those of the window, int64 (window,).

        Returns:
            Of those that were chosen: `cu_seqlens` int32 (documents + 1,), `max_seqlen`, `position_ids` int64
            (window,), `loss_mask` bool (window,), False where the input is the end of a document.
        """
        marks = np.concatenate(([0], self._starts(begin, tokens), [self._size]))
        lengths = np.diff(marks)
        found: dict[str, Any] = {}
        if self._names.documents:
            found |= {"cu_seqlens": torch.from_numpy(marks.astype(np.int32)), "max_seqlen": int(lengths.max())}
        if self._names.positions:
            found["position_ids"] = torch.from_numpy(np.arange(self._size) - np.repeat(marks[:-1], lengths))
        if self._names.loss:
            found["loss_mask"] = torch.from_numpy(tokens != self._eod_token)
        return found

    def _starts(self, begin: int | None, tokens: Int64s) -> Int64s:
        if self._eod_token is not None:
            return np.flatnonzero(tokens[:-1] == self._eod_token) + 1
        assert begin is not None, "a window in pieces, whose documents are not known"
        return self._store.document_starts(self._key, begin, begin + self._size) - begin
