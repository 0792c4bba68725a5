"""Settings of datasets of rows, and those of prompts: `mapping or DictConfig → model, or all its errors at once`."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from streamdata.errors import did_you_mean, listing, names_text, shown
from streamdata.text.formats import RowFormat, fitting, recognise
from streamdata.text.templates import not_variables
from streamdata.text.truncation import Truncation

logger = logging.getLogger("streamdata")
_NEAR: Final = 0.8
"""The least likeness (by difflib) of an unknown key to a known one that makes it a slip, not somebody else's key."""
_WHOLE_NUMBER: Final = "a whole number of at least {ge}"
_EXPECTED: Final = {
    "bool_type": "true or false",
    "callable_type": "a function (in a recipe `target: module.function`)",
    "dict_type": "a mapping",
    "greater_than_equal": _WHOLE_NUMBER,
    "int_type": _WHOLE_NUMBER,
    "literal_error": "one of {choices}",
    "string_type": "a text",
}
"""Pydantic's kinds of errors, in words for somebody who writes YAML."""


class RowSettings(BaseModel):
    """Settings that all datasets of rows have."""

    # Strict: YAML's "no" for a flag, or a number for a name, is a mistake that conversion would hide.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
    trainer_keys: ClassVar[frozenset[str]] = frozenset()
    """The keys of a trainer whose settings stand in the same section; without any, no other key may."""

    format: str = "auto"
    """The format of the rows, see `docs/guides/chats.md`; `auto` for what the fields of the first say."""
    truncation: Truncation = "error"
    """The part that a longer row loses: `left` its beginning, `right` its end, `middle` what is between; or `error`."""
    apply_chat_template_kwargs: Mapping[Any, Any] = {}
    """Variables of the chat template; those of a row's column `chat_template_kwargs` go before them."""
    cache_dir: str | None = None
    """The directory that keeps rows and lengths; by default `prompts` below STREAMDATA_CACHE or ~/.cache/streamdata."""
    use_shm: bool = False
    """Whether to keep the rows in /dev/shm instead, until the machine starts anew."""

    @classmethod
    def read(cls, config: Any, who: str) -> Self:
        """Read settings from a mapping, or from OmegaConf's DictConfig; settings of this class are returned unchanged.

        Args:
            config: What was given. A path stands for its text, and null for a default that cannot be null.
            who: The dataset's class, for errors.

        Raises:
            ValueError: Keys are unknown, or values are not allowed.
        """
        if isinstance(config, cls):
            return config
        if type(config).__module__.startswith("omegaconf"):
            from omegaconf import OmegaConf

            config = OmegaConf.to_container(config, resolve=True)
        if not isinstance(config, Mapping | None):
            raise ValueError(
                f"{who}: expected a mapping as config, got {shown(config)}\n  Write its keys below `config:`."
            )
        given = dict(config or {})
        problems = list(cls.trainer_problems(given, who))
        if cls.trainer_keys:
            # Near ones stay, and are refused with the rest: a setting that is misspelt would be its default, silently.
            others = {key for key in map(str, given) if key not in cls.model_fields}
            theirs = others & cls.trainer_keys
            foreign = {key for key in others - theirs if not cls._nearest(key)}
            if foreign:
                message = "%s: ignores the keys %s, which neither it nor its trainer knows"
                logger.warning(message, who, names_text(foreign))
            given = {key: value for key, value in given.items() if str(key) not in theirs | foreign}
        try:
            settings = cls.model_validate(given)
        except ValidationError as error:
            problems += cls._problems(error, who)
        if problems:
            # Not from pydantic's error: its text names its own codes and this class, which no recipe does.
            raise ValueError("\n".join(problems))
        return settings

    def format_of(
        self, row: Mapping[str, Any], native: RowFormat, columns: Sequence[str], who: str, *, is_named: bool
    ) -> RowFormat:
        """Recognises the format of the rows, and logs it.

        Args:
            row: The first; empty where there are no rows.
            native: The format of rows that hold messages in `columns`.
            columns: The columns that the settings name.
            who: The dataset's class.
            is_named: Whether the settings name other columns than by default.

        Raises:
            ValueError: No format fits the row, or several do.
        """
        if not row:
            return native
        asked, choices = self.format, get_args(type(self).model_fields["format"].annotation)[1:]
        fits = fitting(row, choices)
        # Prompts and answers may be texts; a text in the column of whole conversations is that row's fault alone.
        no_messages = () if native.name == "language-modeling" else str
        has_messages = any(column in row and not isinstance(row[column], no_messages) for column in columns)
        is_another = bool(fits) and all(row.get(column) is None for column in columns)
        is_native = is_named or (has_messages and not is_another)
        if asked != "auto":
            # Whoever names it has decided what a label is for.
            unlabelled = {**row, "label": None} if asked == "prompt-completion" else row
            found = native if is_native and native.name == asked else recognise(unlabelled, (asked,), who)
        elif is_native and ("format" not in self.model_fields_set or len(fits) < 2):  # noqa: PLR2004
            # Where nobody asked, rows stay what they were before others than these were known.
            found = native
        else:
            found = recognise(row, choices, who)
        logger.info("%s: recognised as %s", who, found)
        return found

    @classmethod
    def trainer_problems(cls, config: Mapping[Any, Any], who: str) -> Iterator[str]:  # noqa: ARG003  # for others
        """Yields errors about a trainer's keys that ask for what these datasets cannot do."""
        yield from ()

    @classmethod
    def _nearest(cls, key: str) -> list[str]:
        return get_close_matches(key, sorted({*cls.model_fields, *cls.trainer_keys}), n=1, cutoff=_NEAR)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        # A key that was written without a value is how YAML asks for the default; only where null is a value of its
        # own (a preference's `prompt_key`) does it stay. Unknown keys stay to be refused.
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {
            str(key): os.fspath(value) if isinstance(value, os.PathLike) else value
            for key, value in given.items()
            if value is not None or key in optional or key not in cls.model_fields
        }

    @field_validator("apply_chat_template_kwargs")
    @classmethod
    def _only_variables(cls, kwargs: Mapping[Any, Any]) -> Mapping[Any, Any]:
        if others := not_variables(kwargs):
            raise PydanticCustomError("not_variables", "what the template takes, not {others},", {"others": others})
        return kwargs

    @classmethod
    def _problems(cls, error: ValidationError, who: str) -> Iterator[str]:
        details = error.errors(include_url=False)
        if unknown := [str(detail["loc"][0]) for detail in details if detail["type"] == "extra_forbidden"]:
            near = {key: did_you_mean(key, cls._nearest(key) or cls.model_fields) for key in unknown}
            hints = "; ".join(f"{shown(key)}{hint}" for key, hint in near.items())
            yield f"{who}: expected keys that it knows, got {hints}\n  It knows {listing(cls.model_fields)}."
        for detail in details:
            if detail["type"] == "extra_forbidden":
                continue
            key, name, got = str(detail["loc"][0]), ".".join(map(str, detail["loc"])), detail["input"]
            least = next((rule.ge for rule in cls.model_fields[key].metadata if hasattr(rule, "ge")), None)
            choices = [choice.strip("'") for choice in re.split(", | or ", detail.get("ctx", {}).get("expected", ""))]
            known = _EXPECTED.get(detail["type"])  # other texts are ready, and braces in them are the user's
            expected = detail["msg"] if known is None else known.format(ge=least, choices=", ".join(choices))
            hint = did_you_mean(str(got), choices)
            yield f"{who}: expected {expected} as {name}, got {shown(got)}{hint}\n  Mend {name} in the config."


WHO: Final = "RLHFDataset"
# From `verl/trainer/config/data/legacy_data.yaml` of versions 0.6.1 and 0.9.1, and `verl/trainer` itself.
_VERL_KEYS: Final = frozenset({
    "audio_key", "custom_cls", "datagen", "dataloader_num_workers", "function_tool_path", "gen_batch_size",
    "max_response_length", "return_raw_input_ids", "reward_fn_key", "sampler", "tokenizer", "train_batch_size",
    "train_files", "train_max_samples", "trust_remote_code", "val_batch_size", "val_files", "val_max_samples",
    "validation_shuffle",
})  # fmt: skip
"""The keys of verl's section `data` that its trainer reads and a dataset need not know."""


class PromptConfig(RowSettings):
    """Settings of `RLHFDataset`. verl's whole section `data` is welcome: the keys of its trainer are passed over."""

    trainer_keys: ClassVar = _VERL_KEYS

    format: Literal["auto", "prompt-only", "sharegpt", "alpaca"] = "auto"
    """The format of the rows, see `docs/guides/chats.md`; `auto` for what the fields of the first say."""
    prompt_key: str = "prompt"
    """The column of messages."""
    image_key: str = "images"
    """The column of images."""
    video_key: str = "videos"
    """The column of videos."""
    max_prompt_length: int = Field(1024, ge=1)
    """Tokens of a prompt; the length of its tensors."""
    truncation_media: Literal["error", "drop_sample", "drop_media"] = "error"
    """The policy for a cut that meets an image or video, which is kept entirely or not at all: error, drop_sample (the
    row is dropped before training), drop_media (its tokens go, and its features)."""
    filter_overlong_prompts: bool = True
    """Drop rows of more than `max_prompt_length` tokens, counted as they would be emitted."""
    # A quarter: the ranks of one machine start at the same time, and tokenizers have threads of their own.
    filter_overlong_prompts_workers: int = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 4), ge=1)
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
    `add_generation_prompt` is True unless it is given. Lengths are then measured at each start, and not kept."""
    tool_config_path: str | None = None
    """A YAML file of tools for all rows that bring none."""
    mode: Literal["tensors", "raw"] = "tensors"
    """`tensors`, or `raw` for trainers that tokenize later."""
    repeat: int = Field(1, ge=1)
    """The number of copies of each prompt, one right after another."""
    max_samples: int = Field(-1, ge=-1)
    """The most rows to take, before they are filtered; -1 for all."""
    shuffle: bool = False
    """Whether these are a random choice, in its order, or the first."""
    seed: int | None = Field(None, ge=0)
    """The seed of that choice; None counts as 0."""

    @classmethod
    def trainer_problems(cls, config: Mapping[Any, Any], who: str) -> Iterator[str]:
        """Yields errors about a class or tools that this dataset would not load."""
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
    def _only_variables(cls, kwargs: Mapping[Any, Any]) -> Mapping[Any, Any]:
        # Of prompts alone: where answers are trained, this one is refused whatever its value.
        variables = dict(kwargs)
        if type(variables.pop("add_generation_prompt", True)) is not bool:
            raise PydanticCustomError("not_a_flag", "a mapping whose add_generation_prompt is true or false")
        super()._only_variables(variables)
        return kwargs
