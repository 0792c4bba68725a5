"""Pairs of answers, one preferred: `parquet → two conversations → token ids and loss masks → tensors`."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from streamdata.shards.stored_rows import Row
from streamdata.sources.chats.dataset import ChatConfig, ChatDataset
from streamdata.text.messages import Message
from streamdata.text.pairs import mask_shared, with_prompt

_PROMPT: Final = "prompt"


class PreferenceConfig(ChatConfig):
    """Settings of `PreferenceDataset`."""

    prompt_key: str | None = _PROMPT
    """The column of messages that both conversations begin with; None where both have them already. Rows may lack the
    column "prompt", no other. A text in it has to be what the first user of both says."""
    chosen_key: str = "chosen"
    """The column of the preferred messages."""
    rejected_key: str = "rejected"
    """The column of the others."""


class PreferenceDataset(ChatDataset):
    """A map-style dataset of pairs of conversations in parquet files.

    An item has `chosen_` and `rejected_` each of `input_ids`, `attention_mask`, `position_ids` and `loss_mask`, as
    `SFTChatDataset` has them. What both conversations begin with is a prompt, and not trained.

    A row that cannot be encoded, is too long or trains nothing on one side is a ValueError, which a source's `max_bad`
    counts.

    Args:
        data_files: Parquet: a file, glob, brace expression or directory, or a list of these.
        tokenizer: A fast one of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `PreferenceConfig`.
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

    config: PreferenceConfig
    settings = PreferenceConfig

    def _make(self, row: Row) -> dict[str, Any]:
        # The prompt goes before both first: what they share is compared over complete conversations.
        prompt, keys = self._prompt(row), (self.config.chosen_key, self.config.rejected_key)
        pair = mask_shared(*(with_prompt(prompt, self._messages(row, key)) for key in keys))
        return {
            f"{side}_{key}": tensor
            for side, messages in zip(("chosen", "rejected"), pair, strict=True)
            for key, tensor in self._side(row, side, messages).items()
        }

    def _prompt(self, row: Row) -> str | Sequence[Message]:
        """What both conversations begin with: messages, perhaps none, or a text."""
        key = self.config.prompt_key
        # A column that is missing is an error if somebody named it; of the default, rows with complete conversations
        # have no need.
        if key is None or (key == _PROMPT and key not in row):
            return []
        value = row.get(key)
        is_empty = key in row and value in (None, "", [])
        return [] if is_empty else value if isinstance(value, str) else self._messages(row, key)

    def _side(self, row: Row, side: str, messages: Sequence[Message]) -> dict[str, torch.Tensor]:
        try:
            return self._tensors(row, messages)
        except ValueError as error:
            error.add_note(f"  in what was {side}")
            raise
