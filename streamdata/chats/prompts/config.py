"""The settings of prompts: the config's keys, their defaults, and what is allowed."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from streamdata.chats.prompts.verl_keys import VERL_KEYS
from streamdata.chats.row_settings import RowSettings
from streamdata.errors import shown

WHO: Final = "RLHFDataset"


class PromptConfig(RowSettings):
    """How rows become prompts. verl's whole section `data` is welcome: the keys of its trainer are passed over."""

    trainer_keys: ClassVar = VERL_KEYS

    format: Literal["auto", "prompt-only", "sharegpt", "alpaca"] = "auto"
    """What rows are, see `streamdata.text.formats`; `auto` for what the fields of the first say."""
    prompt_key: str = "prompt"
    """The column of messages."""
    image_key: str = "images"
    """The column of images."""
    video_key: str = "videos"
    """The column of videos."""
    max_prompt_length: int = Field(1024, ge=1)
    """Tokens of a prompt; the length of its tensors."""
    truncation_media: Literal["error", "drop_sample", "drop_media"] = "error"
    """What happens when a cut meets an image or video, which is kept entirely or not at all: error, drop_sample (the
    row is dropped before training), drop_media (its tokens go, and its features)."""
    filter_overlong_prompts: bool = True
    """Drop rows of more than `max_prompt_length` tokens, counted as they would be emitted."""
    # A quarter: the ranks of one machine start at the same time, and tokenizers have threads of their own.
    filter_overlong_prompts_workers: int = Field(max(1, (os.cpu_count() or 1) // 4), ge=1)
    """Processes that count; by default a quarter of the cores, at least one."""
    filter_prompts: bool = True
    """Drop rows whose messages say nothing."""
    return_raw_chat: bool = False
    """Emit the messages as `raw_prompt`."""
    return_full_prompt: bool = False
    """Emit the rendered text as `full_prompts`."""
    image_patch_size: int | None = Field(None, ge=1)
    """Pixels of a patch's side, for media with sizes of their own; None for the processor's (14 if it has none)."""
    mm_processor_kwargs: Mapping[Any, Any] = {}
    """Further arguments of the processor, such as `videos_kwargs`."""
    position_rows: Literal[3, 4] = 3
    """Rows of multimodal rope positions: 3, or 4 with the numbers of the tokens first, as verl has them."""
    return_multi_modal_inputs: bool = True
    """Emit what the processor made of the media, not only the media."""
    need_tools_kwargs: bool = False
    """Warn of a row without tools_kwargs; a row's own `extra_info.need_tools_kwargs` goes first."""
    chat_template_func: Callable[..., str] | None = None
    """Renders instead of the template: `fn(messages, tools=…, **apply_chat_template_kwargs)`. Among these,
    `add_generation_prompt` is True unless it is given."""
    tool_config_path: str | None = None
    """A YAML file of tools for all rows that bring none."""
    mode: Literal["tensors", "raw"] = "tensors"
    """`tensors`, or `raw` for trainers that tokenize later."""
    repeat: int = Field(1, ge=1)
    """How often each prompt comes, one right after another."""
    max_samples: int = Field(-1, ge=-1)
    """The most rows to take, before they are filtered; -1 for all."""
    shuffle: bool = False
    """Whether these are a random choice, in its order, or the first."""
    seed: int | None = Field(None, ge=0)
    """Of that choice; None counts as 0."""

    @classmethod
    def trainer_problems(cls, config: Mapping[Any, Any], who: str) -> Iterator[str]:
        """A class or tools that this dataset would not load."""
        custom = config.get("custom_cls") or {}
        # verl's trainer has loaded the class already, and this is it; in a recipe nobody would.
        if not isinstance(custom, Mapping):
            yield f"{who}: expected custom_cls to be a mapping of path and name, got {shown(custom)}\n  Leave it out."
        elif custom.get("path") is not None and custom.get("name") != who:
            yield (
                f"{who}: expected custom_cls to name {who}, got {shown(custom.get('name'))}\n"
                "  A class of your own is the recipe's `target`: write it there instead of streamdata.RLHFDataset."
            )
        if config.get("function_tool_path") is not None:
            yield (
                f"{who}: expected tools as schemas, got function_tool_path {shown(config['function_tool_path'])}\n"
                "  Write their schemas to a file, and name it as tool_config_path."
            )

    @field_validator("max_samples")
    @classmethod
    def _some_rows(cls, max_samples: int) -> int:
        if max_samples == 0:
            raise PydanticCustomError("no_rows", "-1 for all rows, or a positive number")
        return max_samples

    @field_validator("apply_chat_template_kwargs")
    @classmethod
    def _flag(cls, kwargs: Mapping[Any, Any]) -> Mapping[Any, Any]:
        # Of prompts alone: where answers are trained, the variable is refused whatever its value.
        if type(kwargs.get("add_generation_prompt", True)) is not bool:
            raise PydanticCustomError("not_a_flag", "a mapping whose add_generation_prompt is true or false")
        return kwargs
