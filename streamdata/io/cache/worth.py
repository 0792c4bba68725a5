"""Which pages are worth their room: `what the order says of a page → whether it is kept, and which others make room`.

As each epoch reads everything once, a node that reads all of it can have no more hits in an epoch than it had pages at
its start: no page makes room for another of the same source, and the hit rate is the cached fraction, the best there
is. A page of which this node reads nothing for some epochs makes room for one that it reads before that.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final, Protocol

from streamdata.io.cache.account import CacheAccount
from streamdata.io.cache.files import PAGE_BYTES, PageKey

_SAMPLED: Final = 16
_UNUSED_S: Final = 3600.0


class Outlook(Protocol):
    """What the known order says of the shards of a source."""

    reads_all: bool
    """Whether this node reads everything in each epoch, so that all pages are worth the same."""

    def wanted(self, shard: int, begin: int, end: int) -> Sequence[float]:
        """How many bytes of a range the node reads yet in this epoch, and how many in each of the next ones."""
        ...


class PageWorth:
    """What this process knows of the future of pages.

    Args:
        account: Of all pages.
    """

    def __init__(self, account: CacheAccount) -> None:
        self._account = account
        self._outlooks: dict[str, tuple[Outlook, int]] = {}
        self._urls: set[str] = set()
        self._strangers_of: object = None
        self._stranger_pages: deque[PageKey] = deque()

    def expect(self, shards: Iterable[str], outlook: Outlook) -> None:
        """As `PageCache.expect`."""
        for number, shard in enumerate(shards):
            if shard:  # pages of one whose version is met later are not those of an earlier one
                self._outlooks[shard] = outlook, number
                self._urls.add(_url_part(shard))
        self._strangers_of = None

    def paid_in(self, key: PageKey, page_size: int, wanted_size: int) -> int | None:
        """In how many epochs fetching all of a page, of which so much is wanted, pays; None for never."""
        outlook, shard = self._outlooks.get(key.shard, (None, 0))
        if outlook is None or outlook.reads_all:
            return 1
        wanted = outlook.wanted(shard, key.number * PAGE_BYTES, key.number * PAGE_BYTES + page_size)
        # What is wanted now may be among that: it is read ahead of what its lane has come to.
        saved = accumulate([max(0.0, wanted[0] - wanted_size), *wanted[1:]])
        extra = page_size - wanted_size
        return next((epochs for epochs, size in enumerate(saved) if size > extra), None)

    def victims(self, key: PageKey, paid_in: int, *, only_strangers: bool) -> Iterator[PageKey]:
        """Pages that may be removed for another one, which pays in so many epochs."""
        outlook, _ = self._outlooks.get(key.shard, (None, 0))
        if outlook is None:
            return
        yield from self._strangers()
        if outlook.reads_all or only_strangers:
            return
        sampled = self._account.pages.some(_SAMPLED)
        ranked = sorted(((self._next_wanted(page, outlook), page) for page in sampled), reverse=True)
        yield from (page for wanted_in, page in ranked if wanted_in > paid_in)

    def _strangers(self) -> Iterator[PageKey]:
        """Pages of earlier versions of what this process reads, and of shards that nobody has read for an hour."""
        if self._strangers_of is not self._account.pages:  # it was looked for others' pages
            self._strangers_of = self._account.pages
            self._stranger_pages = deque(self._account.pages.of_shards(lambda shard: shard not in self._outlooks))
        for _ in range(min(_SAMPLED, len(self._stranger_pages))):
            page = self._stranger_pages.popleft()
            if page.shard in self._outlooks:  # since it was said what is known of it
                continue
            unused = 0.0
            with suppress(FileNotFoundError):
                unused = time.time() - (self._account.folder / page.name).stat().st_mtime
            if _url_part(page.shard) in self._urls or unused > _UNUSED_S:
                yield page
            else:
                self._stranger_pages.append(page)

    def _next_wanted(self, page: PageKey, outlook: Outlook) -> int:
        """In how many epochs a page is wanted; -1 for one of another source, whose epochs are others."""
        other, shard = self._outlooks.get(page.shard, (None, 0))
        if other is None or other is not outlook:
            return -1
        wanted = outlook.wanted(shard, page.number * PAGE_BYTES, (page.number + 1) * PAGE_BYTES)
        return next((epochs for epochs, size in enumerate(wanted) if size > 0), len(wanted))


def _url_part(shard: str) -> str:
    return shard[: len(shard) // 2]
