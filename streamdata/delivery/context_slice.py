"""Slices of batches for the ranks of a context-parallel group.

With causal attention the end of a document costs most. So each document is cut into `2 * size` chunks, and a rank gets
one from the front and its mirror image from the back: with two ranks chunks 0 and 3, and 1 and 2.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from streamdata.delivery.losses import documents_of
from streamdata.errors import names_text, shown
from streamdata.fields import BOUNDS, LOCAL_BOUNDS, PADDED_BOUNDS, PADDING, PROVENANCE, SOURCE_IDS, TOKEN_FIELDS

_MASK, _POSITIONS = "attention_mask", "position_ids"
_NOT_SLICED = frozenset([BOUNDS, PADDED_BOUNDS, PADDING, *PROVENANCE])


def context_slice(
    batch: Mapping[str, Any], rank: int, size: int, layout: Literal["zigzag"] = "zigzag", per_document: bool = True
) -> dict[str, Any]:
    """Slices a batch for a rank of a context-parallel group: of each document, or row, 2 of its `2 * size` chunks.

    These are chunks `rank` and `2 * size - 1 - rank`, in that order, on the last axis of the token ids, of all tensors
    of their shape, and of `position_ids` that have one dimension more in front; these say where a token stood in the
    whole. All other fields stay, also `cu_seqlens` and `cu_seqlens_padded`, which TransformerEngine takes as they are.

    Args:
        batch: What `TensorCollate` made, with token ids in `input_ids` or `tokens`.
        rank: In the context-parallel group.
        size: Of the group; 1 takes all.
        layout: How chunks are given to ranks; "zigzag" is the only one.
        per_document: Cut each document of joined rows, as `PackTokens(document_multiple=2 * size)` makes them, and
            TransformerEngine's attention with `qkv_format="thd"` expects. False cuts rows (B, S) or (S,) as a whole, as
            Megatron does; of an `attention_mask` (B, 1, S, S) the third axis.

    Returns:
        A new dict. `cu_seqlens_local` int32 (documents + 1,) is added: where the documents begin in the slice, all rows
        one after another (with `per_document=False`, if there are `source_ids`); and with `per_document` `max_seqlen`,
        the longest padded length of a whole document.

    Raises:
        ValueError: A document or row is no multiple of `2 * size`; there are no bounds, or others than those of joined
            rows; `labels` or `loss_mask` come without `target_ids`: each is then of the token itself, whose target is
            the next one, and that may be in another rank's chunk;
            `position_ids` or `attention_mask` have another shape than those above.
    """
    if layout != "zigzag":
        raise ValueError(f"context_slice: expected the layout 'zigzag', got {shown(layout)}\n  There is no other.")
    if type(size) is not int or type(rank) is not int or not 0 <= rank < size:
        raise ValueError(
            f"context_slice: expected a rank from 0 to size - 1, got rank {shown(rank)} of size {shown(size)}\n"
            "  Give those of the context-parallel group."
        )
    fields = batch if isinstance(batch, Mapping) else {}
    tokens = next((fields[name] for name in TOKEN_FIELDS if isinstance(fields.get(name), Tensor)), None)
    if tokens is None or tokens.dim() == 0 or LOCAL_BOUNDS in fields:
        got = names_text(fields) if isinstance(batch, Mapping) else type(batch).__name__
        raise ValueError(
            f"context_slice: expected a whole batch with a tensor under one of {TOKEN_FIELDS}, got {got}\n"
            "  Collate with TensorCollate(), and slice once."
        )
    shifted = [name for name in ("labels", "loss_mask") if name in batch and "target_ids" not in batch]
    if shifted and size > 1:
        raise ValueError(
            f"context_slice: expected 'target_ids' beside {shifted[0]!r}, got {names_text(batch)}: the next token may "
            "be in another rank's chunk\n  Let a single_process_fn give input_ids=ids[:-1] and target_ids=ids[1:]."
        )
    bounds = _bounds(batch, tokens) if per_document else torch.tensor([0, tokens.shape[-1]])
    places = _zigzag(bounds, rank, size, "document" if per_document else "row")
    sliced = {name: _sliced(name, value, tokens.shape, places) for name, value in batch.items()}
    if per_document:
        sliced["max_seqlen"] = int(bounds.diff().max())
        sliced[LOCAL_BOUNDS] = (bounds // size).to(torch.int32)
    elif SOURCE_IDS in batch:
        documents = documents_of(tokens, batch).view(tokens.shape)[..., places].flatten()
        counts = documents.bincount(minlength=len(batch[SOURCE_IDS]))
        sliced[LOCAL_BOUNDS] = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    return sliced


def _bounds(batch: Mapping[str, Any], tokens: Tensor) -> Tensor:
    """Where documents begin in joined rows, int64."""
    name = PADDED_BOUNDS if PADDED_BOUNDS in batch else BOUNDS
    bounds = batch.get(name)
    if not isinstance(bounds, Tensor) or bounds.dim() != 1 or tokens.numel() != tokens.shape[-1]:
        got = f"{names_text(batch)}, with tokens of shape {tuple(tokens.shape)}"
        raise ValueError(
            f"context_slice: expected joined rows with {BOUNDS!r}, got {got}\n"
            f"  Pack with PackTokens(document_multiple=…), or give per_document=False to cut rows as a whole."
        )
    if int(bounds[-1]) != tokens.numel():
        raise ValueError(
            f"context_slice: expected {name!r} to end at the last of {tokens.numel()} tokens, got {int(bounds[-1])}\n"
            "  Fill rows up by PackTokens(row_multiple=…), which makes a document of it, in place of Pad()."
        )
    return bounds.long()


def _zigzag(bounds: Tensor, rank: int, size: int, what: str) -> Tensor:
    """The places of a rank's tokens, ascending; `what` lies between the bounds."""
    if size == 1:
        return torch.arange(int(bounds[-1]), device=bounds.device)
    lengths = bounds.diff()
    uneven = (lengths % (2 * size)).nonzero().flatten().tolist()
    if uneven:
        remedy = "PackTokens(document_multiple=" if what == "document" else "fields Pad(multiple_of="
        raise ValueError(
            f"context_slice: expected each {what} to have a multiple of {2 * size} tokens, 2 chunks for each of {size} "
            f"ranks, got {int(lengths[uneven[0]])} in {what} {uneven[0]}\n  Give {remedy}{2 * size})."
        )
    chunk = lengths // (2 * size)
    begins = torch.stack([bounds[:-1] + rank * chunk, bounds[:-1] + (2 * size - 1 - rank) * chunk], 1).flatten()
    counts = chunk.repeat_interleave(2)
    shifts = (begins - counts.cumsum(0) + counts).repeat_interleave(counts)
    return torch.arange(len(shifts), device=bounds.device) + shifts


def _sliced(name: str, value: Any, shape: torch.Size, places: Tensor) -> Any:
    """The values of a field at these places; all of a field that has not one for each token."""
    if not isinstance(value, Tensor) or name in _NOT_SLICED:
        return value
    places = places.to(value.device)
    if value.shape == shape or (name == _POSITIONS and value.shape[1:] == shape):
        return value[..., places]
    if name not in (_MASK, _POSITIONS):
        return value
    if name == _MASK and value.shape == (*shape[:-1], 1, shape[-1], shape[-1]):
        return value[..., places, :]
    raise ValueError(
        f"context_slice: expected {name!r} to have the shape {tuple(shape)} of the tokens, or positions one axis in "
        f"front, or a mask (B, 1, S, S) beside tokens (B, S), got {tuple(value.shape)}\n"
        "  Leave it out where the bounds say the same."
    )
