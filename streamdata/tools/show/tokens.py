"""Token ids, masks and borders → parts of runs that are alike, of each both ends, with the text of each token."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamdata.text.tokenizer import load_directory
from streamdata.tools.show.model import ShownField, ShownSegment, TokenRun, both_ends, shown_field

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BROKEN: Final = "\ufffd"
"""The character that a tokenizer gives for a part of a character."""
_MOST_PARTS: Final = 8
"""Tokens that one character may take."""
_LEAST_PADDING: Final = 2
"""Tokens in a row: a single one may be the end of a document."""
_OF_TEMPLATE: Final = "not trained: written by the chat template"
_OF_FIRST: Final = "not trained: no token before it predicts it"
_LEAST_SHOWN: Final = 6
"""Tokens of a run, unless it is shorter."""


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
            end = first + 1
            if _BROKEN in pieces[first]:
                ends = range(first + 2, min(first + _MOST_PARTS, len(ids)) + 1)
                # Without such an end it is a byte that is no part of a character.
                end = next((end for end in ends if _BROKEN not in self._decoded(ids[first:end])), end)
                pieces[first:end] = [self._decoded(ids[first:end]), *[""] * (end - first - 1)]
            first = end
        return tuple(pieces)

    def _piece(self, number: int) -> str:
        """A token's text within a text: some tokenizers leave out the space before the first word."""
        if number not in self._known:
            alone, twice = self._decoded([number]), self._decoded([number, number])
            is_longer = twice.startswith(alone) and len(twice) > len(alone)
            # A token without a text, as some stop tokens are, is shown by its number.
            self._known[number] = (twice.removeprefix(alone) if is_longer else alone) or f"<{number}>"
        return self._known[number]

    def _decoded(self, ids: Sequence[int]) -> str:
        try:
            return str(self._tokenizer.decode([*ids]))
        except (OverflowError, ValueError, TypeError, IndexError):
            return _BROKEN  # -100 and the like, which are no tokens


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


@dataclass(frozen=True, kw_only=True)
class TokenSpan:
    """Where a document or a message lies in a sequence.

    Attributes:
        begin: Of its tokens, the first.
        end: The one after its last.
        role: Who says it; "" of a document, and of what the template writes between messages.
        trained_reason: Why what of it is trained is.
        masked_reason: Why what of it is not is not; "" for that of the sequence.
    """

    begin: int
    end: int
    role: str = ""
    trained_reason: str = "trained"
    masked_reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """A sequence of tokens with all that a sample says of it.

    Attributes:
        ids: The tokens, (n,).
        train: Which are trained, (n,); None where nothing says it.
        masked_reason: Why the others are not.
        is_shifted: Whether a token is trained by what stands at the one before it, which the first has not.
        attended: False at padding, (n,); None where nothing says it.
        borders: Where documents begin, the first of them excepted.
        messages: Where messages lie.
    """

    ids: Ids
    train: Mask | None = None
    masked_reason: str = ""
    is_shifted: bool = False
    attended: Mask | None = None
    borders: Sequence[int] = ()
    messages: Sequence[TokenSpan] = field(default=())

    def field(self, name: str, value: Any, texts: TokenTexts | None, limit: int) -> ShownField:
        """The field of this name: about `limit` tokens at most, of each run the beginning and the end."""
        padding, spans = self._padding(texts), self._spans()
        num_padding, num_trained = int(np.count_nonzero(padding)), None
        words = [f"{len(self.ids):,} tokens"]
        if self.train is not None:
            num_trained = int(np.count_nonzero(self.train))
            words.append(f"{num_trained:,} trained")
        if self.borders:
            num_documents = sum(not padding[span.begin : span.end].all() for span in spans)
            words.append(f"{num_documents:,} document{'' if num_documents == 1 else 's'}")
        words += [f"{num_padding:,} padding"] if num_padding else []
        segments = tuple(self._segments(spans, padding, texts, limit))
        num_cut = sum(run.cut for segment in segments for run in segment.runs)
        counts = {"tokens": len(self.ids), "trained": num_trained, "padding": num_padding, "cut": num_cut}
        return shown_field(name, "tokens", value, summary=", ".join(words), segments=segments, counts=counts)

    def _segments(
        self, spans: Sequence[TokenSpan], padding: Mask, texts: TokenTexts | None, limit: int
    ) -> Iterator[ShownSegment]:
        # Each run lies in one span, and its tokens are all padding, trained, or neither.
        kinds = np.where(padding, 2, 0 if self.train is None else self.train.astype(np.int8))
        begins = [span.begin for span in spans]
        edges = {0, len(self.ids), *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), *begins}
        edges |= {min(1, len(self.ids))} if self.is_shifted else set()
        runs = [range(*pair) for pair in pairwise(sorted(edges))]
        first, _, last = both_ends(runs, max(2, limit // _LEAST_SHOWN))
        shown = [*first, *last]
        rooms = _shared(limit, [0 if padding[run.start] else len(run) for run in shown])
        found: dict[int, list[TokenRun]] = defaultdict(list)
        for number, (run, room) in enumerate(zip(shown, rooms, strict=True)):
            if number == len(first):  # all that is left out lies together
                gap = range(first[-1].stop, run.start)
                found[bisect_right(begins, gap.start) - 1].append(TokenRun(cut=len(gap)))
            at = bisect_right(begins, run.start) - 1
            some = [TokenRun(padding=len(run))] if padding[run.start] else self._runs(run, spans[at], texts, room)
            found[at] += some
        return (ShownSegment(runs=tuple(some), role=spans[at].role) for at, some in found.items())

    def _runs(self, run: range, span: TokenSpan, texts: TokenTexts | None, room: int) -> Iterator[TokenRun]:
        trained = None if self.train is None else bool(self.train[run[0]])
        masked = span.masked_reason or (_OF_FIRST if self.is_shifted and run[0] == 0 else self.masked_reason)
        reason = "" if trained is None else span.trained_reason if trained else masked
        begin, num_cut, end = both_ends(run, room)
        for some in (begin, num_cut, end):
            if isinstance(some, int):
                yield from [TokenRun(cut=some)] if some else []
            elif some:
                ids = self.ids[some].tolist()
                pieces = texts.pieces(ids) if texts else ()
                yield TokenRun(ids=tuple(ids), pieces=pieces, trained=trained, reason=reason)

    def _spans(self) -> list[TokenSpan]:
        """Its documents, or its messages with what the template writes between them; they cover all of it."""
        if not self.messages:
            return [TokenSpan(begin=begin, end=end) for begin, end in pairwise([0, *self.borders, len(self.ids)])]
        spans, begin = [], 0
        for message in (*self.messages, TokenSpan(begin=len(self.ids), end=len(self.ids))):
            if begin < message.begin:
                spans.append(TokenSpan(begin=begin, end=message.begin, masked_reason=_OF_TEMPLATE))
            spans.append(message)
            begin = message.end
        return spans

    def _padding(self, texts: TokenTexts | None) -> Mask:
        """Marks the tokens that only fill a row up, at either end."""
        if self.attended is not None:
            return ~self.attended
        padding = np.zeros(len(self.ids), dtype=np.bool_)
        if texts is None or texts.padding is None or not len(self.ids):
            return padding
        others = np.flatnonzero((self.ids != texts.padding) | (False if self.train is None else self.train))
        first, last = (int(others[0]), int(others[-1]) + 1) if len(others) else (0, 0)
        if first >= _LEAST_PADDING:
            padding[:first] = True
        # The same token may end the last document.
        end_of_text = last + (texts.pads_with_end and last > 0)
        last = next((border for border in self.borders if border >= last), end_of_text)
        if len(self.ids) - last >= _LEAST_PADDING:
            padding[last:] = True
        return padding


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
