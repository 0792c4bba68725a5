"""Conversations and texts for supervised training: `parquet → messages → token ids and loss mask → tensors`."""

from typing import Any, Literal

from streamdata.chats.dataset import ChatConfig, ChatDataset
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import RowFormat, Said, training_said

_MESSAGES = "messages"


class SFTChatConfig(ChatConfig):
    """Settings of `SFTChatDataset`."""

    format: Literal["auto", "language-modeling", "prompt-completion", "sharegpt", "alpaca"] = "auto"
    """What rows are, see `streamdata.text.formats`; `auto` for what the fields of the first say."""
    messages_key: str = _MESSAGES
    """The column of messages of conversational language modeling."""


class SFTChatDataset(ChatDataset):
    """A map-style dataset of conversations in parquet files, each of any number of turns, or of texts.

    Rows are conversations (`messages`), a prompt and its completion, ShareGPT's or Alpaca's, or texts (`text`, or a
    prompt and a completion), of which all is trained but the prompt, and which end with the tokenizer's end token.

    An item has tensors of shape (max_length,), or (n,) without padding:

    - `input_ids` int64, padded on the right;
    - `attention_mask` int64, 0 at padding;
    - `position_ids` int64, counting tokens from 0; at padding that of the last token;
    - `loss_mask` bool: which of `input_ids` are trained. That is what `actions` says of a message's role, or its own
      `loss_mask` (0 or 1); see `streamdata.text.ChatEncoder`;
    - with a processor `mm_token_type_ids` int64 (0 text, 1 image, 2 video), `multi_modal_inputs`, the processor's
      tensors, empty for a row of text, and for processors like Qwen2-VL's `position_ids` of shape (3, …).

    A row that cannot be encoded, is too long or trains nothing is a ValueError, which a source's `max_bad` counts.

    Args:
        data_files: Files of parquet, JSON Lines or JSON arrays, here or in a store: a path, glob, brace expression or
            directory, or a list of these, whose order they keep.
        tokenizer: A fast one of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `SFTChatConfig`.
        processor: Of transformers, or a name or directory for its `AutoProcessor`; None for text alone.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.
        storage_options: Of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), what a line of JSON Lines may have at most.

    Raises:
        ValueError: The config has an unknown key or a value that is not allowed.
        SourceError: A file is not parquet.
        FileNotFoundError: A pattern matches nothing.
        ImportError: Pyarrow is missing.
    """

    config: SFTChatConfig
    settings = SFTChatConfig

    def _recognised(self, row: Row) -> RowFormat:
        key = self.config.messages_key
        is_named = key != _MESSAGES or (key in row and not self.config.is_another(row, key))
        named = RowFormat("language-modeling", "conversational") if is_named else None
        return self.config.format_of(row, named, self._who)

    def _make(self, row: Row, folder: str) -> dict[str, Any]:
        (said,) = self._said(row).values()
        return self._tensors(self._tokens(row, said, folder))

    def _said(self, row: Row) -> dict[str, Said]:
        return {"": training_said(row, self._format, self._who, self.config.messages_key)}
