"""Settings of a dataset of rows: `mapping or DictConfig → dataclass`, each key known and each value of its kind."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar, get_args, get_origin

from streamdata.errors import did_you_mean, listing

_EXPECTED: Final = {bool: "true or false", str: "a text", str | None: "a text", Mapping: "a mapping"}
_NOT_OF_THE_TEMPLATE: Final = {
    "continue_final_message",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "processor_kwargs",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}
"""What `apply_chat_template` takes for itself: no template would see it."""

Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], config: Any, who: str, elsewhere: Mapping[str, str] | None = None) -> Settings:
    """Read settings from a mapping, or from OmegaConf's DictConfig; a path stands for its text.

    Null stands for the default where a setting cannot be None.

    Args:
        kind: The dataclass of the settings.
        config: What was given; settings of this kind stay as they are.
        who: The dataset's class, for errors.
        elsewhere: Keys that others would look for here, and what to do instead.

    Raises:
        ValueError: A key is unknown, or a value is not allowed.
    """
    if isinstance(config, kind):
        return config
    given = _as_mapping(config, who)
    known = [setting.name for setting in fields(kind)]  # type: ignore[arg-type]  # each kind is a dataclass
    elsewhere = elsewhere or {}
    if unknown := [key for key in given if key not in known]:
        hints = "; ".join(
            f"{key!r}" + (f" ({elsewhere[key]})" if key in elsewhere else did_you_mean(str(key), known))
            for key in unknown
        )
        raise ValueError(f"{who}: expected keys that it knows, got {hints}\n  It knows {listing(known)}.")
    optional = {setting.name for setting in fields(kind) if type(None) in get_args(setting.type)}  # type: ignore[arg-type]
    try:
        return kind(**{key: _as_text(value) for key, value in given.items() if value is not None or key in optional})
    except ValueError as error:
        error.add_note(f"  in the config of {who}")
        raise


def _as_mapping(config: Any, who: str) -> Mapping[str, Any]:
    if type(config).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True)
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"{who}: expected a mapping as config, got {config!r}\n  Write its keys below `config:`.")
    return config or {}


def _as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def check_kinds(settings: Any, who: str) -> None:
    """Refuse flags, texts and mappings that are none: YAML's "no" or a number is easily written for one.

    Raises:
        ValueError: One is none.
    """
    for setting in fields(settings):
        kind: Any = Mapping if get_origin(setting.type) is Mapping else setting.type
        value = getattr(settings, setting.name)
        if kind in _EXPECTED and not isinstance(value, kind):
            raise refused(who, setting.name, _EXPECTED[kind], value)


def check_choice(who: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is none of the choices.

    Raises:
        ValueError: It is none.
    """
    if value not in choices:
        raise refused(who, name, f"one of {', '.join(choices)}", value, did_you_mean(str(value), choices))


def check_at_least(who: str, name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number, or a smaller one.

    Raises:
        ValueError: It is one of these.
    """
    if type(value) is not int or value < least:
        raise refused(who, name, f"a whole number of at least {least}", value)


def check_template_kwargs(kwargs: Mapping[str, Any], who: str) -> None:
    """Refuse what would never reach a template.

    Raises:
        ValueError: There is such a key.
    """
    if others := [key for key in kwargs if not isinstance(key, str) or key in _NOT_OF_THE_TEMPLATE]:
        raise refused(who, "apply_chat_template_kwargs", "what the template takes", others)


def refused(who: str, name: str, expected: str, got: Any, hint: str = "") -> ValueError:
    """The error of a value that is not allowed."""
    return ValueError(f"{who}: expected {expected} as {name}, got {got!r}{hint}\n  Mend {name} in the config.")
