"""Numbers of a running loader for Prometheus: those of `report`, `times` and `traffic`, read back by its own parser."""

import multiprocessing
import sys
import threading
import urllib.error
import urllib.request
from itertools import islice
from pathlib import Path

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from streamdata import MergedDataset, MetaDistributedWebDataset, StreamLoader, metrics, mixed_collate, report, to_device
from streamdata.io.remote.network import _network, network
from streamdata.run.lane_link import _counts
from streamdata.states import cursor
from tests.io.servers import s3_server
from tests.shard_files import write_tars
from tests.streams import Numbers

OF_SOURCES = {
    **dict.fromkeys(["samples", "tokens", "records", "dropped", "bad", "skipped", "left_out", "padded"], "{}_total"),
    "epochs": "epochs",
    "wanted": "share_wanted",
    "achieved": "share_achieved",
    "reading_s": "reading_seconds_total",
    "waiting_s": "waiting_seconds_total",
}
OF_ALL = {
    "samples": "delivered_samples_total",
    "tokens": "delivered_tokens_total",
    "steps": "steps_total",
    "waiting_s": "loop_waiting_seconds_total",
    "requests": "store_requests_total",
    "retries": "store_retries_total",
    "num_bytes": "store_bytes_total",
    "cache_hits": "cache_hits_total",
    "cached_bytes": "cache_bytes_total",
    "waited_s": "store_waiting_seconds_total",
    "read_s": "worked_seconds_total",
}


def drops_odd(record: dict) -> dict | None:
    """Gives samples with tokens."""
    return {**record, "tokens": [1] * 5} if record["value"] % 2 else None


def make_loader(num_workers: int = 0, rank: int = 0, **settings: object) -> StreamLoader:
    sources = [Numbers("a", 20, 2), Numbers('b "c"/\\', 30, 1, single_process_fn=drops_odd)]
    dataset = MergedDataset([MergedDataset(sources, name="in", percent=1), Numbers("d", 9)], **settings)
    dataset.set_data_parallel(2, rank)
    options = {"multiprocessing_context": "fork"} if num_workers else {}
    return StreamLoader(dataset, 4, num_workers, mixed_collate, **options)


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name, rank and source."""
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation for family in families)
    assert all((family.type == "counter") == (family.name + "_total" in text) for family in families)
    return {
        (sample.name.removeprefix("streamdata_"), *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def expected(loader, rank: int = 0) -> dict[tuple[str, ...], float]:
    """The same, by what our own functions say."""
    inner = getattr(loader, "loader", loader)
    numbers = {**report(loader.state_dict()), **inner.times(), **loader.traffic._asdict()}
    found = {}
    for name, value in numbers.items():
        kind, slash, source = name.partition("/")
        key = (OF_SOURCES[kind].format(kind), str(rank), source) if slash else (OF_ALL[name], str(rank))
        found[key] = value
    return found


def fetched(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def stands_still(numbers: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Without the clock."""
    return {key: value for key, value in numbers.items() if key[0] != "worked_seconds_total"}


@pytest.fixture(autouse=True)
def _own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose counts stand still between two looks, whatever tests before have left under way."""
    monkeypatch.setattr(_network, "made", None)
    monkeypatch.setattr(_counts, "made", None)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_each_number_is_that_of_the_loader(num_workers, rank) -> None:
    """None more, none less; before the first batch, and after each of some."""
    loader = make_loader(num_workers, rank)
    assert stands_still(parsed(metrics(loader))) == stands_still(expected(loader, rank))
    for _ in islice(loader, 12):
        found = parsed(metrics(loader))
        assert stands_still(found) == pytest.approx(stands_still(expected(loader, rank)), rel=1e-12)
    assert found["samples_total", str(rank), 'in.b "c"/\\'] > 0
    assert found["dropped_total", str(rank), 'in.b "c"/\\'] > 0
    assert found["tokens_total", str(rank), 'in.b "c"/\\'] == 5 * found["samples_total", str(rank), 'in.b "c"/\\']


def test_traffic_is_that_of_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and bytes of shards elsewhere."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_network, "made", None)
    write_tars(tmp_path / "tar", [9, 9])
    with s3_server({f"d/{path.name}": path.read_bytes() for path in (tmp_path / "tar").iterdir()}) as server:
        options = {"endpoint": server.url, "anonymous": True}
        source = MetaDistributedWebDataset("s3://d/", storage_options=options, name="far", percent=1)
        loader = StreamLoader(MergedDataset([source]), 3, collate=mixed_collate)
        server.delay_s = 0.5  # on a busy machine, too, the loop comes to wait before that is over
        list(islice(loader, 9))
        before, found, after = loader.traffic, parsed(metrics(loader)), loader.traffic  # reading ahead goes on
        assert 0 < before.requests <= found["store_requests_total", "0"] <= after.requests
        assert 0 < before.num_bytes <= found["store_bytes_total", "0"] <= after.num_bytes
        assert found["worked_seconds_total", "0"] >= found["store_waiting_seconds_total", "0"] > 0
    network().close()


def test_a_scrape_sees_what_the_loop_has_while_it_goes_on() -> None:
    """With workers, and in another thread; counts only grow, and all states of the loop stay what they are."""
    loader, seen, end = make_loader(2), [], threading.Event()
    with metrics(loader, 0) as server:

        def scrape() -> None:
            while not end.is_set():
                seen.append(parsed(fetched(server.port))["delivered_samples_total", "0"])

        thread = threading.Thread(target=scrape)
        thread.start()
        states = [loader.state_dict() for _ in islice(loader, 200)]
        end.set()
        thread.join()
        assert parsed(fetched(server.port))["steps_total", "0"] == 200
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
    plain = make_loader(2)
    assert states == [plain.state_dict() for _ in islice(plain, 200)]


def test_who_looks_on_has_not_asked_for_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving warns a loop that never did."""
    monkeypatch.setattr("streamdata.delivery.stream_loader.is_asked", asked := threading.Event())
    monkeypatch.setattr(cursor, "is_asked", asked)
    loader = make_loader()
    next(iter(loader))
    metrics(loader)
    assert not asked.is_set()


def test_a_report_is_computed_once_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever scrapes more often than batches come costs less."""
    loader, calls = make_loader(), []
    monkeypatch.setattr("streamdata.tools.trace.metrics.report", lambda states: calls.append(1) or report(states))
    with metrics(loader, 0) as server:
        for steps in range(1, 4):
            next(iter(loader))
            assert len({fetched(server.port).split("# HELP streamdata_loop")[0] for _ in range(3)}) == 1
            assert len(calls) == steps
        before = loader.state_after(1)
        loader.load_state_dict(before)
        assert parsed(fetched(server.port))["steps_total", "0"] == 1


def test_on_a_device_what_has_come_counts_not_what_is_on_its_way() -> None:
    """As in the loader's states."""
    loader = to_device(make_loader(), torch.device("cpu"))
    for number, _ in enumerate(islice(loader, 3), 1):
        found = parsed(metrics(loader))
        assert found["steps_total", "0"] == number
        assert stands_still(found) == pytest.approx(stands_still(expected(loader)), rel=1e-12)


def test_a_server_ends_and_leaves_nothing() -> None:
    """Its thread and port, also where workers were forked since, who have its socket; twice is once."""
    loader, others = make_loader(2), set(threading.enumerate())
    server = metrics(loader, 0)
    workers = set(multiprocessing.active_children())
    stream = iter(loader)
    next(stream)
    workers = set(multiprocessing.active_children()) - workers
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetched(server.port)
    assert len(workers) == 2
    assert all(worker.is_alive() for worker in workers)
    with metrics(loader, server.port) as again:
        assert parsed(fetched(again.port))["steps_total", "0"] == 1
    assert not [thread for thread in set(threading.enumerate()) - others if "serve_forever" in thread.name]


def test_two_loaders_are_served_side_by_side() -> None:
    """Each on a port of its own; a port that is taken is an error that names it."""
    first, second = make_loader(), make_loader(rank=1)
    next(iter(second))
    with metrics(first, 0) as of_first, metrics(second, 0) as of_second:
        assert parsed(fetched(of_first.port))["steps_total", "0"] == 0
        assert parsed(fetched(of_second.port))["steps_total", "1"] == 1
        with pytest.raises(OSError, match="in use") as caught:
            metrics(second, of_first.port)
    assert f"metrics: cannot serve on port {of_first.port} of 127.0.0.1" in caught.value.__notes__[0]


def test_it_does_not_keep_the_loader() -> None:
    """One that is gone has no numbers."""
    loader = make_loader()
    with metrics(loader, 0) as server:
        assert fetched(server.port)
        del loader
        assert fetched(server.port) == ""


@pytest.mark.parametrize("port", [-1, 65536, "9100", True, 1.0])
def test_what_it_is_given_is_checked(port: object) -> None:
    """A loader, and a port."""
    with pytest.raises(ValueError, match="metrics: expected a port from 0 to 65535, or None, got"):
        metrics(make_loader(), port)
    with pytest.raises(ValueError, match="metrics: expected a StreamLoader, or what to_device made of one, got"):
        metrics(make_loader().dataset)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for other extras."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    message = r"metrics needs the package prometheus_client\n  pip install torch-streamdata\[metrics\]"
    with pytest.raises(ImportError, match=message):
        metrics(make_loader())
