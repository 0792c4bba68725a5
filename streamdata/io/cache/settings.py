"""What a recipe says of the page cache: `cache: {path, max_bytes}` or the environment → the cache of this process."""

import errno
import logging
import os
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias

from streamdata.errors import SourceError, did_you_mean, shown
from streamdata.io.cache.files import PAGE_BYTES, charge_of, file_size_of
from streamdata.io.cache.page_cache import CacheCounts, PageCache
from streamdata.recipe.limits import refusal_of_directory
from streamdata.run.per_process import PerProcess

logger = logging.getLogger(__name__)
_ENVIRONMENT: Final = "STREAMDATA_DATA_CACHE"
_MIN_BYTES: Final = charge_of(file_size_of(PAGE_BYTES)) + (16 << 10)
"""A page with its checksums, and the directory with its account: with less no large shard would be kept at all."""
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class CacheSettings(NamedTuple):
    """Where pages of remote shards are kept, and how many bytes may lie there.

    Attributes:
        path: A directory on a disk of the node, absolute.
        max_bytes: The bound; None for a tenth of what is free there when the cache comes into use.
    """

    path: str
    max_bytes: int | None = None


CacheSetting: TypeAlias = Mapping[str, Any] | CacheSettings | None
"""As it is given."""


def read_cache_settings(value: Any) -> CacheSettings | None:
    """Read the `cache` of a source, or of the top for all.

    Raises:
        ValueError: It is not a mapping of `path` and `max_bytes`; or a recipe under `allow` may not write there.
    """
    if value is None or isinstance(value, CacheSettings):
        return value
    names = CacheSettings._fields
    if not isinstance(value, Mapping) or not isinstance(value.get("path"), str | os.PathLike) or not value["path"]:
        raise ValueError(
            f"cache: expected a mapping with the path of a directory, got {shown(value)}\n"
            "  Write cache: {path: /local/disk/cache, max_bytes: 200_000_000_000}."
        )
    for name in value:
        if name not in names:
            guess = did_you_mean(str(name), names)
            raise ValueError(f"cache: unknown setting {shown(name)}{guess}\n  It takes: {', '.join(names)}.")
    path = os.path.abspath(os.path.expanduser(value["path"]))
    if refusal := refusal_of_directory(path, *filter(None, [os.environ.get(_ENVIRONMENT)])):
        raise ValueError(f"cache: {refusal}")
    return CacheSettings(path, _read_bound(value.get("max_bytes")))


def _read_bound(value: Any) -> int | None:
    if value is None:
        return None
    # 2e11 is how a large number is often written, and YAML reads it as a float.
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if not is_whole or value < _MIN_BYTES:
        raise ValueError(
            f"cache: expected a whole number of bytes as max_bytes, at least {_MIN_BYTES} (one page of 4 MiB, its "
            f"checksums and the directory), got {shown(value)}\n"
            "  200 GB are 200_000_000_000; without it a tenth of what is free is used."
        )
    return int(value)


class _Caches:
    """The caches of a process, by their directory."""

    def __init__(self) -> None:
        self.by_path: dict[str, tuple[CacheSettings, PageCache | None]] = {}
        self.lock = Lock()


_caches = PerProcess(_Caches)


def named_cache(settings: CacheSettings | None) -> CacheSettings | None:
    """The settings, or where there are none those of the environment, if it names a directory."""
    if settings is None and (path := os.environ.get(_ENVIRONMENT)):
        return CacheSettings(os.path.abspath(os.path.expanduser(path)))
    return settings


def page_cache(settings: CacheSettings | None) -> PageCache | None:
    """The cache of this process by these settings, or by the environment; None where neither names one.

    Raises:
        SourceError: The directory cannot be written.
        ValueError: Another source has named the same directory with another bound.
    """
    settings = named_cache(settings)
    if settings is None:
        return None
    caches = _caches.get()
    with caches.lock:  # two of a directory would let go of each other's locks
        if settings.path not in caches.by_path:
            caches.by_path[settings.path] = settings, _opened(settings)
        found = caches.by_path[settings.path]
    if found[0] != settings:
        raise ValueError(
            f"cache '{settings.path}': expected one max_bytes, got {found[0].max_bytes} and {settings.max_bytes}\n"
            "  Give all sources that share a directory the same, or each its own directory."
        )
    return found[1]


def cache_counts() -> list[CacheCounts]:
    """What was read through each cache of this process."""
    return [cache.counts for _, cache in list(_caches.get().by_path.values()) if cache is not None]


def _opened(settings: CacheSettings) -> PageCache | None:
    try:
        return PageCache(settings.path, settings.max_bytes)
    except OSError as error:
        if error.errno in _DISK_FULL:
            logger.warning("cache '%s': its disk is full: shards are read without it", settings.path)
            return None
        raise SourceError(
            f"cache '{settings.path}': expected a directory that can be written, got {error}\n"
            f"  Name another one, in `cache` or {_ENVIRONMENT}."
        ) from error
