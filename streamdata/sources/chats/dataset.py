"""What datasets of chats share: `parquet → rows of messages → token ids and loss mask → tensors`."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch
from pydantic import Field

from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.shards.parquet_rows import ParquetRows
from streamdata.shards.stored_rows import Row
from streamdata.sources.row_settings import RowSettings
from streamdata.text import ChatEncoder, as_tokenizer, compute_position_id_with_mask, cut, pad_sequence_to_length
from streamdata.text.messages import Message, media_beside_text, messages_of
from streamdata.text.tools import read_tools
from streamdata.text.truncation import train_from

LOSS_MASK: Final = "loss_mask"
"""The key of a message that says whether it is trained, 0 or 1."""


class ChatConfig(RowSettings):
    """How conversations become tensors."""

    tools_key: str = "tools"
    """The column of tool schemas, or of their JSON text; rows may lack it."""
    max_length: int = Field(1024, ge=1)
    """Tokens of a conversation; the length of its tensors where they are padded."""
    pad_mode: Literal["right", "no_padding"] = "right"
    """`right`, or `no_padding` for packing."""
    actions: Mapping[Any, Any] = {"assistant": "train"}
    """Role → train or mask; a role that is not named is masked."""
    append_stop: bool = True
    """Whether the next role's token ends answers where the template has no token for that, see `ChatEncoder`."""


class ChatDataset(NamedSource, torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style dataset of conversations: what its classes have in common. It pickles as paths and settings.

    Attributes:
        settings: The model of the class's settings.
    """

    config: ChatConfig
    settings: ClassVar[type[ChatConfig]] = ChatConfig

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        config: Any = None,
        *,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        self._who = type(self).__name__  # errors name the class that the recipe names
        self.config = self.settings.read(config, self._who)
        self._rows = ParquetRows(data_files, self.config.cache_dir, self.config.use_shm)
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Makes item `item`, in [-len, len).

        Raises:
            IndexError: There is no such item.
            ValueError: The row cannot be encoded; its location is in a note.
        """
        if not -len(self) <= item < len(self):
            raise IndexError(f"{self._who}: item {item} of {len(self)}")
        number = item % len(self)
        try:
            return self._make(self._rows[number])
        except ValueError as error:
            error.add_note(f"  at {self._rows.location(number)}")
            raise

    @property
    def source_identity(self) -> str:
        """What determines the items' content, beside settings: that of the files; a resume compares it."""
        return f"chats {self._rows.digest}"

    def _make(self, row: Row) -> dict[str, Any]:
        """The item of a row."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # An encoder has the tokenizer, which is large, and compiled templates, which do not pickle.
        return {key: value for key, value in self.__dict__.items() if key not in ("_encoder", "_pad_token_id")}

    @cached_property
    def _encoder(self) -> ChatEncoder:
        """Made in each process when it is first used."""
        config = self.config
        return ChatEncoder(
            as_tokenizer(self._tokenizer),
            actions=config.actions,
            template_kwargs=config.apply_chat_template_kwargs,
            append_stop=config.append_stop,
        )

    @cached_property
    def _pad_token_id(self) -> int:
        # Asked when a row is padded: without padding a tokenizer needs none.
        token: int | None = as_tokenizer(self._tokenizer).pad_token_id
        if token is None:
            raise ValueError(
                f"{self._who}: expected a tokenizer with a pad token, got one without\n"
                "  Set its pad_token, or pad_mode: no_padding."
            )
        return token

    def _messages(self, row: Row, key: str) -> list[Message]:
        """A column's messages, `loss_mask` turned into what `ChatEncoder` knows."""
        messages = messages_of(row, key, self._who)
        # Refused even where the messages have no placeholder: the answers were written about what is missing.
        if media := media_beside_text(row, messages):
            raise ValueError(
                f"{self._who}: expected text alone, got a row with media: {media}\n"
                "  Their tokens would be missing: drop such rows, by max_bad or before, or media and placeholders."
            )
        return [self._message(number, message) for number, message in enumerate(messages)]

    def _message(self, number: int, message: Message) -> Message:
        if LOSS_MASK not in message:
            return message
        mask = message.pop(LOSS_MASK)
        if mask not in (0, 1):  # weights, which some data sets have there, would all count as 1
            raise ValueError(
                f"{self._who}: expected {LOSS_MASK} of message {number} to be 0 or 1, got {mask!r}\n"
                "  Leave it out to follow the action of the message's role."
            )
        return {**message, "train": bool(mask)}

    def _tensors(self, row: Row, messages: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Encodes a conversation, cuts it and pads it.

        Raises:
            ValueError: It cannot be encoded, is too long, or nothing of it is trained.
        """
        config = self.config
        encoded = self._encoder.encode(messages, tools=read_tools(row.get(config.tools_key)))
        kept = cut(len(encoded.input_ids), config.max_length, config.truncation).kept
        # Nothing is left to predict the first token from if what came before it was cut.
        train = train_from(encoded.train, int(kept[0]) if len(kept) else 0)[kept]
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
        if self.config.pad_mode == "right":
            limit = self.config.max_length
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
