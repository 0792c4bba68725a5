"""From a row's number to its encoded prompt: what measures and what emits both ask here, so that they agree."""

import hashlib
import io
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from streamdata.chats.prompts.config import WHO, PromptConfig
from streamdata.chats.prompts.encoding import Encoded, Encoder
from streamdata.chats.prompts.fitting import MediaCutError, fit
from streamdata.chats.prompts.media import open_media, patch_size_of
from streamdata.errors import shown, text_of
from streamdata.run.per_process import Recent
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import Style, text_alone
from streamdata.text.messages import MediaChat, is_empty, read_chat, read_tool_file, read_tools
from streamdata.text.templates import ChatRenderer, row_template_kwargs
from streamdata.text.tokenizer import as_tokenizer, load_without_code, tokenizer_digest

EMPTY: Final = -2
MEDIA_CUT: Final = -3


class Prompt(NamedTuple):
    """A row on its way: its messages, its opened media, and their encoding."""

    chat: MediaChat
    media: list[Any]
    encoded: Encoded


class PromptReader:
    """Encodes rows. It pickles as paths and settings, with tokenizer and processor as they were given.

    Args:
        rows: The rows; none is changed.
        tokenizer: Of transformers, or what its `AutoTokenizer` takes.
        processor: Of transformers, or what its `AutoProcessor` takes; None for text alone.
        config: The settings.
        prepare: Makes a prompt of a row that is none as it lies.
        prepared: What names `prepare` and all it does, since lengths depend on it.
        style: `standard` where prompts are texts, which no template renders.

    Raises:
        ValueError: The tokenizer has no pad token, or the tools are invalid.
        OSError: There is no such tokenizer, processor or file of tools.
    """

    def __init__(
        self,
        rows: ParquetRows,
        tokenizer: Any,
        processor: Any,
        config: PromptConfig,
        prepare: Callable[[Row], Row] | None = None,
        prepared: str = "",
        style: Style = "conversational",
    ) -> None:
        self.rows, self.config = rows, config
        self._prepare, self._prepared, self._style = prepare, prepared, style
        self._tokenizer, self._processor = tokenizer, processor
        self._tools = read_tool_file(config.tool_config_path) if config.tool_config_path else None
        self._media_keys = {"image": config.image_key, "video": config.video_key}
        self._template_kwargs = {"add_generation_prompt": True, **config.apply_chat_template_kwargs}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _LOADED}

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer itself."""
        return as_tokenizer(self._tokenizer)

    @cached_property
    def processor(self) -> Any:
        """The processor itself, if there is one."""
        if not isinstance(self._processor, str | os.PathLike):
            return self._processor
        # Imported here: who reads text alone does not wait for it.
        from transformers import AutoProcessor

        return load_without_code(AutoProcessor, self._processor)

    @cached_property
    def encoder(self) -> Encoder:
        """What encodes rendered texts."""
        return Encoder(self.tokenizer, self.processor, self.config.mm_processor_kwargs)

    @cached_property
    def _renderers(self) -> Recent[str, ChatRenderer]:
        """The template of the processor or tokenizer, by the variables that rows bring for it, as JSON."""
        return Recent(_RENDERERS)

    def _renderer(self, row_kwargs: str) -> ChatRenderer:
        kwargs = {key: value for key, value in self._template_kwargs.items() if key != "add_generation_prompt"}
        return ChatRenderer(self.processor or self.tokenizer, template_kwargs={**kwargs, **json.loads(row_kwargs)})

    def row(self, index: int) -> Row:
        """Row `index`, as a prompt."""
        row = self.rows[index]
        return row if self._prepare is None else self._prepare(row)

    # A processor as it was given, not loaded: whether there is one is all that matters for messages.
    def chat(self, row: Row) -> MediaChat:
        """The messages of a row, none for a text, and its media unopened."""
        if self._style == "standard":
            text_alone(row, self.config.prompt_key, WHO)
            return MediaChat([], [])
        return read_chat(row, self.config.prompt_key, self._media_keys, typed=self._processor is not None)

    def media(self, chat: MediaChat, index: int) -> list[Any]:
        """The media of a row, opened; relative paths begin where its file lies."""
        if not chat.media:
            return []
        file, _ = self.rows.locate(index)
        patch_size = self.config.image_patch_size or patch_size_of(self.processor)
        return open_media(chat.media, os.path.dirname(self.rows.files[file].path), patch_size)

    def encode(self, row: Row, index: int) -> Prompt:
        """The one function that encodes a row.

        Raises:
            ValueError: The row is not a prompt, or the template or processor cannot take it.
        """
        chat = self.chat(row)
        media = self.media(chat, index)
        if self._style == "standard":
            return Prompt(chat, media, self.encoder.encode_text(row[self.config.prompt_key]))
        text = self._render(chat, row)
        return Prompt(chat, media, self.encoder.encode(text, [medium.kind for medium in chat.media], media))

    def _render(self, chat: MediaChat, row: Row) -> str:
        """The text of a prompt, by the template or by the config's own function."""
        tools = read_tools(row.get("tools")) or self._tools
        row_kwargs = row_template_kwargs(row)
        kwargs = {**self._template_kwargs, **row_kwargs}
        if self.config.chat_template_func is not None:
            return self.config.chat_template_func(chat.messages, tools=tools, **kwargs)
        add = bool(kwargs["add_generation_prompt"])
        renderer = self._renderers.get(json.dumps(row_kwargs, sort_keys=True), self._renderer)
        return renderer.render(chat.messages, tools=tools, add_generation_prompt=add)

    def measure(self, index: int) -> int:
        """How many tokens row `index` has when it is emitted, before it is cut; or EMPTY, or MEDIA_CUT.

        Raises:
            Exception: As `encode`, with the row's location in a note.
        """
        try:
            return self._measured(index)
        except Exception as error:  # a template or processor may raise anything
            error.add_note(f"  at {self.rows.location(index)}")
            raise

    def _measured(self, index: int) -> int:
        row, config = self.row(index), self.config
        if config.filter_prompts and is_empty(row, config.prompt_key):
            return EMPTY
        if not self.measures_tokens:
            return 0  # any length that is not negative: the row stays
        prompt = self.encode(row, index)
        length = len(prompt.encoded.input_ids)
        return MEDIA_CUT if self._drops_samples and self._is_cut(prompt) else length

    @property
    def measures_tokens(self) -> bool:
        """Whether tokens matter for which rows stay, beside whether there are any."""
        return self.config.filter_overlong_prompts or self._drops_samples

    @property
    def _drops_samples(self) -> bool:
        config = self.config
        # A prompt that is too long is gone anyway where the filter drops it, and an error where that is asked for.
        cuts = not config.filter_overlong_prompts and config.truncation != "error"
        return cuts and config.truncation_media == "drop_sample" and self._processor is not None

    def _is_cut(self, prompt: Prompt) -> bool:
        config = self.config
        try:
            # "error", since drop_sample drops exactly those rows for which that raises.
            fit(prompt.encoded, prompt.media, self.encoder, config.max_prompt_length, config.truncation, "error")
        except MediaCutError:
            return True
        return False

    def policy(self) -> str:
        """A hash of all that lengths depend on, beside the file: tokenizer, processor, template and settings."""
        config = self.config
        # Not the limit itself, where it cuts nothing: the same lengths serve every limit.
        parts = {"filter_prompts": config.filter_prompts, "prompt_key": config.prompt_key}
        if self.measures_tokens:
            parts |= {
                "tokenizer": tokenizer_digest(self.tokenizer),
                "processor": tokenizer_digest(self.processor) if self.processor is not None else None,
                "template": _function_digest(config.chat_template_func),
                "template_kwargs": self._template_kwargs,
                "tools": self._tools,
                "media_keys": self._media_keys if self.processor is not None else None,
                "cut": (config.max_prompt_length, config.truncation) if self._drops_samples else None,
            }
            # Only where they are given: what was measured before there were such settings stays known.
            parts |= {key: value for key in _LATER if (value := getattr(config, key))}
        if self._prepared:
            parts["prepared"] = self._prepared
        text = json.dumps(parts, sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# Pickled they would be large, or fail: an encoder holds the tokenizer, a renderer compiled templates.
_LOADED: Final = ("tokenizer", "processor", "encoder", "_renderers")
"""What is made in each process when it is first used."""
_RENDERERS: Final = 16  # one for each of the template variables that rows bring
_LATER: Final = ("image_patch_size", "mm_processor_kwargs")
"""Settings that came later."""


def _function_digest(function: Any) -> str | None:
    """A hash that changes with a function's code, and with what an object holds that is called."""
    if function is None:
        return None
    # It is sent to processes that measure, and to workers. There the failure would be harder to read.
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ValueError(
            f"{WHO}: expected a chat_template_func that can be sent to other processes, got {shown(function)}: "
            f"{text_of(error)}\n"
            "  Define it at the top of a module."
        ) from error
    return content_digest(function)


def content_digest(value: Any) -> str:
    """A hash of what an object holds and its functions do."""
    content = io.BytesIO()
    _Content(content).dump(value)
    return hashlib.blake2b(content.getvalue(), digest_size=16).hexdigest()


class _Content(pickle.Pickler):
    """Writes functions as what they do, where pickle names them, and sets in an order; nobody reads it back."""

    def persistent_id(self, value: Any) -> Any:
        # Texts hash differently in each process, and with them the order of a set.
        return sorted(map(repr, value)) if isinstance(value, set | frozenset) else None

    def reducer_override(self, value: Any) -> Any:
        # What comes third is written last, when the value itself is known: it may lead back to it.
        if isinstance(value, FunctionType):
            return partial, (f"{value.__module__} {value.__qualname__} {_code(value.__code__)}",), _held(value)
        if isinstance(value, MethodType):
            return partial, (value.__func__,), value.__self__
        call = getattr(type(value), "__call__", None)  # noqa: B004  # not whether there is one: which
        if isinstance(call, FunctionType) and not isinstance(value, type):
            return partial, (call,), value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        return NotImplemented


def _code(code: CodeType) -> str:
    """What code does, as a text that is the same in each process."""
    # Not `repr(code)`, which has an address, nor marshal, which has line numbers: a comment above changes no length.
    return repr((code.co_code, code.co_names, code.co_varnames, [_const(value) for value in code.co_consts]))


def _const(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _held(function: FunctionType) -> list[Any]:
    """The values that a function was defined with: its defaults, and what a decorator gave it."""
    keywords = function.__kwdefaults__ or {}
    values = [*(function.__defaults__ or ()), *keywords, *keywords.values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            values.append(cell.cell_contents)
    return [value if _can_be_sent(value) else type(value).__qualname__ for value in values]


def _can_be_sent(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return True
    try:
        pickle.dumps(value)
    except Exception:  # an object may raise anything
        return False
    return True
