"""Packing tokenized samples into training rows, whole documents at a time."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from streamdata.errors import shown
from streamdata.sources.source import Sample, describe_record
from streamdata.text.functions.lookahead import Longer, Lookahead, TokenPiece
from streamdata.text.packing import positions
from streamdata.text.plan import Plan, plan_bfd, plan_bfd_head

_MADE_HERE: Final = ("cu_seqlens", "position_ids")
_HARD_FOR_TORCH: Final = ("uint16", "uint32", "uint64")
"""Types of arrays that torch can hold, and hardly compute with."""


class PackTokens(Lookahead):
    """Packs whole samples into rows of at most `max_tokens`: the `process_fn` of a source, or a `customized_yield_fn`.

    It pulls up to `lookahead` samples, plans rows by best fit, and gives them as one burst. The last samples pulled, at
    most what fits into one row, are carried over to the next burst. A row is not padded. It has

    - `field`, the samples' token ids joined, (n,) with n at most `max_tokens`;
    - `cu_seqlens` int32 (documents + 1,), where documents begin in it, and n;
    - `position_ids` int64 (n,), from 0 at each document's start;
    - each other field that has a value for each token (labels, masks), joined in the same way. A field is taken for one
      if in all samples of the burst that have it its length is that of the token ids;
    - all else (media, texts) as a list with one entry for each document, None where it has none;
    - of `__url__`, `__key__` and the like what the last sample pulled for the burst has, as of any stream function.

    Labels are joined as they are. A model that shifts them itself predicts each document's first token from the end of
    the one before, unless its label is -100.

    A resume goes on exactly. After a change of size no token comes twice where this is a process function, and there is
    at most one short row for each old lane and source; where it is a yield function, samples of the burst under way, at
    most `lookahead` in each old lane, may come again whole.

    Args:
        max_tokens: Tokens in a row at most.
        lookahead: How many samples it holds when it plans, or as many as do not fit into one row, if these are more:
            with 1, samples are packed in their sequence. Rows are fuller the more there are: about 0.998 of
            `max_tokens` where a hundred rows are planned at once.
        field: Token ids of a sample: a 1-D tensor, an array or a list of integers. A sample without tokens is in no
            row. Of this and the fields that are joined with it, lists become int64 or float32, unsigned arrays of 16
            bits or more int64; all else keeps its type.
        longer: What becomes of a sample of more than `max_tokens` tokens. "error" raises; "drop" leaves it out and
            "truncate" its end, both counted in the state as `overlong`; "split" cuts it into whole rows and a rest,
            each of which is a document in its row.
        lookahead_bytes: It plans earlier, once the samples that it holds have this size, as those with media do.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        max_tokens: int,
        lookahead: int = 1000,
        field: str = "input_ids",
        longer: Longer = "error",
        *,
        lookahead_bytes: int = 1 << 28,
    ) -> None:
        super().__init__(max_tokens, lookahead, lookahead_bytes, field, longer)

    def _is_more_than_one(self) -> bool:
        return self._tokens > self._max_tokens

    def _plan(self, sizes: npt.NDArray[np.int64], *, is_end: bool) -> Plan:
        return (plan_bfd if is_end else plan_bfd_head)(sizes, self._max_tokens)

    def _output(self, pieces: Sequence[TokenPiece], vectors: frozenset[str]) -> Sample:
        names = dict.fromkeys(chain.from_iterable({piece.document.fields.names: None for piece in pieces}))
        if "cu_seqlens" in names:
            raise ValueError(
                f"{self._who}: a sample has the field 'cu_seqlens', expected one document, not a packed row: "
                f"{describe_record(pieces[0].document.sample)}\n  Pack once, in the source or over the mixture."
            )
        row = {
            name: self._joined(name, pieces)
            if name in vectors
            else [piece.document.sample.get(name) for piece in pieces]
            for name in names
            if name not in _MADE_HERE
        }
        sizes = np.array([piece.end - piece.begin for piece in pieces])
        marks = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=marks[1:])
        return {**row, "cu_seqlens": torch.from_numpy(marks), "position_ids": torch.from_numpy(positions(sizes))}

    def _joined(self, name: str, pieces: Sequence[TokenPiece]) -> torch.Tensor:
        for piece in pieces:
            if name not in piece.document.fields.vectors:
                raise ValueError(
                    f"{self._who}: expected field {shown(name)}, which has a value for each token, in all "
                    "samples of a row, "
                    f"got none for {describe_record(piece.document.sample)}\n"
                    "  Let a single_process_fn add it there or drop it elsewhere, or pack each source by itself."
                )
        parts = [_as_array(piece.part(name)) for piece in pieces]
        for part, piece in zip(parts, pieces, strict=True):
            if isinstance(part, np.ndarray) and part.dtype.kind not in "biufc":
                raise ValueError(
                    f"{self._who}: expected numbers in field {shown(name)}, which is as long as there are tokens, got "
                    f"{part.dtype} for {describe_record(piece.document.sample)}\n  Give a tensor or an array."
                )
        return _concatenated(parts)


def _as_array(values: Any) -> Any:
    """Values as an array; tensors as they are."""
    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    return array.astype(np.float32) if isinstance(values, list) and array.dtype.kind == "f" else array


def _concatenated(parts: Sequence[Any]) -> torch.Tensor:
    if isinstance(parts[0], np.ndarray) and all(part.dtype == parts[0].dtype for part in parts):
        return _as_tensor(np.concatenate(parts))
    # By torch's rules for several types: NumPy makes float64 of int64 and float32, and of tokens in int64 and uint64.
    return torch.cat([part if isinstance(part, torch.Tensor) else _as_tensor(part.copy()) for part in parts])


def _as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int64) if array.dtype.name in _HARD_FOR_TORCH else array)
