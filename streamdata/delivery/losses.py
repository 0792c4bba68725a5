"""The loss of each source, from the losses of a batch's tokens and `source_ids`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from streamdata.errors import names_text
from streamdata.fields import IGNORED_LABEL, SOURCE_IDS

_BOUNDS, _POSITIONS = "cu_seqlens", "position_ids"


def loss_by_source(
    losses: Tensor, batch: Mapping[str, Any], num_sources: int, group: distributed.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """Add up the losses of tokens by the source that they come from, on the losses' device and without waiting for it.

    Args:
        losses: The loss of each target, of shape (B, T) or (T,): `losses[i]` is that of `target_ids[i]`. Of a model
            that shifts labels itself, and so gives T - 1, pad one 0 at the end.
        batch: What `TensorCollate` made, or a row of `PackTokens`. Trained are tokens by its `loss_mask`; else those
            whose `target_ids` are not -100; else all. Others do not count, whatever their loss is.
        num_sources: How many sources there are, `len(dataset.source_names)`.
        group: The processes over which to sum, `torch.distributed.group.WORLD` for all ranks. By default this one.

    Returns:
        The sum of losses float64 (num_sources,), and the number of trained tokens float64 (num_sources,). With a
        `loss_weight` in the batch, sums of weighted losses and of weights.

    Raises:
        ValueError: The batch does not say what its tokens are of, or has another number of them.
    """
    device, num_tokens = losses.device, losses.numel()
    values = losses.detach().reshape(-1).double()
    weights = torch.ones_like(values)
    if "loss_weight" in batch:
        weights = _of_tokens(batch, "loss_weight", num_tokens).to(device).double()
    if "loss_mask" in batch:
        is_trained = _of_tokens(batch, "loss_mask", num_tokens).to(device).bool()
    elif "target_ids" in batch:
        is_trained = _of_tokens(batch, "target_ids", num_tokens).to(device) != IGNORED_LABEL
    else:
        is_trained = torch.ones_like(values, dtype=torch.bool)
    weights = weights * is_trained
    values = torch.where(is_trained, values, 0.0) * weights
    if SOURCE_IDS not in batch:
        raise ValueError(
            f"loss_by_source: expected a batch with {SOURCE_IDS!r}, got one with {names_text(batch)}\n"
            "  Collate with TensorCollate(), without provenance=False."
        )
    # Padding is of no source, -1, and not trained.
    sources = batch[SOURCE_IDS].to(device)[documents_of(losses, batch)].clamp(min=0)
    both = values.new_zeros(2, num_sources).index_add_(1, sources, torch.stack([values, weights]))
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
        tokens: Shape (B, T) or (T,), of any dtype.
        batch: Says where documents begin: by `cu_seqlens`, by its rows if each is a document, or by `position_ids`.

    Raises:
        ValueError: It does not.
    """
    device, num_tokens, num_documents = tokens.device, tokens.numel(), len(batch[SOURCE_IDS])
    num_rows = tokens.shape[0] if tokens.dim() > 1 else 1
    if isinstance(bounds := batch.get(_BOUNDS), Tensor):
        ends = bounds[1:].to(device)
        found = torch.searchsorted(ends, torch.arange(num_tokens, device=device, dtype=ends.dtype), right=True)
        return found.clamp(max=num_documents - 1)  # what follows the last one is padding
    if num_documents == num_rows:
        return torch.arange(num_rows, device=device).repeat_interleave(num_tokens // num_rows)
    if _POSITIONS in batch:  # rows without gaps: a document begins wherever these are 0
        return (_of_tokens(batch, _POSITIONS, num_tokens).to(device) == 0).cumsum(0) - 1
    raise ValueError(
        f"loss of sources: expected {num_rows} documents, one for each row, got {num_documents}\n"
        f"  Keep {_BOUNDS!r} or {_POSITIONS!r} in the batch: they say where documents begin."
    )
