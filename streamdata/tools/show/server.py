"""A server for one person: pages at 127.0.0.1, for whoever has the url with its token.

`socket → thread → Host, method, token → a function of path and query → answer, with headers that allow nothing else`
"""

import errno
import secrets
import sys
from collections.abc import Callable, Mapping
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
_MAX_FIELDS: Final = 20

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"  # scripts cannot make markup of texts, whatever they do
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
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


class PageServer(ThreadingHTTPServer):
    """Serves what a function answers to GET requests, at 127.0.0.1 alone.

    Without the token, or with a Host other than 127.0.0.1 or localhost and the port, a request is refused with 403: so
    neither other users of the machine nor pages of other sites can read anything, also by a name that leads here.

    Threads hold neither the end nor the process, where one hangs in a store or a client says nothing.

    Args:
        respond: Called in a thread for each request.
        port: 0 takes one that is free.

    Attributes:
        respond: As it was given.
        token: The first part of each path.
        url: Where the pages are, with the token.

    Raises:
        ValueError: The port is taken, or not for this user.
    """

    block_on_close = False

    def __init__(self, respond: Respond, port: int = 0) -> None:
        self.respond, self.token = respond, secrets.token_urlsafe(_TOKEN_BYTES)
        try:
            super().__init__((_HOST, port), _Request)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise ValueError(
                f"--port {port}: expected a port that is free for this user, got {error.strerror}\n"
                "  Give another one, or leave it out."
            ) from error
        self.url = f"http://{_HOST}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Bind, without asking DNS for a name, as the standard library's does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's mistake. What data does wrong is a page; the rest is our own mistake."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    default_request_version = "HTTP/1.0"  # an answer to what is no request has headers, too
    server: PageServer

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        hosts = [f"{name}:{self.server.server_port}" for name in (_HOST, "localhost")]
        given = self.headers.get_all("Host", [])
        token = self.path.removeprefix("/").partition("/")[0]
        if len(given) != 1 or given[0].strip().lower() not in hosts:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif not compare_digest(token.encode(), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN)
        else:
            return True
        return False

    def do_GET(self) -> None:
        try:
            target = urlsplit(self.path)
            query = dict(parse_qsl(target.query, max_num_fields=_MAX_FIELDS, errors="replace"))
        except ValueError:
            return self.send_error(HTTPStatus.BAD_REQUEST)
        answer = self.server.respond(target.path.removeprefix(f"/{self.server.token}").removeprefix("/"), query)
        return self.send_error(HTTPStatus.NOT_FOUND) if answer is None else self._send(answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the status alone: nothing that the client sent comes back."""
        status = HTTPStatus(code)
        hint = "\nOpen the whole url that streamdata printed." if status == HTTPStatus.FORBIDDEN else ""
        self._send(PageAnswer(f"{status.value} {status.phrase}{hint}".encode(), "text/plain; charset=utf-8", status))

    def _send(self, answer: PageAnswer) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.content))}
        headers |= {"Allow": "GET"} if answer.status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        for name, value in (headers | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def version_string(self) -> str:
        return "streamdata"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the standard library has
        """No log: its lines would hold the token."""
