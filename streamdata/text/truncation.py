"""Cutting and padding to a length: batches of tensors, one sequence with images in it, a sample with a loss mask.

a b c d e f g     seven tokens, five may stay
    c d e f g     left: the last
a b c d e         right: the first
a b     e f g     middle: the first half (rounded down) and the rest from the end
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from streamdata.errors import did_you_mean, positive, shown

if TYPE_CHECKING:
    from torch import Tensor

Truncation = Literal["left", "right", "middle", "error"]
TRUNCATIONS: Final[tuple[str, ...]] = get_args(Truncation)
TOKENS_OF_A_SAMPLE: Final = "Set it to the number of tokens that a sample may have."
POLICIES: Final = ("drop", "truncate_left", "truncate_right", "error")


class OverlongError(ValueError):
    """A sequence is longer than allowed, and is not to be cut."""


class Cut(NamedTuple):
    """The part of a sequence that stays.

    Attributes:
        kept: Positions that stay, ascending; int64, shape (m,).
        lost: Numbers of the atomic spans that do not.
    """

    kept: npt.NDArray[np.int64]
    lost: tuple[int, ...]


def check_choice(what: str, value: Any, choices: tuple[str, ...], remedy: str = "Give one of these.") -> None:
    """Raises ValueError where a setting is none of its choices; `what` names it."""
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise ValueError(f"{what} is {shown(value)}, expected one of {', '.join(choices)}{hint}\n  {remedy}")


def cut(length: int, max_length: int, truncation: str, atomic: Sequence[tuple[int, int]] = ()) -> Cut:
    """Chooses what stays of one sequence. A span that the cut touches is dropped entirely, and nothing fills the gap.

    Args:
        length: Tokens of the sequence.
        max_length: Tokens that may stay, at least 1.
        truncation: One of `TRUNCATIONS`.
        atomic: Spans (begin, end) that are kept entirely or not at all, such as the tokens of an image; half open.

    Raises:
        OverlongError: The sequence is too long and `truncation` is "error".
        ValueError: A setting or a span is invalid.
    """
    check_choice("cut: truncation", truncation, TRUNCATIONS)
    positive("cut: max_length", max_length, TOKENS_OF_A_SAMPLE)
    keep = np.zeros(length, dtype=np.bool_)
    for part in _parts(length, max_length, truncation):
        keep[part] = True
    lost = []
    for number, (begin, end) in enumerate(atomic):
        if not 0 <= begin <= end <= length:
            raise ValueError(
                f"cut: span {number} is {begin}:{end}, expected one inside {length} tokens\n"
                "  Give the spans of this sequence, before it is cut."
            )
        if not keep[begin:end].all():
            keep[begin:end] = False
            lost.append(number)
    return Cut(np.flatnonzero(keep), tuple(lost))


def _parts(length: int, max_length: int, truncation: str) -> list[slice]:
    """The slices of a sequence that stay."""
    if length <= max_length:
        return [slice(0, length)]
    if truncation == "error":
        raise OverlongError(
            f"truncation: expected at most {max_length} tokens, got {length}\n"
            "  Raise the limit, choose another truncation, or filter."
        )
    head = {"left": 0, "right": max_length, "middle": max_length // 2}[truncation]
    parts = [slice(0, head), slice(length - (max_length - head), length)]
    return [part for part in parts if part.stop > part.start]


def fit_length(
    train: npt.NDArray[np.bool_], max_length: int | None, policy: str
) -> slice | Literal["too_long", "nothing_to_train"]:
    """Chooses what stays of a sample with a loss mask, or says why it is dropped.

    Args:
        train: Which tokens are trained, shape (n,).
        max_length: Tokens that may stay; None for any number.
        policy: For a sample that has more: one of `POLICIES`. `truncate_left` keeps the last tokens, the first of
            which does not count as trained (`train_from`), `truncate_right` the first.

    Raises:
        OverlongError: The sample is too long and the policy is "error".
        ValueError: A setting is invalid.
    """
    check_choice("fit_length: policy", policy, POLICIES)
    part = slice(0, len(train))
    if max_length is not None:
        positive("fit_length: max_length", max_length, TOKENS_OF_A_SAMPLE)
        if len(train) > max_length and policy == "drop":
            return "too_long"
        (part,) = _parts(len(train), max_length, policy.removeprefix("truncate_"))
    return part if train_from(train, part.start)[part].any() else "nothing_to_train"


def train_from(train: npt.NDArray[np.bool_], begin: int) -> npt.NDArray[np.bool_]:
    """The loss mask of a document when a piece of it begins at `begin`: the piece's first token is not trained.

    Nothing of the document is left before it to predict it from. It stays as it is where the document begins, and in a
    document all of which is trained: plain text.

    Args:
        train: Which tokens of the document are trained, shape (n,); it is not changed.
        begin: A position in it.
    """
    if begin == 0 or train.all():
        return train
    found = train.copy()
    found[begin] = False
    return found


def postprocess_data(
    input_ids: "Tensor",
    attention_mask: "Tensor",
    max_length: int,
    pad_token_id: int,
    left_pad: bool = True,
    truncation: str = "error",
) -> "tuple[Tensor, Tensor]":
    """Brings a batch of token ids and its mask to one length, by padding or truncation.

    Args:
        input_ids: Shape (batch, seq).
        attention_mask: Shape (batch, seq), 0 at padding.
        max_length: The tokens of each row in the result, at least 1.
        pad_token_id: Fills rows that are shorter.
        left_pad: Pad on the left instead of the right.
        truncation: How to cut longer rows, one of `TRUNCATIONS`.

    Returns:
        Both tensors with shape (batch, max_length), in their dtypes.

    Raises:
        OverlongError: Rows are longer and `truncation` is "error".
        ValueError: A setting is invalid, or the shapes differ or are not two-dimensional.
    """
    check_choice("postprocess_data: truncation", truncation, TRUNCATIONS)
    positive("postprocess_data: max_length", max_length, TOKENS_OF_A_SAMPLE)
    if input_ids.ndim != 2 or input_ids.shape != attention_mask.shape:  # noqa: PLR2004 (batch and seq)
        raise ValueError(
            f"postprocess_data: expected input_ids and attention_mask of one shape (batch, seq), got "
            f"{tuple(input_ids.shape)} and {tuple(attention_mask.shape)}\n  Add the batch dimension with [None]."
        )
    if input_ids.shape[1] <= max_length:
        padded = pad_sequence_to_length(input_ids, max_length, pad_token_id, left_pad)
        return padded, pad_sequence_to_length(attention_mask, max_length, 0, left_pad)
    import torch

    try:
        parts = _parts(input_ids.shape[1], max_length, truncation)
    except OverlongError as error:
        row = int((attention_mask.sum(dim=1) > max_length).int().argmax())
        error.add_note(f"  postprocess_data: row {row} of a batch of {input_ids.shape[0]}")
        raise
    both = [torch.cat([tensor[:, part] for part in parts], dim=1) for tensor in (input_ids, attention_mask)]
    return both[0], both[1]


def pad_sequence_to_length(
    tensors: "Tensor", max_seq_len: int, pad_token_id: float, left_pad: bool = False
) -> "Tensor":
    """Pads the last dimension to `max_seq_len`, on the right or left; longer tensors are returned unchanged."""
    from torch.nn.functional import pad

    missing = max_seq_len - tensors.shape[-1]
    if missing <= 0:
        return tensors
    return pad(tensors, (missing, 0) if left_pad else (0, missing), value=pad_token_id)


def compute_position_id_with_mask(mask: "Tensor") -> "Tensor":
    """Returns position ids that count tokens where `mask` is 1, from 0; leading padding gets 0. Same shape."""
    import torch

    return torch.clip(torch.cumsum(mask, dim=-1) - 1, min=0)
