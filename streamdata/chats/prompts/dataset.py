"""Prompts for reinforcement learning: `parquet → rows that stay → messages → token ids → tensors`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from streamdata.chats.prompts.config import WHO, PromptConfig
from streamdata.chats.prompts.encoding import media_by_kind, training_features
from streamdata.chats.prompts.fitting import Fitted, fit
from streamdata.chats.prompts.hooks import PromptHooks
from streamdata.chats.prompts.lengths import Kept, KeptNumbers, choose_rows
from streamdata.chats.prompts.reader import Prompt, PromptReader, content_digest
from streamdata.chats.prompts.rope_positions import RopeRule, read_grids, rope_rule
from streamdata.errors import StateError, one_line, shown
from streamdata.io.remote import options_of_source
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import RowFormat, Style, prompt_said
from streamdata.text.messages import (
    MEDIA_KINDS,
    Message,
    is_given,
    read_tools,
    typed_parts,
    with_images_first,
    without_nulls,
)

logger = logging.getLogger("streamdata")
_KWARGS: Final = ("tools_kwargs", "interaction_kwargs")
_PROMPT: Final = "prompt"
_KNOWN: Final = frozenset({
    "name", "percent", "holdout", "part", "config", "original_data_files", "_options", "_limits", "_given",
    "media_keys", "has_processor", "_inputs", "content", "_format", "_reader", "_kept",
})  # fmt: skip
"""Attributes that are no subclass's own."""
_OURS: Final = (
    "input_ids", "attention_mask", "position_ids", "raw_prompt_ids", "raw_prompt", "full_prompts", "multi_modal_data",
    "multi_modal_inputs", "mm_token_type_ids", *_KWARGS, "uid",
)  # fmt: skip


class RLHFDataset(PromptHooks, NamedSource, torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style dataset of prompts in parquet files: messages, a text, or the prompt of ShareGPT's or Alpaca's rows.

    An item has the row's columns but those of the prompt and its media, and

    - `input_ids`, `attention_mask`: int64 (max_prompt_length,), padded on the left with the pad token and 0;
    - `position_ids`: int64 (max_prompt_length,), counting tokens; for processors like Qwen2-VL's (`position_rows`,
      max_prompt_length), multimodal rope positions, 1 at padding;
    - `raw_prompt_ids`: a list of int, without padding, one placeholder per image or video;
    - `raw_prompt` (messages) and `full_prompts` (the rendered text) on request;
    - with a processor `multi_modal_data`, `{"image": [PIL images], "video": [arrays]}`, and `multi_modal_inputs`, the
      processor's tensors, both empty for a row of text, and `mm_token_type_ids`, int64 (max_prompt_length,): which
      tokens are of text or padding (0), an image (1), a video (2);
    - `index`, `tools_kwargs`, `interaction_kwargs` from the column `extra_info`, which is a dict even where the row has
      none; a missing index is the row's number;
    - `uid`: 32 hexadecimal digits that depend on the file's content and the row's number there alone.

    In mode `raw` there is nothing made of tokens: messages, with their opened media in the typed parts, index, uid,
    kwargs and the row's columns but those of media; the prompt stays as the row has it.

    It pickles as paths and settings, and works in DataLoader workers of every start method. A subclass may override
    `__getitem__` and the methods of `PromptHooks`.

    Args:
        data_files: Files of parquet, JSON Lines or JSON arrays, here or in a store: a path, glob, brace expression or
            directory, or a list of these, whose order they keep.
        tokenizer: Of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `PromptConfig`.
        processor: Of transformers, or a name or directory for its `AutoProcessor`; None for text alone.
        max_samples: Where it is not -1, the config's `max_samples`: verl's trainer passes it here.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.
        storage_options: Of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), what a line of JSON Lines may have at most.

    Raises:
        ValueError: The config has an unknown key or a value that is not allowed, or a row is not a prompt.
        SourceError: No row stays, or a file is not one of rows.
        FileNotFoundError: A pattern matches nothing.
        ImportError: pyarrow is missing.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
        *,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        limits: Limits = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        who = type(self).__name__
        self._options, self._limits = options_of_source(storage_options, who), read_limits(limits, ShardLimits, who)
        self.config = _with_samples(PromptConfig.read(config, who), max_samples)
        self.original_data_files = data_files
        self._given = (tokenizer, processor)
        self.media_keys = {"image": self.config.image_key, "video": self.config.video_key}
        self.has_processor = processor is not None
        self._inputs = (self.config.prompt_key, *self.media_keys.values())
        rows = self._rows()
        self.content = rows.digest
        self._choose(rows)

    def _rows(self) -> ParquetRows:
        config = self.config
        return ParquetRows(self.original_data_files, config.cache_dir, config.use_shm, self._options, self._limits)

    def _choose(self, rows: ParquetRows) -> None:
        # Otherwise a column would be overwritten without a word, or a trainer would take it for what it asked for.
        if taken := sorted(set(rows.columns) & set(_OURS)):
            raise ValueError(
                f"{WHO}: expected columns with other names than those of its results, got {taken}\n"
                "  Rename them in the data."
            )
        self._format = self._recognised(rows[0] if len(rows) else {})
        self._reader = PromptReader(rows, *self._given, self.config, *self._preparation(rows), self._format.style)
        if self.config.mode == "tensors":
            # What is wrong with tokenizer and processor is raised here rather than in a worker.
            _ = self._reader.encoder
        self._kept: Kept = choose_rows(self._reader)
        self.__dict__.pop("_numbers", None)  # it reads the file of the choice before

    def _recognised(self, row: Row) -> RowFormat:
        key, value = self.config.prompt_key, row.get(self.config.prompt_key)
        in_column = key in row and not isinstance(value, str) and not self.config.is_another(row, key)
        is_native = self._builds_messages or in_column or key != _PROMPT
        style: Style = "standard" if isinstance(value, str) else "conversational"
        return self.config.format_of(row, RowFormat("prompt-only", style) if is_native else None, WHO)

    def _preparation(self, rows: ParquetRows) -> tuple[Callable[[Row], Row] | None, str]:
        """What makes prompts of the rows, if they are none as they lie, and all that it depends on."""
        if self._builds_messages:
            own = {name: value for name, value in vars(self).items() if name not in _KNOWN}
            return self._prepared, content_digest((type(self)._build_messages, own))  # noqa: SLF001
        # Only where it is asked for is each row made anew: most rows are prompts as they lie.
        has_single = self.has_processor and self.config.image_key not in rows.columns and "image" in rows.columns
        if has_single or self._format.name != "prompt-only":
            return self._prepared, str(self._format)
        # A text has another length than a conversation: what was measured of one says nothing of the other.
        return None, "" if self._format.style == "conversational" else str(self._format)

    def _prepared(self, row: Row) -> Row:
        key, image_key = self.config.prompt_key, self.config.image_key
        if self._builds_messages:
            return self._built(row, key)
        if self._format.name != "prompt-only":
            row = {**row, key: prompt_said(row, self._format, WHO)}
        if self.has_processor and image_key not in row and is_given(row.get("image")):
            row = dict(row)
            row |= {image_key: [row.pop("image")], key: with_images_first(row[key], 1)}
        return row

    @property
    def records_per_block(self) -> int:
        """So many items belong together: the copies of one prompt. A mixture keeps them side by side."""
        return self.config.repeat

    @property
    def source_identity(self) -> str:
        """What determines the items: the files' content, and which of their rows stay; a resume compares it."""
        return f"prompts {self.content}, rows {self._kept.digest}"

    @property
    def dropped(self) -> dict[str, int]:
        """How many rows did not stay, by reason: empty, overlong, media cut."""
        return dict(self._kept.dropped)

    def resume_dataset_state(self) -> None:
        """After unpickling, perhaps on another machine: read the original paths again.

        Raises:
            StateError: The files' content is not what it was.
        """
        rows = self._rows()
        if rows.digest != self.content:
            raise StateError(
                f"{WHO}: expected the files as they were, content {self.content}, got {rows.digest} in "
                f"{self.original_data_files}\n  Restore them, or begin a new run."
            )
        self._choose(rows)

    def __len__(self) -> int:
        return self._kept.size * self.config.repeat

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Make item `item`, in [-len, len).

        Raises:
            IndexError: There is no such item.
            ValueError: The row is not a prompt, or does not fit; its location is in a note.
        """
        return self._make(self._row_number(item))

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Make many; of the copies of one prompt, side by side, only the first is encoded."""
        end_worker_with_trainer()
        if type(self).__getitem__ is not RLHFDataset.__getitem__:  # a subclass's own, which knows single items
            return [self[item] for item in items]
        made: list[dict[str, Any]] = []
        before = None
        # A DataLoader asks for a batch at once. With `repeat` and no shuffle of its own, copies come side by side.
        for item in items:
            number = self._row_number(item)
            made.append(_copied(made[-1]) if number == before else self._make(number))
            before = number
        return made

    def row(self, item: int) -> Row:
        """The row of item `item`, in [-len, len), as it lies in its file.

        Raises:
            IndexError: There is no such item.
        """
        return self._reader.rows[self._row_number(item)]

    def __getstate__(self) -> dict[str, Any]:
        # Open files and a processor's rule are made again by whoever unpickles.
        return {key: value for key, value in self.__dict__.items() if key not in ("_numbers", "_rope")}

    @cached_property
    def _numbers(self) -> KeptNumbers | None:
        return None if self._kept.path is None else KeptNumbers(self._kept.path)

    @cached_property
    def _rope(self) -> RopeRule | None:
        return rope_rule(self._reader.processor)

    def _row_number(self, item: int) -> int:
        size = len(self)
        if not -size <= item < size:
            raise IndexError(f"{WHO}: item {item} of {size}")
        index = item % size // self.config.repeat  # `% size` turns negative items into positive ones
        return index if self._numbers is None else self._numbers[index]

    def _make(self, number: int) -> dict[str, Any]:
        try:
            row = self._reader.row(number)
            if self.config.mode == "raw":
                made: dict[str, Any] = {"raw_prompt": self._raw_chat(row, number)}
            else:
                made = self._tensors(self._reader.encode(row, number))
            self._complete(row, number)
        except Exception as error:
            error.add_note(f"  at {self._reader.rows.location(number)}")
            raise
        row.update(made)
        return row

    def _complete(self, row: Row, number: int) -> None:
        """Remove the prompt's columns from a row, and add the keys that every item has."""
        config = self.config
        for key in self._inputs:
            if key != config.prompt_key or config.mode != "raw":  # what verl reads of it beside raw_prompt, it finds
                row.pop(key, None)
        row["extra_info"] = extra = row.get("extra_info") or {}
        if not isinstance(extra, dict):
            raise ValueError(f"extra_info: expected a dict, got {shown(extra)}\n  Store a struct, not its text.")
        if "tools" in row:
            row["tools"] = read_tools(row["tools"])
        # Files of veRL have the index in extra_info; one without any falls back to the row's number.
        index = row.get("index") if extra.get("index") is None else extra["index"]
        row["index"] = number if index is None else index
        for name in _KWARGS:
            given = extra.get(name)
            row[name] = without_nulls(given) if given else {}
        needs = extra.get("need_tools_kwargs")
        if (config.need_tools_kwargs if needs is None else needs) and not row["tools_kwargs"]:
            logger.warning("%s: no tools_kwargs at %s", WHO, one_line(self._reader.rows.location(number)))
        row["uid"] = self._reader.rows.uid(number)

    def _raw_chat(self, row: Row, number: int) -> list[Message] | str:
        """The messages, with the opened media in their parts, or the text."""
        chat = self._reader.chat(row)
        if not chat.messages:
            return str(row[self.config.prompt_key])
        media = iter(self._reader.media(chat, number))
        for part in typed_parts(chat.messages):
            if part.get("type") in MEDIA_KINDS:
                part[part["type"]] = next(media)
        return chat.messages

    def _tensors(self, prompt: Prompt) -> dict[str, Any]:
        config = self.config
        limit = config.max_prompt_length
        encoder = self._reader.encoder
        fitted = fit(prompt.encoded, prompt.media, encoder, limit, config.truncation, config.truncation_media)
        made = {
            "input_ids": _padded(fitted.input_ids, limit, self._reader.tokenizer.pad_token_id),
            "attention_mask": _padded(np.ones_like(fitted.input_ids), limit, 0),
            "position_ids": self._positions(fitted),
            "raw_prompt_ids": fitted.raw_ids.tolist(),
        }
        if config.return_raw_chat:
            made["raw_prompt"] = prompt.chat.messages or prompt.encoded.text
        if config.return_full_prompt:
            made["full_prompts"] = prompt.encoded.text
        if self._reader.processor is not None:
            made["multi_modal_data"] = media_by_kind(fitted.kinds, fitted.media)
            made["mm_token_type_ids"] = _padded(encoder.media_types(fitted.input_ids), limit, 0)
            if config.return_multi_modal_inputs:
                made["multi_modal_inputs"] = training_features(fitted.features)
        return made

    def _positions(self, fitted: Fitted) -> torch.Tensor:
        limit = self.config.max_prompt_length
        numbers = np.arange(len(fitted.input_ids))
        if self._rope is None:
            return _padded(numbers, limit, 0)
        rows = self._rope.positions(fitted.input_ids, read_grids(fitted.kinds, fitted.features))
        if self.config.position_rows > len(rows):
            rows = np.concatenate([numbers[None], rows])
        return _padded(rows, limit, 1)  # 1 as Qwen2-VL's get_rope_index


def _with_samples(config: PromptConfig, max_samples: int) -> PromptConfig:
    if max_samples in (-1, config.max_samples):
        return config
    if config.max_samples != -1:
        raise ValueError(
            f"{WHO}: expected one number of rows, got max_samples {max_samples} beside {config.max_samples} in the "
            "config\n  Leave one of them out."
        )
    return PromptConfig.read({**config.model_dump(exclude_unset=True), "max_samples": max_samples}, WHO)


def _padded(values: npt.NDArray[np.int64], length: int, padding: int) -> torch.Tensor:
    """A tensor of this length, padded on the left."""
    # In numpy: for so few numbers torch's `pad` takes longer than all the rest.
    padded = np.full((*values.shape[:-1], length), padding, dtype=np.int64)
    padded[..., length - values.shape[-1] :] = values
    return torch.from_numpy(padded)


def _copied(value: Any) -> Any:
    """A copy that shares no tensor, list or dict: a trainer may change one of the copies of a prompt."""
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_copied(part) for part in value]
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value
