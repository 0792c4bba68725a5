"""The settings of prompts: the config's keys, their defaults, and what is allowed."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streamdata.sources.prompts.settings import (
    check_at_least,
    check_choice,
    check_kinds,
    check_template_kwargs,
    read_settings,
    refused,
)
from streamdata.text.truncation import check_truncation

WHO: Final = "RLHFDataset"
MODES: Final = ("tensors", "raw")
TRUNCATIONS_OF_MEDIA: Final = ("error", "drop_sample", "drop_media")
_ELSEWHERE: Final = {
    "custom_cls": "a class of your own is the recipe's `target`: write it there instead of streamdata.RLHFDataset",
}


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """How rows become prompts.

    Attributes:
        prompt_key: The column of messages.
        image_key: The column of images.
        video_key: The column of videos.
        max_prompt_length: Tokens of a prompt; the length of its tensors.
        truncation: What stays of a longer prompt: left, right, middle, or error.
        truncation_media: What happens when a cut meets an image or video, which is whole or not at all: error,
            drop_sample (the row is dropped before training), drop_media (its tokens go, and its features).
        filter_overlong_prompts: Drop rows of more than `max_prompt_length` tokens, counted as they would be emitted.
        filter_overlong_prompts_workers: Processes that count; by default a quarter of the cores, at least one.
        filter_prompts: Drop rows whose messages say nothing.
        return_raw_chat: Emit the messages as `raw_prompt`.
        return_full_prompt: Emit the rendered text as `full_prompts`.
        return_multi_modal_inputs: Emit what the processor made of the media, not only the media.
        need_tools_kwargs: Warn of a row without tools_kwargs; a row's own `extra_info.need_tools_kwargs` goes first.
        chat_template_func: Renders instead of the template: `fn(messages, tools=…, **apply_chat_template_kwargs)`.
        apply_chat_template_kwargs: For the template; `add_generation_prompt` is True unless it says otherwise.
        tool_config_path: A YAML file of tools for all rows that bring none.
        mode: `tensors`, or `raw` for trainers that tokenize later.
        repeat: How often each prompt comes, one right after another.
        cache_dir: Of rows and lengths, see `FileCache`.
        use_shm: Read the rows from /dev/shm, see `ParquetRows`.
        max_samples: So many rows at most, before they are filtered; -1 for all.
        shuffle: Whether these are a random choice, or the first.
        seed: Of that choice; None counts as 0.
    """

    prompt_key: str = "prompt"
    image_key: str = "images"
    video_key: str = "videos"
    max_prompt_length: int = 1024
    truncation: str = "error"
    truncation_media: str = "error"
    filter_overlong_prompts: bool = True
    filter_overlong_prompts_workers: int = max(1, (os.cpu_count() or 1) // 4)
    filter_prompts: bool = True
    return_raw_chat: bool = False
    return_full_prompt: bool = False
    return_multi_modal_inputs: bool = True
    need_tools_kwargs: bool = False
    chat_template_func: Callable[..., str] | None = None
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_config_path: str | None = None
    mode: str = "tensors"
    repeat: int = 1
    cache_dir: str | None = None
    use_shm: bool = False
    max_samples: int = -1
    shuffle: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        check_kinds(self, WHO)
        check_truncation(self.truncation, WHO)
        check_choice(WHO, "truncation_media", self.truncation_media, TRUNCATIONS_OF_MEDIA)
        check_choice(WHO, "mode", self.mode, MODES)
        for name in ("max_prompt_length", "filter_overlong_prompts_workers", "repeat"):
            check_at_least(WHO, name, getattr(self, name), 1)
        check_at_least(WHO, "max_samples", self.max_samples, -1)
        if self.max_samples == 0:
            raise refused(WHO, "max_samples", "-1 for all rows, or a positive number", 0)
        if self.seed is not None:
            check_at_least(WHO, "seed", self.seed, 0)
        function = self.chat_template_func
        if function is not None and not callable(function):
            raise refused(WHO, "chat_template_func", "a function (in a recipe `target: module.function`)", function)
        check_template_kwargs(self.apply_chat_template_kwargs, WHO)
        add = self.apply_chat_template_kwargs.get("add_generation_prompt", True)
        if type(add) is not bool:
            raise refused(WHO, "apply_chat_template_kwargs.add_generation_prompt", "true or false", add)


def read_config(config: Any) -> PromptConfig:
    """The settings in a mapping, or in OmegaConf's DictConfig.

    Raises:
        ValueError: A key is unknown, or a value is not allowed.
    """
    return read_settings(PromptConfig, config, WHO, _ELSEWHERE)
