"""Pairs of answers, one preferred: `parquet → two conversations → token ids and loss masks → tensors`."""

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

from streamdata.sources.chats.config import ChatConfig
from streamdata.sources.chats.dataset import ChatDataset
from streamdata.sources.prompts.messages import Message
from streamdata.sources.prompts.stored_rows import Row


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(ChatConfig):
    """Settings of `PreferenceDataset`.

    Attributes:
        prompt_key: the column of messages that both conversations begin with; None where each is whole.
        chosen_key: the column of the preferred messages.
        rejected_key: the column of the others.
    """

    prompt_key: str | None = None
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"


class PreferenceDataset(ChatDataset):
    """A map-style dataset of pairs of conversations in parquet files.

    An item has `chosen_` and `rejected_` each of `input_ids`, `attention_mask`, `position_ids` and `loss_mask`, as
    `SFTChatDataset` has them. What both conversations begin with is a prompt, and not trained.

    A row that cannot be encoded, is too long or trains nothing on one side is a ValueError, which a source's `max_bad`
    counts.

    Args:
        data_files: parquet: a file, glob, brace expression or directory, or a list of these.
        tokenizer: a fast one of transformers, or a name or directory for its `AutoTokenizer`.
        config: a mapping or DictConfig with the keys of `PreferenceConfig`.

    Raises:
        ValueError: the config has an unknown key or a value that is not allowed.
        SourceError: a file is no parquet.
        FileNotFoundError: a pattern matches nothing.
        ImportError: pyarrow is missing.
    """

    config: PreferenceConfig
    settings = PreferenceConfig

    def _make(self, row: Row) -> dict[str, Any]:
        chosen, rejected = (self._conversation(row, key) for key in (self.config.chosen_key, self.config.rejected_key))
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
        pair = {"chosen": chosen, "rejected": rejected}
        return {
            f"{side}_{key}": tensor
            for side, messages in pair.items()
            for key, tensor in self._side(row, side, messages, shared).items()
        }

    def _conversation(self, row: Row, key: str) -> list[Message]:
        prompt = self._messages(row, self.config.prompt_key) if self.config.prompt_key else []
        return prompt + self._messages(row, key)

    def _side(self, row: Row, side: str, messages: list[Message], shared: int) -> dict[str, torch.Tensor]:
        prompt = [{**message, "train": False} for message in messages[:shared]]
        try:
            return self._tensors(row, prompt + messages[shared:])
        except ValueError as error:
            error.add_note(f"  in what was {side}")
            raise
