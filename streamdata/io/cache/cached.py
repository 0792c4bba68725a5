"""The page caches of this process: `url, stamp, range → from the cache that its source names, else by a request`."""

import errno
import logging
import os
from concurrent.futures import Future
from threading import Lock

from streamdata.errors import SourceError
from streamdata.io.cache.page_cache import Fetch, Memory, PageCache
from streamdata.io.cache.shard_file import shard_key
from streamdata.io.remote.addresses import CACHE_VARIABLE, CacheSettings, bare_url, cache_of
from streamdata.run.per_process import PerProcess

logger = logging.getLogger(__name__)
_caches: PerProcess[dict[str, tuple[CacheSettings, PageCache | None]]] = PerProcess(dict)
"""The caches of this process, by their directory; None where the disk was full when one was to be made."""
_lock = PerProcess(Lock)


def page_cache(settings: CacheSettings | None) -> PageCache | None:
    """The page cache of this process for the settings, or the environment's.

    None if neither names a directory, or its disk had no room for a new cache, which is a warning.

    Raises:
        SourceError: The directory cannot be written.
        ValueError: Another source has named the same directory with another bound.
    """
    if settings is None and (path := os.environ.get(CACHE_VARIABLE)):
        settings = CacheSettings(os.path.abspath(os.path.expanduser(path)))
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
                logger.warning("cache '%s' cannot be written, and is not used: %s", settings.path, error)
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


def read_cached(url: str, size: int, version: int, begin: int, end: int, fetch: Fetch) -> "Memory | Future[Memory]":
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
    return cache.read(shard_key(bare_url(url), str(version), size), size, begin, end, fetch)
