"""Settings of datasets of rows: `mapping or DictConfig → model, or all that is wrong with it at once`."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from streamdata.errors import did_you_mean, listing
from streamdata.text.truncation import Truncation

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
"""What pydantic's kinds of errors mean to somebody who writes YAML."""
_NOT_OF_THE_TEMPLATE: Final = {
    "continue_final_message", "conversation", "max_length", "messages", "padding", "processor_kwargs",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
}  # fmt: skip
"""What `apply_chat_template` takes for itself: no template would see it."""


class RowSettings(BaseModel):
    """What all datasets of rows have in common."""

    # Strict: YAML's "no" for a flag, or a number for a name, is a mistake that conversion would hide.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys that others would look for here, and what to do instead."""

    truncation: Truncation = "error"
    """What stays of a longer one: left, right, middle, or error."""
    apply_chat_template_kwargs: Mapping[Any, Any] = {}
    """Variables of the chat template."""
    cache_dir: str | None = None
    """Where rows and lengths are kept, see `FileCache`."""
    use_shm: bool = False
    """Whether to read the rows from /dev/shm, see `ParquetRows`."""

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
            raise ValueError(f"{who}: expected a mapping as config, got {config!r}\n  Write its keys below `config:`.")
        try:
            return cls.model_validate(config or {})
        except ValidationError as error:
            # Not `from error`: pydantic's own text names its error codes and this class, which no recipe does.
            raise ValueError("\n".join(cls._problems(error, who))) from None

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
        if others := [key for key in kwargs if not isinstance(key, str) or key in _NOT_OF_THE_TEMPLATE]:
            raise PydanticCustomError("not_variables", "what the template takes, not {others},", {"others": others})
        return kwargs

    @classmethod
    def _problems(cls, error: ValidationError, who: str) -> Iterator[str]:
        details = error.errors(include_url=False)
        if unknown := [str(detail["loc"][0]) for detail in details if detail["type"] == "extra_forbidden"]:
            hints = "; ".join(f"{key!r}{cls._hint(key)}" for key in unknown)
            yield f"{who}: expected keys that it knows, got {hints}\n  It knows {listing(cls.model_fields)}."
        for detail in details:
            if detail["type"] != "extra_forbidden":
                yield f"{who}: expected {cls._sentence(detail)}"

    @classmethod
    def _hint(cls, key: str) -> str:
        return f" ({cls.elsewhere[key]})" if key in cls.elsewhere else did_you_mean(key, cls.model_fields)

    @classmethod
    def _sentence(cls, detail: ErrorDetails) -> str:
        name, got = str(detail["loc"][0]), detail["input"]
        least = next((rule.ge for rule in cls.model_fields[name].metadata if hasattr(rule, "ge")), None)
        choices = detail.get("ctx", {}).get("expected", "").split("'")[1::2]
        known = _EXPECTED.get(detail["type"])  # other texts are ready, and braces in them are the user's
        expected = detail["msg"] if known is None else known.format(ge=least, choices=", ".join(choices))
        return f"{expected} as {name}, got {got!r}{did_you_mean(str(got), choices)}\n  Mend {name} in the config."
