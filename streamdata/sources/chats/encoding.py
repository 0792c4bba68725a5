"""Rows of messages → tensors with a loss mask."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch

from streamdata.sources.chats.config import ChatConfig
from streamdata.sources.prompts.messages import read_tools, without_nulls
from streamdata.sources.prompts.rows import Row, Rows
from streamdata.text import ChatEncoder, as_tokenizer, compute_position_id_with_mask, cut, pad_sequence_to_length

LOSS_MASK: Final = "loss_mask"
"""The key of a message that says whether it is trained, 0 or 1."""

Message = dict[str, Any]


class ChatRows:
    """Rows of parquet, and what encodes their conversations. It pickles as paths and settings.

    Args:
        who: the dataset's class, for errors.
        rows: the rows.
        tokenizer: a fast one of transformers, or a name or directory for its `AutoTokenizer`.
        config: the settings.
    """

    def __init__(self, who: str, rows: Rows, tokenizer: Any, config: ChatConfig) -> None:
        self._who, self.rows, self._tokenizer, self._config = who, rows, tokenizer, config

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_encoder", "_pad_token_id")}

    @cached_property
    def _encoder(self) -> ChatEncoder:
        """Made in each process when it is first used."""
        kwargs = self._config.apply_chat_template_kwargs
        return ChatEncoder(as_tokenizer(self._tokenizer), actions=self._config.actions, template_kwargs=kwargs)

    @cached_property
    def _pad_token_id(self) -> int:
        token: int | None = as_tokenizer(self._tokenizer).pad_token_id
        if token is None:
            raise ValueError(
                f"{self._who}: expected a tokenizer with a pad token, got one without\n"
                "  Set its pad_token, or pad_mode: no_padding."
            )
        return token

    @contextmanager
    def row(self, item: int) -> Iterator[Row]:
        """Gives a row; an error below gains its place.

        Raises:
            IndexError: there is no such row.
        """
        if not -len(self.rows) <= item < len(self.rows):
            raise IndexError(f"{self._who}: item {item} of {len(self.rows)}")
        number = item % len(self.rows)
        try:
            yield self.rows[number]
        except ValueError as error:
            error.add_note(f"  at {self.rows.place(number)}")
            raise

    def messages(self, row: Row, key: str) -> list[Message]:
        """Returns a column's messages, `loss_mask` turned into what `ChatEncoder` knows.

        Raises:
            ValueError: they are none.
        """
        messages = row.get(key)
        if not isinstance(messages, list) or not messages or not all(isinstance(found, dict) for found in messages):
            have = "" if key in row else f"; the row has {sorted(row)}"
            raise ValueError(
                f"{self._who}: expected a list of messages in {key!r}, got {messages!r}{have}\n"
                "  A message is a dict with role and content; the config names their column."
            )
        return [self._message(number, without_nulls(message)) for number, message in enumerate(messages)]

    def _message(self, number: int, message: Message) -> Message:
        if LOSS_MASK not in message:
            return message
        mask = message.pop(LOSS_MASK)
        if mask not in (0, 1):
            raise ValueError(
                f"{self._who}: expected {LOSS_MASK} of message {number} to be 0 or 1, got {mask!r}\n"
                "  Leave it out to follow the action of the message's role."
            )
        return {**message, "train": bool(mask)}

    def tensors(self, row: Row, messages: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Encodes a conversation, cuts it and pads it; see the datasets for what comes out.

        Raises:
            ValueError: it cannot be encoded, is too long, or nothing of it is trained.
        """
        config = self._config
        encoded = self._encoder.encode(messages, tools=read_tools(row.get(config.tools_key)))
        kept = cut(len(encoded.input_ids), config.max_length, config.truncation).kept
        train = encoded.train[kept]
        if not train.any():
            cause = "of what truncation left of it" if encoded.num_trained else "of it"
            raise ValueError(
                f"{self._who}: expected a conversation with something to train, got one with nothing: none {cause}\n"
                "  Drop such rows, by max_bad or before; see actions and loss_mask, and max_length."
            )
        return self._padded(encoded.input_ids[kept], train)

    def _padded(self, ids: Any, train: Any) -> dict[str, torch.Tensor]:
        input_ids, loss_mask = torch.from_numpy(ids), torch.from_numpy(train)
        attention_mask = torch.from_numpy(np.ones_like(ids))
        if self._config.pad_mode == "right":
            limit = self._config.max_length
            input_ids = pad_sequence_to_length(input_ids, limit, self._pad_token_id)
            attention_mask = pad_sequence_to_length(attention_mask, limit, 0)
            loss_mask = pad_sequence_to_length(loss_mask, limit, 0)
        positions = compute_position_id_with_mask(attention_mask)
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": positions,
            "loss_mask": loss_mask,
        }
