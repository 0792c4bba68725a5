"""Ranges through the page cache where there is one: `url, stamp, range → Future of the bytes`."""

from collections.abc import Iterable
from concurrent.futures import Future

from streamdata.io.cache.files import shard_key
from streamdata.io.cache.page_cache import Fetch
from streamdata.io.cache.settings import page_cache
from streamdata.io.remote.addresses import bare_url, cache_of
from streamdata.run.per_process import PerProcess


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


def has_cached(url: str, size: int, version: int, pages: Iterable[int]) -> bool:
    """Whether these pages of a shard are in its cache now."""
    cache = page_cache(cache_of(url))
    return cache is not None and version != 0 and cache.has(cache_key(url, size, version), pages)


def read_cached_into(url: str, size: int, version: int, pieces: list[tuple[int, int, memoryview]]) -> list[bool]:
    """Fill each memory with the bytes [begin, end) of a shard where its cache has them; whether it had.

    Args:
        url: Of the shard; size and version as in `read_cached`.
        size: Of the shard.
        version: Of the shard.
        pieces: Begin, end and memory of each.
    """
    cache = page_cache(cache_of(url))
    if cache is None or not version:
        return [False] * len(pieces)
    return cache.read_into(cache_key(url, size, version), size, pieces)


class Confirmations:
    """Whether shards that were read from a cache are still of that version: asked once per shard and pass.

    What was read is of the version that was indexed, whatever the answer is: so it is not waited for. A copy in another
    process begins empty.
    """

    def __init__(self) -> None:
        self._asked: PerProcess[list[Future[bytes]]] = PerProcess(list)

    def add(self, answer: "Future[bytes]") -> None:
        """Note what was asked."""
        self._asked.get().append(answer)

    def check(self, *, wait: bool) -> None:
        """Raise what an answer says against it; those that have not come are waited for, or stay."""
        if not (asked := self._asked.made):
            return
        for answer in [answer for answer in asked if wait or answer.done()]:
            asked.remove(answer)
            answer.result()


def _text(version: int) -> str:
    return str(version) if version else ""
