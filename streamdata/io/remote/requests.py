"""Requests to hosts: `url, range, version → bytes, version, size`, or an error; and when one is made again.

The clients' own retries are switched off, so that all are counted here. A host that answers nothing but failures ends
the run within the deadline, counted from its first failure, and after a bounded number of requests of this process,
however many wait for it: beyond the first ones they are spaced out, as probes.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from random import SystemRandom
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

from streamdata.errors import ShardError
from streamdata.io.remote.addresses import bare_url

T = TypeVar("T")
Taken = TypeVar("Taken")
DEADLINE_S = 120.0
STALL_S = 15.0  # without a byte
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 8.0
_FREE_ATTEMPTS = 112  # since the last success, before they are spaced out
_MAX_ATTEMPTS = 272  # since the last success
_DEAD_SHARE = 1 / 12  # of the deadline: for so long one that is dead is not asked again by who comes later
_LOOK_S = 0.1  # how often those who wait look whether the host has recovered
_RANDOM = SystemRandom()  # the module's own is the user's, whose numbers would depend on when a request failed


class Answer(NamedTuple):
    """A host's answer: bytes of an object, with its version and size.

    Attributes:
        data: The bytes; fewer than asked for where the object ends.
        version: What the host calls this version (its ETag), "" where it has no name for it.
        size: Bytes of the whole object.
        status: Of HTTP; 206 where there is none.
        waited: Seconds from the first attempt to the last byte.
    """

    data: bytes
    version: str
    size: int
    status: int
    waited: float


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
    """A request, independent of the client that sends it.

    Attributes:
        url: With its secrets.
        begin: The first byte; None for a request of no bytes, such as a list.
        end: After the last byte; None for all.
        version: Which version it has to be, "" for any.
        body: The local file whose bytes are to be written there; None to read.
    """

    url: str
    begin: int | None = None
    end: int | None = None
    version: str = ""
    body: Path | None = None

    @property
    def is_range(self) -> bool:
        """Whether the request is for a range, not for a whole object."""
        return self.end is not None

    def describe(self) -> str:
        """The shard and the range requested, for messages."""
        where = f": bytes {self.begin} to {self.end}" if self.is_range else ""
        return f"{'shard' if self.body is None else 'object'} '{bare_url(self.url)}'{where}"

    @property
    def aim(self) -> str:
        """The answer that is expected, for messages."""
        return "its bytes" if self.body is None else "to write it"


class RangeClient(Protocol):
    """Makes one attempt at reading a range of an object; the caller retries."""

    async def get(self, url: str, begin: int, end: int, version: str) -> Answer:
        """The bytes [begin, end) of the object, of the given version ("" for any).

        Raises:
            FailureError: A retry may succeed.
            ShardError: A retry cannot succeed.
        """
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


def described(error: Exception, limit_s: float, cut: type[Exception], closed: type[Exception]) -> str:
    """Describe a client's failure without the url, whose query may hold secrets.

    Args:
        error: The client's.
        limit_s: How long it waited for a byte.
        cut: The client's error for a body that ends early.
        closed: The client's error for a connection that was closed.
    """
    if isinstance(error, TimeoutError):
        return f"no byte for {limit_s:.0f} s"
    if isinstance(error, (cut, closed)):
        return "a body that was cut" if isinstance(error, cut) else "a connection that was closed"
    reason = getattr(error, "strerror", None)
    return f"{type(error).__name__}{f' ({reason})' if isinstance(reason, str) else ''}"


class DenialError(Exception):
    """An attempt was refused for its credentials; other credentials may be tried.

    Attributes:
        status: Of HTTP.
        word: What the server says.
    """

    def __init__(self, word: str, status: int) -> None:
        super().__init__(word)
        self.word, self.status = word, status


class HostHealth:
    """Failures of one host since it last answered, as this process has seen them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.failing_since: float | None = None
        self.died_at: float | None = None
        """When it was given up, by the monotonic clock."""
        self.last: FailureError | None = None
        self._planned = self._made = 0  # attempts since the last success
        self._next_probe = self._failed_at = 0.0

    def plan(self) -> float:
        """Plan an attempt; return the monotonic time at which to make it."""
        with self._lock:
            self._planned += 1
            now = time.monotonic()
            if self.failing_since is None or self._planned <= _FREE_ATTEMPTS:
                return now
            space = DEADLINE_S / (_MAX_ATTEMPTS - _FREE_ATTEMPTS)
            self._next_probe = max(now, self._next_probe + space)
            return self._next_probe

    def made(self) -> None:
        """Count an attempt that is made now."""
        with self._lock:
            self._made += 1

    def succeeded(self, began: float) -> None:
        """Record that the host answered an attempt begun at `began`; one begun before the failures changes nothing."""
        with self._lock:
            if self.failing_since is None or began >= self.failing_since:
                self._planned, self._made, self.failing_since = 0, 0, None

    def failed(self, failure: FailureError) -> float:
        """Record a failure; return since when the host has only failed, by the monotonic clock."""
        with self._lock:
            now, self.last = time.monotonic(), failure
            if self.failing_since is None:
                self.failing_since = now
            elif now - self._failed_at > DEADLINE_S:  # who saw that was cancelled, and nobody has asked since
                self._planned, self._made, self.failing_since = 0, 0, now
            self._failed_at = now
            return self.failing_since

    def is_to_be_asked_again(self) -> bool:
        """Whether the host was given up long enough ago to be tried again."""
        return self.died_at is not None and time.monotonic() - self.died_at > DEADLINE_S * _DEAD_SHARE

    def until(self) -> float:
        """The time at which an attempt that begins now must end, by the monotonic clock."""
        now, since = time.monotonic(), self.failing_since
        return (now if since is None or now - since > DEADLINE_S else since) + DEADLINE_S

    def is_hopeless(self) -> bool:
        """Whether a failing host has used up its number of attempts."""
        return self.failing_since is not None and self._made >= _MAX_ATTEMPTS


class Patience:
    """Schedules the attempts at one request, and gives up in the end.

    Call `begin` before each, and wait as it says until it is None; then `failed` or `succeeded`.
    """

    def __init__(self, asked: Asked, health: HostHealth) -> None:
        self._asked, self._health = asked, health
        self.attempts = 0
        self._first_failure: float | None = None
        self._last: FailureError | None = None
        self._due: float | None = None
        self._began = 0.0  # the last attempt
        self._ready = 0.0  # when the wait after the last failure is over

    @property
    def limit_s(self) -> float:
        """The time limit of the next attempt, in seconds."""
        return DEADLINE_S if self._first_failure is None else max(0.1, self._deadline() - time.monotonic())

    def begin(self) -> float | None:
        """Seconds to wait before calling `begin` again; None if the attempt may be made now.

        Raises:
            DeadHostError: No further attempt is worth making.
        """
        health = self._health
        now = time.monotonic()
        if health.died_at is not None:  # also for those that have waited for their turn meanwhile
            raise self._error(health.last)
        if self._last is not None and (health.is_hopeless() or now > self._deadline()):
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
        health.made()
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
