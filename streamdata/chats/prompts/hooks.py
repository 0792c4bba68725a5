"""What a class of one's own may override of `RLHFDataset`, by the names that verl has for it."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch

from streamdata.chats.prompts.media import open_media
from streamdata.shards.parquet.stored_rows import Row
from streamdata.text.messages import MEDIA_KINDS, Message, own_medium, read_chat, typed_parts

_NEVER_CALLED: Final = ("_download", "_read_files_and_tokenize", "maybe_filter_out_long_prompts")


class PromptHooks:
    """Hooks: `_build_messages` for each row, before it is measured and before it is emitted; `process_vision_info`.

    Attributes:
        media_keys: The columns of `image` and `video`.
        has_processor: Whether messages get typed parts.
    """

    media_keys: Mapping[str, str]
    has_processor: bool
    _builds_messages: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses what verl's class would call, and this one does not."""
        super().__init_subclass__(**kwargs)
        if never := [name for name in _NEVER_CALLED if name in vars(cls)]:
            raise ValueError(
                f"{cls.__name__}: expected to override _build_messages, process_vision_info or __getitem__, got {never}"
                "\n  Rows are not read at once here, so that nothing calls these: choose rows by max_samples and the "
                "filters, or in the data."
            )
        cls._builds_messages = cls._build_messages is not PromptHooks._build_messages

    def _build_messages(self, example: Row, key: str) -> list[Message]:
        """The messages of a row; with a processor in typed parts, each medium in its own, unopened.

        Args:
            example: The row; it may be changed.
            key: The column of messages.
        """
        chat = read_chat(example, key, self.media_keys, typed=self.has_processor)
        media = iter(chat.media)
        for part in typed_parts(chat.messages):
            if part.get("type") in MEDIA_KINDS:
                medium = next(media)
                part |= {medium.kind: medium.value, **(medium.options or {})}
        return chat.messages

    def _built(self, row: Row, key: str) -> Row:
        """The row with the messages that `_build_messages` makes, in which its media are."""
        takes_key = len(inspect.signature(self._build_messages).parameters) > 1
        # Called without a key as verl 0.6.1 does: a class written for it has no such argument.
        build: Any = self._build_messages
        # A copy: verl's own method takes the messages out of the row, and the item has the row's columns.
        messages = build(dict(row), key) if takes_key else build(dict(row))
        return {**row, key: messages, **dict.fromkeys(self.media_keys.values())}

    @classmethod
    async def process_vision_info(
        cls,
        messages: Sequence[Message],
        image_patch_size: int,
        config: Any,  # noqa: ARG003
    ) -> tuple[list[Any] | None, list[tuple[torch.Tensor, dict[str, Any]]] | None]:
        """Open the media of messages, as verl's agent loops ask for it.

        Args:
            messages: Of `raw_prompt`; media that are opened already stay so.
            image_patch_size: Of the processor.
            config: verl's section `data`.

        Returns:
            Images, and videos with their metadata, uint8 (frames, 3, height, width); None where there are none.
        """
        return await asyncio.to_thread(_opened, messages, image_patch_size)


def _opened(messages: Sequence[Message], patch_size: int) -> tuple[list[Any] | None, list[Any] | None]:
    media = [medium for part in typed_parts(messages) if (medium := own_medium(part))]
    opened = open_media(media, "", patch_size)
    images = [value for medium, value in zip(media, opened, strict=True) if medium.kind == "image"]
    videos = [
        (torch.from_numpy(value).permute(0, 3, 1, 2), value.metadata)
        for medium, value in zip(media, opened, strict=True)
        if medium.kind == "video"
    ]
    return images or None, videos or None
