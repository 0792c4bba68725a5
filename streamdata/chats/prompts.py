"""Prompts for reinforcement learning: `rows that stay → messages → token ids → tensors → batches`."""

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch

from streamdata.chats.encoding import Encoder, Fitted, fit, media_by_kind, training_features
from streamdata.chats.lengths import choose_rows
from streamdata.chats.media import open_media
from streamdata.chats.prompt_reader import EncodedPrompt, PromptReader
from streamdata.chats.settings import WHO, PromptConfig
from streamdata.errors import SourceError, StateError, names_text, one_line, shown
from streamdata.io.file_cache import open_cached
from streamdata.io.remote.addresses import options_of_source
from streamdata.io.storage import LocalShard
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import RowFormat
from streamdata.text.messages import MEDIA_KINDS, Message, own_medium, read_chat, read_tools, typed_parts, without_nulls

logger = logging.getLogger("streamdata")
_KWARGS: Final = ("tools_kwargs", "interaction_kwargs")
_OURS: Final = frozenset({
    "input_ids", "attention_mask", "position_ids", "raw_prompt_ids", "raw_prompt", "full_prompts", "multi_modal_data",
    "multi_modal_inputs", "mm_token_type_ids", *_KWARGS, "uid",
})  # fmt: skip
_NUMBER_BYTES: Final = 8
_NEVER_CALLED: Final = ("_download", "_read_files_and_tokenize", "maybe_filter_out_long_prompts")


class RLHFDataset(NamedSource, torch.utils.data.Dataset[dict[str, Any]]):
    """Map-style dataset of prompts in parquet or JSON files: messages, texts, or ShareGPT's or Alpaca's rows.

    An item has the row's columns, except those of the prompt and its media, and

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
    - `uid`: 32 hexadecimal digits that depend only on the file's content and the row's number in it.

    In mode `raw` nothing is tokenized: an item has messages, with opened media in the typed parts, index, uid, kwargs
    and the row's columns except those of media; the prompt stays as the row has it.

    It pickles as paths and settings, and works in DataLoader workers of every start method. A subclass may override
    `__getitem__` and verl's hooks: `_build_messages`, for each row before it is measured, which then happens at each
    start, and before it is emitted; and `process_vision_info`.

    Args:
        data_files: Files of parquet, JSON Lines or JSON arrays, here or in a store: a path, glob, brace expression or
            directory, or a list of these, whose order they keep.
        tokenizer: A tokenizer of transformers, or a name or directory for its `AutoTokenizer`.
        config: A mapping or DictConfig with the keys of `PromptConfig`.
        processor: A processor of transformers, or a name or directory for its `AutoProcessor`; None for text alone.
        max_samples: Overrides the config's `max_samples` if it is not -1; verl's trainer passes it here.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        storage_options: Options of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), the longest line of JSON Lines allowed.

    Raises:
        ValueError: The config has an unknown key or a value that is not allowed, or a row is not a prompt.
        SourceError: No row is left after filtering, or a file does not hold rows.
        FileNotFoundError: A pattern matches nothing.
        ImportError: pyarrow is missing.

    Attributes:
        tokenizer: The tokenizer as given, perhaps a name.
        processor: The processor as given, perhaps a name; None for text alone.
        media_keys: The names of the columns of `image` and `video`.
    """

    _builds_messages: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a subclass with a method that verl's class would call, and this one does not."""
        super().__init_subclass__(**kwargs)
        if never := [name for name in _NEVER_CALLED if name in vars(cls)]:
            raise ValueError(
                f"{cls.__name__}: expected to override _build_messages, process_vision_info or __getitem__, got {never}"
                "\n  Rows are not read at once here, so that nothing calls these: choose rows by max_samples and the "
                "filters, or in the data."
            )
        cls._builds_messages = cls._build_messages is not RLHFDataset._build_messages

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
        self.config = PromptConfig.read(config, who)
        if max_samples not in (-1, self.config.max_samples):
            if self.config.max_samples != -1:
                raise ValueError(
                    f"{WHO}: expected one number of rows, got max_samples {max_samples} beside "
                    f"{self.config.max_samples} in the config\n  Leave one of them out."
                )
            given = self.config.model_dump(exclude_unset=True)
            self.config = PromptConfig.read({**given, "max_samples": max_samples}, WHO)
        self.original_data_files = data_files
        self.tokenizer, self.processor = tokenizer, processor
        self.media_keys = {"image": self.config.image_key, "video": self.config.video_key}
        rows = self._rows()
        self.content = rows.digest
        self._choose(rows)

    def _rows(self) -> ParquetRows:
        config = self.config
        return ParquetRows(self.original_data_files, config.cache_dir, config.use_shm, self._options, self._limits)

    def _choose(self, rows: ParquetRows) -> None:
        config = self.config
        # Otherwise a column would be overwritten without a word, or a trainer would take it for what it asked for.
        if taken := sorted(_OURS.intersection(rows.columns)):
            raise ValueError(
                f"{WHO}: expected columns with other names than those of its results, got {taken}\n"
                "  Rename them in the data."
            )
        encoder = Encoder(self.tokenizer, self.processor, config.mm_processor_kwargs, config.image_patch_size)
        if config.mode == "tensors":
            # What is wrong with tokenizer and processor is raised here rather than in a worker.
            _ = encoder.pad_token_id, encoder.placeholders
        first, key = rows[0] if len(rows) else {}, config.prompt_key
        native = RowFormat("prompt-only", "standard" if isinstance(first.get(key), str) else "conversational")
        is_named = self._builds_messages or key != "prompt"
        found = config.format_of(first, native, (key,), WHO, is_named=is_named)
        self._reader = PromptReader(rows, encoder, config, found, self._built if self._builds_messages else None)
        self._kept = choose_rows(self._reader)
        self.__dict__.pop("_numbers", None)  # it reads the file of the choice before

    def _built(self, row: Row) -> Row:
        """The row with the messages that `_build_messages` makes, in which its media are."""
        key = self.config.prompt_key
        takes_key = len(inspect.signature(self._build_messages).parameters) > 1
        # Called without a key as verl 0.6.1 does: a class written for it has no such argument.
        build: Any = self._build_messages
        # A copy: verl's own method takes the messages out of the row, and the item has the row's columns.
        messages = build(dict(row), key) if takes_key else build(dict(row))
        return {**row, key: messages, **dict.fromkeys(self.media_keys.values())}

    def _build_messages(self, example: Row, key: str) -> list[Message]:
        """Returns the messages of a row; with a processor in typed parts, each medium in its own, unopened.

        Args:
            example: The row; it may be changed.
            key: The column of messages.
        """
        chat = read_chat(example, key, self.media_keys, typed=self.processor is not None)
        media = iter(chat.media)
        for part in typed_parts(chat.messages):
            if part.get("type") in MEDIA_KINDS:
                medium = next(media)
                part |= {medium.kind: medium.value, **(medium.options or {})}
        return chat.messages

    @classmethod
    async def process_vision_info(
        cls,
        messages: Sequence[Message],
        image_patch_size: int,
        config: Any,  # noqa: ARG003
    ) -> tuple[list[Any] | None, list[tuple[torch.Tensor, dict[str, Any]]] | None]:
        """Opens the media of messages; verl's agent loops call it.

        Args:
            messages: The messages of `raw_prompt`; media that are open already stay open.
            image_patch_size: The patch size of the processor.
            config: The section `data` of verl's config.

        Returns:
            Images, and videos with their metadata, uint8 (frames, 3, height, width); None where there are none.
        """
        media = [medium for part in typed_parts(messages) if (medium := own_medium(part))]
        opened = await asyncio.to_thread(open_media, media, "", image_patch_size)
        found = media_by_kind([medium.kind for medium in media], opened)
        videos = [(torch.from_numpy(video).permute(0, 3, 1, 2), video.metadata) for video in found.get("video", ())]
        return found.get("image"), videos or None

    @property
    def records_per_block(self) -> int:
        """The number of consecutive items that are copies of one prompt. A mixture keeps them together."""
        return self.config.repeat

    @property
    def source_identity(self) -> str:
        """Hashes that identify the items: of the files' content, and of the selection of rows."""
        return f"prompts {self.content}, rows {self._kept.digest}"

    @property
    def dropped(self) -> dict[str, int]:
        """The number of filtered rows by reason: empty, overlong, media cut."""
        return dict(self._kept.dropped)

    def resume_dataset_state(self) -> None:
        """Reopens the original paths after unpickling, perhaps on another machine.

        Raises:
            StateError: The files' content has changed.
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
        """Makes item `item`, in [-len, len).

        Raises:
            IndexError: There is no such item.
            ValueError: The row is not a prompt, or does not fit; its location is in a note.
        """
        return self._make(self._row_number(item))

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Makes many; of the copies of one prompt, side by side, only the first is encoded."""
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
        """Returns the stored row of item `item`, in [-len, len), unprocessed.

        Raises:
            IndexError: The item does not exist.
        """
        return self._reader.rows[self._row_number(item)]

    def __getstate__(self) -> dict[str, Any]:
        # Whoever unpickles it opens files anew.
        return {key: value for key, value in self.__dict__.items() if key != "_numbers"}

    @cached_property
    def _numbers(self) -> LocalShard | None:
        return None if self._kept.path is None else open_cached(self._kept.path)

    def _row_number(self, item: int) -> int:
        size = len(self)
        if not -size <= item < size:
            raise IndexError(f"{WHO}: item {item} of {size}")
        index = item % size // self.config.repeat  # `% size` turns negative items into positive ones
        if self._numbers is None:
            return index
        # Read where it lies: in each worker's heap, numbers would grow with the data.
        content = self._numbers.read(_NUMBER_BYTES, _NUMBER_BYTES * index)
        if len(content) < _NUMBER_BYTES:
            raise SourceError(
                f"'{self._numbers.url}': expected the number of row {index} that stays, got a file that ends before "
                "it\n  Start again: that makes the file again."
            )
        return int.from_bytes(content, "little", signed=True)

    def _make(self, number: int) -> dict[str, Any]:
        try:
            row = self._reader.row(number)
            if self.config.mode == "raw":
                chat = self._reader.chat(row)
                media = iter(self._reader.media(chat, number))
                for part in typed_parts(chat.messages):
                    if part.get("type") in MEDIA_KINDS:
                        part[part["type"]] = next(media)
                made: dict[str, Any] = {"raw_prompt": chat.messages or str(row[self.config.prompt_key])}
            else:
                made = self._tensors(self._reader.encode(row, number))
            self._complete(row, number)
        except Exception as error:
            error.add_note(f"  at {self._reader.rows.location(number)}")
            raise
        row.update(made)
        return row

    def _complete(self, row: Row, number: int) -> None:
        """Removes the prompt's columns from a row, and adds the keys that every item has."""
        config = self.config
        for key in (config.prompt_key, *self.media_keys.values()):
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

    def _tensors(self, prompt: EncodedPrompt) -> dict[str, Any]:
        config = self.config
        limit = config.max_prompt_length
        encoder = self._reader.encoder
        fitted = fit(prompt.encoded, prompt.media, encoder, limit, config.truncation, config.truncation_media)
        made = {
            "input_ids": _padded(fitted.input_ids, limit, encoder.pad_token_id),
            "attention_mask": _padded(np.ones_like(fitted.input_ids), limit, 0),
            "position_ids": self._positions(fitted),
            "raw_prompt_ids": fitted.raw_ids.tolist(),
        }
        if config.return_raw_chat:
            made["raw_prompt"] = prompt.chat.messages or prompt.encoded.text
        if config.return_full_prompt:
            made["full_prompts"] = prompt.encoded.text
        if self.processor is not None:
            made["multi_modal_data"] = media_by_kind(fitted.kinds, fitted.media)
            made["mm_token_type_ids"] = _padded(encoder.media_types(fitted.input_ids), limit, 0)
            if config.return_multi_modal_inputs:
                made["multi_modal_inputs"] = training_features(fitted.features)
        return made

    def _positions(self, fitted: Fitted) -> torch.Tensor:
        limit, numbers = self.config.max_prompt_length, np.arange(len(fitted.input_ids))
        rows = self._reader.encoder.rope_positions(fitted.input_ids, fitted.kinds, fitted.features)
        if rows is None:
            return _padded(numbers, limit, 0)
        if self.config.position_rows > len(rows):
            rows = np.concatenate([numbers[None], rows])
        return _padded(rows, limit, 1)  # 1 as Qwen2-VL's get_rope_index


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


def prompt_collate(data_list: Sequence[Mapping[str, Any]], fill: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Collates samples into one dict: tensors of equal shape and dtype are stacked, other values become object arrays.

    Args:
        data_list: The samples.
        fill: Keys that a sample may lack, with the value used instead.

    Returns:
        For each key a tensor (batch, …) or an array of objects (batch,); row i belongs to sample i.

    Raises:
        ValueError: The batch is empty, or a sample lacks a key that another has and `fill` does not name.
    """
    if not data_list:
        raise ValueError("prompt_collate: expected at least one sample, got none\n  Drop empty batches.")
    keys = dict.fromkeys(key for sample in data_list for key in sample)
    samples = [{**(fill or {}), **sample} for sample in data_list]
    for number, sample in enumerate(samples):
        if missing := [key for key in keys if key not in sample]:
            raise ValueError(
                f"prompt_collate: expected the key {shown(missing[0])} in every sample, got sample {number} without "
                f"it; it has {names_text(data_list[number])}\n  Give such rows the column, or say what they have "
                f"instead: fill={{{shown(missing[0])}: …}}."
            )
    return {key: _column([sample[key] for sample in samples]) for key in keys}


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, torch.Tensor) for value in values):
        # Tensors of other shapes (pixel values of another image size) go on as they are; the trainer joins them itself.
        kinds = {(value.shape, value.dtype) for value in values}
        if len(kinds) == 1:
            return torch.stack(values)
    column = np.empty(len(values), dtype=object)
    # One by one: given all at once, numpy would make a matrix of lists of one length.
    for number, value in enumerate(values):
        column[number] = value
    return column


collate_fn = prompt_collate
"""The name that verl has for it."""
