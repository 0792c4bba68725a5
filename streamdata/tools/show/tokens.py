"""Fields of tokens, and those that say what is trained, padding, a border of documents → runs that are alike.

`input_ids` has `loss_mask`, `attention_mask`, `position_ids` and `labels`, `chosen_input_ids` has `chosen_loss_mask`
and so on; `chosen` has `chosen_mask`, `responses` has `masks`. Of each run there are both ends, with the text of each
token.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamdata.text.tokenizer import load_directory
from streamdata.tools.show.model import ShownField, ShownSegment, TokenRun, both_ends, short_name, shown_field

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NAMES: Final = frozenset({"tokens", "txt", "sequence", "chosen", "rejected", "prompts", "responses", "labels"})
_ENDINGS: Final = ("input_ids", "target_ids", "prompt_ids", "completion_ids", "token_ids", "_tokens", "_labels")
_TARGETS: Final = ("target_ids", "labels")
"""Fields of predicted tokens: the tokens themselves, or those that follow them."""
_MASKS: Final = {"responses": ("masks", "response_mask"), "completion_ids": ("completion_mask",)}
_IGNORED: Final = -100

_BROKEN: Final = "\ufffd"
"""The character that a tokenizer gives for a part of a character."""
_MOST_PARTS: Final = 8
"""Tokens that one character may take."""
_LEAST_PADDING: Final = 2
"""Tokens in a row: a single one may be the end of a document."""
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
class TokenSequence:
    """A sequence of tokens with all that a sample says of it.

    Attributes:
        ids: The tokens, (n,).
        train: Which are trained, (n,); None where nothing says it.
        masked_reason: Why the others are not.
        is_shifted: Whether a token is trained by what stands at the one before it, which the first has not.
        attended: False at padding, (n,); None where nothing says it.
        borders: Where documents begin, the first of them excepted.
    """

    ids: Ids
    train: Mask | None = None
    masked_reason: str = ""
    is_shifted: bool = False
    attended: Mask | None = None
    borders: Sequence[int] = ()

    def field(self, name: str, value: Any, texts: TokenTexts | None, limit: int) -> ShownField:
        """The field of this name: about `limit` tokens at most, of each run the beginning and the end."""
        padding = self._padding(texts)
        # Positions of padding may all be 0: neither it nor the first token behind it begins a document.
        first = int(np.argmin(padding)) if len(padding) else 0
        begins = [0, *(at for at in self.borders if at > first and not (padding[at - 1] and padding[at]))]
        num_padding, num_trained = int(np.count_nonzero(padding)), None
        words = [f"{len(self.ids):,} tokens"]
        if self.train is not None:
            num_trained = int(np.count_nonzero(self.train))
            words.append(f"{num_trained:,} trained")
        if begins[1:]:
            documents = starmap(range, pairwise([*begins, len(self.ids)]))
            num_documents = sum(not padding[document].all() for document in documents)
            words.append(f"{num_documents:,} document{'' if num_documents == 1 else 's'}")
        words += [f"{num_padding:,} padding"] if num_padding else []
        segments = tuple(self._segments(begins, padding, texts, limit))
        num_cut = sum(run.cut for segment in segments for run in segment.runs)
        counts = {"tokens": len(self.ids), "trained": num_trained, "padding": num_padding, "cut": num_cut}
        return shown_field(name, "tokens", value, summary=", ".join(words), segments=segments, counts=counts)

    def _segments(
        self, begins: Sequence[int], padding: Mask, texts: TokenTexts | None, limit: int
    ) -> Iterator[ShownSegment]:
        # Each run lies in one document, and its tokens are all padding, trained, or neither.
        kinds = np.where(padding, 2, 0 if self.train is None else self.train.astype(np.int8))
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
            found[at] += [TokenRun(padding=len(run))] if padding[run.start] else self._runs(run, texts, room)
        return (ShownSegment(runs=tuple(some)) for some in found.values())

    def _runs(self, run: range, texts: TokenTexts | None, room: int) -> Iterator[TokenRun]:
        trained = None if self.train is None else bool(self.train[run[0]])
        masked = _OF_FIRST if self.is_shifted and run[0] == 0 else self.masked_reason
        reason = "" if trained is None else "trained" if trained else masked
        begin, num_cut, end = both_ends(run, room)
        for some in (begin, num_cut, end):
            if isinstance(some, int):
                yield from [TokenRun(cut=some)] if some else []
            elif some:
                ids = self.ids[some].tolist()
                pieces = texts.pieces(ids) if texts else ()
                yield TokenRun(ids=tuple(ids), pieces=pieces, trained=trained, reason=reason)

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
    attended, positions = beside("attention_mask"), beside("position_ids")
    ends = sequence_of(sample.get(f"{prefix}cu_seqlens_padded", sample.get(f"{prefix}cu_seqlens")))
    borders = list[int]()
    if ends is not None and len(ends) and int(ends[-1]) <= len(ids):
        borders = [end for end in ends.tolist() if 0 < end < len(ids)]
    elif positions is not None:  # a document begins where they begin anew; it may be one of one token
        is_new = (positions[1:] < positions[:-1]) | ((positions[1:] == 0) & (positions[:-1] == 0))
        borders = [int(begin) for begin in np.flatnonzero(is_new) + 1]
    return TokenSequence(
        ids=ids,
        # A mark of the token that predicts is moved to the predicted one; nothing predicts the first.
        train=np.append(False, train[:-1]) if train is not None and is_shifted else train,
        masked_reason=f"not trained: {short_name(prefix + masked_by)} here",
        is_shifted=is_shifted,
        attended=None if attended is None else attended.astype(np.bool_),
        borders=borders,
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
