"""Ranges through the page cache where there is one: `url, stamp, range → Future of the bytes`."""

from concurrent.futures import Future

from streamdata.remote.addresses import bare_url, cache_of
from streamdata.remote.cache_files import shard_key
from streamdata.remote.cache_settings import page_cache
from streamdata.remote.page_cache import Fetch


def cache_key(url: str, size: int, version: int) -> str:
    """How the page cache calls a version of a shard."""
    return shard_key(bare_url(url), _text(version), size)


def read_cached(url: str, size: int, version: int, begin: int, end: int, fetch: Fetch) -> "Future[bytes]":
    """The bytes [begin, end) of a shard: from its cache in this process, where it has one, or by `fetch`.

    Args:
        url: Of the shard.
        size: Of the shard, in bytes.
        version: A hash of what its server calls it, 0 where it does not say.
        begin: The first byte.
        end: After the last one.
        fetch: Asks for bytes of this version, and fails if the shard is of another one.
    """
    cache = page_cache(cache_of(url))
    if cache is None:
        return fetch(begin, end)
    return cache.read(bare_url(url), _text(version), size, begin, end, fetch)


def _text(version: int) -> str:
    return str(version) if version else ""
