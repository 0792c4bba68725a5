"""A ledger's server: `request → token → client and number; one that is repeated as before → the ledger → JSON`."""

import json
import logging
import math
import re
import secrets
import socket
import sys
import time
from contextlib import suppress
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Lock, Thread
from typing import Any, Final

from streamdata.errors import StaleAttempt
from streamdata.ledger.prompts import WrongCall
from streamdata.ledger.wire import to_json

logger = logging.getLogger("streamdata")

MAX_BODY: Final = 8 << 20
"""Bytes of a request."""
_REQUEST_S: Final = 10.0
"""How long a client may take to send a request."""
_POLL_S: Final = 0.1
_MAX_CLIENTS: Final = 4096
"""Clients whose last answers are kept: those that asked last."""
_MAX_NAME, _MAX_TAKEN = 100, 1024
_DRAINED, _DRAINED_S = 1 << 16, 0.1
"""Bytes and seconds for reading a refused request: else the client may get a broken connection as the answer."""
_ARGUMENTS: Final = {
    "take": {"n", "lease_s"},
    "done": {"ids"},
    "drop": {"ids", "reason"},
    "retry": {"ids", "after"},
    "renew": {"ids"},
    "score": {"ids", "values"},
    "stats": set[str](),
}
"""The arguments of each request."""

Answer = tuple[HTTPStatus, bytes]


class _Client:
    """The last request of a client, of which the hash is kept, and its answer."""

    def __init__(self) -> None:
        self.lock, self.number, self.request = Lock(), 0, 0
        self.answer: Answer = (HTTPStatus.OK, b"")


class Requests:
    """Answers the requests of clients, each once: one that is repeated, since its answer was lost, gets that.

    Args:
        ledger: The PromptLedger.
    """

    def __init__(self, ledger: Any) -> None:
        self._ledger, self._lock, self._clients = ledger, Lock(), dict[str, _Client]()

    def answer(self, operation: str, body: bytes) -> Answer:
        """Answer a request: a JSON dict of `client`, `number` and the operation's arguments."""
        try:
            arguments = json.loads(body)
            name, number = arguments.pop("client"), arguments.pop("number")
            if type(name) is not str or not 0 < len(name) <= _MAX_NAME or type(number) is not int:
                raise ValueError("no name or number")
            if arguments.keys() != _ARGUMENTS.get(operation):
                raise ValueError("no such request")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return _refusal(HTTPStatus.BAD_REQUEST, f"LedgerServer: expected a LedgerClient's request, got {error!r}")
        with self._lock:
            client = self._clients[name] = self._clients.pop(name) if name in self._clients else _Client()
            if len(self._clients) > _MAX_CLIENTS:
                del self._clients[next(iter(self._clients))]
        with client.lock:
            if number > client.number:
                client.number, client.request = number, hash((operation, body))
                client.answer = self._do(operation, name, arguments)
            elif (number, hash((operation, body))) != (client.number, client.request):
                wrong = f"LedgerServer: expected a number above {client.number}, or the same request, got {number}"
                return _refusal(HTTPStatus.BAD_REQUEST, wrong)
            return client.answer

    def _do(self, operation: str, client: str, arguments: dict[str, Any]) -> Answer:
        try:
            match operation:
                case "take":
                    result = self._take(client, **arguments)
                case "stats" | "score":
                    result = getattr(self._ledger, operation)(**arguments)
                case _:
                    result = getattr(self._ledger, operation)(**arguments, taker=client)
            return HTTPStatus.OK, json.dumps(result, separators=(",", ":")).encode()
        except StaleAttempt as error:
            return _refusal(HTTPStatus.CONFLICT, str(error))
        except WrongCall as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:  # of the data, and so the job's: its own log says where
            logger.exception("LedgerServer: %s failed", operation)
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{type(error).__name__}: {error}")

    def _take(self, client: str, n: Any, lease_s: Any) -> object:
        if type(n) is not int or n > _MAX_TAKEN or lease_s == math.inf:
            raise WrongCall("LedgerClient.take", f"at most {_MAX_TAKEN} prompts, on a lease", n, "Take fewer at once.")
        prompts = self._ledger.take(n, lease_s=lease_s, taker=client)
        try:
            return [[*prompt[:2], to_json(prompt.sample, prompt.source), *prompt[3:]] for prompt in prompts]
        except Exception:
            self._ledger.retry([prompt.id for prompt in prompts])
            raise


def _refusal(status: HTTPStatus, message: str) -> Answer:
    return status, json.dumps({"error": message}).encode()


class LedgerServer(ThreadingHTTPServer):
    """Serves a ledger to its clients, in threads of this process, until `close`.

    A request without the token is refused with 401, a body above 8 MiB with 413, what is no request of a client with
    400, a stale attempt with 409. A client that takes more than 10 s to send a request is cut off.

    Args:
        ledger: The PromptLedger.
        host: The address to listen at; `0.0.0.0` for clients on other nodes.
        port: 0 takes one that is free.
        token: What clients must know, of visible ASCII characters; by default a random one.

    Attributes:
        url: Where it is, for LedgerClient.
        token: As above.

    Raises:
        ValueError: The token is empty or has other characters.
        OSError: The address is taken, or is none of this machine.
    """

    block_on_close = False
    request_queue_size = 128

    def __init__(self, ledger: Any, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self.token = secrets.token_urlsafe(32) if token is None else token
        if not re.fullmatch(r"[!-~]+", self.token):
            raise ValueError("LedgerServer: expected a token of visible ASCII characters, got another\n  Leave it out.")
        self.requests = Requests(ledger)
        self.deadlines: dict[socket.socket, float] = {}
        """By connection, until when its request must be here; inf where none has begun."""
        super().__init__((host, port), _LedgerRequest)
        name = socket.gethostname() if host == "0.0.0.0" else host  # noqa: S104  the user's choice
        self.url = f"http://{name}:{self.server_port}"
        Thread(target=self.serve_forever, args=(_POLL_S,), name="LedgerServer", daemon=True).start()

    def server_bind(self) -> None:
        """Bind, without asking DNS for a name, as the standard library's does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def service_actions(self) -> None:
        """Cut off clients that are too slow; called every so often."""
        self._cut_off(time.monotonic())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was cut off, is nobody's mistake here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stop serving: clients get no answers any more. The ledger stays as it is."""
        self.shutdown()
        self.server_close()
        self._cut_off(math.inf)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_off(self, now: float) -> None:
        for connection, deadline in list(self.deadlines.items()):
            if deadline <= now:
                with suppress(OSError):  # it has ended by itself
                    connection.shutdown(socket.SHUT_RDWR)


class _LedgerRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # an answer to what is no request has headers, too
    server_version, sys_version = "streamdata", ""
    disable_nagle_algorithm, wbufsize = True, -1
    timeout = 60.0  # of a connection that says nothing; a client connects again
    server: LedgerServer

    def handle_one_request(self) -> None:
        self.server.deadlines[self.connection], self.close_connection = math.inf, True
        with suppress(TimeoutError):
            if self.rfile.peek(1):  # type: ignore[attr-defined]  # it is buffered
                self.server.deadlines[self.connection] = time.monotonic() + _REQUEST_S
                super().handle_one_request()

    def finish(self) -> None:
        self.server.deadlines.pop(self.connection, None)
        super().finish()

    def do_POST(self) -> None:
        lengths, given = self.headers.get_all("Content-Length", []), self.headers.get("Authorization", "")
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,12}", lengths[0]) or "Transfer-Encoding" in self.headers:
            return self.send_error(HTTPStatus.BAD_REQUEST)
        length, is_known = int(lengths[0]), compare_digest(given.encode(), f"Bearer {self.server.token}".encode())
        if not is_known or length > MAX_BODY:
            self.connection.settimeout(_DRAINED_S)
            with suppress(TimeoutError):
                self.rfile.read(min(length, _DRAINED))
            return self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE if is_known else HTTPStatus.UNAUTHORIZED)
        body = self.rfile.read(length)
        self.server.deadlines[self.connection] = math.inf
        if len(body) < length:
            raise ConnectionError("the client went away, or was cut off")
        return self._send(*self.server.requests.answer(self.path.removeprefix("/"), body))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the status alone: nothing that the client sent comes back."""
        self.close_connection = True  # some of it may lie there unread
        status = HTTPStatus(code if code < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST)  # of a method
        self._send(*_refusal(status, f"LedgerServer: {status} {status.phrase}"))

    def _send(self, status: HTTPStatus, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close" if self.close_connection else "keep-alive")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the standard library has
        """No log: what is wrong is in the answers."""
