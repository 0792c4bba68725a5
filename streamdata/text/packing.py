"""Packing text: documents of any length become rows of one length, without a gap.

documents   a a a   b b b b b   c
stream      a a a E b b b b b E c E         E ends a document
tokens      a a a E | b b b b | b E c E     each token once
target_ids  a a E b | b b b b | E c E -     the stream shifted by one
positions   0 1 2 3 | 0 1 2 3 | 0 1 0 1     from 0 in each row and each document

`RowPacker` packs token ids; `TextJsonlProcessFnBuilder` packs records with texts, as a stateful stream function.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, positive, shown
from streamdata.fields import (
    BOUNDS,
    IGNORED_LABEL,
    NO_RECORD,
    PADDED_BOUNDS,
    PROVENANCE,
    RECORD,
    RECORD_IDS,
    SOURCE_IDS,
    WEIGHT,
    lacks,
    provenance,
)
from streamdata.text.tokenizer import end_token, tokenize, tokenizer_fingerprint
from streamdata.text.truncation import check_choice

if TYPE_CHECKING:
    import torch

Int64s = npt.NDArray[np.int64]
Number = TypeVar("Number", int, Int64s)
Labels = Literal["unshifted", "shifted"]
_PADDING: Final = {"labels": IGNORED_LABEL, "target_ids": IGNORED_LABEL, SOURCE_IDS: -1, RECORD_IDS: -1}
"""Padding of a row's fields, where it is not 0."""
_NOTHING_HELD: Final = {"rewind": 0, "offset": 0}
"""The packer's part of a state: how many records it holds, and how many tokens of the first are in rows already."""


class PackedRow(NamedTuple):
    """One row; every array has shape (row_length,)."""

    tokens: Int64s
    target_ids: Int64s
    loss_mask: npt.NDArray[np.bool_]
    position_ids: Int64s
    num_tokens: int
    """How many of `tokens` are the stream's; padding follows."""
    num_documents: int
    """How many documents have come to their end since the row before."""
    records: list[Any]
    """The row's documents, in sequence, by what `add` was given for each."""


class RowPacker:
    """Cuts the stream of documents into rows. It holds less than one row and one token between two rows.

    A row is complete with the first token after it, its last target. Each document ends with the end token, the last
    one too; a document without tokens adds nothing.

    Args:
        row_length: Int64s per row.
        end_token: The token that ends a document, and fills up the last row.
        skip: How many tokens of the first document (its end token included) were in rows before.
    """

    def __init__(self, row_length: int, end_token: int, skip: int = 0) -> None:
        self._row_length = row_length
        self._end_token = end_token
        self._held: deque[Int64s] = deque()
        self._records: deque[Any] = deque()
        self._num_tokens = -skip
        self._taken = skip
        self._num_ended = 0

    @property
    def state(self) -> dict[str, int]:
        """How many of the last documents are still needed, empty ones among them; and tokens of the first in rows."""
        return {"rewind": len(self._held), "offset": self._taken}

    def add(self, tokens: Int64s, record: Any = None) -> None:
        """Appends a document.

        Args:
            tokens: Shape (n,), n ≥ 0, without an end token.
            record: What its rows are to say of it.

        Raises:
            ValueError: It is the first one and shorter than what was to be skipped.
        """
        document = np.append(tokens, self._end_token) if len(tokens) else tokens
        if not self._held and self._taken >= max(len(document), 1):
            raise ValueError(
                f"packing: expected a first document of more than {self._taken} tokens, got {len(document)}\n"
                "  The documents differ from those that were packed before; start afresh."
            )
        self._held.append(document)
        self._records.append(record)
        self._num_tokens += len(document)
        self._release()

    def next_row(self, *, is_end: bool = False) -> PackedRow | None:
        """Takes a row off the stream, or nothing while its last target has not come.

        Args:
            is_end: After the last document: takes what is left, filled up with padding; nothing if nothing is left.
        """
        if self._num_tokens <= (0 if is_end else self._row_length):
            return None
        num_tokens = min(self._num_tokens, self._row_length)
        pieces, records = self._cut(num_tokens)
        lengths = [len(piece) for piece in pieces] + [self._row_length - num_tokens]
        missing = np.full(lengths[-1], self._end_token, dtype=np.int64)
        tokens = np.concatenate([*pieces, missing])
        targets = np.full(self._row_length, IGNORED_LABEL, dtype=np.int64)
        targets[: num_tokens - 1] = tokens[1:num_tokens]
        if self._held:
            targets[num_tokens - 1] = self._held[0][self._taken]
        position_ids = positions(np.array(lengths))
        ended, self._num_ended = self._num_ended, 0
        return PackedRow(tokens, targets, targets != IGNORED_LABEL, position_ids, num_tokens, ended, records)

    def _cut(self, num_tokens: int) -> tuple[list[Int64s], list[Any]]:
        """Removes the next tokens, as one piece per document, each with what was given with the document."""
        self._num_tokens -= num_tokens
        pieces, records = [], []
        while num_tokens:
            piece = self._held[0][self._taken : self._taken + num_tokens]
            pieces.append(piece)
            records.append(self._records[0])
            num_tokens -= len(piece)
            self._taken += len(piece)
            self._release()
        return pieces, records

    def _release(self) -> None:
        while self._held and self._taken >= len(self._held[0]):
            self._taken -= len(self._held.popleft())
            self._records.popleft()
            self._num_ended += 1


def positions(lengths: Int64s) -> Int64s:
    """0 to n - 1 for each of the lengths n, joined."""
    ends = np.cumsum(lengths)
    found: Int64s = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return found


def rounded(length: Number, multiple: int) -> Number:
    """Rounds a length, or an array of them, up to a multiple."""
    return -(-length // multiple) * multiple


def padded_row(
    row: Mapping[str, Any], sizes: Int64s, document_multiple: int, row_multiple: int, padding: Mapping[str, int]
) -> dict[str, Any]:
    """Pads the documents of a row, each at its end, and the row by a last document of padding alone.

    Args:
        row: Lists with an entry for each document, and tensors: those of `PROVENANCE` have one for each document, all
            others one for each token.
        sizes: Tokens of each document, shape (documents,).
        document_multiple: The padded length of a document is a multiple of this,
        row_multiple: and that of the row of this, which is one of `document_multiple`.
        padding: The padding of fields, by name; of all others it is -100 in labels and targets, else 0.

    Returns:
        The row with `position_ids`, `cu_seqlens` and `cu_seqlens_padded` of what is padded.

    Raises:
        ValueError: The type of a field does not hold its padding.
    """
    import torch

    from streamdata.delivery.tensor_collate import Pad

    lengths = rounded(sizes, document_multiple)
    places = np.arange(sizes.sum()) + np.repeat(lengths.cumsum() - lengths - sizes.cumsum() + sizes, sizes)
    if missing := -int(lengths.sum()) % row_multiple:
        lengths, sizes = np.append(lengths, missing), np.append(sizes, missing)
    padded: dict[str, Any] = {"position_ids": torch.from_numpy(positions(lengths))}
    for name, each in ((BOUNDS, sizes), (PADDED_BOUNDS, lengths)):
        padded[name] = torch.from_numpy(np.append(0, each.cumsum()).astype(np.int32))
    for name, values in row.items():
        if name in padded:
            continue
        if isinstance(values, list):
            padded[name] = [*values, None] if missing else values
            continue
        value = padding.get(name, _PADDING.get(name, 0))
        if not Pad(value).fits(values.dtype):
            raise ValueError(
                f"packing: expected field {shown(name)} to have a type that holds its padding {value}, got "
                f"{values.dtype}\n  Let a single_process_fn make it int64."
            )
        of_documents = name in PROVENANCE
        full = values.new_full((len(sizes) if of_documents else int(lengths.sum()), *values.shape[1:]), value)
        at = torch.arange(len(values)) if of_documents else torch.from_numpy(places)
        padded[name] = full.index_copy_(0, at, values)  # an assignment takes ten times as long
    return padded


class TextJsonlProcessFnBuilder:
    """A stateful stream function that packs documents into rows of one length, without gaps.

    Documents follow each other without a gap, each ended by the tokenizer's end-of-sequence token, over shards, epochs
    and resumes; every token of that stream is in exactly one row. A sample holds tensors of shape
    (max_sequence_length,):

    - `tokens` int64;
    - `target_ids` int64, the stream shifted by one, also across the row's end; -100 where there is no next token;
    - `loss_mask` bool, False where `target_ids` is -100: in the padding that ends a finite stream, or a lane's part
      when ranks or workers change, and at its last token;
    - `position_ids` int64, from 0 at each document's start and each row's start (padding counts as a document);
    - `labels` int64, on request only, since trainers define them in two ways.

    And of its documents, each of which begins where `position_ids` is 0: `source_ids` int64 (documents,) and
    `record_ids` int64 (documents, 3), as those of `PackTokens`; -1 of padding.

    Its state holds how many of the last records are still needed, and where in the first of them the next row begins.

    Args:
        max_sequence_length: Tokens per row.
        tokenizer_name: A local directory or a name, as `transformers.AutoTokenizer` takes it; loaded on first use.
        text_key: The record's field that holds the text, str or UTF-8 bytes.
        labels: "unshifted" adds `labels` equal to the tokens, -100 at padding only, for models that shift them
            themselves, as those of transformers do; a row's last target is then not trained. "shifted" adds `labels`
            equal to `target_ids`.

    Raises:
        ValueError: `max_sequence_length` is not positive, or `labels` has another value.
    """

    ended_pulls = range(0)
    """The records of which the last row is the last, by how many it had pulled before each."""

    def __init__(
        self, max_sequence_length: int, tokenizer_name: str, text_key: str = "text", labels: Labels | None = None
    ) -> None:
        remedy = "Set it to the number of tokens in a training row."
        positive("TextJsonlProcessFnBuilder: max_sequence_length", max_sequence_length, remedy)
        if labels is not None:
            remedy = "Models of transformers shift labels themselves and want 'unshifted'; target_ids are there anyway."
            check_choice("TextJsonlProcessFnBuilder: labels", labels, get_args(Labels), remedy)
        self.max_sequence_length = max_sequence_length
        self.tokenizer_name = tokenizer_name
        self.text_key = text_key
        self.labels = labels
        self._held_at_start = _NOTHING_HELD
        self._packer: RowPacker | None = None

    def __call__(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Begin a stream of rows; ends with a padded one where the records end.

        Raises:
            ValueError: A record has no text, or the tokenizer no end-of-sequence token.
        """
        # Made here, not in the constructor: lanes work on copies, which would share it.
        skip, self.ended_pulls = self._held_at_start["offset"], range(0)
        self._packer = RowPacker(self.max_sequence_length, end_token(self.tokenizer_name), skip)
        return self._rows(self._packer, records)

    def _rows(self, packer: RowPacker, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            packer.add(self._tokens(record), {name: record[name] for name in (RECORD, WEIGHT) if name in record})
            while (row := packer.next_row()) is not None:
                yield self._sample(row)
        if (row := packer.next_row(is_end=True)) is not None:
            yield self._sample(row)

    def _sample(self, row: PackedRow) -> dict[str, "torch.Tensor"]:
        import torch

        arrays = row._asdict()
        num_tokens, records, before = arrays.pop("num_tokens"), arrays.pop("records"), self.ended_pulls.stop
        self.ended_pulls = range(before, before + arrays.pop("num_documents"))
        if self.labels == "shifted":
            arrays["labels"] = row.target_ids.copy()
        elif self.labels == "unshifted":
            arrays["labels"] = np.where(np.arange(len(row.tokens)) < num_tokens, row.tokens, IGNORED_LABEL)
        if num_tokens < len(row.tokens):
            records.append({RECORD: NO_RECORD, WEIGHT: 0.0})
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | provenance(records)

    def num_tokens(self, record: dict[str, Any]) -> int:
        """The number of row tokens that a record becomes, including its end-of-sequence token."""
        return len(self._tokens(record)) + 1

    def _tokens(self, record: dict[str, Any]) -> npt.NDArray[np.int64]:
        if self.text_key not in record:
            raise ValueError(
                f"TextJsonlProcessFnBuilder: {lacks(record, self.text_key)}\n"
                "  Set text_key to the field that holds the text."
            )
        text = record[self.text_key]
        if isinstance(text, bytes):
            text = text.decode()  # as the members of a tar are
        if not isinstance(text, str):
            raise ValueError(
                f"TextJsonlProcessFnBuilder: expected text in field {shown(self.text_key)}, got {type(text).__name__}\n"
                "  Set text_key to the field that holds the text."
            )
        return tokenize(self.tokenizer_name, text, with_special_tokens=False)

    def state_dict(self) -> dict[str, int]:
        """The packer's state as plain JSON, without tokens; see `load_state_dict`."""
        return {**(self._packer.state if self._packer else self._held_at_start), **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; the next call must be given the last `rewind` records again.

        Args:
            state: `rewind`, `offset` (tokens of the first of these records that were in rows before) and what must
                not have changed: `max_sequence_length` and `tokenizer`, a fingerprint of the tokenizer and text_key.

        Raises:
            StateError: `state` was written with other settings, or is not a packer's state.
        """
        self._held_at_start = checked_counts("TextJsonlProcessFnBuilder", state, (*_NOTHING_HELD,), self._settings())
        self._packer = None  # until it is called again, state_dict says what was loaded

    def _settings(self) -> dict[str, int]:
        # Other tokens would put the offset elsewhere; the tokenizer's name would not do, its files may have changed.
        fingerprint = zlib.crc32(self.text_key.encode(), tokenizer_fingerprint(self.tokenizer_name))
        return {"max_sequence_length": self.max_sequence_length, "tokenizer": fingerprint}


def checked_counts(who: str, state: Any, counts: Sequence[str], settings: Mapping[str, Any]) -> dict[str, int]:
    """Returns the counts of a state that was written with the same settings.

    Raises:
        StateError: It was written with others, or is not such a state.
    """
    found = state if isinstance(state, dict) else {}
    if not all(type(found.get(name)) is int and found[name] >= 0 for name in counts):
        raise StateError(
            f"{who}: expected counts {list(counts)}, got {shown(state)}\n"
            "  Give the states as to_state made them, or reload_from_url_level=True to begin afresh."
        )
    for name in dict.fromkeys([*settings, *state]):
        if name not in counts and state.get(name) != settings.get(name):
            got, present = shown(state.get(name)), shown(settings.get(name))
            raise StateError(
                f"{who}: the state was written with {name}={got}, the run has {present}\n"
                "  Set it back, or give reload_from_url_level=True to begin afresh from the present windows."
            )
    return {name: state[name] for name in counts}
