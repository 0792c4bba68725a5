"""Packing text records into training rows, as a stateful stream function."""

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.fields import lacks
from streamdata.text import PackedRow, RowPacker, end_token, tokenize, tokenizer_fingerprint
from streamdata.text.packing import IGNORED_LABEL

if TYPE_CHECKING:
    import torch

Labels = Literal["unshifted", "shifted"]

# What a state says of the packer: how many records it holds, and the tokens of the first that are in rows already.
_NOTHING_HELD = {"rewind": 0, "offset": 0}


class TextJsonlProcessFnBuilder:
    """Packs documents into rows of one length: a stateful stream function, from records to samples.

    Documents follow each other without a gap, each ended by the tokenizer's end-of-sequence token, over shards, epochs
    and resumes; every token of that stream is in exactly one row. A sample holds tensors of shape
    (max_sequence_length,):

    - `tokens` int64;
    - `target_ids` int64, the stream shifted by one, beyond the row's end too; -100 where there is no next token;
    - `loss_mask` bool, False exactly there: in the padding that ends a finite stream, and at its last token;
    - `position_ids` int64, from 0 at each document's start and each row's start (padding counts as a document);
    - `labels` int64, on request only, since trainers mean two things by the word.

    Its state says how many of the last records are still needed and where in the first of them the next row begins.

    Args:
        max_sequence_length: Tokens per row.
        tokenizer_name: A local directory or a name, as `transformers.AutoTokenizer` takes it; loaded on first use.
        text_key: The record's field that holds the text, str or UTF-8 bytes.
        labels: "unshifted" adds `labels` that are the tokens, -100 at padding only, for what shifts them itself, as the
            models of transformers do: these do not train a row's last target. "shifted" adds `target_ids` by that name.

    Raises:
        ValueError: `max_sequence_length` is not positive, or there are no such `labels`.
    """

    def __init__(
        self, max_sequence_length: int, tokenizer_name: str, text_key: str = "text", labels: Labels | None = None
    ) -> None:
        if max_sequence_length < 1:
            raise ValueError(
                f"TextJsonlProcessFnBuilder: max_sequence_length is {max_sequence_length}, expected at least 1\n"
                "  Set it to the number of tokens in a training row."
            )
        if labels not in (None, *get_args(Labels)):
            raise ValueError(
                f"TextJsonlProcessFnBuilder: labels is {shown(labels)}, expected one of {get_args(Labels)}\n"
                "  Models of transformers shift labels themselves and want 'unshifted'; target_ids are there anyway."
            )
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
        skip = self._held_at_start["offset"]
        self._packer = RowPacker(self.max_sequence_length, end_token(self.tokenizer_name), skip)
        return self._rows(self._packer, records)

    def _rows(self, packer: RowPacker, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            packer.add(self._tokens(record))
            while (row := packer.next_row()) is not None:
                yield self._sample(row)
        if (row := packer.last_row()) is not None:
            yield self._sample(row)

    def _sample(self, row: PackedRow) -> dict[str, "torch.Tensor"]:
        import torch

        arrays = row._asdict()
        num_tokens = arrays.pop("num_tokens")
        if self.labels == "shifted":
            arrays["labels"] = row.target_ids.copy()
        elif self.labels == "unshifted":
            arrays["labels"] = np.where(np.arange(len(row.tokens)) < num_tokens, row.tokens, IGNORED_LABEL)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def num_tokens(self, record: dict[str, Any]) -> int:
        """How many tokens of rows a record becomes, its end token among them."""
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
        """Say what is held; no payload. See `load_state_dict`."""
        held = {"rewind": self._packer.num_held, "offset": self._packer.taken} if self._packer else self._held_at_start
        return {**held, **self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next call go on where the state was taken, given the last `rewind` records again.

        Args:
            state: `rewind`, `offset` (tokens of the first of these records that were in rows before) and what must
                not have changed: `max_sequence_length` and `tokenizer`, a fingerprint of the tokenizer and text_key.

        Raises:
            StateError: It was written with other settings, or is not such a state.
        """
        settings = self._settings()
        if not isinstance(state, dict) or any(not _is_count(state.get(key)) for key in (*_NOTHING_HELD, *settings)):
            raise StateError(
                f"TextJsonlProcessFnBuilder: expected counts {[*_NOTHING_HELD, *settings]}, got {shown(state)}\n"
                "  Give the states as to_state made them, or reload_from_url_level=True to pack afresh."
            )
        for key, present in settings.items():
            if state[key] != present:
                raise StateError(
                    f"TextJsonlProcessFnBuilder: the state was written with {key}={state[key]}, the run has {present}\n"
                    "  Give reload_from_url_level=True to pack afresh from the present windows, or set it back."
                )
        self._packer = None  # until it is called again, state_dict says what was loaded
        self._held_at_start = {key: state[key] for key in _NOTHING_HELD}

    def _settings(self) -> dict[str, int]:
        # Other tokens would put the offset elsewhere; the tokenizer's name would not do, its files may have changed.
        fingerprint = zlib.crc32(self.text_key.encode(), tokenizer_fingerprint(self.tokenizer_name))
        return {"max_sequence_length": self.max_sequence_length, "tokenizer": fingerprint}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
