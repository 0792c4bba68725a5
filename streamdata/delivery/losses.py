"""The loss of each source, from the losses of a batch's tokens and `source_ids`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

from streamdata.errors import names_text
from streamdata.fields import BOUNDS, IGNORED_LABEL, LOCAL_BOUNDS, PADDED_BOUNDS, SOURCE_IDS, TOKEN_FIELDS

_POSITIONS = "position_ids"


def loss_by_source(
    losses: Tensor, batch: Mapping[str, Any], num_sources: int, group: distributed.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """Add up the losses of tokens by the source that they come from, on the losses' device and without waiting for it.

    Args:
        losses: The loss of each target, of shape (B, T) or (T,): `losses[i]` is that of `target_ids[i]`. Of a model
            that shifts labels itself, and so gives T - 1, pad one 0 at the end of each row, set `target_ids` to the
            labels moved one to the left, -100 at the end, and `loss_mask` to `target_ids != -100`: the batch's own mask
            is of other targets, and counts the 0 as the loss of a trained token.
        batch: What `TensorCollate` made, or a row of `PackTokens`. Trained are tokens by its `loss_mask`: that of
            `target_ids`, or where there are none that of `input_ids`, as of chats, each of which is the target of the
            one before it in its document; else those whose `target_ids` are not -100; else all. Others do not count,
            whatever their loss is; nor do documents of no source, -1: padding, and what fills a batch up. Of a
            `context_slice` the sums are of its own tokens.
        num_sources: How many sources there are, `len(dataset.source_names)`.
        group: The processes over which to sum, `torch.distributed.group.WORLD` for all ranks; of slices those of dp and
            cp together. By default this one.

    Returns:
        The sum of losses float64 (num_sources,), and the number of trained tokens float64 (num_sources,). With a
        `loss_weight` in the batch, sums of weighted losses and of weights.

    Raises:
        ValueError: The batch does not say what its tokens are of, or has another number of them.
    """
    if SOURCE_IDS not in batch:
        raise ValueError(
            f"loss_by_source: expected a batch with {SOURCE_IDS!r}, got one with {names_text(batch)}\n"
            "  Collate with TensorCollate(), without provenance=False."
        )
    device, num_tokens = losses.device, losses.numel()
    values = losses.detach().reshape(-1).double()
    weights = torch.ones_like(values)
    if "loss_weight" in batch:
        weights = _of_tokens(batch, "loss_weight", num_tokens).to(device).double()
    if "loss_mask" in batch:
        is_trained = _of_tokens(batch, "loss_mask", num_tokens).to(device).bool()
    elif "target_ids" in batch:
        is_trained = _of_tokens(batch, "target_ids", num_tokens).to(device) != IGNORED_LABEL
    elif PADDED_BOUNDS in batch:
        raise ValueError(
            f"loss_by_source: expected 'loss_mask' or 'target_ids' beside {PADDED_BOUNDS!r}, got {names_text(batch)}\n"
            "  They say which tokens are padding; let a single_process_fn give target_ids."
        )
    else:
        is_trained = torch.ones_like(values, dtype=torch.bool)
    documents = documents_of(losses, batch)
    if "loss_mask" in batch and "target_ids" not in batch:
        is_trained = pad(is_trained[1:] & (documents[1:] == documents[:-1]), (0, 1))
    sources = batch[SOURCE_IDS].to(device)[documents]
    is_trained = is_trained & (sources >= 0)  # padding, and what fills a batch up, is of no source, -1
    weights = weights * is_trained
    values = torch.where(is_trained, values, 0.0) * weights
    both = values.new_zeros(2, num_sources).index_add_(1, sources.clamp(min=0), torch.stack([values, weights]))
    if group is not None:
        distributed.all_reduce(both, group=group)
    return both[0], both[1]


def by_name(sums: Tensor, counts: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Divide the sums of `loss_by_source` by its counts; the sources of which nothing was trained are left out.

    Args:
        sums: Shape (num_sources,).
        counts: Shape (num_sources,).
        names: `dataset.source_names`.
    """
    pairs = zip(names, sums.tolist(), counts.tolist(), strict=True)
    return {name: total / count for name, total, count in pairs if count}


def _of_tokens(batch: Mapping[str, Any], name: str, num_tokens: int) -> Tensor:
    values: Tensor = batch[name]
    if values.numel() != num_tokens:
        raise ValueError(
            f"loss_by_source: expected a loss for each of the {values.numel()} values of {name!r}, got {num_tokens}\n"
            "  Give one for each token, before any mean; of a model that gives one fewer in a row, pad a 0 at its end."
        )
    return values.reshape(-1)


def documents_of(tokens: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The document of each token, int64 (tokens,): its number in `source_ids`.

    Args:
        tokens: Shape (B, T), (T,) or (B * T,), of any dtype.
        batch: Says where documents begin: by `cu_seqlens_local` of a slice, `cu_seqlens_padded` or `cu_seqlens`,
            joined or a list with those of each row, which is padded at its end; by its rows if each is a document; or
            by `position_ids`.

    Raises:
        ValueError: It does not.
    """
    device, num_tokens, num_documents = tokens.device, tokens.numel(), len(batch[SOURCE_IDS])
    places = torch.arange(num_tokens, device=device)
    bounds = next((batch[name] for name in (LOCAL_BOUNDS, PADDED_BOUNDS, BOUNDS) if name in batch), None)
    if not num_tokens:
        return places
    if isinstance(bounds, Tensor):
        found = torch.searchsorted(bounds[1:].to(device, places.dtype), places, right=True)
        return found.clamp(max=num_documents - 1)  # what follows the last one is padding
    ids = (batch[name] for name in TOKEN_FIELDS if isinstance(batch.get(name), Tensor))
    shape = tokens.shape if tokens.dim() > 1 else next(ids, tokens).shape
    num_rows = shape[0] if len(shape) > 1 else 1
    length = num_tokens // num_rows
    if num_documents == num_rows:
        return places // length
    if isinstance(bounds, list) and len(bounds) == num_rows:
        begins = torch.cat([torch.as_tensor(row)[:-1] + length * number for number, row in enumerate(bounds)])
        return torch.searchsorted(begins.to(device, places.dtype), places, right=True) - 1
    if _POSITIONS in batch:  # rows without gaps: a document begins wherever these are 0
        begins = _of_tokens(batch, _POSITIONS, num_tokens) == 0
        if begins.device.type == "cpu" and (num_begun := int(begins.sum())) != num_documents:
            raise ValueError(
                f"loss of sources: expected {num_documents} documents where {_POSITIONS!r} is 0, got {num_begun}\n"
                f"  Keep {BOUNDS!r} in the batch: the positions of padding may be 0, too."
            )
        return begins.to(device).cumsum(0) - 1
    raise ValueError(
        f"loss of sources: expected {num_rows} documents, one for each row, got {num_documents}\n"
        f"  Keep {BOUNDS!r} or {_POSITIONS!r} in the batch: they say where documents begin."
    )
