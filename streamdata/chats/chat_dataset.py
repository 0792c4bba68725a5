"""Supervised chats and preferences: `rows → messages or texts → token ids and loss mask → tensors`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from streamdata.chats.encoding import Encoded, Encoder, cut_around_media, training_features, without_media
from streamdata.chats.settings import RowSettings
from streamdata.errors import shown
from streamdata.io.remote.addresses import options_of_source
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import SIDES, RowFormat, Said, Texts, pair_said, training_said
from streamdata.text.masks import ChatEncoder, encode_completions
from streamdata.text.messages import (
    TRAIN_KEY,
    MediaChat,
    Message,
    check_text_alone,
    is_given,
    read_chat,
    read_tools,
    with_images_first,
)
from streamdata.text.truncation import compute_position_id_with_mask, pad_sequence_to_length, train_from

Bools = npt.NDArray[np.bool_]
_LOSS_MASK: Final = "loss_mask"
"""The key of a message that says whether it is trained, 0 or 1."""
_MESSAGES: Final = "messages"
_PROMPT: Final = "prompt"


class ChatConfig(RowSettings):
    """Settings of datasets of conversations: how these become tensors."""

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
    actions: Mapping[str, Literal["train", "mask"]] = {"assistant": "train"}
    """Role → `train` or `mask`; a role that is not named is masked."""
    append_stop: bool = True
    """Whether the next role's token ends an answer, and is trained there, where the template ends no turn."""


class ChatDataset(NamedSource, torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style dataset of conversations: what its classes have in common. It pickles as paths and settings.

    Attributes:
        settings: The model of the class's settings.
        tokenizer: As it was given, perhaps by name.
        processor: As it was given, perhaps by name; None for text alone.
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
        self.tokenizer, self.processor = tokenizer, processor
        self._encoder = Encoder(tokenizer)
        # A conversation with media is tokens of the processor's tokenizer, in which its mask is found too.
        self._media = self._encoder if processor is None else Encoder(None, processor)
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

    def row(self, item: int) -> Row:
        """Returns the stored row of item `item`, in [0, len), unprocessed.

        Raises:
            IndexError: There is no such item.
        """
        return self._rows[item]

    @property
    def source_identity(self) -> str:
        """The hash of what determines the items' content, beside settings: the files; a resume compares it."""
        return f"chats {self._rows.digest}"

    def _recognised(self, row: Row) -> RowFormat:
        """The format of the rows, of which this is the first."""
        raise NotImplementedError

    def _said(self, row: Row) -> dict[str, Said]:
        """The conversations or texts of a row, by what the fields of the item begin with."""
        raise NotImplementedError

    def _make(self, row: Row, folder: str) -> dict[str, Any]:
        """The item of a row whose media's paths begin in a folder."""
        sides = self._said(row)
        item: dict[str, Any] = {}
        texts = [said for said in sides.values() if isinstance(said, Texts)]
        if texts:
            check_text_alone(row, (), self._who)  # media have no place in a text that no template renders
        completions = iter(encode_completions(self._encoder.tokenizer, texts) if texts else ())
        for prefix, said in sides.items():
            try:
                if isinstance(said, Texts):
                    ids, train, text = next(completions)
                    encoded = without_media(text, ids)
                else:
                    encoded, train = self._encoded(row, said, folder)
                item |= {f"{prefix}{key}": value for key, value in self._tensors(encoded, train).items()}
            except ValueError as error:
                if prefix:
                    error.add_note(f"  in what was {prefix.removesuffix('_')}")
                raise
        return item

    def _encoded(self, row: Row, messages: Sequence[Message], folder: str) -> tuple[Encoded, Bools]:
        """A conversation of a row in tokens, media expanded, and which of them are trained."""
        chat = self._chat(row, messages)
        encoded = self._chat_encoder(row).encode(chat.messages, tools=read_tools(row.get(self.config.tools_key)))
        if self.processor is None:
            return without_media(encoded.text, encoded.input_ids), encoded.train
        media = self._media.open(chat.media, folder)
        found = self._media.encode(encoded.text, [medium.kind for medium in chat.media], media)
        # A medium's tokens would have the value of its placeholder, which an assistant's own message may train.
        train = encoded.train[found.origin]
        for begin, end in found.spans:
            train[begin:end] = False
        return found, train

    def _chat_encoder(self, row: Row) -> ChatEncoder:
        config = self.config
        return self._media.for_variables(
            row,
            lambda variables: ChatEncoder(
                self._media.processor or self._media.tokenizer,
                actions=config.actions,
                template_kwargs={**config.apply_chat_template_kwargs, **variables},
                append_stop=config.append_stop,
            ),
        )

    def _chat(self, row: Row, messages: Sequence[Message]) -> MediaChat:
        """The messages, `loss_mask` turned into what `ChatEncoder` knows, and the media, unopened.

        A single image may stand in the column `image`. Where no message has a place for images, they stand before the
        first that a user says, as TRL puts them.
        """
        messages = [dict(message) for message in messages]
        for number, message in enumerate(messages):
            if _LOSS_MASK not in message:
                continue
            mask = message.pop(_LOSS_MASK)
            if mask not in (0, 1):  # weights, which some data sets have there, would all count as 1
                raise ValueError(
                    f"{self._who}: expected {_LOSS_MASK} of message {number} to be 0 or 1, got {shown(mask)}\n"
                    "  Leave it out to follow the action of the message's role."
                )
            message.setdefault(TRAIN_KEY, bool(mask))  # what is a prompt is not trained, whatever its mask
        if self.processor is None:
            check_text_alone(row, messages, self._who)
            return MediaChat(messages, [])
        key = self.config.image_key
        images = [image for image in (row[key] if key in row else [row.get("image")]) or () if is_given(image)]
        videos = [video for video in row.get(self.config.video_key) or () if is_given(video)]
        # Under names of our own: a column may be called otherwise, and a row have both.
        placed = {"messages": with_images_first(messages, len(images)), "image": images, "video": videos}
        return read_chat(placed, "messages", {"image": "image", "video": "video"}, typed=True)

    def _tensors(self, encoded: Encoded, train: Bools) -> dict[str, Any]:
        """Cuts a row in tokens and pads it.

        Raises:
            ValueError: It is too long, a cut meets a medium, or nothing of it is trained.
        """
        config = self.config
        kept = cut_around_media(encoded, config.max_length, config.truncation).kept
        # Nothing is left to predict the first token from if what came before it was cut.
        left = train_from(train, int(kept[0]) if len(kept) else 0)[kept]
        if not left.any():
            cause = "of what truncation left of it" if train.any() else "of it"
            raise ValueError(
                f"{self._who}: expected a conversation with something to train, got one with nothing: none {cause}\n"
                "  Drop such rows, by max_bad or before; see actions and loss_mask, and max_length."
            )
        ids = encoded.input_ids[kept]
        attention_mask = self._padded(np.ones_like(ids), 0)
        tensors: dict[str, Any] = {
            # Asked for where a row is padded: without padding a tokenizer needs no token for it.
            "input_ids": self._padded(ids, self._encoder.pad_token_id if config.pad_mode == "right" else 0),
            "attention_mask": attention_mask,
            "position_ids": compute_position_id_with_mask(attention_mask),
            "loss_mask": self._padded(left, 0),
        }
        if self.processor is None:
            return tensors
        tensors["mm_token_type_ids"] = self._padded(self._media.media_types(ids), 0)
        tensors["multi_modal_inputs"] = training_features(encoded.features)
        # Rope positions, where the processor has them, are in place of those that count tokens.
        positions = self._media.rope_positions(ids, encoded.kinds, encoded.features)
        if positions is not None:
            missing = config.max_length - len(ids) if config.pad_mode == "right" else 0
            tensors["position_ids"] = torch.from_numpy(np.pad(positions, ((0, 0), (0, missing)), mode="edge"))
        return tensors

    def _padded(self, values: npt.NDArray[Any], padding: int) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        if self.config.pad_mode != "right":
            return tensor
        return pad_sequence_to_length(tensor, self.config.max_length, padding)


class SFTChatConfig(ChatConfig):
    """Settings of `SFTChatDataset`."""

    format: Literal["auto", "language-modeling", "prompt-completion", "sharegpt", "alpaca"] = "auto"
    """The format of the rows, see `docs/guides/chats.md`; `auto` for what the fields of the first say."""
    messages_key: str = _MESSAGES
    """The column of messages of conversational language modeling."""


class SFTChatDataset(ChatDataset):
    """Map-style dataset of conversations or texts for supervised fine-tuning, from parquet or JSON files.

    Rows are conversations (`messages`, a prompt and its completion, ShareGPT's or Alpaca's) or texts (`text`, or a
    prompt and a completion). A text ends with the tokenizer's end token; all of it is trained except the prompt.

    An item has tensors of shape (max_length,), or (n,) without padding:

    - `input_ids` int64, padded on the right;
    - `attention_mask` int64, 0 at padding;
    - `position_ids` int64, counting tokens from 0; at padding that of the last token;
    - `loss_mask` bool: which of `input_ids` are trained, by `actions` for the message's role, or by the message's own
      `loss_mask` (0 or 1); see `docs/guides/chats.md`;
    - with a processor `mm_token_type_ids` int64 (0 text, 1 image, 2 video), `multi_modal_inputs`, the processor's
      tensors, empty for a row of text, and for processors like Qwen2-VL's `position_ids` of shape (3, …).

    A row that cannot be encoded, is too long or trains nothing raises a ValueError, which a source's `max_bad` counts.

    Args:
        data_files: Files of parquet, JSON Lines or JSON arrays, here or in a store: a path, glob, brace expression or
            directory, or a list of these, whose order they keep.
        tokenizer: A fast tokenizer of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `SFTChatConfig`.
        processor: A processor of transformers, or a name or directory for its `AutoProcessor`; None for text alone.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        storage_options: Options of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), the longest line of JSON Lines allowed.

    Raises:
        ValueError: The config has an unknown key or a value that is not allowed.
        SourceError: A file is not parquet.
        FileNotFoundError: A pattern matches nothing.
        ImportError: pyarrow is missing.
    """

    config: SFTChatConfig
    settings = SFTChatConfig

    def _recognised(self, row: Row) -> RowFormat:
        native, key = RowFormat("language-modeling", "conversational"), self.config.messages_key
        return self.config.format_of(row, native, (key,), self._who, is_named=key != _MESSAGES)

    def _said(self, row: Row) -> dict[str, Said]:
        return {"": training_said(row, self._format, self._who, self.config.messages_key)}


class PreferenceConfig(ChatConfig):
    """Settings of `PreferenceDataset`."""

    format: Literal["auto", "preference", "unpaired-preference"] = "auto"
    """The format of the rows, see `docs/guides/chats.md`; `auto` for what the fields of the first say."""
    prompt_key: str | None = _PROMPT
    """The column of messages that both conversations begin with, or of a text, which then is what the first user says;
    None where both conversations have them already. A row without a column "prompt" has none; a column that you name
    must be in each row."""
    chosen_key: str = "chosen"
    """The column of the preferred messages."""
    rejected_key: str = "rejected"
    """The column of the others."""


class PreferenceDataset(ChatDataset):
    """Map-style dataset of preference pairs of conversations or texts, or of single labelled ones, in parquet or JSON.

    An item has the fields of `SFTChatDataset` (`input_ids`, `attention_mask`, `position_ids`, `loss_mask`, and what a
    processor adds) twice, prefixed with `chosen_` and `rejected_`. The common beginning of both conversations is the
    prompt, and not trained; for texts it is their prompt, or the tokens that both begin with.

    For rows with a prompt, a completion and a label (unpaired preference) an item has the fields once, without a
    prefix, and `label`, a bool.

    A row that cannot be encoded, is too long or trains nothing on one side raises a ValueError, which a source's
    `max_bad` counts.

    Args:
        data_files: Files of parquet, JSON Lines or JSON arrays, here or in a store: a path, glob, brace expression or
            directory, or a list of these, whose order they keep.
        tokenizer: A fast tokenizer of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `PreferenceConfig`.
        processor: A processor of transformers, or a name or directory for its `AutoProcessor`; None for text alone.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        storage_options: Options of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), the longest line of JSON Lines allowed.

    Raises:
        ValueError: The config has an unknown key or a value that is not allowed.
        SourceError: A file is not parquet.
        FileNotFoundError: A pattern matches nothing.
        ImportError: pyarrow is missing.
    """

    config: PreferenceConfig
    settings = PreferenceConfig

    def _recognised(self, row: Row) -> RowFormat:
        config, keys = self.config, (self.config.chosen_key, self.config.rejected_key)
        # Rows with one of the two are pairs with a fault, each an error of its own; without both they may be another.
        is_named = keys != SIDES or config.prompt_key not in (None, _PROMPT)
        native = RowFormat("preference", "conversational")
        return config.format_of(row, native, keys, self._who, is_named=is_named)

    def _make(self, row: Row, folder: str) -> dict[str, Any]:
        item, label = super()._make(row, folder), row.get("label")
        if self._format.name == "preference":
            return item
        if label not in (0, 1):
            raise ValueError(f"{self._who}: expected a label of true or false, got {shown(label)}\n  Store a boolean.")
        return {**item, "label": bool(label)}

    def _said(self, row: Row) -> dict[str, Said]:
        if self._format.name == "unpaired-preference":
            return {"": training_said(row, self._format, self._who)}
        keys = (self.config.chosen_key, self.config.rejected_key)
        chosen, rejected = pair_said(row, self._format, self._who, self.config.prompt_key, keys)
        return {"chosen_": chosen, "rejected_": rejected}
