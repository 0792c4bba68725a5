"""The settings that datasets of chats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streamdata.sources.prompts.settings import check_at_least, check_choice, check_kinds, check_template_kwargs
from streamdata.text.truncation import check_truncation

_WHO: Final = "chat"
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
        append_stop: whether the next role's token ends answers where the template ends them with none, see
            `ChatEncoder`.
        cache_dir: of the rows, see `ParquetRows`.
        use_shm: read the rows from /dev/shm, see `ParquetRows`.
    """

    tools_key: str = "tools"
    max_length: int = 1024
    truncation: str = "error"
    pad_mode: str = "right"
    actions: Mapping[str, str] = field(default_factory=lambda: {"assistant": "train"})
    apply_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    append_stop: bool = True
    cache_dir: str | None = None
    use_shm: bool = False

    def __post_init__(self) -> None:
        check_kinds(self, _WHO)
        check_truncation(self.truncation, _WHO)
        check_choice(_WHO, "pad_mode", self.pad_mode, PAD_MODES)
        check_at_least(_WHO, "max_length", self.max_length, 1)
        check_template_kwargs(self.apply_chat_template_kwargs, _WHO)
