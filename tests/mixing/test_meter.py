"""What readers ask of stores, as the trainer sees it."""

import logging
import multiprocessing
import pickle
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset, StreamLoader, mixed_collate, to_device, to_state
from streamdata.fields import CURSOR
from streamdata.io.cache.cached import _caches, cache_counts, page_cache
from streamdata.io.remote.addresses import CacheSettings
from streamdata.io.remote.network import Network, _network
from streamdata.run import Lane
from streamdata.run.lane_link import NetworkCounts, Traffic, TrafficReport, _counts, network_counts, note, traffic_of
from streamdata.shards.ahead import read_ahead
from streamdata.shards.ahead.read_ahead import AheadSettings, Meter
from streamdata.states.cursor import node_of
from tests.io.servers import http_server, slow_proxy
from tests.shard_files import write_jsonl
from tests.streams import Numbers

LANE = Lane(dp_size=4, dp_rank=3, num_workers=8, worker=5)


@pytest.fixture(autouse=True)
def sender(tmp_path, monkeypatch):
    """The network of this process: nothing was asked for."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "indexes"))
    monkeypatch.setattr(_counts, "made", NetworkCounts())
    network = Network(8)
    monkeypatch.setattr(_network, "made", network)
    monkeypatch.setattr(read_ahead, "cache_counts", list)
    yield network
    network.close()


@contextmanager
def served(tmp_path):
    """Two shards of 30 rows on a server."""
    folder = Path(write_jsonl(tmp_path / "data", [30, 30]))
    with http_server({path.name: path.read_bytes() for path in folder.iterdir()}) as server:
        yield server


def rows(url, **settings):
    source = JsonlIterableDataset([f"{url}/00000.jsonl", f"{url}/00001.jsonl"], name="web", percent=1.0)
    return MergedDataset([source], cyclic=False, **settings)


def batches(dataset, num_workers, **settings):
    return list(DataLoader(dataset, batch_size=8, num_workers=num_workers, collate_fn=mixed_collate, **settings))


def states_after(dataset, kind, num_workers, method):
    context = {"multiprocessing_context": method} if method else {}
    if kind is DataLoader:
        return to_state(batches(dataset, num_workers, **context))
    loader = StreamLoader(dataset, 8, num_workers, **context)
    assert sum(1 for _ in loader) == 8
    return loader.state_dict()


@pytest.mark.parametrize(
    ("kind", "num_workers", "method"),
    [
        (DataLoader, 0, None),
        (DataLoader, 2, "fork"),
        (StreamLoader, 0, None),
        (StreamLoader, 2, "fork"),
        (StreamLoader, 1, "forkserver"),
    ],
)
def test_what_readers_ask_for_is_known_in_the_trainer(tmp_path, kind, num_workers, method):
    """Requests and bytes, those of the start included, by either loader; no state has anything of it."""
    with served(tmp_path) as server:
        dataset = rows(server.url)
        start = dataset.traffic()
        assert (start.requests, start.waiting) == (len(server.log), 0)
        server.delay_s = 0.05  # else all may be there before it is needed
        states = states_after(dataset, kind, num_workers, method)
        found = dataset.traffic()
        assert found.requests == len(server.log) > start.requests
        assert found.num_bytes - start.num_bytes >= sum(map(len, server.objects.values()))
        assert 0 < found.waiting <= 1
        assert {key.partition("/")[0] for key in states} == {"generation", "cursor", "worker"}


def test_a_loader_says_it_too(tmp_path):
    """Beside the time that its loop waited."""
    with served(tmp_path) as server:
        loader = StreamLoader(rows(server.url), 8, 1)
        assert sum(1 for _ in loader) == 8
        assert loader.traffic == loader.dataset.traffic()._replace(read_s=loader.traffic.read_s)
        assert loader.traffic.requests == len(server.log)
        assert loader.wait_s > 0
        on_device = to_device(loader, "cpu")
        assert sum(1 for _ in on_device) == 8
        assert on_device.traffic.requests == len(server.log) > loader.num_workers


def test_of_local_files_nothing_but_times_travels(tmp_path):
    """A batch says of its lane what it said before."""
    dataset = rows(write_jsonl(tmp_path, [30, 30]))
    *_, sample = dataset
    link = node_of(sample[CURSOR][-1]).link
    report = link.__reduce__()[1][2]
    assert not report.traffic.is_any
    assert report.times.keys() == {"web"}
    assert link.__reduce__()[1][2] is None  # nothing was read since
    assert b"eport" not in pickle.dumps(link)
    assert len(batches(dataset, 1)) == 8
    assert dataset.traffic()._replace(read_s=0) == Traffic()


def test_reports_count_once_for_each_process():
    """The newest of each; those of another dataset apart."""
    for name, process, requests in [("a", -1, 3), ("a", -1, 5), ("a", -2, 7), ("b", -1, 100)]:
        note(TrafficReport(name, process, Traffic(requests, read_s=2.0, waited_s=1.0), None))
    assert traffic_of("a", Traffic(1)) == Traffic(13, read_s=4.0, waited_s=2.0)
    assert traffic_of("a", Traffic(1)).waiting == 0.5
    assert traffic_of("nobody", Traffic()).waiting == 0


def test_a_forked_process_counts_from_zero(tmp_path, sender, monkeypatch):
    """What was counted before the fork is its parent's, and so is what came to that with batches."""
    monkeypatch.setattr(read_ahead, "cache_counts", cache_counts)
    monkeypatch.setattr(_caches, "made", None)
    page_cache(CacheSettings(str(tmp_path), 1 << 30)).reads = network_counts().requests = 3
    dataset = MergedDataset([Numbers("a", 5)], cyclic=False)
    assert len(batches(dataset, 1)) == 1
    assert (dataset.traffic().cache_hits, dataset.traffic().requests, len(dataset.times())) == (3, 3, 2)
    receiver, end = multiprocessing.Pipe(duplex=False)
    forked = multiprocessing.get_context("fork").Process(target=lambda: end.send((dataset.traffic(), dataset.times())))
    forked.start()
    forked.join()
    assert receiver.recv() == (Traffic(), {})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_log_says_once_that_the_network_is_the_limit(tmp_path, num_workers, monkeypatch, caplog):
    """In the trainer, whoever waited."""
    monkeypatch.setattr(read_ahead, "_STRETCH_S", 0.0)
    with served(tmp_path) as server, slow_proxy(server.url, 0.05, 1e9) as url:
        dataset = rows(url)
        with caplog.at_level(logging.WARNING, "streamdata"):
            batches(dataset, num_workers)
            batches(dataset, num_workers)
    told = [record.message for record in caplog.records if "the network is the limit" in record.message]
    assert len(told) == 1
    assert "rank 0, worker " in told[0]


def judged(settings, **counts):
    """What a lane of which 40 s were observed is said to be limited by."""
    _counts.made = NetworkCounts()
    one = Meter("d", LANE, settings)
    one._since -= 40
    _counts.made = NetworkCounts(since=0.0, **counts)
    return one.report().limit


def test_what_would_help_follows_from_what_was_counted():
    """All connections are used; or they are idle and requests small; or the store refuses."""
    counts = {"requests": 400, "num_bytes": 1_600_000_000, "waited": 30.0}
    full = judged(AheadSettings(connections=8), seconds=300.0, **counts)
    assert full.startswith(
        "the network is the limit: rank 3, worker 5 waited 75% of 40 s for shards, which came at 40 MB/s by 10 "
        "requests a second of 4 MB, 7.5 at a time, 0 of them repeated\n"
    )
    assert "more `connections` of the node, since all 8" in full
    assert "read_ahead_bytes" not in full
    assert "block_bytes" not in full
    idle = judged(AheadSettings(1000, 8), seconds=20.0, **{**counts, "num_bytes": 10**7})
    assert "more `read_ahead_bytes` (now 1000)" in idle
    assert "block_bytes" in idle
    refused = judged(AheadSettings(connections=8), seconds=300.0, retries=40, **counts)
    assert "fewer `connections`" in refused


def test_a_cache_is_not_proposed_to_who_has_one(monkeypatch):
    """To others it is."""
    counts = {"requests": 400, "num_bytes": 10**9, "waited": 30.0, "seconds": 300.0}
    assert "a `cache`" in judged(AheadSettings(connections=8), **counts)
    monkeypatch.setattr(read_ahead, "cache_counts", lambda: [SimpleNamespace(reads=0, hits=0)])
    assert "a `cache`" not in judged(AheadSettings(connections=8), **counts)


def test_a_lane_that_seldom_waits_says_nothing():
    """Half of its time is the bound."""
    assert judged(AheadSettings(), requests=9, waited=19.0) is None
    assert judged(AheadSettings(), requests=9, waited=21.0) is not None


def test_each_stretch_is_judged_by_itself():
    """A lane that waited seldom, and then for three quarters of its time."""
    _counts.made = NetworkCounts()
    one = Meter("d", LANE, AheadSettings())
    found = []
    for waited in (10.0, 40.0):
        one._since -= 40
        _counts.made = NetworkCounts(since=0.0, requests=9, waited=waited)
        found.append(one.limit())
    assert found[0] is None
    assert "waited 75% of 40 s" in found[1]
