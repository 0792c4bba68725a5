"""Requests to hosts: `url, range, version → bytes, version, size`, or an error; and when one is made again.

The clients' own retries are switched off, so that all are counted here. A request that fails for as long as the
deadline ends, and with it all others to a host that answers nobody. Until then this process makes a bounded number of
requests, however many wait: beyond the first ones they are spaced out, as probes.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from math import inf
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from streamdata.errors import ShardError, shown
from streamdata.io.remote.addresses import bare_url, secrets_of, signed_url

T = TypeVar("T")
Taken = TypeVar("Taken")
DEADLINE_S = 120.0
STALL_S = 15.0  # without a byte
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 8.0
_FREE_ATTEMPTS = 112  # since the last success, before they are spaced out
_MAX_ATTEMPTS = 272  # since the last success, until the deadline
_DEAD_SHARE = 1 / 12  # of the deadline: for so long one that is dead is not asked again by who comes later
_LOOK_S = 0.1  # how often those who wait look whether the host has recovered
_RANDOM = SystemRandom()  # the module's own is the user's, whose numbers would depend on when a request failed
Headers = Any  # a mapping from names to texts that knows no case: each client has its own
MAX_WORD = 4096
"""Bytes of an error's body that are looked at."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_WORD = re.compile(r"<(Code|Message)>([^<]{1,200})<")
_TRANSIENT = (408, 425, 429)
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed")


class ReplacedError(ShardError):
    """The object on the host has another version than the one requested."""


class RangesIgnoredError(ShardError):
    """A server sent a whole file, or a web page, where a range was requested."""


class DeniedError(ShardError):
    """The host refuses access, with status 401 or 403."""


class GoneError(ShardError, FileNotFoundError):
    """The object does not exist."""


class DeadHostError(ShardError):
    """A host kept failing until the deadline."""


class FailureError(Exception):
    """An attempt failed in a way that may pass; the request can be retried.

    Attributes:
        status: Of HTTP, 0 where there was no answer.
        word: What the server says, or what happened.
        wait: Seconds that the server asks us to wait.
    """

    def __init__(self, word: str, status: int = 0, wait: float = 0.0) -> None:
        super().__init__(word)
        self.word, self.status, self.wait = word, status, wait


class Answer(NamedTuple):
    """A host's answer: bytes of an object, with its version and size.

    Attributes:
        data: The bytes; fewer than asked for where the object ends.
        version: What the host calls this version (its ETag), "" where it has no name for it.
        size: Bytes of the whole object.
    """

    data: bytes
    version: str
    size: int


class Listed(NamedTuple):
    """An object or folder listed by its host; a folder's url ends in a slash."""

    url: str
    size: int
    version: str


class Asked(NamedTuple):
    """A request, independent of the client that makes it.

    Attributes:
        what: Which method of the client makes it.
        url: An `Address` brings options and secrets.
        begin: The first byte.
        end: After the last byte; 0 for a request of no bytes, such as a list.
        version: Which version it has to be, "" for any.
        body: The local file whose bytes are to be written there.
        deep: Whether a list is of all objects below a folder; else it is of the objects and folders directly in it.
        page: Where a list goes on; "" at its beginning.
    """

    what: Literal["fetch", "stat", "list", "put"]
    url: str
    begin: int = 0
    end: int = 0
    version: str = ""
    body: Path | None = None
    deep: bool = False
    page: str = ""

    @property
    def signed(self) -> str:
        """The url as it is requested, which may hold secrets."""
        return signed_url(self.url)

    def describe(self) -> str:
        """The shard and the range requested, for messages."""
        where = f": bytes {self.begin} to {self.end}" if self.end else ""
        return f"{'shard' if self.body is None else 'object'} '{bare_url(self.url)}'{where}"

    @property
    def method(self) -> str:
        """The verb of HTTP."""
        return {"stat": "HEAD", "put": "PUT"}.get(self.what, "GET")

    @property
    def aim(self) -> str:
        """The answer that is expected, for messages."""
        return "its bytes" if self.body is None else "to write it"

    def headers(self) -> dict[str, str]:
        """The headers of a request for one version; weak ETags match nothing and are compared in the response."""
        headers = {"Accept-Encoding": "identity"}
        if self.end:
            headers["Range"] = f"bytes={self.begin}-{self.end - 1}"
        if self.version.startswith('"'):
            headers["If-Match"] = self.version
        return headers

    def announced(self, status: int, headers: Headers) -> Answer:
        """The object's size and version, without its bytes, as the headers of a response to a range announce them.

        Raises:
            ShardError: The response has another range or version than the one requested.
        """
        version, text = version_of(headers), headers.get("Content-Range", "")
        if status == HTTPStatus.OK:
            self.refuse_page(headers)
            raise self.ranges_ignored("expected status 206 with these bytes, got status 200: its server ignores ranges")
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return Answer(b"", version, 0)
        match = _CONTENT_RANGE.fullmatch(text)
        begin, last, size = map(int, match.groups()) if match else (-1, -1, -1)
        if begin != self.begin or last + 1 != min(self.end, size):
            raise self.ranges_ignored(f"expected this range, got {shown(text)} with status 206")
        self.check_version(version)
        return Answer(b"", version, size)

    def is_empty(self, status: int, headers: Headers) -> bool:
        """Whether the response says that the object is empty, so that no range of it exists."""
        is_unsatisfiable = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
        return is_unsatisfiable and self.begin == 0 and headers.get("Content-Range", "").endswith("*/0")

    def completed(self, found: Answer, data: bytes) -> Answer:
        """The answer with its bytes.

        Raises:
            FailureError: The body was cut.
        """
        if len(data) != (expected := min(self.end, found.size) - self.begin):
            raise FailureError(f"a body of {len(data)} bytes, expected {expected}")
        return found._replace(data=data)

    def check_version(self, version: str) -> None:
        """Raise ReplacedError unless the version is the one that was asked for."""
        if self.version and version != self.version:
            raise self.replaced(version or "none")

    def refuse_page(self, headers: Headers) -> None:
        """Raise RangesIgnoredError if a response is a web page for people."""
        if headers.get("Content-Type", "").startswith("text/html"):
            raise RangesIgnoredError(
                f"{self.describe()}: expected its bytes, got a web page (HTML) with status 200\n"
                "  It may be the page of a login, or of an address that has moved: open it in a browser."
            )

    def refusal(self, status: int, headers: Headers = MappingProxyType({}), body: bytes = b"") -> Exception:
        """Make the error that an unsuccessful status stands for: a FailureError where a retry may succeed."""
        code, word = _words(self.signed, body)
        said = f"status {status}{word}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT:
            wait = headers.get("Retry-After", "")
            return FailureError(word.strip(" ()") or "no word of why", status, int(wait) if wait.isdigit() else 0)
        if status in (401, 403) or (status == HTTPStatus.BAD_REQUEST and code in _EXPIRED):
            return self.denied(said)
        if status in (404, 410):
            return GoneError(
                f"{self.describe()}: expected {'a file' if self.body is None else self.aim}, got {said}\n"
                "  Check the address; if it was there, it was removed after the run began."
            )
        if status == HTTPStatus.PRECONDITION_FAILED:
            return self.replaced(f"another one ({said})")
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            size = headers.get("Content-Range", "").rpartition("/")[2] or "fewer"
            return self.replaced(f"a file that ends before, of {size} bytes ({said})")
        return ShardError(f"{self.describe()}: expected {self.aim}, got {said}\n  Check address and settings.")

    def replaced(self, got: str) -> ReplacedError:
        """Make the error for an object whose version is not the requested one."""
        return ReplacedError(
            f"shard '{bare_url(self.url)}': it was replaced or modified after the run began, expected version "
            f"{self.version} for bytes {self.begin} to {self.end}, got {got}\n"
            "  Leave shards as they are while they are read; to use the new ones, start the run again."
        )

    def ranges_ignored(self, said: str) -> RangesIgnoredError:
        """Make the error for a server that sends other bytes than those requested."""
        return RangesIgnoredError(
            f"{self.describe()}: {said}\n  Serve it from a server that answers range requests, or copy it to a disk."
        )

    def denied(self, said: str) -> DeniedError:
        """Make the error for a refusal of credentials."""
        return DeniedError(
            f"{self.describe()}: expected {self.aim}, got {said}: credentials expired or no permission\n"
            f"  Renew the credentials, or ask for permission to {'read' if self.body is None else 'write'} it; S3 says "
            "so of missing objects, too."
        )


class Listing(NamedTuple):
    """A page of a list: what it has, and the requests for what else belongs to the list."""

    entries: list[Listed]
    more: list[Asked]


class Client(Protocol):
    """Makes one attempt at a request to one kind of host; the caller retries.

    Each method raises FailureError where a retry may succeed, ShardError where none can. A client of hosts that can be
    written to also has `put`, which writes an object in one step if its host can.
    """

    async def fetch(self, asked: Asked) -> Answer:
        """The requested bytes, of the requested version."""
        ...

    async def stat(self, asked: Asked) -> Answer:
        """The object's size and version, without bytes."""
        ...

    async def list(self, asked: Asked) -> Listing:
        """The objects below a folder."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def then(answer: "Future[T]", take: Callable[[T], Taken]) -> "Future[Taken]":
    """A future of `take(answer)`, or of the error of either; cancelling it cancels the answer."""
    result: Future[Taken] = Future()

    def finish(done: "Future[T]") -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(take(done.result()))
            except BaseException as error:
                result.set_exception(error)

    answer.add_done_callback(finish)
    result.add_done_callback(lambda done: done.cancelled() and answer.cancel())
    return result


def version_of(headers: Headers) -> str:
    """The server's name for the version that it sends."""
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _words(url: str, body: bytes) -> tuple[str, str]:
    """The code and the words of a host's error, without what is secret in the url, which they may repeat.

    Of other bodies nothing.
    """
    found = dict(_WORD.findall(body[:MAX_WORD].decode("utf-8", "replace")))
    words = ", ".join(found[name].strip() for name in ("Code", "Message") if name in found)
    for secret in sorted(secrets_of(url), key=len, reverse=True):
        words = words.replace(secret, "…")
    return found.get("Code", ""), f" ({words})" if words else ""


class HostHealth:
    """The answers and failures of one host lately, as this process has seen them.

    Attempts beyond the first ones since it last answered are spaced out, so that no more than `_MAX_ATTEMPTS` fit
    before the deadline.
    """

    def __init__(self) -> None:
        self.failing_since: float | None = None
        self.died_at: float | None = None
        """When it was given up, by the monotonic clock."""
        self.last: FailureError | None = None
        self._planned = 0  # attempts since the last success
        self._next_probe = 0.0

    def plan(self) -> float:
        """Plan an attempt; return the monotonic time at which to make it."""
        self._planned += 1
        now = time.monotonic()
        if self.failing_since is None or self._planned <= _FREE_ATTEMPTS:
            return now
        space = DEADLINE_S / (_MAX_ATTEMPTS - _FREE_ATTEMPTS)
        self._next_probe = max(now, self._next_probe + space)
        return self._next_probe

    def succeeded(self, began: float) -> None:
        """Record that the host answered an attempt begun at `began`; one begun before the failures changes nothing."""
        if self.failing_since is None or began >= self.failing_since:
            self._planned, self.failing_since = 0, None

    def is_to_be_asked_again(self) -> bool:
        """Whether the host was given up long enough ago to be tried again."""
        return self.died_at is not None and time.monotonic() - self.died_at > DEADLINE_S * _DEAD_SHARE


class Patience:
    """Schedules the attempts at one request, and gives up in the end.

    Call `begin` before each, and wait as it says until it is None; then `failed` or `succeeded`. The first request that
    gives up a host that answers nobody ends all others at once.
    """

    def __init__(self, asked: Asked, health: HostHealth) -> None:
        self._asked, self._health = asked, health
        self.attempts = 0
        self.asked_at = time.monotonic()
        self._failing_since = inf
        self._last: FailureError | None = None
        self._due: float | None = None
        self._began = 0.0  # the last attempt
        self._ready = 0.0  # when the wait after the last failure is over

    @property
    def limit_s(self) -> float:
        """The time limit of the next attempt, in seconds."""
        return max(0.1, min(DEADLINE_S, self._failing_since + DEADLINE_S - time.monotonic()))

    def begin(self) -> float | None:
        """Seconds to wait before calling `begin` again; None if the attempt may be made now.

        Raises:
            DeadHostError: No further attempt is worth making.
        """
        health, now = self._health, time.monotonic()
        if now > self._failing_since + DEADLINE_S and health.failing_since is not None:
            health.died_at, health.last = now, self._last
        if health.died_at is not None or now > self._failing_since + DEADLINE_S:
            raise self._error(self._last or health.last, now)
        if self._ready > now:
            return min(_LOOK_S, self._ready - now)
        if self._due is None:
            self._due = health.plan()
        if health.failing_since is not None and self._due > now:
            return min(_LOOK_S, self._due - now)
        self._due, self._began = None, now
        self.attempts += 1
        return None

    def failed(self, failure: FailureError) -> None:
        """Record that the attempt failed."""
        now, self._last = time.monotonic(), failure
        self._failing_since = min(self._failing_since, now)
        if self._health.failing_since is None:
            self._health.failing_since = now
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(self.attempts, 10))
        self._ready = now + max(_RANDOM.uniform(longest / 2, longest), min(failure.wait, _LONGEST_WAIT_S))

    def succeeded(self) -> None:
        """Record that the host answered, with success or not."""
        self._health.succeeded(self._began)

    def _error(self, last: FailureError | None, now: float) -> DeadHostError:
        """The error of a request that is given up."""
        assert last is not None, "nothing failed"
        status = f"status {last.status}, " if last.status else ""
        return DeadHostError(
            f"{self._asked.describe()}: expected an answer, got {status}{last.word} "
            f"(attempts {self.attempts}, during {now - self.asked_at:.0f} s): the host is dead\n"
            "  Look whether this is the host that is meant, is up and can be reached from here; then resume."
        )
