"""Datasets whose samples are windows over a store's tokens: for next-token prediction, and for fine-tuning."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from streamdata.errors import StoreError
from streamdata.recipe.named_source import Percent
from streamdata.stores.base_dataset import BaseDataset, Sample, positive
from streamdata.stores.dtypes import Int64s, Values
from streamdata.stores.store import Store
from streamdata.stores.windows import FlatWindows, RowWindows, WindowBegins

logger = logging.getLogger("streamdata")

TOKENS: Final = "sequence"
NO_TARGET: Final = -100
"""The target that torch's cross entropy passes over."""
_MASK: Final = "loss_mask"
_POSITIONS: Final = "position_ids"
_INT64: Final = np.dtype(np.int64)


class WindowDataset(BaseDataset):
    """Windows of `window_size` tokens, each with the next token as target of its last.

    There are `1 + (tokens - 1 - window_size) // stride` windows. Where the store records packed rows, windows lie
    within them: `1 + (length - window_size) // stride` in each, and one that ends with its row has -100 as its last
    target.

    Args:
        load_path: The directory of a store.
        window_size: Tokens in a window.
        stride: Tokens from one window to the next; `window_size` if not given.
        storage_type: The store's format; None to detect it from its files.
        store: The store itself, loaded, instead of a path.
        verify: Compare what is read with the sums of the store's files; see `Store.load`.
        mapped: Read through memory maps; see `Store.load`.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.
        documents: Add to each sample `cu_seqlens`, int32 (documents + 1,), where documents begin in it and its end,
            `max_seqlen`, the longest of them, and `position_ids`, int64 (window_size,), that begin anew with each.
        eod_token: The id with which each document ends, for a store that does not record where its documents begin.

    Raises:
        FileNotFoundError: There is no such directory.
        StoreError: The store is damaged, does not serve this train type, has fewer tokens than one window, or does
            not record documents.
        ValueError: A size that is not positive, or `eod_token` without `documents`.
    """

    def __init__(
        self,
        load_path: str | Path | None = None,
        window_size: int = 0,
        stride: int | None = None,
        storage_type: str | None = None,
        *,
        store: Store | None = None,
        verify: bool = True,
        mapped: bool = False,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        documents: bool = False,
        eod_token: int | None = None,
    ) -> None:
        super().__init__(
            load_path,
            storage_type,
            store,
            verify=verify,
            mapped=mapped,
            name=name,
            percent=percent,
            holdout=holdout,
            part=part,
        )
        self.window_size = positive(window_size, "window_size", self._who)
        self.stride = self.window_size if stride is None else positive(stride, "stride", self._who)
        if eod_token is not None and not documents:
            raise ValueError(f"{self._who}: eod_token says where documents end, got documents=False\n  Set both.")
        self._check_columns()
        self._marks = DocumentMarks(self.store, TOKENS, self.window_size, eod_token) if documents else None
        self._windows = self._counted_windows()

    def __len__(self) -> int:
        return len(self._windows)

    def get_index(self, idx: int) -> tuple[int, int]:
        (begin,) = self._windows.locate([self._number(idx)]).begins
        return begin, begin + self.window_size

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        return self._samples(self._windows.locate(self._numbers(indices)))

    @property
    def _cut(self) -> str:
        return f"windows of {self.window_size} every {self.stride} "

    def _samples(self, windows: WindowBegins) -> list[Sample]:
        tokens = self._with_next(TOKENS, windows, NO_TARGET)
        # Each converted from what was read, into memory of its own: a trainer that masks targets in place must not
        # change inputs, and copying int64 for that would move four times the bytes of uint16.
        ids = tokens[:, :-1].astype(_INT64)
        inputs, targets = (torch.from_numpy(part).unbind() for part in (ids, tokens[:, 1:].astype(_INT64)))
        samples: list[Sample] = [
            {"input_ids": window, "target_ids": following} for window, following in zip(inputs, targets, strict=True)
        ]
        if self._marks is not None:
            for sample, begin, window in zip(samples, windows.begins, ids, strict=True):
                sample.update(self._marks.of_window(begin, window))
        return samples

    def _with_next(self, key: str, windows: WindowBegins, fill: int) -> Values:
        """The windows and the value after each, (windows, window_size + 1); `fill` where the row ends."""
        if not windows.at_row_end:
            return self.store.gather(key, windows.begins, self.window_size + 1)
        begins, at_row_end = np.array(windows.begins), np.array(windows.at_row_end)
        out = np.full((len(begins), self.window_size + 1), fill, np.int64)
        out[at_row_end, :-1] = self.store.gather(key, begins[at_row_end].tolist(), self.window_size)
        out[~at_row_end] = self.store.gather(key, begins[~at_row_end].tolist(), self.window_size + 1)
        return out

    def _counted_windows(self) -> FlatWindows | RowWindows:
        tokens = len(self.store.column(TOKENS))
        in_rows = self._has_rows()
        windows = (
            RowWindows(self.store, TOKENS, self.window_size, self.stride)
            if in_rows
            else FlatWindows(tokens, self.window_size, self.stride)
        )
        if not len(windows):
            need = f"a row of {self.window_size} tokens" if in_rows else f"{self.window_size + 1} tokens"
            raise StoreError(
                f"{self._who}: expected at least {need} for one window, got {tokens} tokens in store "
                f"'{self.store.path}'\n  Choose a smaller window_size, or give it more data."
            )
        if windows.unused:
            logger.info("%s: %d of %d tokens of '%s' lie after the last window and are not used",
                        self._who, windows.unused, tokens, self.store.path)  # fmt: skip
        return windows

    def _has_rows(self) -> bool:
        with_rows = {segment.rows is not None for segment in self.store.column(TOKENS).segments}
        if len(with_rows) > 1:
            raise StoreError(
                f"{self._who}: expected packed rows in all shards of '{self.store.path}' or in none, got both\n"
                "  Give the two kinds their own directories."
            )
        return with_rows.pop()

    def _check_columns(self) -> None:
        tokens = self.store.column(TOKENS)
        if tokens.dtype != np.int64:
            raise StoreError(
                f"{self._who}: expected {TOKENS!r} to be integers, got {tokens.dtype} in '{self.store.path}'"
            )


class SeqDataset(WindowDataset):
    """Samples of train type `seq`, from the key `sequence`: `input_ids` and `target_ids`, int64 (window_size,).

    The target is the token that follows. See `WindowDataset` for arguments and errors.
    """

    train_type = "seq"

    def __getitem__(self, idx: int) -> Sample:
        if self._marks is not None or not isinstance(self._windows, FlatWindows):
            return super().__getitem__(idx)
        # The same without the cost of a batch of one.
        begin = self._number(idx) * self.stride
        tokens = self.store.stored(TOKENS, begin, begin + self.window_size + 1)
        return {
            "input_ids": torch.from_numpy(tokens[:-1].astype(_INT64)),
            "target_ids": torch.from_numpy(tokens[1:].astype(_INT64)),
        }


class SFTDataset(WindowDataset):
    """Samples of train type `sft`, from the keys `sequence`, `loss_mask` and `position_ids`.

    A sample has `input_ids` and `target_ids`, int64 (window_size,), `loss_mask`, bool (window_size,), aligned with the
    targets (it is that of the token which is predicted), and `position_ids`, int64 (window_size,), as stored or, with
    `documents`, anew for each document. See `WindowDataset` for arguments and errors.
    """

    train_type = "sft"

    def _samples(self, windows: WindowBegins) -> list[Sample]:
        samples = super()._samples(windows)
        masks = self._with_next(_MASK, windows, False)[:, 1:].astype(np.bool_)
        for sample, mask in zip(samples, torch.from_numpy(masks).unbind(), strict=True):
            sample[_MASK] = mask
        if self._marks is None:
            positions = self.store.gather(_POSITIONS, windows.begins, self.window_size).astype(_INT64)
            for sample, ids in zip(samples, torch.from_numpy(positions).unbind(), strict=True):
                sample[_POSITIONS] = ids
        return samples

    def _check_columns(self) -> None:
        super()._check_columns()
        lengths = {key: len(self.store.column(key)) for key in (TOKENS, _MASK, _POSITIONS)}
        if len(set(lengths.values())) > 1:
            raise StoreError(f"{self._who}: expected as many values of each key, got {lengths} in '{self.store.path}'")
        for key, kinds in ((_MASK, "bi"), (_POSITIONS, "i")):
            dtype = self.store.column(key).dtype
            if dtype.kind not in kinds:
                raise StoreError(f"{self._who}: {key!r} cannot be {dtype}, as it is in '{self.store.path}'")


class DocumentMarks:
    """Where documents begin in windows, as attention kernels for sequences of several lengths take it.

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
            raise store.no_documents(key)

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
