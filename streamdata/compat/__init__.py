"""Connects a StreamLoader to trainers of other libraries, so that their checkpoints hold its states.

1. HF Trainer → `StreamCallback` → a folder of states in each checkpoint; a resume by seek
2. Lightning → `StreamDataModule` → the states of all ranks in the checkpoint's file
3. JSON of AstrAI's pipeline → `astrai.py` → the configuration of `streamdata prepare`

Other trainers need none: `docs/guides/trainers/` says what to write. Each name imports its library when it is
first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdata.compat.stream_callback import StreamCallback as StreamCallback
    from streamdata.compat.stream_data_module import StreamDataModule as StreamDataModule

_MODULES = {"StreamCallback": "stream_callback", "StreamDataModule": "stream_data_module"}

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata.compat' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.compat.{_MODULES[name]}"), name)
