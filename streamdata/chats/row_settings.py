"""Settings of datasets of rows: `mapping or DictConfig → model, or all that is wrong with it at once`."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from streamdata.errors import did_you_mean, listing, names_text, shown
from streamdata.text.formats import RowFormat, fitting, recognise
from streamdata.text.templates import not_variables
from streamdata.text.truncation import Truncation

logger = logging.getLogger("streamdata")
_NEAR: Final = 0.8
"""How alike an unknown key and a known one are (by difflib) where it is a slip, and not a key of somebody else's."""
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


class RowSettings(BaseModel):
    """What all datasets of rows have in common."""

    # Strict: YAML's "no" for a flag, or a number for a name, is a mistake that conversion would hide.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys that others would look for here, and what to do instead."""
    trainer_keys: ClassVar[Mapping[str, frozenset[str]]] = {}
    """By version, the keys of a trainer whose settings stand in the same section; without any, no other key may."""

    format: str = "auto"
    """What rows are: `auto` for what their fields say, or a name of `streamdata.text.formats`."""
    truncation: Truncation = "error"
    """What stays of a longer one: left, right, middle, or error."""
    apply_chat_template_kwargs: Mapping[Any, Any] = {}
    """Variables of the chat template; those of a row's column `chat_template_kwargs` go before them."""
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
            raise ValueError(
                f"{who}: expected a mapping as config, got {shown(config)}\n  Write its keys below `config:`."
            )
        given = cls._without_foreign(config or {}, who)
        problems = list(cls.trainer_problems(config or {}, who))
        try:
            settings = cls.model_validate(given)
        except ValidationError as error:
            problems += cls._problems(error, who)
        if problems:
            # Not from pydantic's error: its text names its own codes and this class, which no recipe does.
            raise ValueError("\n".join(problems))
        return settings

    def format_of(self, row: Mapping[str, Any], named: RowFormat | None, who: str) -> RowFormat:
        """The format of the rows, which is said in the log.

        Args:
            row: The first.
            named: What it is by the fields that the settings name, if it has them.
            who: The dataset's class.

        Raises:
            ValueError: No format fits the row, or several do.
        """
        asked, choices = self.format, self._formats()
        if not row:  # there are no rows
            return named or RowFormat(choices[0], "conversational")
        if asked != "auto":
            # Whoever names it has decided what a label is for.
            found = named if named and named.name == asked else recognise(_without_label(row, asked), (asked,), who)
        elif named and ("format" not in self.model_fields_set or len(fitting(row, choices)) < 2):  # noqa: PLR2004
            # Where nobody asked, rows stay what they were before others than these were known.
            found = named
        else:
            found = recognise(row, choices, who)
        logger.info("%s: recognised as %s", who, found)
        return found

    def is_another(self, row: Mapping[str, Any], *columns: str) -> bool:
        """Whether these columns hold nothing in a row that other fields give a format."""
        return all(row.get(column) is None for column in columns) and bool(fitting(row, self._formats()))

    @classmethod
    def _formats(cls) -> tuple[str, ...]:
        return get_args(cls.model_fields["format"].annotation)[1:]

    @classmethod
    def trainer_problems(cls, config: Mapping[Any, Any], who: str) -> Iterator[str]:  # noqa: ARG003  # for others
        """What a trainer's keys ask for that these datasets cannot do."""
        yield from ()

    @classmethod
    def _without_foreign(cls, config: Mapping[Any, Any], who: str) -> dict[Any, Any]:
        """The keys that are ours, and those that are probably meant to be."""
        if not cls.trainer_keys:
            return dict(config)
        # Near ones stay, and are refused with the rest: a setting that is misspelt would be its default, silently.
        others = {key for key in map(str, config) if key not in cls.model_fields}
        theirs = others & frozenset().union(*cls.trainer_keys.values())
        foreign = {key for key in others - theirs if not cls._nearest(key)}
        if foreign:
            logger.warning("%s: ignores the keys %s, which neither it nor its trainer knows", who, names_text(foreign))
        return {key: value for key, value in config.items() if str(key) not in theirs | foreign}

    @classmethod
    def _nearest(cls, key: str) -> list[str]:
        known = {*cls.model_fields, *cls.elsewhere}.union(*cls.trainer_keys.values())
        return get_close_matches(key, sorted(known), n=1, cutoff=_NEAR)

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
            hints = "; ".join(f"{shown(key)}{cls._hint(key)}" for key in unknown)
            yield f"{who}: expected keys that it knows, got {hints}\n  It knows {listing(cls.model_fields)}."
        for detail in details:
            if detail["type"] != "extra_forbidden":
                yield f"{who}: expected {cls._sentence(detail)}"

    @classmethod
    def _hint(cls, key: str) -> str:
        if key in cls.elsewhere:
            return f" ({cls.elsewhere[key]})"
        return did_you_mean(key, cls._nearest(key) or cls.model_fields)

    @classmethod
    def _sentence(cls, detail: ErrorDetails) -> str:
        name, got = str(detail["loc"][0]), detail["input"]
        least = next((rule.ge for rule in cls.model_fields[name].metadata if hasattr(rule, "ge")), None)
        choices = [choice.strip("'") for choice in re.split(", | or ", detail.get("ctx", {}).get("expected", ""))]
        known = _EXPECTED.get(detail["type"])  # other texts are ready, and braces in them are the user's
        expected = detail["msg"] if known is None else known.format(ge=least, choices=", ".join(choices))
        return f"{expected} as {name}, got {shown(got)}{did_you_mean(str(got), choices)}\n  Mend {name} in the config."


def _without_label(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return {**row, "label": None} if name == "prompt-completion" else row
