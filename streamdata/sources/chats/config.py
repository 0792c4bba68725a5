"""The settings that datasets of chats share, and how they are read from a mapping."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from streamdata.recipe.places import did_you_mean, listing
from streamdata.text.truncation import check_truncation

PAD_MODES: Final = ("right", "no_padding")


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """How conversations become tensors.

    Attributes:
        tools_key: the column of tool schemas, or of their JSON text; rows may lack it.
        max_length: tokens of a conversation; the length of its tensors where they are padded.
        truncation: what stays of a longer one: left, right, middle, or error.
        pad_mode: `right`, or `no_padding` for packing.
        actions: role → train or mask; a role that is not named is masked.
        apply_chat_template_kwargs: variables of the template.
        cache_dir: of the rows, see `Rows`.
        use_shm: read the rows from /dev/shm, see `Rows`.
    """

    tools_key: str = "tools"
    max_length: int = 1024
    truncation: str = "error"
    pad_mode: str = "right"
    actions: Mapping[str, str] = field(default_factory=lambda: {"assistant": "train"})
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None
    use_shm: bool = False

    def __post_init__(self) -> None:
        check_truncation(self.truncation, "chat")
        if self.pad_mode not in PAD_MODES:
            raise _refused("pad_mode", f"one of {', '.join(PAD_MODES)}", self.pad_mode)
        if type(self.max_length) is not int or self.max_length < 1:
            raise _refused("max_length", "a whole number of at least 1", self.max_length)
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.type in (bool, str) and type(value) is not setting.type:
                raise _refused(setting.name, "true or false" if setting.type is bool else "a text", value)
        for name in ("actions", "apply_chat_template_kwargs"):
            if not isinstance(getattr(self, name), Mapping):
                raise _refused(name, "a mapping", getattr(self, name))


Config = TypeVar("Config", bound=ChatConfig)


def read_config(kind: type[Config], config: Any, who: str) -> Config:
    """Reads settings from a mapping, or from OmegaConf's DictConfig; null stands for the default.

    Raises:
        ValueError: a key is unknown, or a value is not allowed.
    """
    given = _as_mapping(config, who)
    known = [setting.name for setting in fields(kind)]
    if unknown := [key for key in given if key not in known]:
        hints = "; ".join(f"{key!r}{did_you_mean(str(key), known)}" for key in unknown)
        raise ValueError(f"{who}: expected keys that it knows, got {hints}\n  It knows {listing(known)}.")
    try:
        return kind(**{key: value for key, value in given.items() if value is not None})
    except ValueError as error:
        error.add_note(f"  in the config of {who}")
        raise


def _as_mapping(config: Any, who: str) -> Mapping[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    found: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else config
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{who}: expected a mapping as config, got {found!r}\n  Write its keys below `config:`.")
    return found or {}


def _refused(name: str, expected: str, got: Any) -> ValueError:
    return ValueError(f"chat: expected {expected} as {name}, got {got!r}\n  Mend {name} in the config.")
