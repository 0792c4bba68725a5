"""Pairs of answers, one preferred: `parquet → two conversations or texts → token ids and loss masks → tensors`."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from streamdata.chats.dataset import ChatConfig, ChatDataset, ChatTokens
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import (
    RowFormat,
    Said,
    Texts,
    has_own_prompt,
    label_of,
    mask_shared,
    pair_said,
    training_said,
    with_prompt,
)
from streamdata.text.masks import encode_text_pair
from streamdata.text.messages import Message, messages_of

_PROMPT: Final = "prompt"
_SIDES: Final = ("chosen", "rejected")


class PreferenceConfig(ChatConfig):
    """Settings of `PreferenceDataset`."""

    format: Literal["auto", "preference", "unpaired-preference"] = "auto"
    """What rows are, see `streamdata.text.formats`; `auto` for what the fields of the first say."""
    prompt_key: str | None = _PROMPT
    """The column of messages that both conversations begin with; None where both have them already. Rows may lack the
    column "prompt", no other. A text in it has to be what the first user of both says."""
    chosen_key: str = "chosen"
    """The column of the preferred messages."""
    rejected_key: str = "rejected"
    """The column of the others."""


class PreferenceDataset(ChatDataset):
    """A map-style dataset of pairs of conversations or texts in parquet files, or of single ones with a label.

    An item has `chosen_` and `rejected_` each of `input_ids`, `attention_mask`, `position_ids` and `loss_mask`, and of
    what a processor adds, as `SFTChatDataset` has them. What both conversations begin with is a prompt, and not
    trained; of texts that is their prompt, or the tokens that both begin with.

    Of rows with a prompt, a completion and a label (unpaired-preference) an item has these fields once, without
    `chosen_` or `rejected_`, and `label`, a bool.

    A row that cannot be encoded, is too long or trains nothing on one side is a ValueError, which a source's `max_bad`
    counts.

    Args:
        data_files: Files of parquet, JSON Lines or JSON arrays, here or in a store: a path, glob, brace expression or
            directory, or a list of these, whose order they keep.
        tokenizer: A fast one of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `PreferenceConfig`.
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

    config: PreferenceConfig
    settings = PreferenceConfig

    def _recognised(self, row: Row) -> RowFormat:
        config = self.config
        keys = (config.chosen_key, config.rejected_key)
        # Rows with one of the two are pairs with a fault, each an error of its own; without both they may be another.
        in_columns = any(key in row and not isinstance(row[key], str) for key in keys) and not config.is_another(
            row, *keys
        )
        is_named = in_columns or keys != _SIDES or config.prompt_key not in (None, _PROMPT)
        return config.format_of(row, RowFormat("preference", "conversational") if is_named else None, self._who)

    def _make(self, row: Row, folder: str) -> dict[str, Any]:
        if self._format.name == "unpaired-preference":
            (said,) = self._said(row).values()
            return {**self._tensors(self._tokens(row, said, folder)), "label": label_of(row, self._who)}
        return {
            f"{side}_{key}": tensor
            for side, tokens in zip(_SIDES, self._pair(row, folder), strict=True)
            for key, tensor in self._side(side, tokens).items()
        }

    def _said(self, row: Row) -> dict[str, Said]:
        if self._format.name == "unpaired-preference":
            return {"": training_said(row, self._format, self._who)}
        return {f"{side}_": said for side, said in zip(_SIDES, self._said_pair(row), strict=True)}

    def _pair(self, row: Row, folder: str) -> Sequence[ChatTokens]:
        said = self._said_pair(row)
        if isinstance(said[0], Texts) and isinstance(said[1], Texts):
            self._check_text_alone(row, ())
            return [ChatTokens(*each) for each in encode_text_pair(self._tokenizer, said[0], said[1])]
        return [self._noted(side, row, each, folder) for side, each in zip(_SIDES, said, strict=True)]

    def _said_pair(self, row: Row) -> Sequence[Said]:
        keys = (self.config.chosen_key, self.config.rejected_key)
        if self._format.style == "standard" or (has_own_prompt(row) and self.config.prompt_key not in row):
            return pair_said(row, self._format, self._who)
        # The prompt goes before both first: what they share is compared over complete conversations.
        prompt = self._prompt(row)
        return mask_shared(*(with_prompt(prompt, messages_of(row, key, self._who)) for key in keys))

    def _prompt(self, row: Row) -> str | Sequence[Message]:
        """What both conversations begin with: messages, perhaps none, or a text."""
        key = self.config.prompt_key
        # A column that is missing is an error if somebody named it; of the default, rows with complete conversations
        # have no need.
        if key is None or (key == _PROMPT and key not in row):
            return []
        value = row.get(key)
        is_empty = key in row and value in (None, "", [])
        return [] if is_empty else value if isinstance(value, str) else messages_of(row, key, self._who)

    def _noted(self, side: str, row: Row, said: Any, folder: str) -> ChatTokens:
        try:
            return self._tokens(row, said, folder)
        except ValueError as error:
            error.add_note(f"  in what was {side}")
            raise

    def _side(self, side: str, tokens: ChatTokens) -> dict[str, Any]:
        try:
            return self._tensors(tokens)
        except ValueError as error:
            error.add_note(f"  in what was {side}")
            raise
