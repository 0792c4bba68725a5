"""Requests to hosts: `url, range, version → bytes, version, size`, or an error; and when one is made again.

The clients' own retries are switched off, so that all are counted here. A host that answers nothing but failures ends
the run within the deadline, counted from its first failure, and after a bounded number of requests of this process,
however many wait for it: beyond the first ones they are spaced out, as probes.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeVar

from streamdata.errors import ShardError, shown
from streamdata.io.remote.addresses import NO_OPTIONS, StorageOptions, bare_url, options_of, secrets_of, signed_url

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
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_WORD = re.compile(r"<(Code|Message)>([^<]{1,200})<")
_TRANSIENT = (408, 425, 429)
_EXPIRED = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed")
_STRONG = '"'


class Answer(NamedTuple):
    """A host's answer: bytes of an object, with its version and size.

    Attributes:
        data: The bytes; fewer than asked for where the object ends.
        version: What the host calls this version (its ETag), "" where it has no name for it.
        size: Bytes of the whole object.
        waited: Seconds from the first attempt to the last byte.
    """

    data: bytes
    version: str
    size: int
    waited: float = 0.0


class Stat(NamedTuple):
    """An object's size in bytes, and its version ("" if the host names none)."""

    size: int
    version: str


class Listed(NamedTuple):
    """An object or folder listed by its host; a folder's url ends in a slash."""

    url: str
    size: int
    version: str


class Asked(NamedTuple):
    """A request, independent of the client that makes it.

    Attributes:
        what: Which method of the client makes it.
        url: With its secrets.
        options: Of its host.
        begin: The first byte.
        end: After the last byte; 0 for a request of no bytes, such as a list.
        version: Which version it has to be, "" for any.
        body: The local file whose bytes are to be written there.
        deep: Whether a list is of all objects below a folder; else it is of the objects and folders directly in it.
        page: Where a list goes on; "" at its beginning.
    """

    what: Literal["fetch", "stat", "list", "put"]
    url: str
    options: StorageOptions = NO_OPTIONS
    begin: int = 0
    end: int = 0
    version: str = ""
    body: Path | None = None
    deep: bool = False
    page: str = ""

    @classmethod
    def of_range(cls, url: str, begin: int, end: int, version: str = "") -> Self:
        """The request for bytes of an object; an `Address` has options of its host."""
        return cls("fetch", signed_url(url), options_of(url), begin, end, version)

    @property
    def is_range(self) -> bool:
        """Whether the request is for bytes."""
        return self.end > 0

    def describe(self) -> str:
        """The shard and the range requested, for messages."""
        where = f": bytes {self.begin} to {self.end}" if self.is_range else ""
        return f"{'shard' if self.body is None else 'object'} '{bare_url(self.url)}'{where}"

    @property
    def aim(self) -> str:
        """The answer that is expected, for messages."""
        return "its bytes" if self.body is None else "to write it"


class Listing(NamedTuple):
    """A page of a list: what it has, and the requests for what else belongs to the list."""

    entries: list[Listed]
    more: list[Asked]


class Client(Protocol):
    """Makes one attempt at a request to one kind of host; the caller retries.

    Each method raises FailureError where a retry may succeed, ShardError where none can.
    """

    async def fetch(self, asked: Asked) -> Answer:
        """The requested bytes, of the requested version."""
        ...

    async def stat(self, asked: Asked) -> Stat:
        """The object's size and version."""
        ...

    async def list(self, asked: Asked) -> Listing:
        """The objects below a folder."""
        ...

    async def put(self, asked: Asked) -> None:
        """Write the object in one step, if its host can."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def then(answer: "Future[T]", take: Callable[[T], Taken]) -> "Future[Taken]":
    """A future of `take(answer)`, or of the error of either; cancelling it cancels the answer."""
    result: Future[Taken] = Future()

    def finish(done: "Future[T]") -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            found = take(done.result())
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(found)

    answer.add_done_callback(finish)
    result.add_done_callback(lambda done: done.cancelled() and answer.cancel())
    return result


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


class Promise(NamedTuple):
    """The announcement in a response's headers: length of the body (None if not given), version, size of the object."""

    length: int | None
    version: str
    size: int | None


def range_headers(asked: Asked) -> dict[str, str]:
    """The headers of a range request for one version; weak ETags match nothing and are compared in the response."""
    headers = {"Accept-Encoding": "identity"}
    if asked.is_range:
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
        if match is None or begin != asked.begin or not begin < end <= asked.end:
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


def answer(promised: Promise, data: bytes) -> Answer:
    """Make the answer of a complete response.

    Raises:
        FailureError: The body was cut.
    """
    if promised.length is not None and len(data) != promised.length:
        raise FailureError(f"a body of {len(data)} bytes, expected {promised.length}")
    return Answer(data, promised.version, len(data) if promised.size is None else promised.size)


def refusal(asked: Asked, status: int, headers: Headers = MappingProxyType({}), body: bytes = b"") -> Exception:
    """Make the error that an unsuccessful status stands for: a FailureError where a retry may succeed."""
    code, word = _words(asked, body)
    said = f"status {status}{word}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT:
        wait = headers.get("Retry-After", "")
        return FailureError(word.strip(" ()") or "no word of why", status, int(wait) if wait.isdigit() else 0)
    if status in (401, 403) or (status == HTTPStatus.BAD_REQUEST and code in _EXPIRED):
        return denied(asked, said)
    if status in (404, 410):
        return GoneError(
            f"{asked.describe()}: expected {'a file' if asked.body is None else asked.aim}, got {said}\n"
            "  Check the address; if it was there, it was removed after the run began."
        )
    if status == HTTPStatus.PRECONDITION_FAILED:
        return replaced(asked, f"another one ({said})")
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        size = headers.get("Content-Range", "").rpartition("/")[2] or "fewer"
        return replaced(asked, f"a file that ends before, of {size} bytes ({said})")
    return ShardError(f"{asked.describe()}: expected {asked.aim}, got {said}\n  Check address and settings.")


def denied(asked: Asked, said: str) -> DeniedError:
    """Make the error for a refusal of credentials."""
    return DeniedError(
        f"{asked.describe()}: expected {asked.aim}, got {said}: credentials expired or no permission\n"
        f"  Renew the credentials, or ask for permission to {'read' if asked.body is None else 'write'} it; S3 says so "
        "of missing objects, too."
    )


def _words(asked: Asked, body: bytes) -> tuple[str, str]:
    """The code and the words of a host's error, without what is secret in the request, which they may repeat.

    Of other bodies nothing.
    """
    found = dict(_WORD.findall(body[:MAX_WORD].decode("utf-8", "replace")))
    words = ", ".join(found[name].strip() for name in ("Code", "Message") if name in found)
    for secret in sorted(secrets_of(asked.url), key=len, reverse=True):
        words = words.replace(secret, "…")
    return found.get("Code", ""), f" ({words})" if words else ""


def with_attempts(error: ShardError, attempts: int) -> ShardError:
    """Add the number of attempts to an error."""
    what, _, remedy = str(error).partition("\n")
    return type(error)(f"{what} (attempts {attempts})\n{remedy}")


class HostHealth:
    """Failures of one host since it last answered, as this process has seen them.

    Attempts beyond the first ones are spaced out so that no more than `_MAX_ATTEMPTS` fit before the deadline.
    """

    def __init__(self) -> None:
        self.failing_since: float | None = None
        self.died_at: float | None = None
        """When it was given up, by the monotonic clock."""
        self.last: FailureError | None = None
        self._planned = 0  # attempts since the last success
        self._next_probe = self._failed_at = 0.0

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

    def failed(self, failure: FailureError) -> float:
        """Record a failure; return since when the host has only failed, by the monotonic clock."""
        now, self.last = time.monotonic(), failure
        if self.failing_since is None:
            self.failing_since = now
        elif now - self._failed_at > DEADLINE_S:  # who saw that was cancelled, and nobody has asked since
            self._planned, self.failing_since = 0, now
        self._failed_at = now
        return self.failing_since

    def is_to_be_asked_again(self) -> bool:
        """Whether the host was given up long enough ago to be tried again."""
        return self.died_at is not None and time.monotonic() - self.died_at > DEADLINE_S * _DEAD_SHARE


class Patience:
    """Schedules the attempts at one request, and gives up in the end.

    Call `begin` before each, and wait as it says until it is None; then `failed` or `succeeded`.
    """

    def __init__(self, asked: Asked, health: HostHealth) -> None:
        self._asked, self._health = asked, health
        self.attempts = 0
        self._asked_at = time.monotonic()
        self._first_failure: float | None = None
        self._last: FailureError | None = None
        self._due: float | None = None
        self._began = 0.0  # the last attempt
        self._ready = 0.0  # when the wait after the last failure is over

    @property
    def limit_s(self) -> float:
        """The time limit of the next attempt, in seconds."""
        return DEADLINE_S if self._first_failure is None else max(0.1, self._deadline() - time.monotonic())

    @property
    def waited(self) -> float:
        """Seconds since the request was made."""
        return time.monotonic() - self._asked_at

    def begin(self) -> float | None:
        """Seconds to wait before calling `begin` again; None if the attempt may be made now.

        Raises:
            DeadHostError: No further attempt is worth making.
        """
        health = self._health
        now = time.monotonic()
        if health.died_at is not None:  # also for those that have waited for their turn meanwhile
            raise self._error(health.last)
        if self._last is not None and now > self._deadline():
            if health.failing_since is not None:
                health.died_at = now
            raise self._error(self._last)
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
        since = self._health.failed(failure)
        self._first_failure = min(since, self._first_failure or since)
        self._last = failure
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(self.attempts, 10))
        self._ready = time.monotonic() + max(_RANDOM.uniform(longest / 2, longest), min(failure.wait, _LONGEST_WAIT_S))

    def succeeded(self) -> None:
        """Record that the host answered, with success or not."""
        self._health.succeeded(self._began)

    def _error(self, last: FailureError | None) -> DeadHostError:
        """The error of a request that is given up."""
        assert last is not None, "nothing failed"
        now = time.monotonic()
        since = now if self._first_failure is None else self._first_failure
        status = f"status {last.status}, " if last.status else ""
        return DeadHostError(
            f"{self._asked.describe()}: expected an answer, got {status}{last.word} "
            f"(attempts {self.attempts}, during {now - since:.0f} s): the host is dead\n"
            "  Look whether the host is up and can be reached from here, then resume."
        )

    def _deadline(self) -> float:
        assert self._first_failure is not None, "nothing failed"
        return self._first_failure + DEADLINE_S
