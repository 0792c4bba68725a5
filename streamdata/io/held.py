"""Versions that nobody says: `url → the version that was met first`, held by a process and by all workers of a source.

A manifest that was made for another place does not know the versions of its shards: the first answer of each says it,
and what comes after has to be of that one until the next run begins.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

ANY_VERSION = -(1 << 63)
"""The version of a file whose first answer says which it is; that one is held from then on."""

_held: dict[str, int] = {}
"""What this process has met."""


class SharedVersions:
    """What all workers of a source have met: int64 in memory that they share, 0 where nothing was.

    Args:
        urls: Of remote shards.
    """

    def __init__(self, urls: Iterable[str]) -> None:
        import torch  # only here: who indexes shards needs none of it

        self._numbers = {url: number for number, url in enumerate(dict.fromkeys(urls))}
        self._memory = torch.zeros(len(self._numbers), dtype=torch.int64)
        self._join()

    def _join(self) -> None:
        self._memory.share_memory_()  # type: ignore[no-untyped-call]
        for url in self._numbers:
            _shared[url] = self

    def version(self, url: str) -> int:
        """The one that was met first; 0 where none was."""
        return int(self._memory[self._numbers[url]])

    def hold(self, url: str, version: int) -> int:
        """Hold a version unless another one is held; which one is."""
        number = self._numbers[url]
        if not self._memory[number]:
            self._memory[number] = version
        return int(self._memory[number])

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._join()


_shared: WeakValueDictionary[str, SharedVersions] = WeakValueDictionary()


def shared_versions(urls: Sequence[str], versions: Sequence[int]) -> SharedVersions | None:
    """What is shared of those remote shards that may have any version; None where there are none."""
    unsaid = [url for url, version in zip(urls, versions, strict=True) if version == ANY_VERSION]
    return SharedVersions(unsaid) if unsaid else None


def held_version(url: str) -> int:
    """The version that was met first of a file that may have any; 0 where none was."""
    table = None if url in _held else _shared.get(url)
    return _held.get(url, 0) if table is None else table.version(url)


def hold(url: str, version: int) -> int:
    """Hold the version of a file that may have any, unless another one is held; which one is."""
    held = _held.get(url)
    if held is None:
        table = _shared.get(url)
        held = _held[url] = version if table is None else table.hold(url, version)
    return held


def held_urls() -> Iterable[str]:
    """The files of which this process has met a version."""
    return _held


def let_go(url: str) -> bool:
    """Forget what was met of a file; whether anything was."""
    return _held.pop(url, None) is not None
