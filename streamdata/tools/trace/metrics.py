"""Numbers of a running loader for Prometheus: `report`, `times` and traffic → metrics, as text or served on a port."""

import socket
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, TypeAlias, overload

from streamdata.delivery.stream_loader import StreamLoader
from streamdata.delivery.to_device import DeviceLoader
from streamdata.errors import StateError, needs, shown
from streamdata.states.table import LoadedStates
from streamdata.tools.view.totals import report

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

Loader: TypeAlias = StreamLoader | DeviceLoader

_METRICS: Final = {
    "samples": ("delivered_samples_total", "Samples delivered since the run's beginning"),
    "tokens": ("delivered_tokens_total", "Tokens delivered since the run's beginning"),
    "steps": ("steps_total", "Batches delivered since the run's beginning"),
    "uncounted": ("uncounted_samples", "Samples of open bursts, whose records their sources do not count yet"),
    "samples/": ("samples_total", "Samples drawn of a source since the run's beginning"),
    "tokens/": ("tokens_total", "Tokens in the samples drawn of a source"),
    "records/": ("records_total", "Records read of a source since the run's beginning"),
    "epochs/": ("epochs", "How often the records of a source were read since the run's beginning"),
    "wanted/": ("share_wanted", "Share of the stream that a source should have by the weights, 0 to 1"),
    "achieved/": ("share_achieved", "Share of the stream that a source has, 0 to 1"),
    "dropped/": ("dropped_total", "Records for which single_process_fn gave nothing"),
    "bad/": ("bad_total", "Failures forgiven under max_bad"),
    "skipped/": ("skipped_total", "Records left out by skip"),
    "left_out/": ("left_out_total", "Samples that uneven=drop left out"),
    "padded/": ("padded_total", "Samples that uneven=pad repeated"),
    "waiting_s": ("loop_waiting_seconds_total", "How long the loop waited for batches since the resume"),
    "reading_s/": ("reading_seconds_total", "How long this process and its workers read a source"),
    "waiting_s/": ("waiting_seconds_total", "How long of that they waited for stores"),
    "requests": ("store_requests_total", "Requests of this process and its workers to stores"),
    "retries": ("store_retries_total", "Requests to stores that repeated one"),
    "num_bytes": ("store_bytes_total", "Bytes that came from stores"),
    "cache_hits": ("cache_hits_total", "Reads that the page cache answered whole"),
    "cached_bytes": ("cache_bytes_total", "Bytes read from the page cache"),
    "waited_s": ("store_waiting_seconds_total", "How long this process and its workers waited for stores"),
    "read_s": ("worked_seconds_total", "How long this process and its workers have been reading, waits included"),
}
"""By the names of numbers, those of each source with a "/": the names and helps of metrics."""


class _Collector:
    """Gives what prometheus_client asks for when somebody scrapes, in whatever thread; it does not keep the loader."""

    def __init__(self, loader: Loader) -> None:
        self._loader = weakref.ref(loader)
        self._lock = threading.Lock()
        self._states: LoadedStates | None = None
        self._report: dict[str, float] = {}

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        loader = self._loader()
        if loader is None:
            return
        inner = loader.loader if isinstance(loader, DeviceLoader) else loader
        assert isinstance(inner, StreamLoader), "it was checked"
        rank = str(inner.dataset.lane(inner.num_workers).dp_rank)
        with self._lock, suppress(StateError):  # the loop went back meanwhile: the numbers before are as good
            states, before = inner.peek(loader.num_batches), self._states
            if before is None or before.loaded is not states.loaded or before.written != states.written:
                self._states, self._report = states, report(states)
        numbers = {**self._report, **inner.times(), **inner.traffic._asdict()}
        values: defaultdict[str, list[tuple[list[str], float]]] = defaultdict(list)
        for number, value in numbers.items():
            kind, slash, source = number.partition("/")
            values[kind + slash].append(([rank, source] if slash else [rank], value))
        for key, (name, text) in _METRICS.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(f"streamdata_{name}", text, labels=["rank", "source"] if key.endswith("/") else ["rank"])
            for labels, value in values[key]:
                metric.add_metric(labels, value)
            yield metric


class MetricsServer(ExitStack):
    """Serves metrics by HTTP until it is closed; a context manager.

    Attributes:
        port: The port.
    """

    def __init__(self, registry: "CollectorRegistry", port: int, addr: str) -> None:
        super().__init__()
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, addr, registry)
        except OSError as error:
            error.add_note(f"metrics: cannot serve on port {port} of {addr}\n  Name another port, or 0 for any.")
            raise
        self.port = server.server_port
        self.callback(thread.join)
        self.callback(server.server_close)
        # Workers that were forked meanwhile have the socket too, and would keep the port.
        self.callback(server.socket.shutdown, socket.SHUT_RDWR)
        self.callback(server.shutdown)


@overload
def metrics(loader: Loader, port: None = None) -> str: ...
@overload
def metrics(loader: Loader, port: int, addr: str = ...) -> MetricsServer: ...
def metrics(loader: Loader, port: int | None = None, addr: str = "127.0.0.1") -> str | MetricsServer:
    """Give Prometheus the numbers of a loader: what `report`, its `times()` and its `traffic` say, by rank and source.

    A scrape reads what the loop has received up to then, in a thread of its own; the loop does not wait for it. Totals
    begin with what all ranks had delivered at the resume, so sum rates or increases over ranks, not totals.

    Args:
        loader: The loader, or what `to_device` made of it.
        port: Where they are served, at `/metrics`, until the server is closed or the loader is gone; 0 takes any free
            port. Each rank of a node needs one of its own. None returns the text once.
        addr: The address that is listened on: by default who is not on this machine reaches nothing.

    Returns:
        The text, or the server.

    Raises:
        ValueError: `loader` or `port` is not one.
        ImportError: prometheus_client is not installed.
        OSError: The port is taken.
    """
    if not isinstance(loader.loader if isinstance(loader, DeviceLoader) else loader, StreamLoader):
        raise ValueError(
            f"metrics: expected a StreamLoader, or what to_device made of one, got {shown(loader)}\n"
            "  Of a GroupLoader give its `loader`, on its reader. Of states `streamdata.report` has the numbers."
        )
    if port is not None and (type(port) is not int or not 0 <= port < 2**16):
        raise ValueError(f"metrics: expected a port from 0 to 65535, or None, got {shown(port)}")
    with needs("prometheus_client", "metrics", "metrics"):
        from prometheus_client import CollectorRegistry, generate_latest
    registry = CollectorRegistry()
    registry.register(_Collector(loader))
    return generate_latest(registry).decode() if port is None else MetricsServer(registry, port, addr)
