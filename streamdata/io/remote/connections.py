"""HTTP without threads: `a prepared request → its answer`, over connections that each thread keeps."""

import http.client
import ssl
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from streamdata.io.remote.answers import FailureError
from streamdata.io.remote.stores import Prepared
from streamdata.io.remote.web import MAX_WORD
from streamdata.run.per_process import PerProcess

_REDIRECTS, _MAX_REDIRECTS = (301, 302, 303, 307, 308), 10


class _Connections:
    """The open connections of one thread, by host; they are closed with it."""

    def __init__(self) -> None:
        self.by_host: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def __del__(self) -> None:
        for connection in self.by_host.values():
            connection.close()


_here = PerProcess(threading.local)


def _connections() -> _Connections:
    here = _here.get()
    if not hasattr(here, "connections"):
        here.connections = _Connections()
    found: _Connections = here.connections
    return found


class Sent:
    """A request that was sent, and its answer; redirects are followed where that is asked for."""

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
                with nullcontext() if self._body is None else self._body.open("rb") as body, self._refusals():
                    connection.request(self._method, _target(self._url, target), body, self._headers)
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

    def _refusals(self) -> AbstractContextManager[None]:
        """Go on where the server ends a request with a body: it may have answered before it read all of it."""
        return nullcontext() if self._body is None else suppress(BrokenPipeError, ConnectionResetError)

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


def _target(url: str, path: str) -> str:
    parts = urlsplit(url)
    return url if parts.scheme == "http" and _proxy("http", parts.netloc) else path


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
