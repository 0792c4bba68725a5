"""The requests of one process: `submit(url, range) → Future[Answer]`, over one pool of connections.

An event loop in a thread of its own sends them; it starts with the first request of a process, never at import, and is
gone while the process forks.
"""

import asyncio
import atexit
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any, TypeVar

from streamdata.errors import ShardError, without_secrets
from streamdata.io.remote.addresses import StorageOptions, options_of
from streamdata.io.remote.hosts import health_of, kind_of
from streamdata.io.remote.requests import STALL_S, Answer, Asked, Client, FailureError, Patience
from streamdata.run.lane_link import network_counts
from streamdata.run.per_process import PerProcess
from streamdata.run.processes import processes
from streamdata.run.topology import connections_of_process

logger = logging.getLogger(__name__)
T = TypeVar("T")
_SLOWEST_PUT = 1e6
"""Bytes/s at which what is written has to be taken at least."""


class _Running:
    """An event loop in a thread of its own, with its connections and clients.

    Args:
        connections: How many requests are in flight at most.
    """

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self.clients: dict[tuple[str, StorageOptions], Client] = {}
        self.free = asyncio.Semaphore(connections)
        self.session: Any = None
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_note_unasked)
        self._thread = Thread(target=_run, args=(self.loop,), name="streamdata network", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    def client(self, asked: Asked) -> Client:
        """The client that makes a request; called on the loop."""
        key = kind, options = kind_of(asked.signed), options_of(asked.url)
        if key in self.clients:
            return self.clients[key]
        if kind == "objects":
            from streamdata.io.remote.object_client import ObjectClient

            self.clients[key] = ObjectClient(options)
        elif kind == "files":
            from streamdata.io.remote.file_client import FileClient

            self.clients[key] = FileClient(options, self.connections)
        else:
            from streamdata.io.remote.web_client import WebClient, new_session

            self.session = self.session or new_session(self.connections)
            if kind == "web":
                self.clients[key] = WebClient(self.session)
            else:
                from streamdata.io.remote.s3_client import S3Client

                self.clients[key] = S3Client(self.session, options)
        return self.clients[key]

    def close(self) -> None:
        """Cancel all requests in flight, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(STALL_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STALL_S)

    async def _end(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self.clients.values():
            await client.close()
        if self.session is not None:
            await self.session.close()
        await asyncio.get_running_loop().shutdown_default_executor()


class Network:
    """Sends this process's requests, from one event loop in a thread.

    The thread starts with the first request. It ends before the process forks, unless requests are in flight, and
    starts again with the next one: no child has a part of it.

    Args:
        connections: How many are in flight at most.
    """

    def __init__(self, connections: int) -> None:
        self.connections = connections
        self._lock = Lock()
        self._running: _Running | None = None
        self._open: set[Future[Any]] = set()

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
        return self.ask_here(Asked("fetch", url, begin, end, version))

    def ask(self, asked: Asked) -> "Future[Any]":
        """Make a request in a process that may fork later; the future gives what the client's method does.

        Of gs and az another process makes it: obstore has threads of its own, after which a child would hang.
        """
        used = [] if self._running is None else [kind for kind, _ in tuple(self._running.clients)]
        if kind_of(asked.signed) == "objects" and "objects" not in used:
            return self._begin(lambda _: asyncio.to_thread(_asked_apart, asked))
        return self.ask_here(asked)

    def ask_here(self, asked: Asked) -> "Future[Any]":
        """Make a request from this process, whatever its host."""
        patience = Patience(asked, health_of(asked.url))
        return self._begin(lambda running: self._answered(running, asked, patience))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent inside this context as waiting for hosts."""
        began = time.perf_counter()
        try:
            yield
        finally:
            network_counts().waited += time.perf_counter() - began

    def limit(self, connections: int) -> None:
        """Limit the number of requests in flight, from when none is."""
        if connections != self.connections:
            self.connections = connections
            self.close(only_if_idle=True)

    def _begin(self, make: Callable[[_Running], Coroutine[Any, Any, T]]) -> "Future[T]":
        with self._lock:
            if self._running is None:
                self._running = _Running(self.connections)
                atexit.register(self.close)
            future = asyncio.run_coroutine_threadsafe(make(self._running), self._running.loop)
            self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    async def _answered(self, running: _Running, asked: Asked, patience: Patience) -> Any:
        client = running.client(asked)
        while True:
            # By attempts: while one waits to be asked again, another host may answer.
            async with running.free:
                if (wait := patience.begin()) is None:
                    found = await self._attempt(client, asked, patience)
            if wait is not None:
                await asyncio.sleep(wait)
            elif found is not None:
                return found[0]

    async def _attempt(self, client: Client, asked: Asked, patience: Patience) -> tuple[Any] | None:
        """Make one attempt; return what it gives, or None where another one may do."""
        counts = network_counts()
        counts.requests += 1
        counts.retries += patience.attempts > 1
        limit_s: float | None = patience.limit_s
        if asked.what == "list":  # it may have many pages; its client notices where nothing comes
            limit_s = None
        elif asked.body is not None:
            # To connect, to send, to be answered: where a host takes no byte more, the client does not notice it.
            limit_s = min(patience.limit_s, 2 * STALL_S) + asked.body.stat().st_size / _SLOWEST_PUT
        try:
            async with asyncio.timeout(limit_s):
                found = await getattr(client, asked.what)(asked)
        except FailureError as error:
            patience.failed(error)
            return None
        except TimeoutError:
            patience.failed(FailureError(f"no end of it after {limit_s:.0f} s"))
            return None
        except ShardError as error:
            patience.succeeded()
            what, _, remedy = str(error).partition("\n")
            raise type(error)(f"{what} (attempts {patience.attempts})\n{remedy}") from error.__cause__
        patience.succeeded()
        if isinstance(found, Answer):
            counts.num_bytes += len(found.data)
            counts.seconds += time.monotonic() - patience.asked_at
        return (found,)

    def close(self, *, only_if_idle: bool = False) -> None:
        """Cancel all requests in flight, and end the thread; the next request starts another.

        Args:
            only_if_idle: Whether to do nothing where requests are in flight.
        """
        with self._lock:
            if only_if_idle and not all(future.done() for future in tuple(self._open)):
                return
            running, self._running = self._running, None
        if running is not None:
            atexit.unregister(self.close)
            running.close()

    def abandon(self) -> None:
        """Release the parent's connections silently, in a forked process."""
        atexit.unregister(self.close)
        if self._running is not None and self._running.session is not None:
            self._running.session.detach()


def _asked_apart(asked: Asked) -> Any:
    """Make a request in another process, which ends with it."""
    with processes(_ask_for_another, 1) as team:
        return next(found for _, found in team.run([asked]))


def _ask_for_another(asked: Asked, _: object) -> Any:
    return network().ask_here(asked).result()


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


def _before_fork() -> None:
    if _network.made is not None:
        _network.made.close(only_if_idle=True)


os.register_at_fork(before=_before_fork)
