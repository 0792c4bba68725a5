"""Where an index is published: beside its shard, or in the cache."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from streamdata.errors import ShardError
from streamdata.run.publish import publish

logger = logging.getLogger(__name__)
_MAX_IN_MEMORY_BYTES = 64 << 20
"""Of all indexes of a process: those of some three million records."""


def publish_beside_or_cached(beside: Path | None, cached: Path, parts: Sequence[bytes]) -> Path:
    """Publish at `beside`, or at `cached` if that is None or cannot be written.

    Returns:
        Where the file is now.

    Raises:
        ShardError: The cache cannot be written either.
    """
    failures = []
    for path in filter(None, (beside, cached)):  # tried, not asked: access bits say little about root and mounts
        try:
            if path is cached:
                cached.parent.mkdir(parents=True, exist_ok=True)
            publish(path, parts, is_checked=True)
            return path
        except OSError as error:
            failures.append(error)
    raise ShardError(
        f"index '{cached}': cannot be written, neither beside its shard ({beside}) nor in the cache: "
        f"{'; '.join(map(str, failures))}\n  Set STREAMDATA_CACHE to a directory that can be written, with room."
    ) from failures[-1]


def publish_index(beside: Path | None, cached: Path, parts: Sequence[bytes]) -> Path:
    """As `publish_beside_or_cached`; an index that is small is kept in memory where neither can be written.

    One in memory is there for this process and those that it forks.

    Raises:
        ShardError: Neither can be written, and there is no room for it in memory.
    """
    try:
        return publish_beside_or_cached(beside, cached, parts)
    except ShardError as error:
        if not _in_memory.take(sum(map(len, parts))):
            raise
        logger.warning("%s\n  It is kept in memory, and built again in each process that starts.", error)
    file = os.memfd_create("streamdata-index")  # open as long as the process: it may be read at any time
    with open(file, "wb", closefd=False) as target:
        target.writelines(parts)
    return Path(f"/proc/self/fd/{file}")


class _InMemory:
    """How many bytes of indexes are in the memory of this process."""

    num_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Count more, if there is room for them."""
        has_room = self.num_bytes + num_bytes <= _MAX_IN_MEMORY_BYTES
        self.num_bytes += num_bytes * has_room
        return has_room


_in_memory = _InMemory()
