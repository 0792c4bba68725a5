"""The requests of one process: `submit(url, range) → Future[Answer]`, over one pool of connections.

An event loop in a thread of its own sends them; it starts with the first request of a process, never at import. A
process that is forked has none of it and begins anew. What a trainer reads before it forks goes through `once`.
"""

import asyncio
import atexit
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any

from streamdata.errors import ShardError, shown, without_secrets
from streamdata.io.remote.addresses import StorageOptions, options_of, signed_url
from streamdata.io.remote.hosts import health_of, kind_of
from streamdata.io.remote.requests import STALL_S, Answer, Asked, FailureError, Patience, RangeClient
from streamdata.io.remote.web import with_attempts
from streamdata.run.per_process import PerProcess

logger = logging.getLogger(__name__)
MAX_CONNECTIONS = 64
_FEWEST = 4
_VARIABLE = "STREAMDATA_CONNECTIONS"


@dataclass
class NetworkCounts:
    """Counts of the requests that this process has sent to hosts so far.

    Attributes:
        requests: Attempts that were made.
        retries: Those of them that repeated one.
        num_bytes: Bytes that arrived in good answers.
        seconds: From first attempts to last bytes, summed over all requests.
        waited: Seconds that who reads has waited for answers.
        since: When the process began to read samples, by `time.perf_counter`; None before.
    """

    requests: int = 0
    retries: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    since: float | None = None

    def begin(self) -> None:
        """Mark the beginning of reading samples; earlier waiting counts as start-up."""
        if self.since is None:
            self.since, self.waited = time.perf_counter(), 0.0


def checked_connections(connections: Any) -> int | None:
    """Check the number of connections that a recipe gives; None stays None.

    Raises:
        ValueError: The number is not a positive int.
    """
    if connections is not None and (type(connections) is not int or connections < 1):
        raise ValueError(
            f"connections: expected a whole number above 0, got {shown(connections)}\n  Leave it out for 64."
        )
    return connections


def connections_of_process(connections: int | None = None) -> int:
    """The number of requests that this process may have in flight.

    Args:
        connections: Of a node, shared by its ranks and their workers; None takes that of the environment, or 64.

    Raises:
        ValueError: The environment's is not a positive number.
    """
    if connections is None:
        text = os.environ.get(_VARIABLE, str(MAX_CONNECTIONS))
        if not text.isdigit() or not int(text):
            raise ValueError(
                f"network: expected a number above 0 in {_VARIABLE}, got {shown(text)}\n  Set it, or unset it."
            )
        connections = int(text)
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    data = sys.modules.get("torch.utils.data")  # who has not imported it is no worker
    info = data.get_worker_info() if data is not None else None
    sharers = (int(ranks) if ranks.isdigit() else 1) * (1 if info is None else int(info.num_workers))
    return min(MAX_CONNECTIONS, max(min(_FEWEST, connections), connections // max(1, sharers)))


class Network:
    """Sends this process's requests for bytes, from one event loop in a thread.

    Args:
        connections: How many are in flight at most.
    """

    def __init__(self, connections: int) -> None:
        self.counts = NetworkCounts()
        self.connections = connections
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[tuple[str, StorageOptions], RangeClient] = {}
        self._session: Any = None
        self._free: asyncio.Semaphore | None = None

    def submit(self, url: str, begin: int, end: int, version: str = "") -> "Future[Answer]":
        """Request the bytes [begin, end) of an object; cancelling the future ends the request.

        Args:
            url: The object; an `Address` has options of its host.
            begin: The first byte.
            end: After the last one; more than `begin`.
            version: Which version it has to be, "" for any.

        Returns:
            Its answer; or as its exception a ShardError that names shard, range, attempts and the server's word.
        """
        assert 0 <= begin < end, (begin, end)
        asked = Asked(signed_url(url), begin, end, version)
        options = options_of(url)
        patience = Patience(asked, health_of(asked.url, options))
        loop = self._running()
        return asyncio.run_coroutine_threadsafe(self._answered(asked, patience, options), loop)

    @property
    def is_running(self) -> bool:
        """Whether the network has been used, and so has a thread, which a fork would lose."""
        return self._loop is not None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent inside this context as waiting for hosts."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.counts.waited += time.perf_counter() - began

    def limit(self, connections: int) -> None:
        """Limit the number of requests in flight; to be called before the first request."""
        if self._loop is None:
            self.connections = connections

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                loop.set_exception_handler(_note_unasked)
                self._free = asyncio.Semaphore(self.connections)
                thread = Thread(target=_run, args=(loop,), name="streamdata network", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    loop.close()
                    raise
                self._thread = thread
                atexit.register(self.close)
                self._loop = loop  # only now: without its thread there is nothing that `close` could end
            return self._loop

    async def _answered(self, asked: Asked, patience: Patience, options: StorageOptions) -> Answer:
        assert self._free is not None, "the loop was not started"
        client, start = self._client(asked.url, options), time.monotonic()
        while True:
            # By attempts: while one waits to be asked again, another host may answer.
            async with self._free:
                if (wait := patience.begin()) is None and (answer := await self._attempt(asked, client, patience)):
                    waited = time.monotonic() - start
                    self.counts.num_bytes += len(answer.data)
                    self.counts.seconds += waited
                    return answer._replace(waited=waited)
            if wait is not None:
                await asyncio.sleep(wait)

    async def _attempt(self, asked: Asked, client: RangeClient, patience: Patience) -> Answer | None:
        """One attempt; None where another one may do."""
        assert asked.begin is not None
        assert asked.end is not None
        self.counts.requests += 1
        self.counts.retries += patience.attempts > 1
        limit_s = patience.limit_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await client.get(asked.url, asked.begin, asked.end, asked.version)
        except (FailureError, TimeoutError) as error:
            patience.failed(
                error if isinstance(error, FailureError) else FailureError(f"no end of it after {limit_s:.0f} s")
            )
            return None
        except ShardError as error:
            patience.succeeded()
            raise with_attempts(error, patience.attempts) from error.__cause__
        patience.succeeded()
        return answer

    def _client(self, url: str, options: StorageOptions) -> RangeClient:
        kind = kind_of(url)
        if (client := self._clients.get((kind, options))) is not None:
            return client
        if kind == "objects":
            from streamdata.io.remote.object_client import ObjectClient

            client = ObjectClient(options)
        elif kind == "files":
            from streamdata.io.remote.file_client import FileClient

            client = FileClient(options, self.connections)
        else:
            from streamdata.io.remote.web_client import WebClient, new_session

            self._session = self._session or new_session(self.connections)
            client = WebClient(self._session, options)
        self._clients[kind, options] = client
        return client

    def close(self) -> None:
        """Cancel all requests in flight, and stop the event loop."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result(STALL_S)
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(STALL_S)

    async def _end(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        if self._session is not None:
            await self._session.close()
        self._clients, self._session = {}, None
        await asyncio.get_running_loop().shutdown_default_executor()

    def abandon(self) -> None:
        """Release the parent's connections silently, in a forked process."""
        atexit.unregister(self.close)
        if self._session is not None:
            self._session.detach()


def import_client(url: str) -> None:
    """Import the client for the url's kind, where that is safe before a fork, so that children inherit it.

    The import takes 0.2 s, which overlap with other waiting.
    """
    if kind_of(url) in ("web", "s3"):
        from streamdata.io.remote.web_client import WebClient  # noqa: F401


def _note_unasked(loop: asyncio.AbstractEventLoop, report: dict[str, Any]) -> None:
    """Log an error that nobody awaits, such as of a connection that was reset as it closed: who asked has his own."""
    if "future" not in report:
        loop.default_exception_handler(report)
        return
    error = report["exception"]
    logger.debug("event loop: %s: %s: %s", report["message"], type(error).__name__, without_secrets(str(error)))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


_network = PerProcess(lambda: Network(connections_of_process()), leave=Network.abandon)


def network() -> Network:
    """The network of this process; it starts nothing before its first request."""
    return _network.get()
