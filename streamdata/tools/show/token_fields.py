"""Finds the fields of a sample that are tokens, and those that say what is trained, padding, a border of documents.

`input_ids` has `loss_mask`, `attention_mask`, `position_ids` and `labels`, `chosen_input_ids` has `chosen_loss_mask`
and so on; `chosen` has `chosen_mask`, `responses` has `masks`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from streamdata.text.masks import LocatedChat
from streamdata.tools.show.model import short_name
from streamdata.tools.show.tokens import Ids, Mask, TokenSequence, TokenSpan, sequence_of

_NAMES: Final = frozenset({"tokens", "txt", "sequence", "chosen", "rejected", "prompts", "responses", "labels"})
_ENDINGS: Final = ("input_ids", "target_ids", "prompt_ids", "completion_ids", "token_ids", "_tokens", "_labels")
_TARGETS: Final = ("target_ids", "labels")
"""Fields of predicted tokens: the tokens themselves, or those that follow them."""
_MASKS: Final = {"responses": ("masks", "response_mask"), "completion_ids": ("completion_mask",)}
_IGNORED: Final = -100


def is_tokens(name: str) -> bool:
    """Whether a field of this name holds token ids, if it holds whole numbers."""
    return name in _NAMES or name.endswith(_ENDINGS)


def tokens_of(sample: Mapping[str, Any], name: str) -> TokenSequence | None:
    """The tokens of a field, with what the other fields say of them; None where it is something else."""
    ids = sequence_of(sample.get(name)) if is_tokens(name) else None
    if ids is None:
        return None
    own = next((ending for ending in ("input_ids", "tokens", *_TARGETS) if name.endswith(ending)), name)
    prefix = name.removesuffix(own)

    def beside(other: str) -> "np.ndarray[Any, Any] | None":
        """Another field of the same prefix, of one number or mark for each token."""
        value = sample.get(f"{prefix}{other}")
        array = np.asarray(value) if hasattr(value, "shape") else sequence_of(value)
        return array if array is not None and array.shape == ids.shape else None

    masked_by, train, is_shifted = _trained(own, ids, beside)
    attended = beside("attention_mask")
    return TokenSequence(
        ids=ids,
        # A mark of the token that predicts is moved to the predicted one; nothing predicts the first.
        train=np.append(False, train[:-1]) if train is not None and is_shifted else train,
        masked_reason=f"not trained: {short_name(prefix + masked_by)} here",
        is_shifted=is_shifted,
        attended=None if attended is None else attended.astype(np.bool_),
        borders=_borders(beside("position_ids"), sequence_of(sample.get(f"{prefix}cu_seqlens")), len(ids)),
    )


def _trained(own: str, ids: Ids, beside: Callable[[str], Any]) -> tuple[str, Mask | None, bool]:
    """Returns what says which tokens are trained, marks of these, and whether a mark is of the token before."""
    is_target, kept = own in _TARGETS, ids != _IGNORED
    if is_target and not kept.all():
        return f"{own} is {_IGNORED}", kept, False
    for name in ("loss_mask", f"{own}_mask", *_MASKS.get(own, ())):
        if (mask := beside(name)) is not None:
            # Beside targets a mask is theirs: it says whether the token is predicted from those before it.
            return f"{name} is 0", mask.astype(np.bool_), not is_target and beside("target_ids") is not None
    labels = None if is_target else beside("labels")
    if labels is None:
        return "", None, False
    kept = labels != _IGNORED
    return f"labels is {_IGNORED}", kept, not np.array_equal(labels[kept], ids[kept])


def _borders(positions: "np.ndarray[Any, Any] | None", ends: Ids | None, length: int) -> list[int]:
    """Where documents begin, the first excepted: where positions begin anew."""
    if ends is not None and len(ends) and int(ends[-1]) <= length:
        return [end for end in ends.tolist() if 0 < end < length]
    if positions is None:
        return []
    is_new = (positions[1:] < positions[:-1]) | ((positions[1:] == 0) & (positions[:-1] == 0))  # or one of one token
    return [int(begin) for begin in np.flatnonzero(is_new) + 1]


def target_summary(sample: Mapping[str, Any], name: str) -> str:
    """How targets follow from the tokens beside them; "" for all other fields."""
    ending = next((ending for ending in _TARGETS if name.endswith(ending)), None)
    beside = () if ending is None else (f"{name.removesuffix(ending)}{own}" for own in ("input_ids", "tokens"))
    tokens = next((own for own in beside if own in sample), None)
    if tokens is None:
        return ""
    targets, ids = sequence_of(sample[name]), sequence_of(sample[tokens])
    if targets is None or ids is None or len(ids) != len(targets) or not (kept := targets != _IGNORED).any():
        return ""
    ignored = int(np.count_nonzero(~kept))
    more = f", {_IGNORED} at {ignored:,}" if ignored else ""
    if np.array_equal(targets[kept], ids[kept]):
        return f"as {short_name(tokens)}{more}"
    is_next = np.array_equal(targets[:-1][kept[:-1]], ids[1:][kept[:-1]])
    return f"as {short_name(tokens)}, one token later{more}" if is_next else ""


_FIELD: Final = "input_ids"
_WITHIN: Final = "not trained: outside of what the template marks as generated, or cut off from what predicts it"


def chat_tokens(item: Mapping[str, Any], chats: Mapping[str, LocatedChat]) -> dict[str, TokenSequence]:
    """The sequences of an item whose messages were found, by field.

    Args:
        item: As the dataset made it.
        chats: Of its row, by what the names of the item's fields begin with.
    """
    found = {}
    for side, chat in chats.items():
        sequence = tokens_of(item, f"{side}{_FIELD}")
        if sequence is not None and (messages := _spans(sequence, chat)):
            found[f"{side}{_FIELD}"] = replace(sequence, messages=messages)
    return found


def _spans(sequence: TokenSequence, chat: LocatedChat) -> list[TokenSpan]:
    """Where the messages lie in what was cut and padded; none where that cannot be said."""
    attended = sequence.attended
    kept = np.arange(len(sequence.ids)) if attended is None else np.flatnonzero(attended)
    places = _places(sequence.ids[kept], chat.input_ids)
    if places is None or not len(kept):
        return []
    spans = []
    for message in chat.messages:
        # Padding lies at one end.
        begin, end = (int(kept[0] + place) for place in np.searchsorted(places, (message.begin, message.end)))
        masked = _WITHIN if message.trained else f"not trained: {message.because}"
        reasons = {"trained_reason": f"trained: {message.because}", "masked_reason": masked}
        if end > begin:
            spans.append(TokenSpan(begin=begin, end=end, role=message.role, **reasons))
    return spans


def _places(ids: Ids, encoded: Ids) -> Ids | None:
    """Where each token of an item was before a cut, of its beginning, middle or end; None where that cannot be said."""
    size, length = len(ids), len(encoded)
    differs = np.flatnonzero(ids[: min(size, length)] != encoded[: min(size, length)])
    places = np.arange(size)
    if len(differs):
        places[differs[0] :] += max(0, length - size)
    inside = places < length
    # One token more may stand at the end: that at which an answer stops.
    if np.count_nonzero(~inside) <= (size == length + 1) and np.array_equal(ids[inside], encoded[places[inside]]):
        return places
    return _expanded(ids, encoded)


def _expanded(ids: Ids, encoded: Ids) -> Ids | None:
    """Find the places where media take many tokens in place of one: the same token again and again."""
    places, at = np.zeros(len(ids), dtype=np.int64), -1
    for number, token in enumerate(ids.tolist()):
        if at + 1 < len(encoded) and encoded[at + 1] == token:
            at += 1
        elif number == 0 or ids[number - 1] != token:
            return None
        places[number] = at
    return places
