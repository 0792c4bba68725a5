"""Urls with what it takes to read them: `a recipe's storage_options and cache, url → Address`.

A url may carry secrets, in its query (a signed url) or before its host. `bare_url` is what identifies an object and
what is shown of it: an `Address` is that text, and beside it knows how to reach the object. Keys are not
among the options of a recipe.
"""

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple, Self, TypeAlias
from urllib.parse import unquote

from streamdata.errors import did_you_mean, shown
from streamdata.io.cache.shard_file import PAGE_BYTES, charge_of
from streamdata.recipe.limits import refusal_of_directory
from streamdata.recipe.named_source import default_of

CACHE_VARIABLE: Final = "STREAMDATA_DATA_CACHE"
_MIN_BYTES: Final = charge_of(PAGE_BYTES) + (16 << 10)
"""A page with its checksums, and some for small shards: with less no large shard would be kept at all."""
# Up to the last @ before the path. Where no port follows the colon, the password has a slash, ? or #, and ends later.
_USERINFO = re.compile(r"(?<=://)(?:[^/?#]*@|[^/@?#:\[]+:(?![:/?#]|\d+(?:[/?#]|\Z)|\Z)\S{0,999}@)")
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://", re.IGNORECASE)
_OTHERS = re.compile(r"(?:github|oci)://", re.IGNORECASE)  # what stands before an @ is a repository or a bucket
_PASSWORD = re.compile(r"(?<=://)([^/?#:@]*):[^/?#]*(?=@)")  # after a container, which stays
# Where a question mark begins a query; elsewhere it may be part of a name. Also the last of a chain, or in braces.
_WEB = re.compile(r"(?<![\w+.\-])https?://[^?#]*", re.IGNORECASE)
_SECRET_LETTERS = 4  # shorter ones are words of any text


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Settings of an object store; those that are None follow from the environment.

    They travel with the shards to the processes that read. No state, sample or index has them, and of messages one
    alone, the endpoint's host where it does not answer: the identity of an object is its bucket and key.

    Args:
        endpoint: Url of the object store's API.
        region: Of the bucket.
        anonymous: Whether requests are not signed.
        profile: Of the object store's configuration files; its keys are taken.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool | None = None
    profile: str | None = None

    def __repr__(self) -> str:
        return "StorageOptions(…)"

    def over(self, other: "StorageOptions") -> "StorageOptions":
        """Return these options, with those of `other` for settings that are None here."""
        said = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other, **said)


NO_OPTIONS = StorageOptions()
_OPTIONS = tuple(field.name for field in fields(StorageOptions))
_OURS = "Keys come from the environment, a profile or a role; these are taken: " + ", ".join(_OPTIONS) + "."


def options_of_source(value: Any, who: str) -> StorageOptions:
    """The options of a source: its own, completed by those of the mixtures above it.

    Raises:
        ValueError: See `checked_options`.
    """
    of_all = checked_options(default_of("storage_options"), who)
    return of_all if value is None else checked_options(value, who).over(of_all)


def checked_options(value: Any, who: str) -> StorageOptions:
    """Check the options that a recipe gives. Errors never repeat their values, which may be secrets.

    Raises:
        ValueError: The options are not a mapping, or a name or the type of a value is wrong.
    """
    if isinstance(value, StorageOptions):
        return value
    if not isinstance(value, Mapping | None):
        raise ValueError(f"{who}: storage_options: expected a mapping, got {type(value).__name__}\n  {_OURS}")
    given = dict(value or {})
    for name, setting in given.items():
        if name not in _OPTIONS:
            hint = did_you_mean(str(name), _OPTIONS)
            raise ValueError(f"{who}: storage_options: expected known names, got {shown(name)}{hint}\n  {_OURS}")
        kind = bool if name == "anonymous" else str
        if setting is not None and not isinstance(setting, kind):
            raise ValueError(
                f"{who}: storage_options: {name}: expected {'true or false' if kind is bool else 'a text'}, "
                f"got {type(setting).__name__}\n  Write it as such, or leave it out."
            )
    endpoint = given.get("endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ValueError(
            f"{who}: storage_options: endpoint: expected a url of http or https\n  Begin it with https://."
        )
    return StorageOptions(**given)


class CacheSettings(NamedTuple):
    """The directory that keeps pages of remote shards, and the bytes that it may hold.

    Attributes:
        path: A directory on a disk of the node, absolute.
        max_bytes: The bound; None for a tenth of what is free there when the cache comes into use.
    """

    path: str
    max_bytes: int | None = None


CacheSetting: TypeAlias = Mapping[str, Any] | CacheSettings | None
"""The `cache` of a recipe, read or not."""


def read_cache_settings(value: Any) -> CacheSettings | None:
    """Read the `cache` setting of a recipe; None if there is none.

    Raises:
        ValueError: The setting is not a mapping of `path` and `max_bytes`; or a recipe under `allow` may not write
            there.
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
    if refusal := refusal_of_directory(path, *filter(None, [os.environ.get(CACHE_VARIABLE)])):
        raise ValueError(f"cache: {refusal}")
    bound = value.get("max_bytes")
    # 2e11 is how a large number is often written, and YAML reads it as a float.
    is_whole = isinstance(bound, int | float) and not isinstance(bound, bool) and bound == bound // 1
    if bound is not None and (not is_whole or bound < _MIN_BYTES):
        raise ValueError(
            f"cache: expected a whole number of bytes as max_bytes, at least {_MIN_BYTES} (one page of 4 MiB, its "
            f"checksums and the directory), got {shown(bound)}\n"
            "  200 GB are 200_000_000_000; without it a tenth of what is free is used."
        )
    return CacheSettings(path, None if bound is None else int(bound))


def bare_url(url: str) -> str:
    """The url without query, fragment and userinfo: what identifies it, and what may be shown."""
    if "@" in url and not _OTHERS.match(url):
        url = _PASSWORD.sub(r"\1", url) if _CONTAINER.match(url) else _USERINFO.sub("", url)
    if ("?" in url or "#" in url) and (web := _WEB.search(url)):
        url = url[: web.end()]
    return url


def secrets_of(url: str) -> set[str]:
    """The parts of a url that `bare_url` leaves out, raw and decoded, so that they can be removed from messages."""
    web, found = _WEB.search(url), _USERINFO.search(url)
    userinfo = found[0][:-1] if found else ""
    query = url[web.end() :].partition("?")[2] if web else ""
    values = [pair.partition("=")[2] or pair for pair in re.split("[&#]", query)] + userinfo.split(":")
    values += [unquote(value) for value in values] + [b64encode(unquote(userinfo).encode()).decode()]
    return {value for value in values if len(value) >= _SECRET_LETTERS}


class Address(str):
    """An object's bare url, with what it takes to reach it. Equality, hash and text are those of the bare url.

    Attributes:
        signed: The url as it is requested, which may hold secrets.
        options: Of its host.
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
    """Another bare url, reached in the same way: with the query, userinfo and options of `url`."""
    if not isinstance(url, Address):
        return other
    before, _, after = url.signed.partition(_from_host(url))
    return Address(before + _from_host(other) + after, url.options, url.cache)


def _from_host(url: str) -> str:
    """A bare url without what may have secrets before and after it."""
    return (_USERINFO.sub("", url, count=1) if _CONTAINER.match(url) else str(url)).partition("://")[2]


def keep_in(cache: CacheSettings | None, urls: Iterable[str]) -> None:
    """Set the cache that keeps the pages of these urls."""
    for url in urls:
        if isinstance(url, Address):
            url.cache = cache


def cache_of(url: str) -> CacheSettings | None:
    """The cache settings of the url's source; None if it names no cache."""
    return url.cache if isinstance(url, Address) else None


def signed_url(url: str) -> str:
    """The url as it is requested, which may hold secrets."""
    return url.signed if isinstance(url, Address) else url


def options_of(url: str) -> StorageOptions:
    """The storage options of a url's host."""
    return url.options if isinstance(url, Address) else NO_OPTIONS
