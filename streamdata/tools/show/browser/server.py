"""A server for one person: pages at 127.0.0.1, for whoever has the url with its token.

`socket → thread → Host, method, token → a function of path and query → answer, with headers that allow nothing else`
"""

import errno
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

_HOST: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 32
_REQUEST_S: Final = 10
"""How long a client may take to send its request: a browser opens connections that it may never use."""
_CLOSING_S: Final = 2
_MAX_FIELDS: Final = 20

_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    # Scripts cannot make markup of texts, whatever they do.
    "require-trusted-types-for": "'script'",
}

_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every answer, errors too: nothing inline, nothing from elsewhere, in no frame, the url told to nobody."""


class PageAnswer(NamedTuple):
    """The answer of a page's function."""

    content: bytes
    content_type: str = "text/html; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Respond = Callable[[str, Mapping[str, str]], PageAnswer | None]
"""The path behind the token without its slash, and the query → the answer, or None where there is nothing."""


class PageServer:
    """Serves what a function answers to GET requests, at 127.0.0.1 alone.

    Without the token, or with a Host other than 127.0.0.1 or localhost and the port, a request is refused with 403: so
    neither other users of the machine nor pages of other sites can read anything, also by a name that leads here.

    Args:
        respond: Called in a thread for each request.
        port: 0 takes one that is free.

    Attributes:
        url: Where the pages are, with the token.

    Raises:
        ValueError: The port is taken, or not for this user.
    """

    def __init__(self, respond: Respond, port: int = 0) -> None:
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        handler = partial(_Request, respond, self._token)
        try:
            self._server = _LoopbackServer((_HOST, port), handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise ValueError(
                f"--port {port}: expected a port that is free for this user, got {error.strerror}\n"
                "  Give another one, or leave it out."
            ) from error
        self.url = f"http://{_HOST}:{self._server.server_port}/{self._token}/"

    def serve(self) -> None:
        """Answer requests until `stop` is called, or Ctrl-C raises here; then let go of the port and of all threads."""
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._server.server_close()

    def stop(self) -> None:
        """Let `serve`, which runs in another thread, return."""
        self._server.shutdown()


class _LoopbackServer(ThreadingHTTPServer):
    def __init__(self, *args: Any) -> None:
        self._threads_of: dict[socket.socket, threading.Thread] = {}
        """By open connection."""
        super().__init__(*args)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer asks DNS for a name besides
        self.server_name, self.server_port = _HOST, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        # The mixin's threads either hold the process, where one hangs in a store, or are not waited for at all.
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._threads_of[request] = thread
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._threads_of[request]

    def server_close(self) -> None:
        super().server_close()
        still_open = dict(self._threads_of)
        for connection in still_open:
            with suppress(OSError):  # its thread may have closed it since
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _CLOSING_S
        for thread in still_open.values():  # all together, however many read
            thread.join(max(0.0, deadline - time.monotonic()))

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away is nobody's mistake. What data does wrong is a page; the rest is our own mistake.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    default_request_version = "HTTP/1.0"  # an answer to what is no request has headers, too
    server: _LoopbackServer

    def __init__(self, respond: Respond, token: str, *args: Any) -> None:
        self._respond, self._token = respond, token
        super().__init__(*args)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        refusal = self._refusal()
        if refusal is not None:
            self.send_error(refusal)
        return refusal is None

    def _refusal(self) -> HTTPStatus | None:
        hosts = {f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")}
        given = self.headers.get_all("Host", [])
        if len(given) != 1 or given[0].strip().lower() not in hosts:
            return HTTPStatus.FORBIDDEN
        if self.command != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED
        token = self.path.removeprefix("/").partition("/")[0]
        return None if compare_digest(token.encode(), self._token.encode()) else HTTPStatus.FORBIDDEN

    def do_GET(self) -> None:
        try:
            target = urlsplit(self.path)
            query = dict(parse_qsl(target.query, max_num_fields=_MAX_FIELDS, errors="replace"))
        except ValueError:
            return self.send_error(HTTPStatus.BAD_REQUEST)
        answer = self._respond(target.path.removeprefix(f"/{self._token}").removeprefix("/"), query)
        return self.send_error(HTTPStatus.NOT_FOUND) if answer is None else self._send(answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the status alone: nothing that the client sent comes back."""
        status = HTTPStatus(code)
        hint = "\nOpen the whole url that streamdata printed."
        text = f"{status.value} {status.phrase}{hint if status == HTTPStatus.FORBIDDEN else ''}"
        self._send(PageAnswer(text.encode(), "text/plain; charset=utf-8", status))

    def _send(self, answer: PageAnswer) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.content)))
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def version_string(self) -> str:
        return "streamdata"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the standard library has
        """No log: its lines would hold the token."""
