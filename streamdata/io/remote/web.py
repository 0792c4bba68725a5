"""HTTP of one attempt: `Asked → headers`; `status, headers, body → Answer`, or why there is none.

Ranges and preconditions are those of RFC 9110, sections 13 and 14. `Sent` sends a request without threads, over
connections that each thread keeps; `web_client` sends many at a time on an event loop.
"""

import http.client
import re
import ssl
import threading
from contextlib import nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from streamdata.errors import ShardError, shown
from streamdata.io.remote.addresses import bare_url, secrets_of
from streamdata.io.remote.requests import (
    Answer,
    Asked,
    DenialError,
    DeniedError,
    FailureError,
    GoneError,
    RangesIgnoredError,
    ReplacedError,
)
from streamdata.run.per_process import PerProcess

Headers = Any  # a mapping from names to texts that knows no case: each client has its own
MAX_WORD = 4096
"""Bytes of an error's body that are looked at."""
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_WORD = re.compile(r"<(Code|Message)>([^<]{1,200})<")
_TRANSIENT = (408, 425, 429)
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed")
_STRONG = '"'
_REDIRECTS, _MAX_REDIRECTS = (301, 302, 303, 307, 308), 10
_here = PerProcess(threading.local)


class Prepared(NamedTuple):
    """A request ready to send: url, headers, and the credentials that signed it."""

    url: str
    headers: dict[str, str]
    credentials: int = 0


class Promise(NamedTuple):
    """The announcement in a response's headers: length of the body (None if not given), version, size of the object."""

    length: int | None
    version: str
    size: int | None


def range_headers(asked: Asked) -> dict[str, str]:
    """The headers of a range request for one version; weak ETags match nothing and are compared in the response."""
    headers = {"Accept-Encoding": "identity"}
    if asked.is_range and asked.begin is not None and asked.end is not None:
        headers["Range"] = f"bytes={asked.begin}-{asked.end - 1}"
    if asked.version.startswith(_STRONG):
        headers["If-Match"] = asked.version
    return headers


def version_of(headers: Headers) -> str:
    """The server's name for the version that it sends."""
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def promise(asked: Asked, status: int, headers: Headers) -> Promise:
    """Read what the headers of a successful response announce.

    Raises:
        ShardError: The response has another range or version than the one requested.
    """
    assert status in (200, 206), status
    version, text = version_of(headers), headers.get("Content-Length", "")
    length = int(text) if text.isdigit() else None
    if status == HTTPStatus.OK:
        if headers.get("Content-Type", "").startswith("text/html"):
            raise RangesIgnoredError(
                f"{asked.describe()}: expected its bytes, got a web page (HTML) with status 200\n"
                "  It may be the page of a login, or of an address that has moved: open it in a browser."
            )
        if asked.is_range:
            raise ranges_ignored(asked)
        found = Promise(length, version, length)
    else:
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        begin, end = (int(match[1]), int(match[2]) + 1) if match and match[1] else (-1, -1)
        if match is None or begin != asked.begin or asked.end is None or not begin < end <= asked.end:
            raise RangesIgnoredError(
                f"{asked.describe()}: expected this range, got {shown(headers.get('Content-Range'))} with status 206\n"
                "  Serve it from a server that answers range requests, or copy it to a disk."
            )
        found = Promise(end - begin, version, int(match[3]))
    check_version(asked, version)
    return found


def check_version(asked: Asked, version: str) -> None:
    """Raise ReplacedError unless the version is the one that was asked for."""
    if asked.version and version != asked.version:
        raise replaced(asked, f"{version or 'none'}")


def replaced(asked: Asked, got: str) -> ReplacedError:
    """Make the error for an object whose version is not the requested one."""
    return ReplacedError(
        f"shard '{bare_url(asked.url)}': it was replaced or modified after the run began, expected version "
        f"{asked.version} for bytes {asked.begin} to {asked.end}, got {got}\n"
        "  Leave shards as they are while they are read; to use the new ones, start the run again."
    )


def ranges_ignored(asked: Asked) -> RangesIgnoredError:
    """Make the error for a server that sends whole files instead of ranges."""
    return RangesIgnoredError(
        f"{asked.describe()}: expected status 206 with these bytes, got status 200: its server ignores ranges\n"
        "  Serve it from a server that answers range requests, or copy it to a disk."
    )


def is_empty(asked: Asked, status: int, headers: Headers) -> bool:
    """Whether the response says that the object is empty, so that no range of it exists."""
    is_unsatisfiable = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    return is_unsatisfiable and asked.begin == 0 and headers.get("Content-Range", "").endswith("*/0")


def answer(status: int, promised: Promise, data: bytes, waited: float) -> Answer:
    """Make the answer of a complete response.

    Raises:
        FailureError: The body was cut.
    """
    if promised.length is not None and len(data) != promised.length:
        raise FailureError(f"a body of {len(data)} bytes, expected {promised.length}", status)
    return Answer(data, promised.version, len(data) if promised.size is None else promised.size, status, waited)


def refuse(asked: Asked, status: int, headers: Headers, body: bytes) -> NoReturn:
    """Raise the error that an unsuccessful status stands for.

    Raises:
        FailureError: A retry may succeed.
        DenialError: The credentials were refused.
        ShardError: A retry cannot help.
    """
    code, word = _words(asked, body)
    said = f"status {status}{word}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT:
        wait = headers.get("Retry-After", "")
        raise FailureError(word.strip(" ()") or "no word of why", status, int(wait) if wait.isdigit() else 0)
    if status in (401, 403) or (status == HTTPStatus.BAD_REQUEST and code in _EXPIRED):
        raise DenialError(said, status)
    if status in (404, 410):
        raise GoneError(
            f"{asked.describe()}: expected {'a file' if asked.body is None else asked.aim}, got {said}\n"
            "  Check the address; if it was there, it was removed after the run began."
        )
    if status == HTTPStatus.PRECONDITION_FAILED:
        raise replaced(asked, f"another one ({said})")
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        size = headers.get("Content-Range", "").rpartition("/")[2] or "fewer"
        raise replaced(asked, f"a file that ends before, of {size} bytes ({said})")
    raise ShardError(f"{asked.describe()}: expected {asked.aim}, got {said}\n  Check address and settings.")


def refusal(asked: Asked, status: int) -> Exception:
    """Make the error of a status when the client gives nothing else; never a `DenialError`."""
    try:
        refuse(asked, status, {}, b"")
    except DenialError as error:
        return denied(asked, error)
    except Exception as error:
        return error


def _words(asked: Asked, body: bytes) -> tuple[str, str]:
    """The code and the words of a host's error, without what is secret in the request, which they may repeat.

    Of other bodies nothing.
    """
    found = dict(_WORD.findall(body[:MAX_WORD].decode("utf-8", "replace")))
    words = ", ".join(found[name].strip() for name in ("Code", "Message") if name in found)
    for secret in sorted(secrets_of(asked.url), key=len, reverse=True):
        words = words.replace(secret, "…")
    return found.get("Code", ""), f" ({words})" if words else ""


def denied(asked: Asked, error: DenialError) -> DeniedError:
    """Make the final error after a refusal of credentials."""
    return DeniedError(
        f"{asked.describe()}: expected {asked.aim}, got {error.word}: credentials expired or no permission\n"
        f"  Renew the credentials, or ask for permission to {'read' if asked.body is None else 'write'} it; S3 says so "
        "of missing objects, too."
    )


def with_attempts(error: ShardError, attempts: int) -> ShardError:
    """Add the number of attempts to an error."""
    what, _, remedy = str(error).partition("\n")
    return type(error)(f"{what} (attempts {attempts})\n{remedy}")


class _Connections:
    """The open connections of one thread, by host; they are closed with it."""

    def __init__(self) -> None:
        self.by_host: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def __del__(self) -> None:
        for connection in self.by_host.values():
            connection.close()


def _connections() -> _Connections:
    here = _here.get()
    if not hasattr(here, "connections"):
        here.connections = _Connections()
    found: _Connections = here.connections
    return found


class Sent:
    """A context manager that sends a request and gives its response; it follows redirects if asked to."""

    def __init__(self, method: str, prepared: Prepared, body: Path | None, limit_s: float, *, follows: bool) -> None:
        self._method, self._url, self._headers, self._follows = method, prepared.url, prepared.headers, follows
        self._body = body
        self._limit_s = limit_s  # without a byte
        if body is not None:  # http.client would send a file in chunks, which S3 does not take so
            self._headers = self._headers | {"Content-Length": str(body.stat().st_size)}
        self._key: tuple[str, str] = ("", "")
        self._response: http.client.HTTPResponse | None = None
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> http.client.HTTPResponse:
        for _ in range(_MAX_REDIRECTS):
            response = self._send()
            target = response.headers.get("Location")
            if not self._follows or response.status not in _REDIRECTS or target is None:
                return response
            response.read(MAX_WORD)
            self._finish()
            before, self._url = self._url, urljoin(self._url, target)
            if urlsplit(before).netloc != urlsplit(self._url).netloc:
                self._headers = {name: text for name, text in self._headers.items() if name != "Authorization"}
        raise FailureError("a circle of redirects")

    def _send(self) -> http.client.HTTPResponse:
        parts = urlsplit(self._url)
        self._key = parts.scheme, parts.netloc
        kept = _connections().by_host.pop(self._key, None)
        for connection in filter(None, (kept, _connect(*self._key))):
            self._connection = connection
            connection.timeout = self._limit_s
            if connection.sock is not None:
                connection.sock.settimeout(self._limit_s)
            try:
                target = parts.path + (f"?{parts.query}" if parts.query else "")
                if parts.scheme == "http" and _proxy("http", parts.netloc):
                    target = self._url
                # The server may end a request with a body: it has answered before it read all of it.
                refusals = () if self._body is None else (BrokenPipeError, ConnectionResetError)
                with nullcontext() if self._body is None else self._body.open("rb") as body, suppress(*refusals):
                    connection.request(self._method, target, body, self._headers)
                self._response = connection.getresponse()
                return self._response
            except (http.client.RemoteDisconnected, ConnectionError):
                connection.close()
                if connection is not kept:  # a kept one may have been closed by the server while it was idle
                    raise
            except BaseException:
                connection.close()
                raise
        raise AssertionError("a new connection either answers or raises")

    def _finish(self) -> None:
        """Keep the connection where all of the answer was read."""
        response, connection = self._response, self._connection
        if response is None or connection is None:
            return
        if response.isclosed() and not response.will_close:
            _connections().by_host[self._key] = connection
        else:
            connection.close()
        response.close()

    def __exit__(self, *_: object) -> None:
        self._finish()


def _proxy(scheme: str, host: str) -> str | None:
    proxy = getproxies().get(scheme)
    return None if proxy is None or proxy_bypass(host) else proxy


def _connect(scheme: str, netloc: str) -> http.client.HTTPConnection:
    """A connection, which opens with its first request."""
    proxy = _proxy(scheme, netloc)
    through = urlsplit(proxy).netloc.rpartition("@")[2] if proxy else netloc
    if scheme == "http":
        connection = http.client.HTTPConnection(through)
    else:
        connection = http.client.HTTPSConnection(through, context=ssl.create_default_context())
        if proxy:
            connection.set_tunnel(netloc)
    connection.blocksize = 1 << 16
    return connection
