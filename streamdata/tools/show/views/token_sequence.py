"""Token ids, masks and borders → a `TokensView`: segments of runs that are alike, with the text of each token."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamdata.text.tokenizer import load_directory
from streamdata.tools.show.views.model import RunView, SegmentView, TokensView

_BROKEN: Final = "\ufffd"
"""The character that a tokenizer gives for a part of a character."""
_MOST_PARTS: Final = 8
"""Tokens that one character may take."""


class TokenTexts:
    """Decodes tokens one by one, each id once.

    Args:
        tokenizer: Of transformers, or a `DirectoryTokenizer`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.padding: int | None = eos if pad is None else pad
        """The id that sequences are filled up with."""
        self.pads_with_end = pad is None or pad == eos
        """Whether it is that which ends documents, too."""

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The text of each token; of a character of several tokens at the first of them."""
        pieces = [self._piece(number) for number in ids]
        first = 0
        while first < len(pieces):
            if _BROKEN not in pieces[first]:
                first += 1
                continue
            end = self._whole_character(ids, first)
            pieces[first:end] = [self._decoded(ids[first:end]), *[""] * (end - first - 1)]
            first = end
        return tuple(pieces)

    def _piece(self, number: int) -> str:
        """A token's text within a text: some tokenizers leave out the space before the first word."""
        if number not in self._known:
            alone, twice = self._decoded([number]), self._decoded([number, number])
            is_longer = twice.startswith(alone) and len(twice) > len(alone)
            self._known[number] = twice.removeprefix(alone) if is_longer else alone
        return self._known[number]

    def _whole_character(self, ids: Sequence[int], first: int) -> int:
        for end in range(first + 2, min(first + _MOST_PARTS, len(ids)) + 1):
            if _BROKEN not in self._decoded(ids[first:end]):
                return end
        return first + 1  # a byte that is no part of a character

    def _decoded(self, ids: Iterable[int]) -> str:
        try:
            text = self._tokenizer.decode([*ids])
        except (OverflowError, ValueError, TypeError, IndexError):
            return _BROKEN  # -100 and the like, which are no tokens
        return str(text)


def load_token_texts(name: str) -> TokenTexts:
    """Load the tokenizer of a directory or a name; without transformers where it adds nothing.

    Raises:
        OSError: There is no such tokenizer.
    """
    plain = load_directory(name)
    if plain is not None and not plain.cleans_up:
        return TokenTexts(plain)
    from streamdata.text.tokenizer import load_tokenizer  # it imports transformers, which takes seconds

    return TokenTexts(load_tokenizer(name))


Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PADDING: Final = "padding"
_LEAST_PADDING: Final = 2
"""Tokens in a row: a single one may be the end of a document."""
_OF_TEMPLATE: Final = "not trained: written by the chat template"
_LEAST_SHOWN: Final = 16
"""Tokens of a document."""


@dataclass(frozen=True, kw_only=True)
class MessageSpan:
    """Where a message lies in a sequence.

    Attributes:
        begin: Of its tokens, the first.
        end: The one after its last.
        role: Who says it; "" of what the template writes between messages.
        trained_reason: Why what of it is trained is.
        masked_reason: Why what of it is not is not.
    """

    begin: int
    end: int
    role: str
    trained_reason: str = ""
    masked_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """A sequence of tokens with all that a sample says of it.

    Attributes:
        ids: The tokens, (n,).
        train: Which are trained, (n,); None where nothing says it.
        trained_reason: Why those are.
        masked_reason: Why the others are not.
        first_reason: Why the first token is not trained, where that is another reason.
        attended: False at padding, (n,); None where nothing says it.
        borders: Where documents begin, the first of them excepted.
        messages: Where messages lie.
    """

    ids: Ids
    train: Mask | None = None
    trained_reason: str = ""
    masked_reason: str = ""
    first_reason: str = ""
    attended: Mask | None = None
    borders: Sequence[int] = ()
    messages: Sequence[MessageSpan] = field(default=())

    def view(self, texts: TokenTexts | None, limit: int) -> TokensView:
        """The view of the sequence: `limit` tokens at most, padding counted as one."""
        padding = self._padding(texts)
        spans = list(self._spans())
        shown = spans[: max(1, limit // _LEAST_SHOWN)]
        rooms = _shared(limit, [int(np.count_nonzero(~padding[span.begin : span.end])) for span in shown])
        segments = [self._segment(span, padding, texts, room) for span, room in zip(shown, rooms, strict=True)]
        return TokensView(
            segments=tuple(segments),
            num_tokens=len(self.ids),
            num_trained=None if self.train is None else int(np.count_nonzero(self.train)),
            num_padding=int(np.count_nonzero(padding)),
            num_segments=sum(not padding[span.begin : span.end].all() for span in spans),
            is_chat=bool(self.messages),
            is_packed=bool(self.borders),
        )

    def _spans(self) -> Iterator[MessageSpan]:
        """Its segments, which cover it: documents, or messages with what the template writes between them."""
        end = len(self.ids)
        if not self.messages:
            for begin, stop in pairwise([0, *self.borders, end]):
                yield MessageSpan(begin=begin, end=stop, role="")
            return
        begin = 0
        for span in (*self.messages, None):
            if begin < (stop := end if span is None else span.begin):
                yield MessageSpan(begin=begin, end=stop, role="", masked_reason=_OF_TEMPLATE)
            if span is not None:
                yield span
                begin = span.end

    def _segment(self, span: MessageSpan, padding: Mask, texts: TokenTexts | None, room: int) -> SegmentView:
        runs = []
        numbers = range(span.begin, span.end)
        for (is_padding, trained, is_first), group in groupby(numbers, key=lambda at: self._kind(at, padding)):
            indices = list(group)
            ids = self.ids[indices if is_padding else indices[: max(0, room)]].tolist()
            if not ids:
                continue
            room -= 0 if is_padding else len(ids)
            said = span.trained_reason if trained else span.masked_reason
            own = self.trained_reason if trained else self.first_reason if is_first else self.masked_reason
            reason = PADDING if is_padding else "" if trained is None else said or own
            pieces = () if texts is None or is_padding else texts.pieces(ids)
            run = RunView(ids=tuple(ids), pieces=pieces, trained=trained, reason=reason, is_padding=is_padding)
            runs.append(run)
        return SegmentView(runs=tuple(runs), num_tokens=span.end - span.begin, role=span.role)

    def _kind(self, at: int, padding: Mask) -> tuple[bool, bool | None, bool]:
        """Whether a token is padding, trained, and the first, which nothing predicts; alike for all tokens of a run."""
        trained = None if self.train is None else bool(self.train[at])
        return bool(padding[at]), trained, at == 0 and bool(self.first_reason)

    def _padding(self, texts: TokenTexts | None) -> Mask:
        """Marks the tokens that only fill a row up, at either end."""
        if self.attended is not None:
            return ~self.attended
        padding = np.zeros(len(self.ids), dtype=np.bool_)
        if texts is None or texts.padding is None or not len(self.ids):
            return padding
        others = np.flatnonzero((self.ids != texts.padding) | (False if self.train is None else self.train))
        first, last = (int(others[0]), int(others[-1]) + 1) if len(others) else (0, 0)
        if len(others) and first >= _LEAST_PADDING:
            padding[:first] = True
        last = self._end_of_text(last, texts)
        if len(self.ids) - last >= _LEAST_PADDING:
            padding[last:] = True
        return padding

    def _end_of_text(self, last: int, texts: TokenTexts) -> int:
        """Where padding begins, at `last` or after: the same token may end the last document."""
        border = next((border for border in self.borders if border >= last), None)
        return border if border is not None else last + (texts.pads_with_end and last > 0)


def _shared(room: int, needs: Sequence[int]) -> list[int]:
    """How much each gets of a room: the same, but none more than it needs, and what that leaves is the others'."""
    given = [0] * len(needs)
    order = sorted(range(len(needs)), key=lambda number: needs[number])
    for count, number in enumerate(order):
        given[number] = min(needs[number], room // (len(needs) - count))
        room -= given[number]
    return given


def sequence_of(value: Any) -> Ids | None:
    """The tokens of a field: a tensor, an array or a list of whole numbers; None where it is something else."""
    if isinstance(value, list | tuple):
        is_ids = bool(value) and all(type(number) is int for number in value)
        return np.array(value, dtype=np.int64) if is_ids else None
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    array = np.asarray(value)
    return array.astype(np.int64) if array.ndim == 1 and array.dtype.kind in "iu" else None
