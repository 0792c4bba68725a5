"""Token ids → the text of each token, by the tokenizer of a source or a store."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from streamdata.text.tokenizer import load_directory

_BROKEN: Final = "\ufffd"
"""What a tokenizer gives for a part of a character."""
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
    """Of a directory or a name; without transformers where it adds nothing.

    Raises:
        OSError: There is no such tokenizer.
    """
    plain = load_directory(name)
    if plain is not None and not plain.cleans_up:
        return TokenTexts(plain)
    from streamdata.text.tokenizer import load_tokenizer  # it imports transformers, which takes seconds

    return TokenTexts(load_tokenizer(name))
