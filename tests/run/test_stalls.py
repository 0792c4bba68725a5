"""Records that take longer than `stall_s`: each is named once, with its source, its place and the reader's stack."""

import gc
import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    StreamLoader,
    instantiate_from_yaml,
    mixed_collate,
    named,
)
from streamdata.io.remote.network import _network, network
from streamdata.run import stalls
from tests.io.servers import s3_server
from tests.shard_files import write_jsonl, write_tars
from tests.sources.own_streams import Counting
from tests.streams import Numbers, NumbersAhead, plain

STALL_S = 0.5  # long enough that no other record takes it, on a busy machine either
LIMIT_S = 60
SEVEN = 7
_log: list[Path] = []
"""Where the test that runs has its log."""


def sleeps_at_seven(value: int) -> None:
    """Takes long for one record: until it is in the log, or twice as long as it may where one is there already."""
    if value == SEVEN:
        is_first = not _log[0].stat().st_size
        until = time.monotonic() + (LIMIT_S if is_first else 2 * STALL_S)
        while time.monotonic() < until and not (is_first and _log[0].stat().st_size):
            time.sleep(0.01)


class Slow(Numbers):
    """Its record 7 comes late."""

    def __getitem__(self, index: int) -> dict:
        sleeps_at_seven(index)
        return super().__getitem__(index)


class SlowAhead(NumbersAhead):
    """The same, of a dataset that gives many at once."""

    def __getitems__(self, indices: list[int]) -> list[dict]:
        for index in indices:
            sleeps_at_seven(index)
        return super().__getitems__(indices)


class SlowIterable(Counting):
    """Of another library: its number 7 comes late."""

    def __iter__(self) -> Iterator[dict]:
        for number in range(self.size):
            sleeps_at_seven(number)
            yield {"value": number}


def slow_fn(record: dict) -> dict | None:
    """Drops all that is odd, and takes long for one record."""
    sleeps_at_seven(record["value"])
    return None if record["value"] % 2 else record


def slow_stream(records: Iterator[dict]) -> Iterator[dict]:
    """Passes all on; of a source, or over all."""
    for record in records:
        sleeps_at_seven(record["value"])
        yield record


def last_of_all(records: Iterator[dict]) -> Iterator[dict]:
    """One sample of all, which takes long; no record does."""
    last: dict = {}
    for last in records:  # noqa: B007
        time.sleep(STALL_S / 8)
    yield last


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log of this process and of those that are forked from it."""
    monkeypatch.setattr(stalls, "_named", set())
    _log[:] = [tmp_path / "log"]
    handler = logging.FileHandler(tmp_path / "log", delay=False)
    logging.getLogger("streamdata").addHandler(handler)
    yield tmp_path / "log"
    logging.getLogger("streamdata").removeHandler(handler)
    handler.close()


def named_in(log: Path) -> list[str]:
    """What each warning names."""
    text = rf"^(.*): has taken [\d.]+ s by now \(stall_s={STALL_S}\) on rank 0, worker \d, which is at$"
    return re.findall(text, log.read_text(), re.MULTILINE)


def read(source: object, num_workers: int = 0, epochs: int = 1, **settings: object) -> list:
    """All samples of some epochs, as plain values."""
    dataset = MergedDataset([source], cyclic=False, **settings)
    options = {"multiprocessing_context": "fork"} if num_workers else {}
    loader = StreamLoader(dataset, 3, num_workers, mixed_collate, stall_s=STALL_S, **options)
    return [plain(sample) for _ in range(epochs) for batch in loader for sample in batch]


def watching() -> set[threading.Thread]:
    """The threads that watch, also for iterators that other tests have left."""
    return {thread for thread in threading.enumerate() if thread.name == "streamdata stalls"}


def end(threads: set[threading.Thread]) -> bool:
    """Whether all end soon."""
    for thread in threads:
        thread.join(LIMIT_S)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("source", "place", "frame"),
    [
        (lambda: Slow("slow", 12), "index 7", "in __getitem__"),
        (lambda: SlowAhead("slow", 12), r"index \[.*\b7\b.*\]", "in __getitems__"),
        (lambda: Numbers("slow", 12, single_process_fn=slow_fn), "index 7", "in slow_fn"),
        (lambda: Numbers("slow", 12, process_fn=slow_stream), "index 7", "in slow_stream"),
    ],
)
def test_a_record_that_takes_long_is_named(source, place, frame, num_workers, log) -> None:
    """Being read or in a function, in a worker's log too, with the stack of who reads and no frame of the mixture."""
    others = watching()
    read(source(), num_workers)
    assert end(watching() - others)
    (name,) = named_in(log)
    assert re.fullmatch(f"source 'slow', {place}", name)
    text = log.read_text()
    assert frame in text
    assert "in sleeps_at_seven" in text
    assert "streamdata/mixing" not in text


def test_what_is_read_next_is_named_not_what_a_function_had_last(log) -> None:
    """A packer has many records of one sample: the one that it waits for is late."""
    read(Slow("slow", 12, process_fn=last_of_all))
    assert named_in(log) == ["source 'slow', index 7"]
    assert "in _singly" in log.read_text()


def test_what_nobody_knows_yet_is_not_named_by_what_came_before(log) -> None:
    """An iterable says nothing of what it is at; the function has had six records then."""
    read(SlowIterable("slow", 12, process_fn=last_of_all))
    assert named_in(log) == ["source 'slow', record not known yet"]
    assert "in sleeps_at_seven" in log.read_text()


def test_a_function_of_the_whole_is_named_as_the_top(log) -> None:
    """With the sample that it was given."""
    read(Numbers("a", 12), customized_yield_fn=slow_stream)
    assert named_in(log) == ["source 'the top', index 7"]


def test_sources_within_mixtures_are_named_by_their_paths(log) -> None:
    """As in states."""
    read(MergedDataset([Slow("slow", 12)], cyclic=False, name="inner", percent=1))
    assert named_in(log) == ["source 'inner.slow', index 7"]


def test_a_record_is_named_once_and_of_many_the_first(log, monkeypatch) -> None:
    """Over epochs; a process whose records are all slow does not fill the log."""
    read(Slow("slow", 12), epochs=2)
    assert named_in(log) == ["source 'slow', index 7"]
    monkeypatch.setattr(stalls, "_MOST_NAMED", 1)
    read(Slow("other", 12))
    assert len(named_in(log)) == 1


@pytest.mark.parametrize(("kind", "name"), [("tar", "s3://d/tar/00000.tar"), ("jsonl", "s3://d/jsonl/00000.jsonl")])
def test_the_file_that_a_slow_store_does_not_send_is_named(tmp_path, monkeypatch, log, kind, name) -> None:
    """Of records that are not there yet that is all that is known."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_network, "made", None)
    (write_tars if kind == "tar" else write_jsonl)(tmp_path / kind, [9])
    objects = {f"d/{kind}/{path.name}": path.read_bytes() for path in (tmp_path / kind).iterdir()}
    reader = MetaDistributedWebDataset if kind == "tar" else JsonlIterableDataset
    with s3_server(objects) as server:
        options = {"endpoint": server.url, "anonymous": True}
        source = reader(f"s3://d/{kind}", storage_options=options, name="far", percent=1, shuffle_buffer=3)
        stream = iter(MergedDataset([source], stall_s=STALL_S))
        server.delay_s = 2 * STALL_S
        next(stream)
    network().close()
    assert named_in(log) == [f"source 'far', {name}"]


def test_waiting_for_the_loop_is_no_stall(log) -> None:
    """A trainer that takes its time between two samples has not asked for one."""
    stream = iter(MergedDataset([Numbers("a", 12, single_process_fn=dict)], stall_s=STALL_S))
    next(stream)
    time.sleep(2 * STALL_S)
    next(stream)
    assert log.read_text() == ""


def test_the_thread_lives_as_long_as_the_iterator(log) -> None:
    """None where it is off, or before a sample is asked for; the last reference ends it."""
    others = watching()
    off = iter(MergedDataset([Numbers("a", 12)]))
    next(off)
    stream = iter(MergedDataset([Numbers("a", 12)], stall_s=60))
    assert watching() <= others
    next(stream)
    own = watching() - others
    assert len(own) == 1
    del stream
    gc.collect()
    assert end(own)


def test_the_stream_and_its_states_are_what_they_are_without_it() -> None:
    """It is in no state."""

    def run(**settings: object) -> tuple[list, dict]:
        sources = [Numbers("a", 12, single_process_fn=dict), Numbers("b", 7)]
        loader = StreamLoader(MergedDataset(sources), 3, 0, mixed_collate, **settings)
        samples = [plain(batch) for _, batch in zip(range(9), loader, strict=False)]
        return samples, loader.state_dict()

    assert run() == run(stall_s=0.01)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "3"])
def test_it_is_a_number_of_seconds(value) -> None:
    """Of a mixture, and of a loader, which a mixture within another one is not."""
    with pytest.raises(ValueError, match=r"MergedDataset: expected a positive number of seconds as stall_s, got"):
        MergedDataset([Numbers("a", 3)], stall_s=value)
    with pytest.raises(ValueError, match=r"StreamLoader: expected a positive number of seconds as stall_s, got"):
        StreamLoader(MergedDataset([Numbers("a", 3)]), 2, stall_s=value)


def test_a_recipe_has_it(tmp_path: Path, log: Path) -> None:
    """As a key of the mixture."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"value": {number}}}\n' for number in range(12)))
    rows = {"target": "streamdata.JsonlIterableDataset", "params": {"path": str(tmp_path / "rows.jsonl")}}
    source = {**rows, "name": "rows", "percent": 1}
    settings = {"stall_s": STALL_S, "cyclic": False, "datasets": [source]}
    dataset = instantiate_from_yaml({"target": "streamdata.MergedDataset", "params": settings})
    dataset.datasets[0].single_process_fn = slow_fn
    assert len(list(dataset)) == 6
    assert named_in(log) == [f"source 'rows', {tmp_path}/rows.jsonl, key 7"]


def test_it_is_of_the_top_alone() -> None:
    """As other settings of a process."""
    inner = MergedDataset([named(range(3), name="a", percent=1)], name="inner", percent=1, stall_s=3)
    with pytest.raises(ValueError, match="no `stall_s` in a mixture below another one, got 3"):
        MergedDataset([inner])
