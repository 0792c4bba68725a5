"""The settings of prompts: the config's keys, their defaults, and what is allowed."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from streamdata.recipe.places import did_you_mean, listing
from streamdata.text.truncation import check_truncation

WHO: Final = "RLHFDataset"
MODES: Final = ("tensors", "raw")
TRUNCATIONS_OF_MEDIA: Final = ("error", "drop_sample", "drop_media")
_ELSEWHERE: Final = {
    "custom_cls": "a class of your own is the recipe's `target`: write it there instead of streamdata.RLHFDataset",
}

_NOT_OF_THE_TEMPLATE: Final = {
    "tokenize",
    "return_dict",
    "return_tensors",
    "padding",
    "truncation",
    "max_length",
    "tools",
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
        cache_dir: Of rows and lengths, see `Cache`.
        use_shm: Read the rows from /dev/shm, see `Rows`.
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
        check_truncation(self.truncation, WHO)
        _check_choice("truncation_media", self.truncation_media, TRUNCATIONS_OF_MEDIA)
        _check_choice("mode", self.mode, MODES)
        for name in ("max_prompt_length", "filter_overlong_prompts_workers", "repeat"):
            _check_at_least(name, getattr(self, name), 1)
        _check_at_least("max_samples", self.max_samples, -1)
        if self.max_samples == 0:
            raise _refused("max_samples", "-1 for all rows, or a positive number", 0)
        if self.seed is not None:
            _check_at_least("seed", self.seed, 0)
        _check_template_kwargs(self.apply_chat_template_kwargs)
        for setting in fields(self):
            _check_plain_type(setting.name, setting.type, getattr(self, setting.name))


def read_config(config: Any) -> PromptConfig:
    """The settings in a mapping, or in OmegaConf's DictConfig.

    Raises:
        ValueError: A key is unknown, or a value is not allowed.
    """
    if isinstance(config, PromptConfig):
        return config
    given = _as_dict(config)
    known = [setting.name for setting in fields(PromptConfig)]
    unknown = [key for key in given if key not in known]
    if unknown:
        hints = "; ".join(f"{key!r}{_hint(key, known)}" for key in unknown)
        raise ValueError(f"{WHO}: expected keys that it knows, got {hints}\n  It knows {listing(known)}.")
    # A null in YAML means the default, as for a key that is not there.
    return PromptConfig(**{key: value for key, value in given.items() if value is not None})


def _as_dict(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True)
    if not isinstance(config, Mapping):
        raise ValueError(f"{WHO}: expected a mapping as config, got {config!r}\n  Write its keys below `config:`.")
    return dict(config)


def _hint(key: str, known: list[str]) -> str:
    return f" ({_ELSEWHERE[key]})" if key in _ELSEWHERE else did_you_mean(str(key), known)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _refused(name, f"one of {', '.join(choices)}", value, did_you_mean(str(value), choices))


def _check_at_least(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise _refused(name, f"a whole number of at least {least}", value)


def _check_plain_type(name: str, annotation: Any, value: Any) -> None:
    """Flags must be flags and names names: YAML's "no" or a number is easily written for one."""
    if annotation in (bool, str) and type(value) is not annotation:
        raise _refused(name, "true or false" if annotation is bool else "a text", value)
    if name == "chat_template_func" and not (value is None or callable(value)):
        raise _refused(name, "a function (in a recipe `target: module.function`)", value)


def _check_template_kwargs(kwargs: Any) -> None:
    if not isinstance(kwargs, Mapping):
        raise _refused("apply_chat_template_kwargs", "a mapping", kwargs)
    if ours := sorted(kwargs.keys() & _NOT_OF_THE_TEMPLATE):
        raise _refused("apply_chat_template_kwargs", "what the template takes", ours)


def _refused(name: str, expected: str, got: Any, hint: str = "") -> ValueError:
    return ValueError(f"{WHO}: expected {expected} as {name}, got {got!r}{hint}\n  Mend {name} in the config.")
