"""Requests without threads and event loop, one at a time: for what is read before a process forks.

Each thread that calls keeps one connection to each host; a forked process begins without.
What is written goes this way, too.
"""

import http.client
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote, urlencode, urljoin

from streamdata.errors import ShardError
from streamdata.io.remote.addresses import StorageOptions, bare_url, options_of, signed_url
from streamdata.io.remote.file_client import file_list, file_put, file_range, file_stat
from streamdata.io.remote.hosts import Door, door_of, health_of, kind_of
from streamdata.io.remote.network import network
from streamdata.io.remote.requests import (
    STALL_S,
    Answer,
    Asked,
    DenialError,
    FailureError,
    Listed,
    Patience,
    Stat,
    described,
)
from streamdata.io.remote.web import (
    MAX_WORD,
    Sent,
    answer,
    denied,
    is_empty,
    promise,
    range_headers,
    refuse,
    version_of,
    with_attempts,
)
from streamdata.run.processes import processes

T = TypeVar("T")
_GOOD = (200, 206)
_HREF = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)
_SPACE = "{*}"  # of names in answers: any
_READ_STEP = 1 << 20
_MAX_PUT = 5 << 30  # bytes that S3 takes in one request


def fetch_once(url: str, begin: int | None = None, end: int | None = None, version: str = "") -> Answer:
    """Fetch the bytes [begin, end) of an object, or all of it.

    Raises:
        ShardError: See `Network.submit`.
    """
    asked = Asked(signed_url(url), begin, end, version)
    options = options_of(url)
    return _ask("fetch", asked, options, file_range, lambda: _Exchange(asked, options).fetch())


def stat_once(url: str) -> Stat:
    """Find an object's size and version; a web server is asked for the first byte, which also tests ranges.

    Raises:
        ShardError: See `Network.submit`.
    """
    asked, options = Asked(signed_url(url), *((0, 1) if kind_of(signed_url(url)) == "web" else ())), options_of(url)
    return _ask("stat", asked, options, file_stat, lambda: _Exchange(asked, options).stat())


def list_once(url: str, *, deep: bool = True) -> list[Listed]:
    """List what is below a folder; for a web server, what its page of the folder links to.

    Args:
        url: The folder.
        deep: Look into its folders, too; otherwise these are listed by urls that end in a slash.

    Raises:
        ShardError: See `Network.submit`.
    """
    asked, options = Asked(signed_url(url)), options_of(url)
    kind = kind_of(asked.url)
    if kind == "objects":
        return cast(list[Listed], _apart("list", asked, options, deep=deep))
    if kind == "files":
        return _with_patience(asked, options, lambda: file_list(asked, deep=deep))
    if kind == "s3":
        return _list_s3(asked, options, deep=deep)
    return _list_web(asked, options, deep=deep)


def put_once(url: str, body: Path) -> None:
    """Write an object in one step, if its host can: readers see the old object or the new one.

    Args:
        url: The object.
        body: A local file, whose bytes it gets.

    Raises:
        ShardError: See `Network.submit`; also if the host cannot be written to, or not as much at once.
    """
    check_can_put(url)
    asked, options = Asked(signed_url(url), body=body), options_of(url)
    if kind_of(asked.url) == "s3" and (size := body.stat().st_size) > _MAX_PUT:
        raise ShardError(
            f"{asked.describe()}: expected at most {_MAX_PUT} bytes, which can be written in one step, got {size}\n"
            "  Write it to a disk, and copy it there by a tool that sends it in parts."
        )
    _ask("put", asked, options, file_put, lambda: _Exchange(asked, options).put())


def check_can_put(url: str) -> None:
    """Raise ShardError if the url's kind of host cannot be written to, whatever the permissions."""
    if kind_of(signed_url(url)) == "web":
        raise ShardError(
            f"object '{bare_url(url)}': expected an object store that can be written (such as s3, gs, az), got a web "
            "server\n"
            "  Write it to a disk, and copy it to where the server has its files."
        )


def _ask(
    what: str, asked: Asked, options: StorageOptions, of_file: Callable[[Asked], T], over_http: Callable[[], T]
) -> T:
    """Ask a host by the client of its kind; return its answer."""
    kind = kind_of(asked.url)
    if kind == "objects":
        return cast(T, _apart(what, asked, options))
    return _with_patience(asked, options, partial(of_file, asked) if kind == "files" else over_http)


def _with_patience(asked: Asked, options: StorageOptions, attempt: Callable[[], T]) -> T:
    patience, counts = Patience(asked, health_of(asked.url, options)), network().counts
    start = time.monotonic()
    while True:
        while (wait := patience.begin()) is not None:
            time.sleep(wait)
        counts.requests += 1
        counts.retries += patience.attempts > 1
        try:
            found = attempt()
        except FailureError as failure:
            patience.failed(failure)
            continue
        except ShardError as error:
            patience.succeeded()
            raise with_attempts(error, patience.attempts) from error.__cause__
        patience.succeeded()
        if isinstance(found, Answer):
            counts.num_bytes += len(found.data)
            return found._replace(waited=time.monotonic() - start)
        return found


class _Exchange:
    """One attempt at a request over HTTP."""

    def __init__(self, asked: Asked, options: StorageOptions, query: str = "") -> None:
        self._asked, self._query = asked, query
        self._door: Door = door_of(asked.url, options)
        self._until = health_of(asked.url, options).until()

    def fetch(self) -> Answer:
        return self._told("GET", self._whole)

    def stat(self) -> Stat:
        if self._asked.is_range:
            found = self._told("GET", self._whole)
            return Stat(found.size, found.version)
        return self._told("HEAD", self._head)

    def put(self) -> None:
        self._told("PUT", lambda response: response.read(MAX_WORD))

    def _whole(self, response: http.client.HTTPResponse) -> Answer:
        if is_empty(self._asked, response.status, response.headers):
            return Answer(b"", version_of(response.headers), 0, response.status, 0.0)
        promised = promise(self._asked, response.status, response.headers)
        return answer(response.status, promised, self._body(response, promised.length), 0.0)

    def page(self) -> str:
        """Fetch a page and return its text instead of bytes."""
        return self._told("GET", self._text)

    def _text(self, response: http.client.HTTPResponse) -> str:
        # Of a body that is read by size, http.client does not tell that it was cut: links would be missing.
        length = response.length
        data = self._body(response, length)
        if length is not None and len(data) != length:
            raise FailureError(f"a page of {len(data)} bytes, expected {length}", response.status)
        return data.decode("utf-8", "replace")

    def _head(self, response: http.client.HTTPResponse) -> Stat:
        found = promise(self._asked, response.status, response.headers)
        if found.size is None:
            raise ShardError(f"{self._asked.describe()}: its server tells no size\n  Copy it to a disk.")
        return Stat(found.size, found.version)

    def _body(self, response: http.client.HTTPResponse, length: int | None) -> bytes:
        pieces, left = [], length
        while (left is None or left > 0) and (piece := response.read1(min(_READ_STEP, left or _READ_STEP))):
            pieces.append(piece)
            left = None if left is None else left - len(piece)
            if time.monotonic() > self._until:
                raise FailureError("no end of it within the deadline")
        if left == 0:
            response.read()  # of chunks, what says that there are no more
        return b"".join(pieces)

    def _told(self, method: str, take: Callable[[http.client.HTTPResponse], T]) -> T:
        """Send the request; return what `take` makes of a good answer."""
        for _ in range(3):  # other credentials and another region may each be tried once
            asked = self._asked
            prepared = self._door.prepare(method, asked.url, range_headers(asked), self._query, asked.body)
            limit_s = max(0.1, min(STALL_S, self._until - time.monotonic()))
            try:
                with Sent(method, prepared, asked.body, limit_s, follows=self._door.follows) as response:
                    if response.status in _GOOD or is_empty(self._asked, response.status, response.headers):
                        return take(response)
                    body = response.read(MAX_WORD)
                if not self._door.learned(self._asked.url, response.headers):
                    refuse(self._asked, response.status, response.headers, body)
            except DenialError as error:
                if not self._door.renewed(prepared.credentials):
                    raise denied(self._asked, error) from None
            except (http.client.HTTPException, OSError) as error:
                if isinstance(error, ShardError):
                    raise
                cut, closed = http.client.IncompleteRead, http.client.RemoteDisconnected
                raise FailureError(described(error, limit_s, cut, closed)) from error
        raise denied(self._asked, DenialError("one refusal after the other", 403))


def _list_s3(asked: Asked, options: StorageOptions, *, deep: bool) -> list[Listed]:
    """List a bucket by ListObjectsV2: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>."""
    from xml.etree import ElementTree as ET  # a third of what all of streamdata takes to be imported

    scheme, _, rest = asked.url.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix += "/" if prefix and not prefix.endswith("/") else ""
    root, found, token = f"{scheme}://{bucket}/", [], ""
    while True:
        asks = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        asks |= ({} if deep else {"delimiter": "/"}) | ({"continuation-token": token} if token else {})
        query = urlencode(sorted(asks.items()), quote_via=quote)
        got = _with_patience(asked, options, partial(_listed_page, options, root, query))
        tree = ET.fromstring(got.data)  # noqa: S314  # expat bounds what entities expand to; a host is trusted so far
        for entry in tree.iterfind(f"{_SPACE}Contents"):
            texts = {child.tag.rpartition("}")[2]: child.text or "" for child in entry}
            listed = Listed(root + unquote(texts["Key"]), int(texts.get("Size") or 0), texts.get("ETag", ""))
            if not listed.url.endswith("/"):  # which stands for a folder
                found.append(listed)
        folders = tree.iterfind(f"{_SPACE}CommonPrefixes/{_SPACE}Prefix")
        found += [Listed(root + unquote(folder.text or ""), 0, "") for folder in folders]
        token = tree.findtext(f"{_SPACE}NextContinuationToken") or ""
        if not token:
            return found


def _listed_page(options: StorageOptions, root: str, query: str) -> Answer:
    return _Exchange(Asked(root), options, query).fetch()


def _list_web(asked: Asked, options: StorageOptions, *, deep: bool) -> list[Listed]:
    """List a folder by the links of pages, as web servers make them for folders."""
    folder = asked.url if asked.url.endswith("/") else f"{asked.url}/"
    page = _with_patience(asked, options, lambda: _Exchange(Asked(folder), options).page())
    links = {urljoin(bare_url(folder), unescape(link)) for link in _HREF.findall(page)}
    below = sorted(bare_url(link) for link in links if bare_url(link).startswith(bare_url(folder)))
    found = [Listed(link, 0, "") for link in dict.fromkeys(below) if link != bare_url(folder)]
    if not deep:
        return found
    return [
        one
        for entry in found
        for one in (
            _list_web(asked._replace(url=entry.url), options, deep=True) if entry.url.endswith("/") else [entry]
        )
    ]


def _apart(what: str, asked: Asked, options: StorageOptions, **settings: bool) -> Any:
    """Ask in another process, which ends with it: obstore has threads, after which a fork would hang."""
    with processes(_ask_objects, 1) as team:
        for _, found in team.run([(what, asked, options, settings)]):
            return found
    raise AssertionError("one task has one result")


def _ask_objects(task: tuple[str, Asked, StorageOptions, Mapping[str, bool]], _: object) -> Any:
    from streamdata.io.remote.object_client import ObjectClient

    what, asked, options, settings = task
    client = ObjectClient(options)
    ask: Any = {"fetch": client.get_here, "stat": client.stat, "list": client.list, "put": client.put}[what]
    return _with_patience(asked, options, lambda: ask(asked, **settings))
