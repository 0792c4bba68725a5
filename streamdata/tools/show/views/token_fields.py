"""Finds the fields of a sample that are tokens, and those that say what is trained, padding, a border of documents.

`input_ids` has `loss_mask`, `attention_mask`, `position_ids` and `labels`, `chosen_input_ids` has `chosen_loss_mask`
and so on; `chosen` has `chosen_mask`, `responses` has `masks`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from streamdata.text.masks import LocatedChat
from streamdata.tools.show.views.model import short_name
from streamdata.tools.show.views.token_sequence import Ids, Mask, MessageSpan, TokenSequence, sequence_of

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
    siblings = _Siblings(sample, name, len(ids))
    train, reason, is_shifted = siblings.train(ids)
    return TokenSequence(
        ids=ids,
        train=train,
        masked_reason=reason,
        first_reason="not trained: no token before it predicts it" if is_shifted else "",
        trained_reason="trained" if train is not None else "",
        attended=siblings.mask("attention_mask"),
        borders=siblings.borders(),
    )


def target_summary(sample: Mapping[str, Any], name: str) -> str:
    """How targets follow from the tokens beside them; "" for all other fields."""
    if not name.endswith(_TARGETS):
        return ""
    targets, tokens = sequence_of(sample.get(name)), _tokens_beside(sample, name)
    if targets is None or tokens is None or len(sample[tokens]) != len(targets):
        return ""
    ids, kept = sequence_of(sample[tokens]), targets != _IGNORED
    ignored = int(np.count_nonzero(~kept))
    more = f", {_IGNORED} at {ignored:,}" if ignored else ""
    if ids is None or not kept.any():
        return ""
    if np.array_equal(targets[kept], ids[kept]):
        return f"as {short_name(tokens)}{more}"
    is_next = np.array_equal(targets[:-1][kept[:-1]], ids[1:][kept[:-1]])
    return f"as {short_name(tokens)}, one token later{more}" if is_next else ""


def _tokens_beside(sample: Mapping[str, Any], name: str) -> str | None:
    prefix = next(name.removesuffix(ending) for ending in _TARGETS if name.endswith(ending))
    return next((f"{prefix}{own}" for own in ("input_ids", "tokens") if f"{prefix}{own}" in sample), None)


class _Siblings:
    """The fields beside one of tokens that are about it: of its prefix, and of its length.

    Args:
        sample: All fields.
        name: That of the tokens.
        length: How many there are.
    """

    def __init__(self, sample: Mapping[str, Any], name: str, length: int) -> None:
        self._sample, self._name, self._length = sample, name, length
        own = next((ending for ending in ("input_ids", "tokens", *_TARGETS) if name.endswith(ending)), name)
        self._prefix = name.removesuffix(own)

    def train(self, ids: Ids) -> tuple[Mask | None, str, bool]:
        """Marks of trained tokens, why the others are not trained, and whether a mark is of the token before."""
        if self._name.endswith(_TARGETS):
            mask = self.mask("loss_mask") if self._name.endswith("target_ids") else None
            unwanted = ids == _IGNORED
            if mask is None and not unwanted.any():
                return None, "", False
            kept = ~unwanted if mask is None else mask & ~unwanted
            return kept, f"not trained: {short_name(self._name)} is {_IGNORED} here", False
        found = self._named_mask()
        if found is not None:
            name, mask = found
            # Beside targets a mask is theirs: it says whether the token is predicted from those before it.
            shifted = self._ids("target_ids") is not None
            return (_later(mask) if shifted else mask), f"not trained: {short_name(name)} is 0 here", shifted
        labels = self._ids("labels")
        if labels is None:
            return None, "", False
        kept = labels != _IGNORED
        is_shifted = not np.array_equal(labels[kept], ids[kept])
        return (_later(kept) if is_shifted else kept), f"not trained: labels is {_IGNORED} here", is_shifted

    def borders(self) -> list[int]:
        """Where documents begin, the first excepted: where positions begin anew."""
        positions = self._ids("position_ids")
        ends = sequence_of(self._sample.get(f"{self._prefix}cu_seqlens"))
        if ends is not None and len(ends) and int(ends[-1]) <= self._length:
            return [end for end in ends.tolist() if 0 < end < self._length]
        if positions is None:
            return []
        begins = np.flatnonzero(positions[1:] < positions[:-1]) + 1
        again = np.flatnonzero((positions[1:] == 0) & (positions[:-1] == 0)) + 1  # documents of one token
        return [int(begin) for begin in np.union1d(begins, again)]

    def mask(self, name: str) -> Mask | None:
        """A field of zeros and ones as long as the tokens."""
        value = self._sample.get(f"{self._prefix}{name}")
        if value is None or not hasattr(value, "shape"):
            return None
        array = np.asarray(value)
        return array.astype(np.bool_) if array.shape == (self._length,) else None

    def _named_mask(self) -> tuple[str, Mask] | None:
        bare = self._name.removeprefix(self._prefix)
        for name in ("loss_mask", f"{bare}_mask", *_MASKS.get(bare, ())):
            mask = self.mask(name) if name != "attention_mask" else None
            if mask is not None:
                return f"{self._prefix}{name}", mask
        return None

    def _ids(self, name: str) -> Ids | None:
        found = sequence_of(self._sample.get(f"{self._prefix}{name}"))
        return found if found is not None and len(found) == self._length else None


def _later(mask: Mask) -> Mask:
    """Shift a mask of predicting tokens to the predicted ones; nothing predicts the first."""
    return np.concatenate([np.zeros(1, dtype=np.bool_), mask[:-1]])


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


def _spans(sequence: TokenSequence, chat: LocatedChat) -> list[MessageSpan]:
    """Where the messages lie in what was cut and padded; none where that cannot be said."""
    attended = sequence.attended
    kept = np.arange(len(sequence.ids)) if attended is None else np.flatnonzero(attended)
    places = _places(sequence.ids[kept], chat.input_ids)
    if places is None or not len(kept):
        return []
    first = int(kept[0])  # padding lies at one end
    spans = []
    for message in chat.messages:
        begin, end = (first + int(place) for place in np.searchsorted(places, (message.begin, message.end)))
        if end > begin:
            trained, masked = f"trained: {message.because}", f"not trained: {message.because}"
            if message.trained:
                masked = _WITHIN
            spans.append(
                MessageSpan(begin=begin, end=end, role=message.role, trained_reason=trained, masked_reason=masked)
            )
    return spans


def _places(ids: Ids, encoded: Ids) -> Ids | None:
    """Where each token of an item was before a cut; None where that cannot be said."""
    size, length = len(ids), len(encoded)
    half = size // 2
    cuts = (
        np.arange(size),  # nothing, or its end
        np.arange(size) + length - size,  # its beginning
        np.where(np.arange(size) < half, np.arange(size), np.arange(size) + length - size),  # its middle
    )
    for places in cuts:
        inside = (places >= 0) & (places < length)
        # One token more may stand at the end: that at which an answer stops.
        if np.count_nonzero(~inside) <= (size == length + 1) and np.array_equal(ids[inside], encoded[places[inside]]):
            return places.astype(np.int64)
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
