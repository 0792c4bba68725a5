"""What datasets of chats share: `parquet → rows of messages or texts → token ids and loss mask → tensors`."""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from streamdata.chats.media import MediaChatEncoder, MediaTokens
from streamdata.chats.row_settings import RowSettings
from streamdata.errors import shown
from streamdata.io.remote import options_of_source
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.run.per_process import Recent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text import ChatEncoder, as_tokenizer, compute_position_id_with_mask, cut, pad_sequence_to_length
from streamdata.text.formats import RowFormat, Said, Texts
from streamdata.text.masks import LocatedChat, encode_text
from streamdata.text.messages import TRAIN_KEY, MediaChat, Message, media_beside_text, read_tools
from streamdata.text.templates import row_template_kwargs
from streamdata.text.tokenizer import load_without_code
from streamdata.text.truncation import train_from

LOSS_MASK: Final = "loss_mask"
"""The key of a message that says whether it is trained, 0 or 1."""
_ENCODERS: Final = 16  # one for each of the template variables that rows bring


class ChatConfig(RowSettings):
    """How conversations and texts become tensors."""

    tools_key: str = "tools"
    """The column of tool schemas, or of their JSON text; rows may lack it."""
    image_key: str = "images"
    """The column of images, for a processor; without it a single one may be in `image`."""
    video_key: str = "videos"
    """The column of videos, for a processor."""
    max_length: int = Field(1024, ge=1)
    """Tokens of a conversation; the length of its tensors where they are padded."""
    pad_mode: Literal["right", "no_padding"] = "right"
    """`right`, or `no_padding` for packing."""
    actions: Mapping[Any, Any] = {"assistant": "train"}
    """Role → train or mask; a role that is not named is masked."""
    append_stop: bool = True
    """Whether the next role's token ends answers where the template has no token for that, see `ChatEncoder`."""


class ChatTokens(NamedTuple):
    """A row in tokens: their ids, int64 (n,), which are trained, bool (n,), and what media are in them."""

    input_ids: npt.NDArray[np.int64]
    train: npt.NDArray[np.bool_]
    media: MediaTokens = MediaTokens()


class ExplainedRow(NamedTuple):
    """A row, and its conversations in tokens, by what the fields of the item begin with, such as `chosen_`."""

    row: Row
    chats: dict[str, LocatedChat]


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
        processor: Any = None,
        *,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        limits: Limits = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        self._who = type(self).__name__  # errors name the class that the recipe names
        self.config = self.settings.read(config, self._who)
        self._rows = ParquetRows(
            data_files,
            self.config.cache_dir,
            self.config.use_shm,
            options_of_source(storage_options, self._who),
            read_limits(limits, ShardLimits, self._who),
        )
        self._given = (tokenizer, processor)
        # By the first row alone: to look at all would read the files, and a row of another format is an error anyway.
        self._format = self._recognised(self._rows[0] if len(self._rows) else {})

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Makes item `item`, in [-len, len).

        Raises:
            IndexError: There is no such item.
            ValueError: The row cannot be encoded; its location is in a note.
        """
        end_worker_with_trainer()
        if not -len(self) <= item < len(self):
            raise IndexError(f"{self._who}: item {item} of {len(self)}")
        number = item % len(self)
        try:
            file, _ = self._rows.locate(number)
            return self._make(self._rows[number], os.path.dirname(self._rows.files[file].path))
        except ValueError as error:
            error.add_note(f"  at {self._rows.location(number)}")
            raise

    def explain(self, item: int) -> ExplainedRow:
        """The row of an item, and where its messages lie in its tokens before these are cut and padded.

        Raises:
            IndexError: There is no such item.
            ValueError: The row cannot be encoded.
        """
        row = self._rows[item % len(self)]
        said = {side: each for side, each in self._said(row).items() if not isinstance(each, Texts)}
        return ExplainedRow(row, {side: self._located(row, messages) for side, messages in said.items()})

    def _said(self, row: Row) -> dict[str, Said]:
        """What a row says, by what the fields of the item begin with."""
        raise NotImplementedError

    def _located(self, row: Row, messages: Sequence[Message]) -> LocatedChat:
        tools = read_tools(row.get(self.config.tools_key))
        return self._encoder(row).locate(self._chat(row, messages).messages, tools=tools)

    @property
    def source_identity(self) -> str:
        """What determines the items' content, beside settings: that of the files; a resume compares it."""
        return f"chats {self._rows.digest}"

    def _recognised(self, row: Row) -> RowFormat:
        """The format of the rows, of which this is the first."""
        raise NotImplementedError

    def _make(self, row: Row, folder: str) -> dict[str, Any]:
        """The item of a row whose media's paths begin in a folder."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        # An encoder has the tokenizer, which is large, and compiled templates, which do not pickle.
        return {key: value for key, value in self.__dict__.items() if key not in _MADE}

    @cached_property
    def _tokenizer(self) -> Any:
        return as_tokenizer(self._given[0])

    @cached_property
    def _processor(self) -> Any:
        processor = self._given[1]
        if not isinstance(processor, str | os.PathLike):
            return processor
        from transformers import AutoProcessor

        return load_without_code(AutoProcessor, processor)

    @cached_property
    def _media(self) -> MediaChatEncoder:
        return MediaChatEncoder(self._processor)

    @cached_property
    def _encoders(self) -> Recent[str, ChatEncoder]:
        """By the variables that rows bring for the template, as JSON; made in each process when first used."""
        return Recent(_ENCODERS)

    def _encoder(self, row: Row) -> ChatEncoder:
        return self._encoders.get(json.dumps(row_template_kwargs(row), sort_keys=True), self._make_encoder)

    def _make_encoder(self, row_kwargs: str) -> ChatEncoder:
        config = self.config
        return ChatEncoder(
            self._processor or self._tokenizer,
            actions=config.actions,
            template_kwargs={**config.apply_chat_template_kwargs, **json.loads(row_kwargs)},
            append_stop=config.append_stop,
        )

    @cached_property
    def _pad_token_id(self) -> int:
        # Asked when a row is padded: without padding a tokenizer needs none.
        token: int | None = self._tokenizer.pad_token_id
        if token is None:
            raise ValueError(
                f"{self._who}: expected a tokenizer with a pad token, got one without\n"
                "  Set its pad_token, or pad_mode: no_padding."
            )
        return token

    def _tokens(self, row: Row, said: Said, folder: str) -> ChatTokens:
        """What a row says, encoded."""
        if isinstance(said, Texts):
            # Media have no place in a text that no template renders.
            self._check_text_alone(row, ())
            return ChatTokens(*encode_text(self._tokenizer, said))
        chat = self._chat(row, said)
        encoded = self._encoder(row).encode(chat.messages, tools=read_tools(row.get(self.config.tools_key)))
        if self._processor is None:
            return ChatTokens(encoded.input_ids, encoded.train)
        return ChatTokens(*self._media.expand(encoded, chat.media, folder))

    def _chat(self, row: Row, messages: Sequence[Message]) -> MediaChat:
        """The messages, `loss_mask` turned into what `ChatEncoder` knows, and the media."""
        messages = [self._message(number, message) for number, message in enumerate(messages)]
        if self._given[1] is not None:
            return self._media.chat(row, messages, self.config.image_key, self.config.video_key)
        self._check_text_alone(row, messages)
        return MediaChat(messages, [])

    def _check_text_alone(self, row: Row, messages: Sequence[Message]) -> None:
        # Refused even where the messages have no placeholder: the answers were written about what is missing.
        if media := media_beside_text(row, messages):
            raise ValueError(
                f"{self._who}: expected text alone, got a row with media: {media}\n"
                "  Give the dataset a processor for conversations with images; drop others, by max_bad or before."
            )

    def _message(self, number: int, message: Message) -> Message:
        if LOSS_MASK not in message:
            return message
        message = dict(message)
        mask = message.pop(LOSS_MASK)
        if mask not in (0, 1):  # weights, which some data sets have there, would all count as 1
            raise ValueError(
                f"{self._who}: expected {LOSS_MASK} of message {number} to be 0 or 1, got {shown(mask)}\n"
                "  Leave it out to follow the action of the message's role."
            )
        return {TRAIN_KEY: bool(mask), **message}  # what is a prompt is not trained, whatever its mask

    def _tensors(self, tokens: ChatTokens) -> dict[str, Any]:
        """Cuts a row in tokens and pads it.

        Raises:
            ValueError: It is too long, a cut meets a medium, or nothing of it is trained.
        """
        config = self.config
        kept, lost = cut(len(tokens.input_ids), config.max_length, config.truncation, tokens.media.spans)
        if lost:
            raise ValueError(
                f"{self._who}: expected to keep all media, got a cut of {len(tokens.input_ids)} tokens to "
                f"{config.max_length} that meets {tokens.media.kinds[lost[0]]} {lost[0]} of the row\n"
                "  Raise max_length, or drop such rows, by max_bad or before."
            )
        # Nothing is left to predict the first token from if what came before it was cut.
        train = train_from(tokens.train, int(kept[0]) if len(kept) else 0)[kept]
        if not train.any():
            cause = "of what truncation left of it" if tokens.train.any() else "of it"
            raise ValueError(
                f"{self._who}: expected a conversation with something to train, got one with nothing: none {cause}\n"
                "  Drop such rows, by max_bad or before; see actions and loss_mask, and max_length."
            )
        ids = tokens.input_ids[kept]
        made = self._padded(ids, train)
        if self._given[1] is not None:
            made |= self._padded_media(self._media.fields(ids, tokens.media))
        return made

    def _padded(self, ids: Any, train: Any) -> dict[str, Any]:
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

    def _padded_media(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The tensors of media, those that have a number per token padded as the token ids are."""
        if self.config.pad_mode != "right":
            return fields
        types, limit = fields["mm_token_type_ids"], self.config.max_length
        fields["mm_token_type_ids"] = pad_sequence_to_length(types, limit, 0)
        if "position_ids" in fields:
            rows = fields["position_ids"]
            fields["position_ids"] = torch.cat([rows, rows[:, -1:].expand(-1, limit - rows.shape[1])], dim=1)
        return fields


_MADE: Final = ("_tokenizer", "_processor", "_media", "_encoders", "_pad_token_id")
"""What each process makes when it is first used."""
