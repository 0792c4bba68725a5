"""A chat's item and its row → its tokens with the messages that they are of, and why these are trained."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from streamdata.text.masks import LocatedChat, MessageTokens
from streamdata.tools.show.views.token_fields import tokens_of
from streamdata.tools.show.views.token_sequence import Ids, MessageSpan, TokenSequence

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
            spans.append(_span(message, begin, end))
    return spans


def _span(message: MessageTokens, begin: int, end: int) -> MessageSpan:
    masked = _WITHIN if message.trained else f"not trained: {message.because}"
    trained = f"trained: {message.because}"
    return MessageSpan(begin=begin, end=end, role=message.role, trained_reason=trained, masked_reason=masked)


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
    """The same where media take many tokens in place of one: the same token again and again."""
    places, at = np.zeros(len(ids), dtype=np.int64), -1
    for number, token in enumerate(ids.tolist()):
        if at + 1 < len(encoded) and encoded[at + 1] == token:
            at += 1
        elif number == 0 or ids[number - 1] != token:
            return None
        places[number] = at
    return places
