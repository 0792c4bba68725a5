"""Conversations for supervised training: `parquet → messages → token ids and loss mask → tensors`."""

from typing import Any

from streamdata.shards.stored_rows import Row
from streamdata.sources.chats.dataset import ChatConfig, ChatDataset


class SFTChatConfig(ChatConfig):
    """Settings of `SFTChatDataset`."""

    messages_key: str = "messages"
    """The column of messages."""


class SFTChatDataset(ChatDataset):
    """A map-style dataset of conversations in parquet files, each of any number of turns.

    An item has tensors of shape (max_length,), or (n,) without padding:

    - `input_ids` int64, padded on the right;
    - `attention_mask` int64, 0 at padding;
    - `position_ids` int64, counting tokens from 0; at padding that of the last token;
    - `loss_mask` bool: which of `input_ids` are trained. That is what `actions` says of a message's role, or its own
      `loss_mask` (0 or 1); see `streamdata.text.ChatEncoder`.

    A row that cannot be encoded, is too long or trains nothing is a ValueError, which a source's `max_bad` counts.

    Args:
        data_files: Parquet: a file, glob, brace expression or directory, or a list of these.
        tokenizer: A fast one of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `SFTChatConfig`.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.

    Raises:
        ValueError: The config has an unknown key or a value that is not allowed.
        SourceError: A file is not parquet.
        FileNotFoundError: A pattern matches nothing.
        ImportError: Pyarrow is missing.
    """

    config: SFTChatConfig
    settings = SFTChatConfig

    def _make(self, row: Row) -> dict[str, Any]:
        return self._tensors(row, self._messages(row, self.config.messages_key))
