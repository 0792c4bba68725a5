"""Which states this process has loaded, to know them again where nothing was delivered since."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from streamdata.progress.columns import Columns

_digests: Final[deque[str]] = deque(maxlen=1024)
"""A job loads once; a notebook may look at many steps."""


def remember(states: Mapping[str, Any]) -> None:
    """Note that these were loaded, or set."""
    # By content: a plain dict has it, too, and so has what a trainer wrote and read by its own means.
    if (digest := _digest(states)) not in _digests:
        _digests.append(digest)


def is_as_loaded(states: Mapping[str, Any]) -> bool:
    """Whether nothing was delivered since they were loaded."""
    return _digest(states) in _digests


def _digest(states: Mapping[str, Any]) -> str:
    return Columns.of(states).table().present().digest()
