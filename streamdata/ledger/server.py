"""A ledger's server: `request → token → client and number; one that is repeated as before → the ledger → JSON`."""

import json
import logging
import re
import secrets
import socket
import sys
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
_POLL_S: Final = 0.1
_MAX_CLIENTS: Final = 4096
"""Clients whose last answers are kept: those that asked last."""
_MAX_TAKEN: Final = 1024
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


class Requests:
    """Answers the requests of clients, each once: one that is repeated, since its answer was lost, gets that.

    Args:
        ledger: The PromptLedger.
    """

    def __init__(self, ledger: Any) -> None:
        self._ledger, self._lock = ledger, Lock()
        self._last: dict[str, tuple[int, Answer]] = {}
        """By client, the number of its last request, and its answer; who asked last is the last."""

    def answer(self, operation: str, body: bytes) -> Answer:
        """Answer a request: a JSON dict of `client`, `number` and the operation's arguments."""
        try:
            arguments = json.loads(body)
            name, number = arguments.pop("client"), arguments.pop("number")
            if (type(name), type(number), arguments.keys()) != (str, int, _ARGUMENTS.get(operation)):
                raise ValueError("another")
            if arguments.get("n", 1) > _MAX_TAKEN:
                raise ValueError(f"more than {_MAX_TAKEN:,} prompts at once")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return _refusal(HTTPStatus.BAD_REQUEST, f"LedgerServer: expected a LedgerClient's request, got {error!r}")
        with self._lock:  # one that is repeated while it is still at work waits for its answer
            last, answer = self._last.pop(name, (0, (HTTPStatus.BAD_REQUEST, b"")))
            if number > last:
                last, answer = number, self._do(operation, name, arguments)
            self._last[name] = last, answer
            if len(self._last) > _MAX_CLIENTS:
                del self._last[next(iter(self._last))]
        if number < last:
            return _refusal(HTTPStatus.BAD_REQUEST, f"LedgerServer: expected a number from {last} on, got {number}")
        return answer

    def _do(self, operation: str, client: str, arguments: dict[str, Any]) -> Answer:
        taker = {} if operation in ("score", "stats") else {"taker": client}
        try:
            result = getattr(self._ledger, operation)(**arguments, **taker)
            if operation == "take":
                result = [[*prompt[:2], to_json(prompt.sample, prompt.source), *prompt[3:]] for prompt in result]
            return HTTPStatus.OK, json.dumps(result, separators=(",", ":")).encode()
        except StaleAttempt as error:
            return _refusal(HTTPStatus.CONFLICT, str(error))
        except WrongCall as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:  # of the data, and so the job's: its own log says where
            logger.exception("LedgerServer: %s failed", operation)
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{type(error).__name__}: {error}")


def _refusal(status: HTTPStatus, message: str) -> Answer:
    return status, json.dumps({"error": message}).encode()


class LedgerServer(ThreadingHTTPServer):
    """Serves a ledger to its clients, in threads of this process, until `close`.

    A request without the token is refused with 401, a body above 8 MiB with 413, what is no request of a client with
    400, a stale attempt with 409. A client that says nothing for 10 s within a request is cut off.

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

    request_queue_size = 128

    def __init__(self, ledger: Any, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self.token = secrets.token_urlsafe(32) if token is None else token
        if not re.fullmatch(r"[!-~]+", self.token):
            raise ValueError("LedgerServer: expected a token of visible ASCII characters, got another\n  Leave it out.")
        self.requests = Requests(ledger)
        super().__init__((host, port), _LedgerRequest)
        name = socket.gethostname() if host == "0.0.0.0" else host  # noqa: S104  the user's choice
        self.url = f"http://{name}:{self.server_port}"
        Thread(target=self.serve_forever, args=(_POLL_S,), name="LedgerServer", daemon=True).start()

    def server_bind(self) -> None:
        """Bind, without asking DNS for a name, as the standard library's does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was cut off, is nobody's mistake here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stop serving: clients get no answers any more. The ledger stays as it is."""
        self.shutdown()
        self.server_close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _LedgerRequest(BaseHTTPRequestHandler):
    """One request of a connection; HTTP/1.0, which has no more."""

    server_version, sys_version = "streamdata", ""
    timeout = 10.0
    wbufsize = -1  # an answer is sent at once
    server: LedgerServer

    def do_POST(self) -> None:
        given, length = self.headers.get("Authorization", ""), self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,12}", length):
            return self.send_error(HTTPStatus.BAD_REQUEST)
        if int(length) > MAX_BODY:
            return self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body = self.rfile.read(int(length))  # of who has no token, too: else the answer may be a broken connection
        if not compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return self.send_error(HTTPStatus.UNAUTHORIZED)
        return self._send(*self.server.requests.answer(self.path.removeprefix("/"), body))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the status alone: nothing that the client sent comes back."""
        status = HTTPStatus(code if code < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST)  # of a method
        self._send(*_refusal(status, f"LedgerServer: {status} {status.phrase}"))

    def _send(self, status: HTTPStatus, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that the standard library has
        """No log: what is wrong is in the answers."""
