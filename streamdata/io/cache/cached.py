"""The page caches of this process: `url, stamp, range → from the cache that its source names, else by a request`."""

import errno
import logging
import os
from collections.abc import Iterable
from concurrent.futures import Future
from threading import Lock

from streamdata.errors import SourceError
from streamdata.io.cache.page_cache import Fetch, PageCache
from streamdata.io.cache.pages import shard_key
from streamdata.io.remote.addresses import CACHE_VARIABLE, CacheSettings, bare_url, cache_of
from streamdata.run.per_process import PerProcess

logger = logging.getLogger(__name__)
_caches: PerProcess[dict[str, tuple[CacheSettings, PageCache | None]]] = PerProcess(dict)
"""The caches of this process, by their directory; None where the disk was full when one was to be made."""
_lock = PerProcess(Lock)


def named_cache(settings: CacheSettings | None) -> CacheSettings | None:
    """Return the settings, by default those of the environment; None if neither names a directory."""
    if settings is None and (path := os.environ.get(CACHE_VARIABLE)):
        return CacheSettings(os.path.abspath(os.path.expanduser(path)))
    return settings


def page_cache(settings: CacheSettings | None) -> PageCache | None:
    """The page cache of this process for the settings, or the environment's.

    None if neither names a directory, or its disk had no room for a new cache, which is a warning.

    Raises:
        SourceError: The directory cannot be written.
        ValueError: Another source has named the same directory with another bound.
    """
    settings = named_cache(settings)
    if settings is None:
        return None
    with _lock.get():  # two of a directory would share the locks of the process
        caches = _caches.get()
        if settings.path not in caches:
            try:
                caches[settings.path] = settings, PageCache(settings.path, settings.max_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise SourceError(
                        f"cache '{settings.path}': expected a directory that can be written, got {error}\n"
                        f"  Name another one, in `cache` or {CACHE_VARIABLE}."
                    ) from error
                caches[settings.path] = settings, None
                logger.warning(
                    "cache '%s': it cannot be written: %s; everything is read without it", settings.path, error
                )
        named, cache = caches[settings.path]
    if named != settings:
        raise ValueError(
            f"cache '{settings.path}': expected one max_bytes, got {named.max_bytes} and {settings.max_bytes}\n"
            "  Give all sources that share a directory the same, or each its own directory."
        )
    return cache


def cache_counts() -> list[PageCache]:
    """The page caches of this process, which count what was read from them."""
    return [cache for _, cache in list(_caches.get().values()) if cache is not None]


def read_cached(url: str, size: int, version: int, begin: int, end: int, fetch: Fetch) -> "Future[bytes]":
    """The bytes [begin, end) of a shard: through its page cache if it has one, else by `fetch`.

    Args:
        url: Of the shard.
        size: Of the shard, in bytes.
        version: A hash of what its server calls it; not 0, which is that of none.
        begin: The first byte.
        end: After the last one.
        fetch: Asks for bytes of this version, and fails if the shard is of another one.
    """
    cache = page_cache(cache_of(url))
    if cache is None:
        return fetch(begin, end)
    return cache.read(_key(url, size, version), size, begin, end, fetch)


def has_cached(url: str, size: int, version: int, pages: Iterable[int]) -> bool:
    """Whether a shard's cache holds all of these pages now."""
    cache = page_cache(cache_of(url))
    return cache is not None and version != 0 and cache.has(_key(url, size, version), pages)


def read_cached_into(url: str, size: int, version: int, pieces: list[tuple[int, int, memoryview]]) -> list[bool]:
    """Fill each piece of memory from the shard's cache if it holds the bytes; return, for each, whether it did.

    Args:
        url: Of the shard; size and version as in `read_cached`.
        size: Of the shard.
        version: Of the shard.
        pieces: Begin, end and memory of each.
    """
    cache = page_cache(cache_of(url))
    if cache is None or not version:
        return [False] * len(pieces)
    return cache.read_into(_key(url, size, version), size, pieces)


class Confirmations:
    """Pending checks that shards read from a cache are unchanged on their host: one per shard and pass.

    The bytes read are of the indexed version in any case, so answers are not waited for. A copy in another
    process begins empty.
    """

    def __init__(self) -> None:
        self._asked: PerProcess[list[Future[bytes]]] = PerProcess(list)

    def add(self, answer: "Future[bytes]") -> None:
        """Add a pending check."""
        self._asked.get().append(answer)

    def check(self, *, wait: bool) -> None:
        """Raise the error of any answered check; `wait` also waits for those that are pending."""
        if not (asked := self._asked.made):
            return
        for answer in [answer for answer in asked if wait or answer.done()]:
            asked.remove(answer)
            answer.result()


def _key(url: str, size: int, version: int) -> str:
    return shard_key(bare_url(url), str(version), size)
