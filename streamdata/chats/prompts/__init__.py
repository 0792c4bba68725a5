"""Prompts for reinforcement learning: parquet to ready tensors.

1. parquet → `ParquetRows` → rows, read from a file in the cache
2. row → `read_chat`, `open_media` → messages with typed parts, media
3. messages → `PromptReader.encode` → token ids, media expanded
4. lengths → `choose_rows` → the rows that stay
5. ids → `fit`, `RopeRule.positions` → tensors of one length (`RLHFDataset`)
6. items → `prompt_collate` → batches

Everything is imported when it is first used: processes that only measure begin in half the time without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdata.chats.prompts.collate import collate_fn, prompt_collate
    from streamdata.chats.prompts.config import PromptConfig
    from streamdata.chats.prompts.dataset import RLHFDataset

_MODULES = {
    "PromptConfig": "config",
    "RLHFDataset": "dataset",
    "collate_fn": "collate",
    "prompt_collate": "collate",
}

__all__ = ["PromptConfig", "RLHFDataset", "collate_fn", "prompt_collate"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
