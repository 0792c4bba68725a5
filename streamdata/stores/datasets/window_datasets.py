"""Datasets whose samples are windows over a store's tokens: for next-token prediction, and for fine-tuning.

Where a window begins is computed, without a list of them.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import torch

from streamdata.errors import StoreError, positive, shown
from streamdata.fields import DOCUMENT_WEIGHTS, IGNORED_LABEL, LOSS_WEIGHT
from streamdata.recipe.named_source import PartRange, Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.stores.datasets.base_dataset import BaseDataset, Sample
from streamdata.stores.datasets.megatron_samples import MegatronSamples, SampleIndices, SampleRule
from streamdata.stores.dtypes import Int64s, Values
from streamdata.stores.segments import Even, Offsets, Runs
from streamdata.stores.store import Store

logger = logging.getLogger("streamdata")

_ROWS_PER_CHUNK: Final = 512  # 4 KiB of offsets: one block of a file with sums
TOKENS: Final = "sequence"
_MAX_SEED: Final = 2**32 - 1  # of numpy's RandomState
_MASK: Final = "loss_mask"
_POSITIONS: Final = "position_ids"
_INT64: Final = np.dtype(np.int64)


class WindowBegins(NamedTuple):
    """Where windows begin.

    Attributes:
        begins: The first token of each, in the whole store.
        at_row_end: Of each whether no token of its row follows that could be its last target; empty if none is so.
    """

    begins: Sequence[int]
    at_row_end: Sequence[bool] = ()


class FlatWindows:
    """Windows over tokens without borders; each needs one token more, for its last target.

    Args:
        num_tokens: That they are cut from.
        size: Of a window, in tokens.
        stride: Tokens from one window to the next.
        start: Where the tokens begin in the store.

    Attributes:
        unused: How many tokens at the end are in no window.
    """

    def __init__(self, num_tokens: int, size: int, stride: int, start: int = 0) -> None:
        self._count = 1 + (num_tokens - 1 - size) // stride if num_tokens > size else 0
        self._stride, self.start = stride, start
        self.unused = num_tokens - ((self._count - 1) * stride + size + 1 if self._count else 0)

    def __len__(self) -> int:
        return self._count

    def locate(self, numbers: Sequence[int]) -> WindowBegins:
        """Where these windows begin."""
        start, stride = self.start, self._stride
        return WindowBegins([start + number * stride for number in numbers])


class RowWindows:
    """Windows that lie in one packed row each; one that ends with its row lacks the last target.

    Where rows are equally long, as packing makes them, everything is computed. Otherwise their lengths are read once,
    and one number per 512 rows is kept.

    Attributes:
        unused: How many tokens at the ends of rows are in no window.
    """

    def __init__(self, store: Store, key: str, size: int, stride: int) -> None:
        self._values, self._size, self._stride = store.values, size, stride
        self._segments: list[tuple[Runs, int]] = []  # the rows of each, and where it begins
        self._first_chunks: list[int] = []  # of each segment
        self._ends: list[int] = []  # of each chunk: how many windows end with it
        self.unused = count = 0
        column = store.column(key)
        for segment, start in zip(column.segments, column.starts, strict=True):
            assert segment.rows is not None, "windows in rows of a store without rows"
            self._segments.append((segment.rows, start))
            self._first_chunks.append(len(self._ends))
            for lengths, times in self._lengths(segment.rows):
                counts = self._counts(lengths)
                used = np.where(counts > 0, (counts - 1) * stride + size + 1, 0)
                self.unused += int((lengths - np.minimum(used, lengths)).sum()) * times
                count += int(counts.sum()) * times
                self._ends.append(count)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, numbers: Sequence[int]) -> WindowBegins:
        """Where these windows begin."""
        found = [self._locate(number) for number in numbers]
        at_row_end = [is_last for _, is_last in found]
        return WindowBegins([begin for begin, _ in found], at_row_end if any(at_row_end) else ())

    def _locate(self, number: int) -> tuple[int, bool]:
        chunk = bisect_right(self._ends, number)
        segment = bisect_right(self._first_chunks, chunk) - 1
        rows, start = self._segments[segment]
        inner = number - (self._ends[chunk - 1] if chunk else 0)
        if isinstance(rows, Even):
            row, inner = divmod(inner, 1 + (rows.length - self._size) // self._stride)
            begin, end = rows.span(row, self._values)
        else:
            offsets = self._offsets(rows, (chunk - self._first_chunks[segment]) * _ROWS_PER_CHUNK)
            ends = np.cumsum(self._counts(np.diff(offsets)))
            row = int(np.searchsorted(ends, inner, side="right"))
            inner -= int(ends[row - 1]) if row else 0
            begin, end = offsets[row : row + 2].tolist()
        begin += inner * self._stride
        return start + begin, begin + self._size == end

    def _lengths(self, rows: Runs) -> Iterator[tuple[Int64s, int]]:
        """The lengths of the rows of each chunk, and how many times each; rows of one length are one chunk."""
        if isinstance(rows, Even):
            yield np.array([rows.length]), rows.count
            return
        for first in range(0, rows.count, _ROWS_PER_CHUNK):
            yield np.diff(self._offsets(rows, first)), 1

    def _offsets(self, rows: Offsets, first: int) -> Int64s:
        return rows.spans(first, min(first + _ROWS_PER_CHUNK, rows.count), self._values)

    def _counts(self, lengths: Int64s) -> Int64s:
        counts: Int64s = np.where(lengths < self._size, 0, 1 + (lengths - self._size) // self._stride)
        return counts


class WindowDataset(BaseDataset):
    """Windows of `window_size` tokens, each with the next token as target of its last.

    There are `1 + (tokens - 1 - window_size) // stride` windows. Where the store records packed rows, windows lie
    within them: `1 + (length - window_size) // stride` in each, and one that ends with its row has -100 as its last
    target.

    Of a store with weights of documents, a sample has `loss_weight`, float32 (window_size,): of each input token the
    weight of its document.

    A sample's inputs and targets are views of one tensor: clone one before you change it in place. `TensorCollate` and
    torch's `default_collate` make batches in memory of their own.

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
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        dtype: Of the tokens, such as "uint32", for a file of bare tokens that does not say it, as nanoGPT's `.bin`.
        documents: Add to each sample `cu_seqlens`, int32 (documents + 1,), where documents begin in it and its end,
            `max_seqlen`, the longest of them, and `position_ids`, int64 (window_size,), that begin anew with each; of
            a store with weights `document_weights` float32 (documents,), too.
        eod_token: The id with which each document ends, for a store that does not record where its documents begin.
        reset_attention_mask: Add `cu_seqlens` and `max_seqlen` alone.
        reset_position_ids: Add the `position_ids` of `documents` alone.
        eod_mask_loss: Add `loss_mask`, bool (window_size,), False where the input is `eod_token`; a stored mask is
            False there, too.
        records: Cut windows from these records of the store alone, from the first to the one before the last; or from
            those of a part.
        compat: "megatron", for `seq` over one pair of files, gives the samples of Megatron-Core's GPTDataset, index for
            index; see `docs/coming/megatron.md`. They are pieces of shuffled documents.
        seed: Of their order, as Megatron's `--seed`.
        num_samples: How many of them there are at least; None for those of one epoch.

    Raises:
        FileNotFoundError: There is nothing at the path.
        StoreError: The store is damaged, does not serve this train type, has fewer tokens than one window, or does
            not record documents.
        ValueError: A size that is not positive, or options that need another one.
    """

    slices_documents = True  # a record is a slice of several documents, so no list can leave one of them out

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
        records: tuple[int, int] | PartRange | None = None,
        compat: Literal["megatron"] | None = None,
        seed: int | None = None,
        num_samples: int | None = None,
    ) -> None:
        super().__init__(
            load_path,
            window_size,
            storage_type,
            store=store,
            verify=verify,
            mapped=mapped,
            name=name,
            percent=percent,
            holdout=holdout,
            part=part,
            dtype=dtype,
        )
        self._size = window_size
        self.stride = window_size if stride is None else positive(f"{self._who}: stride", stride)
        if isinstance(records, PartRange):
            count, chosen = self.store.column(TOKENS).num_records, records
            records = chosen.span(count)
            if records.first == records.last:
                expected = f"expected sequences for part {shown(chosen.name)} of {chosen.text}, got none of {count}"
                raise StoreError(
                    f"{self._who}, '{load_path or self.store.path}': {expected}\n"
                    "  Give it a larger share, or leave this one out."
                )
        self._records, self._eod_token = records, eod_token
        # Which marks of documents samples get: cu_seqlens and max_seqlen, position_ids, loss_mask.
        self._marks = (documents or reset_attention_mask, documents or reset_position_ids, eod_mask_loss)
        self._check_marks()
        self._windows: FlatWindows | RowWindows | MegatronSamples
        if compat is None and seed is None and num_samples is None:
            self._windows = self._counted_windows()
        else:
            self._windows = self._megatron_samples(compat, seed, num_samples)

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def indices(self) -> SampleIndices:
        """The document, sample and shuffle index of `compat="megatron"`.

        Raises:
            ValueError: There is no such order.
        """
        if not isinstance(self._windows, MegatronSamples):
            raise ValueError(f"{self._who}: expected compat='megatron', which has indices, got None")
        return self._windows.indices

    def get_index(self, idx: int) -> tuple[int, int]:
        """Where the window of sample `idx` begins and ends in the store.

        Raises:
            ValueError: Samples are pieces of several documents, by `compat="megatron"`.
        """
        if isinstance(self._windows, MegatronSamples):
            raise ValueError(f"{self._who}: samples of compat='megatron' lie in several places, see `indices`")
        (begin,) = self._windows.locate([self._number(idx)]).begins
        return begin, begin + self._size

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        end_worker_with_trainer()
        numbers = self._numbers(indices)
        if isinstance(self._windows, MegatronSamples):
            return self._samples_of(self._windows.read(numbers), None)
        return self._samples(self._windows.locate(numbers))

    @property
    def _cut(self) -> str:
        of_records = "" if self._records is None else f"of records {self._records[0]} to {self._records[1]} "
        cut = f"windows of {self._size} every {self.stride} {of_records}"
        samples = self._windows
        return f"{cut}as megatron {[*samples.rule]} " if isinstance(samples, MegatronSamples) else cut

    def _samples(self, windows: WindowBegins) -> list[Sample]:
        return self._samples_of(self._with_next(TOKENS, windows, IGNORED_LABEL), windows.begins)

    def _samples_of(self, tokens: Values, begins: Sequence[int] | None) -> list[Sample]:
        """The samples of windows with the token after each, (windows, window_size + 1), and where these begin."""
        found = tokens.astype(_INT64)
        ids = found[:, :-1]
        inputs, targets = (torch.from_numpy(part).unbind() for part in (ids, found[:, 1:]))
        samples: list[Sample] = [
            {"input_ids": window, "target_ids": following} for window, following in zip(inputs, targets, strict=True)
        ]
        if self._has_weights:
            for sample, start in zip(samples, begins or (), strict=True):
                sample[LOSS_WEIGHT] = torch.from_numpy(self.store.loss_weights(TOKENS, start, start + self._size))
        if not any(self._marks):
            return samples
        # The arguments of attention kernels for sequences of several lengths, for the window that begins there.
        with_documents, with_positions, with_loss = self._marks
        for sample, begin, window in zip(samples, begins or repeat(None, len(samples)), ids, strict=True):
            if self._eod_token is not None:
                starts = np.flatnonzero(window[:-1] == self._eod_token) + 1
            else:
                assert begin is not None, "a window in pieces, whose documents are not known"
                starts = self.store.document_starts(TOKENS, begin, begin + self._size) - begin
            marks = np.concatenate(([0], starts, [self._size]))
            lengths = np.diff(marks)
            if with_documents:
                sample["cu_seqlens"] = torch.from_numpy(marks.astype(np.int32))
                sample["max_seqlen"] = int(lengths.max())
                if self._has_weights:
                    sample[DOCUMENT_WEIGHTS] = sample[LOSS_WEIGHT][marks[:-1]]
            if with_positions:
                sample[_POSITIONS] = torch.from_numpy(np.arange(self._size) - np.repeat(marks[:-1], lengths))
            if with_loss:
                sample[_MASK] = torch.from_numpy(window != self._eod_token)
        return samples

    def _with_next(self, key: str, windows: WindowBegins, fill: int) -> Values:
        """The windows and the value after each, (windows, window_size + 1); `fill` where the row ends."""
        if not windows.at_row_end:
            return self.store.gather(key, windows.begins, self._size + 1)
        begins, at_row_end = np.array(windows.begins), np.array(windows.at_row_end)
        out = np.full((len(begins), self._size + 1), fill, np.int64)
        out[at_row_end, :-1] = self.store.gather(key, begins[at_row_end].tolist(), self._size)
        out[~at_row_end] = self.store.gather(key, begins[~at_row_end].tolist(), self._size + 1)
        return out

    def _counted_windows(self) -> FlatWindows | RowWindows:
        with_rows = {segment.rows is not None for segment in self.store.column(TOKENS).segments}
        if len(with_rows) > 1:
            expected = f"packed rows in all shards of '{self.store.path}' or in none"
            raise StoreError.mismatch(self._who, expected, "both", "Give the two kinds their own directories.")
        in_rows = with_rows.pop()
        begin, end = self._token_range()
        tokens = end - begin
        windows = (
            RowWindows(self.store, TOKENS, self._size, self.stride)
            if in_rows
            else FlatWindows(tokens, self._size, self.stride, begin)
        )
        if not len(windows):
            need = f"a row of {self._size} tokens" if in_rows else f"{self._size + 1} tokens"
            where = "" if self._records is None else "records {} to {} of ".format(*self._records)
            raise StoreError.mismatch(
                self._who, f"at least {need} for one window", f"{tokens} tokens in {where}store '{self.store.path}'",
                "Choose a smaller window_size, or give it more data.",
            )  # fmt: skip
        if windows.unused:
            logger.info("%s: %d of %d tokens of '%s' lie after the last window and are not used",
                        self._who, windows.unused, tokens, self.store.path)  # fmt: skip
        return windows

    @property
    def num_tokens(self) -> int:
        """How many tokens the store has, or those of its records that windows are cut from."""
        begin, end = self._token_range()
        return end - begin

    def _token_range(self) -> tuple[int, int]:
        """Where the tokens that windows are cut from begin and end."""
        column = self.store.column(TOKENS)
        if self._records is None:
            return 0, len(column)
        count, (first, last) = column.num_records, self._records
        if column.segments[0].rows is not None or not 0 <= first < last <= count:
            raise StoreError(
                f"{self._who}: expected records within 0 to {count} of a store without packed rows, got {first} to "
                f"{last} of '{self.store.path}'"
            )
        return self.store.record_begin(TOKENS, first), self.store.record_begin(TOKENS, last)

    def _check_marks(self) -> None:
        if self._eod_token is not None and not any(self._marks):
            raise ValueError(
                f"{self._who}: eod_token says where documents end, got documents=False\n"
                "  Set both, or one of reset_attention_mask, reset_position_ids and eod_mask_loss."
            )
        if self._marks[2] and self._eod_token is None:
            raise ValueError(f"{self._who}: eod_mask_loss needs eod_token, the id that is masked, got None")
        is_recorded = all(segment.documents is not None for segment in self.store.column(TOKENS).segments)
        if any(self._marks) and self._eod_token is None and not is_recorded:
            raise self.store.no_documents(TOKENS)

    def _megatron_samples(self, compat: str | None, seed: int | None, num_samples: int | None) -> MegatronSamples:
        if compat is None:
            raise ValueError(f"{self._who}: seed and num_samples go with compat='megatron', got {seed}, {num_samples}")
        if compat != "megatron":
            raise ValueError(f"{self._who}: expected compat='megatron' or None, got {shown(compat)}")
        if self.train_type != "seq" or self.stride != self._size or type(seed) is not int:
            raise ValueError(
                f"{self._who}: expected train type 'seq', a seed and no other stride with compat='megatron', got "
                f"{shown(self.train_type)}, seed={shown(seed)}, stride={self.stride}\n"
                "  The seed is Megatron's --seed, 1234 by default there."
            )
        if not 0 <= seed <= _MAX_SEED:
            raise ValueError(f"{self._who}: expected a seed from 0 to {_MAX_SEED} with compat='megatron', got {seed}")
        if num_samples is not None:
            positive(f"{self._who}: num_samples", num_samples)
        if any(self._marks) and self._eod_token is None:
            raise ValueError(f"{self._who}: compat='megatron' needs eod_token to mark documents, got None")
        first, last = self._records or (0, self.store.column(TOKENS).num_records)
        return MegatronSamples(self.store, TOKENS, SampleRule(first, last, self._size, num_samples, seed))

    def _check_store(self) -> None:
        super()._check_store()
        dtype = self.store.column(TOKENS).dtype
        if dtype != np.int64:
            raise StoreError(f"{self._who}: expected {TOKENS!r} to be integers, got {dtype} in '{self.store.path}'")
        self._has_weights = DOCUMENT_WEIGHTS in self.store.keys
        if self._has_weights:
            both = (self.store.column(key).segments for key in (TOKENS, DOCUMENT_WEIGHTS))
            for tokens, weights in zip(*both, strict=True):
                count = None if tokens.documents is None else tokens.documents.count
                if weights.data.count != count or weights.data.dtype.kind != "f":
                    raise StoreError.mismatch(
                        self._who, f"a float for each of {count} documents as {DOCUMENT_WEIGHTS!r}",
                        f"{weights.data.count} of {weights.data.dtype} in '{weights.data.file}'", "Write it again.",
                    )  # fmt: skip


class SeqDataset(WindowDataset):
    """Token windows for train type `seq`, from the key `sequence`: `input_ids` and `target_ids`, int64 (window_size,).

    Each target is the token that follows in the sequence. See `WindowDataset` for arguments and errors.
    """

    train_type = "seq"

    def __getitem__(self, idx: int) -> Sample:
        if any(self._marks) or self._has_weights or not isinstance(self._windows, FlatWindows):
            return super().__getitem__(idx)
        # The same without the cost of a batch of one.
        begin = self._windows.start + self._number(idx) * self.stride
        tokens = self.store.stored(TOKENS, begin, begin + self._size + 1).astype(_INT64)
        return {"input_ids": torch.from_numpy(tokens[:-1]), "target_ids": torch.from_numpy(tokens[1:])}


class SFTDataset(WindowDataset):
    """Token windows with a loss mask for train type `sft`, from the keys `sequence` and `loss_mask`.

    A sample has `input_ids` and `target_ids`, int64 (window_size,), `loss_mask`, bool (window_size,), aligned with the
    targets (the mask of the predicted token), and `position_ids`, int64 (window_size,): with `documents` they restart
    at each document, else they are read from the key `position_ids` if it exists, else they count from 0 in each
    window. See `WindowDataset` for arguments and errors.
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
            return self.store.gather(_POSITIONS, windows.begins, self._size).astype(_INT64)
        return np.tile(np.arange(self._size), (len(windows.begins), 1))

    def _check_store(self) -> None:
        super()._check_store()
        kinds = {_MASK: "bi", _POSITIONS: "i"} if _POSITIONS in self.store.keys else {_MASK: "bi"}
        lengths = {key: len(self.store.column(key)) for key in (TOKENS, *kinds)}
        if len(set(lengths.values())) > 1:
            raise StoreError(f"{self._who}: expected as many values of each key, got {lengths} in '{self.store.path}'")
        for key, allowed in kinds.items():
            dtype = self.store.column(key).dtype
            if dtype.kind not in allowed:
                raise StoreError(f"{self._who}: {shown(key)} cannot be {dtype}, as it is in '{self.store.path}'")
