"""Urls with what it takes to read them, kept apart from what identifies them.

A url may carry secrets, in its query (a signed url) or before its host. `bare_url` is what identifies an object and
what is shown of it: an `Address` is that text, and beside it knows how to reach the object.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Self
from urllib.parse import unquote

from streamdata.io.cache.settings import CacheSettings
from streamdata.io.remote.options import NO_OPTIONS, StorageOptions

# Up to the last @ before the path. Where no port follows the colon, the password has a slash, ? or #, and ends later.
_USERINFO = re.compile(r"(?<=://)(?:[^/?#]*@|[^/@?#:\[]+:(?![:/?#]|\d+(?:[/?#]|\Z)|\Z)\S{0,999}@)")
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://", re.IGNORECASE)
_OTHERS = re.compile(r"(?:github|oci)://", re.IGNORECASE)  # what stands before an @ is a repository or a bucket
_PASSWORD = re.compile(r"(?<=://)([^/?#:@]*):[^/?#]*(?=@)")  # after a container, which stays
# Where a question mark begins a query; elsewhere it may be part of a name. Also the last of a chain, or in braces.
_WEB = re.compile(r"(?<![\w+.\-])https?://[^?#]*", re.IGNORECASE)
_SECRET_LETTERS = 4  # shorter ones are words of any text


def bare_url(url: str) -> str:
    """The url without query, fragment and userinfo: what identifies it, and what may be shown."""
    if "@" in url and not _OTHERS.match(url):
        url = _PASSWORD.sub(r"\1", url) if _CONTAINER.match(url) else _USERINFO.sub("", url)
    if ("?" in url or "#" in url) and (web := _WEB.search(url)):
        url = url[: web.end()]
    return url


def secrets_of(url: str) -> set[str]:
    """Texts that `bare_url` leaves out, each also as it is sent: others may repeat them, in messages say."""
    web, found = _WEB.search(url), _USERINFO.search(url)
    userinfo = found[0][:-1] if found else ""
    query = url[web.end() :].partition("?")[2] if web else ""
    values = [pair.partition("=")[2] or pair for pair in re.split("[&#]", query)] + userinfo.split(":")
    values += [unquote(value) for value in values] + [b64encode(unquote(userinfo).encode()).decode()]
    return {value for value in values if len(value) >= _SECRET_LETTERS}


class Address(str):
    """The bare url of an object, as which it compares, hashes and prints, and how to reach it. It pickles with both.

    Attributes:
        signed: The url as it is requested, which may hold secrets.
        options: Of its store.
        cache: Where its pages are kept on the node; None as the environment says.
    """

    __slots__ = ("cache", "options", "signed")
    signed: str
    options: StorageOptions
    cache: CacheSettings | None

    def __new__(cls, url: str, options: StorageOptions = NO_OPTIONS, cache: CacheSettings | None = None) -> Self:
        address = super().__new__(cls, bare_url(url))
        address.signed, address.options, address.cache = str(url), options, cache
        return address

    def __getnewargs__(self) -> tuple[str, StorageOptions]:  # type: ignore[override]
        return self.signed, self.options


def beside(url: str, other: str) -> str:
    """Another bare url, reached the same way: with the query, userinfo and options of the first."""
    if not isinstance(url, Address):
        return other
    before, _, after = url.signed.partition(_from_host(url))
    return Address(before + _from_host(other) + after, url.options, url.cache)


def _from_host(url: str) -> str:
    """A bare url without what may have secrets before and after it."""
    return (_USERINFO.sub("", url, count=1) if _CONTAINER.match(url) else str(url)).partition("://")[2]


def keep_in(cache: CacheSettings | None, urls: Iterable[str]) -> None:
    """Say where the pages of these are kept."""
    for url in urls:
        if isinstance(url, Address):
            url.cache = cache


def cache_of(url: str) -> CacheSettings | None:
    """Where its pages are kept, as far as its source says."""
    return url.cache if isinstance(url, Address) else None


def signed_url(url: str) -> str:
    """What is requested for a url."""
    return url.signed if isinstance(url, Address) else url


def options_of(url: str) -> StorageOptions:
    """The options of the store of a url."""
    return url.options if isinstance(url, Address) else NO_OPTIONS
