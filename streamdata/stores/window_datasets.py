"""Datasets whose samples are windows over a store's tokens: for next-token prediction, and for fine-tuning."""

import logging
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch

from streamdata.errors import StoreError, shown
from streamdata.recipe.named_source import Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.stores.base_dataset import BaseDataset, Sample, positive
from streamdata.stores.document_marks import DocumentMarks, MarkNames
from streamdata.stores.dtypes import Int64s, Values
from streamdata.stores.megatron_samples import MegatronSamples, SampleIndices, SampleRule
from streamdata.stores.store import Store
from streamdata.stores.windows import FlatWindows, RowWindows, WindowBegins

logger = logging.getLogger("streamdata")

TOKENS: Final = "sequence"
NO_TARGET: Final = -100
"""The target that torch's cross entropy passes over."""
_MAX_SEED: Final = 2**32 - 1  # of numpy's RandomState
_MASK: Final = "loss_mask"
_POSITIONS: Final = "position_ids"
_INT64: Final = np.dtype(np.int64)


class WindowDataset(BaseDataset):
    """Windows of `window_size` tokens, each with the next token as target of its last.

    There are `1 + (tokens - 1 - window_size) // stride` windows. Where the store records packed rows, windows lie
    within them: `1 + (length - window_size) // stride` in each, and one that ends with its row has -100 as its last
    target.

    Args:
        load_path: A store: its directory, a file, or what a `.bin` and an `.idx` of Megatron have in common.
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
        dtype: Of the tokens, for a file that does not say it; see `TokenFileStore`.
        documents: Add to each sample `cu_seqlens`, int32 (documents + 1,), where documents begin in it and its end,
            `max_seqlen`, the longest of them, and `position_ids`, int64 (window_size,), that begin anew with each.
        eod_token: The id with which each document ends, for a store that does not record where its documents begin.
        reset_attention_mask: Add `cu_seqlens` and `max_seqlen` alone.
        reset_position_ids: Add the `position_ids` of `documents` alone.
        eod_mask_loss: Add `loss_mask`, bool (window_size,), False where the input is `eod_token`; a stored mask is
            False there, too.
        records: Cut windows from these records of the store alone, from the first to the one before the last.
        compat: "megatron", for `seq` over one pair of files, gives the samples of Megatron-Core's GPTDataset, index for
            index; see `streamdata.stores.megatron_samples`. They are pieces of shuffled documents.
        seed: Of their order, as Megatron's `--seed`.
        num_samples: How many of them there are at least; None for those of one epoch.

    Raises:
        FileNotFoundError: There is nothing at the path.
        StoreError: The store is damaged, does not serve this train type, has fewer tokens than one window, or does
            not record documents.
        ValueError: A size that is not positive, or options that need another one.
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
        dtype: str | None = None,
        documents: bool = False,
        eod_token: int | None = None,
        reset_attention_mask: bool = False,
        reset_position_ids: bool = False,
        eod_mask_loss: bool = False,
        records: tuple[int, int] | None = None,
        compat: Literal["megatron"] | None = None,
        seed: int | None = None,
        num_samples: int | None = None,
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
            dtype=dtype,
        )
        self.window_size = positive(window_size, "window_size", self._who)
        self.stride = self.window_size if stride is None else positive(stride, "stride", self._who)
        self._check_columns()
        self._marks = self._checked_marks(
            MarkNames(documents or reset_attention_mask, documents or reset_position_ids, eod_mask_loss), eod_token
        )
        self._records = records
        self._compat = self._checked_compat(compat, seed, num_samples)
        if self._compat is not None and self._marks is not None and eod_token is None:
            raise ValueError(f"{self._who}: compat='megatron' needs eod_token to mark documents, got None")
        self._windows = self._counted_windows() if self._compat is None else FlatWindows(0, 1, 1)

    def __len__(self) -> int:
        return len(self._windows if self._compat is None else self._compat)

    @property
    def indices(self) -> SampleIndices:
        """The document, sample and shuffle index of `compat="megatron"`.

        Raises:
            ValueError: There is no such order.
        """
        if self._compat is None:
            raise ValueError(f"{self._who}: expected compat='megatron', which has indices, got None")
        return self._compat.indices

    def get_index(self, idx: int) -> tuple[int, int]:
        """Where the window of sample `idx` begins and ends in the store.

        Raises:
            ValueError: Samples are pieces of several documents, by `compat="megatron"`.
        """
        if self._compat is not None:
            raise ValueError(f"{self._who}: samples of compat='megatron' lie in several places, see `indices`")
        (begin,) = self._windows.locate([self._number(idx)]).begins
        return begin, begin + self.window_size

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        end_worker_with_trainer()
        numbers = self._numbers(indices)
        if self._compat is not None:
            return self._samples_of(self._compat.read(numbers), None)
        return self._samples(self._windows.locate(numbers))

    @property
    def _cut(self) -> str:
        of_records = "" if self._records is None else f"of records {self._records[0]} to {self._records[1]} "
        cut = f"windows of {self.window_size} every {self.stride} {of_records}"
        return cut if self._compat is None else f"{cut}as megatron {[*self._compat.rule]} "

    def _samples(self, windows: WindowBegins) -> list[Sample]:
        return self._samples_of(self._with_next(TOKENS, windows, NO_TARGET), windows.begins)

    def _samples_of(self, tokens: Values, begins: Sequence[int] | None) -> list[Sample]:
        """The samples of windows with the token after each, (windows, window_size + 1), and where these begin."""
        # Each converted from what was read, into memory of its own: a trainer that masks targets in place must not
        # change inputs, and copying int64 for that would move four times the bytes of uint16.
        ids = tokens[:, :-1].astype(_INT64)
        inputs, targets = (torch.from_numpy(part).unbind() for part in (ids, tokens[:, 1:].astype(_INT64)))
        samples: list[Sample] = [
            {"input_ids": window, "target_ids": following} for window, following in zip(inputs, targets, strict=True)
        ]
        if self._marks is not None:
            for sample, begin, window in zip(samples, begins or repeat(None, len(samples)), ids, strict=True):
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
        in_rows = self._has_rows()
        begin, end = self._token_range(in_rows=in_rows)
        tokens = end - begin
        windows = (
            RowWindows(self.store, TOKENS, self.window_size, self.stride)
            if in_rows
            else FlatWindows(tokens, self.window_size, self.stride, begin)
        )
        if not len(windows):
            need = f"a row of {self.window_size} tokens" if in_rows else f"{self.window_size + 1} tokens"
            where = "" if self._records is None else "records {} to {} of ".format(*self._records)
            raise StoreError(
                f"{self._who}: expected at least {need} for one window, got {tokens} tokens in {where}"
                f"store '{self.store.path}'\n  Choose a smaller window_size, or give it more data."
            )
        if windows.unused:
            logger.info("%s: %d of %d tokens of '%s' lie after the last window and are not used",
                        self._who, windows.unused, tokens, self.store.path)  # fmt: skip
        return windows

    @property
    def num_tokens(self) -> int:
        """How many tokens the store has, or those of its records that windows are cut from."""
        if self._records is None:
            return super().num_tokens
        begin, end = self._token_range(in_rows=False)
        return end - begin

    def _token_range(self, *, in_rows: bool) -> tuple[int, int]:
        """Where the tokens that windows are cut from begin and end."""
        if self._records is None:
            return 0, len(self.store.column(TOKENS))
        count, (first, last) = self.store.column(TOKENS).num_records, self._records
        if in_rows or not 0 <= first < last <= count:
            raise StoreError(
                f"{self._who}: expected records within 0 to {count} of a store without packed rows, got {first} to "
                f"{last} of '{self.store.path}'"
            )
        return self.store.record_begin(TOKENS, first), self.store.record_begin(TOKENS, last)

    def _checked_marks(self, names: MarkNames, eod_token: int | None) -> DocumentMarks | None:
        if eod_token is not None and not any(names):
            raise ValueError(
                f"{self._who}: eod_token says where documents end, got documents=False\n"
                "  Set both, or one of reset_attention_mask, reset_position_ids and eod_mask_loss."
            )
        if names.loss and eod_token is None:
            raise ValueError(f"{self._who}: eod_mask_loss needs eod_token, the id that is masked, got None")
        return DocumentMarks(self.store, TOKENS, self.window_size, eod_token, names) if any(names) else None

    def _checked_compat(self, compat: str | None, seed: int | None, num_samples: int | None) -> MegatronSamples | None:
        if compat not in (None, "megatron"):
            raise ValueError(f"{self._who}: expected compat='megatron' or None, got {shown(compat)}")
        if compat is None:
            if seed is not None or num_samples is not None:
                raise ValueError(
                    f"{self._who}: seed and num_samples go with compat='megatron', got {seed}, {num_samples}"
                )
            return None
        if self.train_type != "seq" or self.stride != self.window_size or type(seed) is not int:
            raise ValueError(
                f"{self._who}: expected train type 'seq', a seed and no other stride with compat='megatron', got "
                f"{shown(self.train_type)}, seed={shown(seed)}, stride={self.stride}\n"
                "  The seed is Megatron's --seed, 1234 by default there."
            )
        if not 0 <= seed <= _MAX_SEED:
            raise ValueError(f"{self._who}: expected a seed from 0 to {_MAX_SEED} with compat='megatron', got {seed}")
        if num_samples is not None:
            positive(num_samples, "num_samples", self._who)
        first, last = self._records or (0, self.store.column(TOKENS).num_records)
        return MegatronSamples(self.store, TOKENS, SampleRule(first, last, self.window_size, num_samples, seed))

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
        if self._marks is not None or self._compat is not None or not isinstance(self._windows, FlatWindows):
            return super().__getitem__(idx)
        # The same without the cost of a batch of one.
        begin = self._windows.start + self._number(idx) * self.stride
        tokens = self.store.stored(TOKENS, begin, begin + self.window_size + 1)
        return {
            "input_ids": torch.from_numpy(tokens[:-1].astype(_INT64)),
            "target_ids": torch.from_numpy(tokens[1:].astype(_INT64)),
        }


class SFTDataset(WindowDataset):
    """Samples of train type `sft`, from the keys `sequence`, `loss_mask` and, where it is there, `position_ids`.

    A sample has `input_ids` and `target_ids`, int64 (window_size,), `loss_mask`, bool (window_size,), aligned with the
    targets (it is that of the token which is predicted), and `position_ids`, int64 (window_size,): with `documents`
    anew for each document, else as stored, else from 0 in each window. See `WindowDataset` for arguments and errors.
    """

    train_type = "sft"

    def _samples(self, windows: WindowBegins) -> list[Sample]:
        samples = super()._samples(windows)
        masks = self._with_next(_MASK, windows, False)[:, 1:].astype(np.bool_)
        positions = self._positions(windows)
        for sample, mask, ids in zip(samples, torch.from_numpy(masks), torch.from_numpy(positions), strict=True):
            sample[_MASK] = sample[_MASK] & mask if _MASK in sample else mask
            sample.setdefault(_POSITIONS, ids)
        return samples

    def _positions(self, windows: WindowBegins) -> Int64s:
        if _POSITIONS in self.store.keys:
            return self.store.gather(_POSITIONS, windows.begins, self.window_size).astype(_INT64)
        return np.tile(np.arange(self.window_size), (len(windows.begins), 1))

    def _check_columns(self) -> None:
        super()._check_columns()
        kinds = {_MASK: "bi", _POSITIONS: "i"} if _POSITIONS in self.store.keys else {_MASK: "bi"}
        lengths = {key: len(self.store.column(key)) for key in (TOKENS, *kinds)}
        if len(set(lengths.values())) > 1:
            raise StoreError(f"{self._who}: expected as many values of each key, got {lengths} in '{self.store.path}'")
        for key, allowed in kinds.items():
            dtype = self.store.column(key).dtype
            if dtype.kind not in allowed:
                raise StoreError(f"{self._who}: {shown(key)} cannot be {dtype}, as it is in '{self.store.path}'")
