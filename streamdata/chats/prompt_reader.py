"""From a row's number to its encoded prompt: what measures and what emits both ask here, so that they agree."""

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from streamdata.chats.encoding import Encoded, Encoder, MediaCutError, fit, without_media
from streamdata.chats.settings import WHO, PromptConfig
from streamdata.shards.parquet.rows import ParquetRows
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.formats import RowFormat, prompt_said, text_in
from streamdata.text.messages import (
    MEDIA_KINDS,
    MediaChat,
    check_text_alone,
    is_empty,
    is_given,
    read_chat,
    read_tool_file,
    read_tools,
    with_images_first,
)
from streamdata.text.templates import ChatRenderer, row_template_kwargs
from streamdata.text.tokenizer import token_ids, tokenizer_digest

EMPTY: Final = -2
MEDIA_CUT: Final = -3
_PUBLISHED: Final = ("streamdata", "transformers")  # packages whose classes do the same at each start


class EncodedPrompt(NamedTuple):
    """A row on its way: its messages, its opened media, and their encoding."""

    chat: MediaChat
    media: list[Any]
    encoded: Encoded


class PromptReader:
    """Reads and encodes rows. It pickles as paths and settings, with tokenizer and processor as they were given.

    Args:
        rows: The rows; none is changed.
        encoder: Encodes their texts and media.
        config: The settings.
        found: The format of the rows.
        build: Makes the row that holds a prompt, where a class of one's own does.

    Raises:
        ValueError: The tools are invalid.
        OSError: There is no such file of tools.
    """

    def __init__(
        self,
        rows: ParquetRows,
        encoder: Encoder,
        config: PromptConfig,
        found: RowFormat,
        build: Callable[[Row], Row] | None = None,
    ) -> None:
        self.rows, self.encoder, self.config = rows, encoder, config
        self._format, self._build = found, build
        self._tools = read_tool_file(config.tool_config_path) if config.tool_config_path else None
        self._media_keys = {"image": config.image_key, "video": config.video_key}
        self._template_kwargs = {"add_generation_prompt": True, **config.apply_chat_template_kwargs}

    def row(self, index: int) -> Row:
        """Returns row `index`, as a prompt: other formats become one, and a single image in `image` a list."""
        row, key, image_key = self.rows[index], self.config.prompt_key, self.config.image_key
        if self._build is not None:
            return self._build(row)
        if self._format.name != "prompt-only":
            row[key] = prompt_said(row, self._format, WHO)
        # Asked of each row: files may differ in their columns.
        if self.encoder.has_processor and image_key not in row and is_given(row.get("image")):
            row |= {image_key: [row.pop("image")], key: with_images_first(row[key], 1)}
        return row

    def chat(self, row: Row) -> MediaChat:
        """Returns the messages of a row, none for a text, and its media unopened."""
        if self._format.style == "standard":
            check_text_alone(row, (), WHO)
            text_in(row, self.config.prompt_key, WHO)
            return MediaChat([], [])
        return read_chat(row, self.config.prompt_key, self._media_keys, typed=self.encoder.has_processor)

    def media(self, chat: MediaChat, index: int) -> list[Any]:
        """Returns the media of a row, opened; relative paths begin where its file lies."""
        file, _ = self.rows.locate(index)
        return self.encoder.open(chat.media, os.path.dirname(self.rows.files[file].path))

    def encode(self, row: Row, index: int) -> EncodedPrompt:
        """Encodes a row: the one function that does.

        Raises:
            ValueError: The row is not a prompt, or the template or processor cannot take it.
        """
        chat = self.chat(row)
        media = self.media(chat, index)
        if self._format.style == "standard":
            text = row[self.config.prompt_key]
            ids = token_ids(self.encoder.tokenizer, text, with_special_tokens=True)
            return EncodedPrompt(chat, media, without_media(text, ids))
        tools, kwargs = read_tools(row.get("tools")) or self._tools, dict(self._template_kwargs)
        if self.config.chat_template_func is not None:
            kwargs |= row_template_kwargs(row)
            text = self.config.chat_template_func(chat.messages, tools=tools, **kwargs)
        else:
            add = bool(kwargs.pop("add_generation_prompt"))
            owner = self.encoder.processor or self.encoder.tokenizer
            renderer = self.encoder.for_variables(
                row, lambda variables: ChatRenderer(owner, template_kwargs={**kwargs, **variables})
            )
            text = renderer.render(chat.messages, tools=tools, add_generation_prompt=add)
        return EncodedPrompt(chat, media, self.encoder.encode(text, [medium.kind for medium in chat.media], media))

    def measure(self, index: int) -> int:
        """Returns how many tokens row `index` has when it is emitted, before it is cut; or EMPTY, or MEDIA_CUT.

        Raises:
            Exception: See `encode`; the row's location is in a note.
        """
        config = self.config
        try:
            row = self.row(index)
            if config.filter_prompts and is_empty(row, config.prompt_key):
                return EMPTY
            if not self.measures_tokens:
                return 0  # any length that is not negative: the row stays
            prompt = self.encode(row, index)
            if self._drops_samples:
                # "error", since drop_sample drops exactly those rows for which that raises.
                fit(prompt.encoded, prompt.media, self.encoder, config.max_prompt_length, config.truncation, "error")
            return len(prompt.encoded.input_ids)
        except MediaCutError:
            return MEDIA_CUT
        except Exception as error:  # a template or processor may raise anything
            error.add_note(f"  at {self.rows.location(index)}")
            raise

    @property
    def measures_tokens(self) -> bool:
        """Whether tokens matter for which rows stay, beside whether there are any."""
        return self.config.filter_overlong_prompts or self._drops_samples

    @property
    def _drops_samples(self) -> bool:
        config = self.config
        # A prompt that is too long is gone anyway where the filter drops it, and an error where that is asked for.
        cuts = not config.filter_overlong_prompts and config.truncation != "error"
        return cuts and config.truncation_media == "drop_sample" and self.encoder.has_processor

    def own_code(self) -> list[str]:
        """Returns the names of the user's functions and classes that lengths depend on: their code may change."""
        found = [] if self._build is None else ["_build_messages"]
        if self.measures_tokens:
            if self.config.chat_template_func is not None:
                found.append("chat_template_func")
            processor = self.encoder.processor
            parts = [getattr(processor, f"{kind}_processor", None) for kind in MEDIA_KINDS]
            kinds = [type(part) for part in (self.encoder.tokenizer, processor, *parts) if part is not None]
            found += [kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] not in _PUBLISHED]
        return found

    def policy(self) -> str:
        """Returns a hash of all that lengths depend on beside the file: tokenizer, processor, settings.

        Of `own_code` it says nothing.
        """
        config, has_processor = self.config, self.encoder.has_processor
        # Not the limit itself, where it cuts nothing: the same lengths serve every limit.
        parts: dict[str, Any] = {
            "filter_prompts": config.filter_prompts,
            "prompt_key": config.prompt_key,
            "format": self._format,
        }
        if self.measures_tokens:
            parts |= {
                "tokenizer": tokenizer_digest(self.encoder.tokenizer),
                "processor": tokenizer_digest(self.encoder.processor) if has_processor else None,
                "template_kwargs": self._template_kwargs,
                "tools": self._tools,
                "media_keys": self._media_keys if has_processor else None,
                "cut": (config.max_prompt_length, config.truncation) if self._drops_samples else None,
                "image_patch_size": config.image_patch_size,
                "mm_processor_kwargs": config.mm_processor_kwargs,
            }
        text = json.dumps(parts, sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
