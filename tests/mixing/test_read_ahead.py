import gzip
import os
import pickle
import random
import time
from itertools import islice, pairwise
from pathlib import Path
from weakref import WeakSet

import fsspec
import pytest
from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, mixed_collate, to_state
from streamdata.errors import SourceError
from streamdata.io.remote.network import _network, network
from streamdata.run.lane_link import network_counts
from streamdata.shards.ahead import read_ahead, windows
from streamdata.shards.ahead.read_ahead import ahead_settings, held_bytes
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.indexed import SlowReads
from tests.io.servers import s3_server
from tests.seeds import seeds
from tests.shard_files import write_jsonl, write_tars
from tests.shards.slow_link import SlowLink
from tests.streams import Numbers, assert_exact_resume, loaded, plain, resumed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards of each kind, those that are read from their start in the memory file system."""
    path = tmp_path_factory.mktemp("shards")
    write_tars(path / "tar", [30, 9, 40, 21])
    write_jsonl(path / "jsonl", [50, 80, 33])
    store = fsspec.filesystem("memory")
    for file in (path / "jsonl").iterdir():
        store.pipe(f"/ahead/{file.name}.gz", gzip.compress(file.read_bytes()))
    return path


@pytest.fixture
def use(monkeypatch):
    """Lets read-ahead of this process sit on a link; what it gives has the most bytes that were held."""

    def use_link(link):
        most = [0]

        def submit(*asked):
            most[0] = max(most[0], sum(held_bytes()))
            return link.submit(*asked)

        monkeypatch.setattr(read_ahead._lanes, "made", WeakSet())  # others may be left of other tests
        monkeypatch.setattr(windows, "submit", submit)
        return most

    return use_link


def slow(dataset):
    """The source as if it were remote: its bytes come through what read-ahead sits on."""
    dataset.source.shards.has_remote = True
    return dataset


def sources_of(folder, rng, *, cyclic=True):
    """Some sources of all kinds, among them a mixture that is cyclic or not."""
    window = rng.choice([0, 7, 25, 1000])
    block = rng.choice([1, 3, 8])
    kinds = [
        lambda: slow(
            MetaDistributedWebDataset(
                str(folder / "tar"),
                meta_names=["score"],
                shuffle_buffer=window,
                block_size=block,
                name="tar",
                percent=1,
            )
        ),
        lambda: slow(
            JsonlIterableDataset(
                str(folder / "jsonl"), shuffle_buffer=window, name="jsonl", percent=0.4, holdout=0.2, part="train"
            )
        ),
        lambda: JsonlIterableDataset("memory://ahead", shuffle_buffer=9, name="gz", percent=0.3),
        lambda: Numbers("numbers", 60, 0.5),
        lambda: MergedDataset(
            [slow(JsonlIterableDataset(str(folder / "jsonl"), pairs, shuffle_buffer=9, name="deep", percent=1))],
            cyclic=cyclic,
            name="nested",
            percent=0.6,
        ),
    ]
    return rng.sample(kinds, rng.randint(1, 4))


def pairs(records):
    """Joins two records to one sample."""
    before = None
    for record in records:
        if before is not None:
            yield {**record, "before": before["value"]}
        before = None if before is not None else record


def made(folder, rng, **settings):
    cyclic = rng.random() < 0.5
    sources = sources_of(folder, rng, cyclic=cyclic)
    return lambda: MergedDataset([make() for make in sources], cyclic=cyclic, stop="all_exhausted", seed=3, **settings)


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_the_stream_does_not_depend_on_it(folder, use, seed):
    """Of random mixtures and topologies, from the start and after a resume in another topology."""
    results = []
    for read_ahead_bytes in (0, random.Random(seed).choice([60_000, 1 << 20])):
        rng = random.Random(seed)
        most_held = use(SlowLink(rng.choice([0, 0.001])))
        make = made(folder, rng, read_ahead_bytes=read_ahead_bytes)
        streams, states = [], {}
        for dp_size, workers, steps in [(rng.randint(1, 2), rng.randint(1, 3), rng.randint(1, 60)) for _ in range(3)]:
            present: dict = {}
            for rank in range(dp_size):
                dataset = resumed(make, states)
                dataset.set_data_parallel(dp_size, rank)
                for batch in islice(loaded(dataset, workers, batch_size=2), steps):
                    present.update(to_state(batch))
                    streams.append(plain(batch))
            states = {**states, **present}
        results.append(streams)
        assert held_bytes() == (0, 0)
        assert most_held[0] <= read_ahead_bytes
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", [MetaDistributedWebDataset, JsonlIterableDataset])
def test_what_comes_first_of_all_sources_is_asked_for_before_any_is_waited_for(folder, use, kind):
    """A lane of many sources waits once, and not for one after the other."""
    path, link = folder / ("tar" if kind is MetaDistributedWebDataset else "jsonl"), SlowLink()
    use(link)
    shards = sorted(map(str, path.glob("0*[0-9].[tj]*")))
    sources = [slow(kind(shard, name=f"s{n}", percent=1)) for n, shard in enumerate(shards)]
    next(iter(MergedDataset(sources)))
    assert {url for url, _, _ in link.requests} == set(shards)


def test_a_resume_after_each_step_is_exact(folder, use):
    """With windows that were made and not read, with a part of a window, and in the middle of a burst."""
    use(SlowLink())
    rng = random.Random(5)
    kinds = sources_of(folder, rng)
    assert_exact_resume(lambda: MergedDataset([make() for make in kinds], seed=1), steps=16, beyond=12, num_workers=2)


def rows(folder, count, size=0, **settings):
    """A slow JSONL source of so many rows, of about so many bytes each."""
    folder.mkdir(exist_ok=True)
    text = "x" * size
    lines = "".join(f'{{"value": {number}, "text": "{text}"}}\n' for number in range(count))
    (folder / "0.jsonl").write_text(lines)
    return slow(JsonlIterableDataset(str(folder), name="rows", percent=1, **settings))


def test_each_span_is_asked_for_once_and_in_few_requests(tmp_path, use):
    """Of a source of 2,048 blocks at most 0.05 requests for a record, and no byte of an epoch twice."""
    link = SlowLink()
    use(link)
    source = rows(tmp_path / "rows", 2048 * 32, block_size=32)
    assert sum(1 for _ in islice(MergedDataset([source], cyclic=False), 8000)) == 8000
    covered = sorted((begin, end) for _, begin, end in link.requests)
    # Among them are windows that were asked for ahead, as many as there was time for.
    num_records = (
        sum(end - begin for begin, end in covered) * 2048 * 32 / (tmp_path / "rows" / "0.jsonl").stat().st_size
    )
    assert num_records >= 8000
    assert len(covered) / num_records <= 0.05
    assert all(before[1] <= after[0] for before, after in pairwise(covered))


def test_a_lane_that_takes_half_of_the_link_seldom_waits(tmp_path, use):
    """At most a fifth of the time, although each request takes 30 ms."""
    use(SlowLink(delay=0.03, rate=2e6))
    source = rows(tmp_path / "rows", 2000, 2000, shuffle_buffer=10)
    stream = iter(MergedDataset([source]))
    next(stream)
    counts, began = network_counts(), time.perf_counter()
    before = counts.waited
    for _ in islice(stream, 500):
        time.sleep(0.002)
    assert (counts.waited - before) / (time.perf_counter() - began) <= 0.2


def test_what_falls_due_first_is_sent_first(tmp_path, use):
    """Over one connection the windows of a source that is drawn nine times as often come nine times as often."""
    link = SlowLink(0.001)
    use(link)
    often = rows(tmp_path / "often", 900, shuffle_buffer=30)
    seldom = rows(tmp_path / "seldom", 900, shuffle_buffer=30)
    often.percent, seldom.name, seldom.percent = 9, "seldom", 1
    stream = iter(MergedDataset([often, seldom], connections=1))
    assert sum(1 for _ in islice(stream, 300)) == 300
    assert len({url for url, _, _ in link.requests}) == 2
    of_seldom = sum("seldom" in url for url, _, _ in link.requests)
    assert of_seldom <= 0.3 * len(link.requests)


def test_an_iterator_that_is_dropped_cancels(tmp_path, use):
    """What waits is not sent any more, and nothing is held."""
    link = SlowLink(0.05, num_connections=1)
    use(link)
    stream = iter(MergedDataset([rows(tmp_path / "rows", 900, shuffle_buffer=300, block_size=3)], connections=8))
    next(stream)
    del stream
    sent = len(link.requests)
    assert link.num_cancelled >= sent - 3
    assert held_bytes() == (0, 0)
    assert len(link.requests) == sent


def test_an_error_comes_with_the_record_that_needs_it(folder, use):
    """All that was read before it is delivered; the same samples as without it."""
    make = lambda **settings: MergedDataset(  # noqa: E731
        [slow(JsonlIterableDataset(str(folder / "jsonl"), shuffle_buffer=20, block_size=2, name="rows", percent=1))],
        **settings,
    )
    want = [sample["__url__"] for sample in islice(make(read_ahead_bytes=0), 100)]
    use(SlowLink(failing="00002"))
    got = []
    with pytest.raises(OSError, match="no answer for"):
        got.extend(sample["__url__"] for sample in make())
    first = next(number for number, url in enumerate(want) if "00002" in url)
    assert got == want[:first]


def test_a_window_that_cannot_be_made_is_an_error_when_it_is_due(folder, use, monkeypatch):
    """Not before: the samples of the windows before it are delivered."""
    source = slow(JsonlIterableDataset(str(folder / "jsonl"), shuffle_buffer=10, block_size=5, name="rows", percent=1))
    use(SlowLink())
    window, calls = source.source.shards.window, []

    def fails_later(*runs):
        calls.append(runs)
        if len(calls) > 3:
            raise OSError("no index")
        return window(*runs)

    monkeypatch.setattr(source.source.shards, "window", fails_later)
    got = []
    with pytest.raises(OSError, match="no index"):
        got.extend(MergedDataset([source]))
    assert len(got) == sum(int(counts.sum()) for _, _, counts in calls[:3])


def test_windows_without_records_of_the_part_are_not_looked_through_without_end(tmp_path, use):
    """The reader says that there are none, as it does without read-ahead: of eight lanes with a record each."""
    use(SlowLink())
    numbers = []
    for settings in ({"read_ahead_bytes": 0}, {}):
        source = rows(tmp_path / "rows", 8, holdout=0.5, part="valid", block_size=1)
        failed = []
        for rank in range(8):
            dataset = MergedDataset([source], shuffle_streaming_subsets=False, **settings)
            dataset.set_data_parallel(8, rank)
            try:
                next(iter(dataset))
            except SourceError as error:
                failed.append((rank, str(error)))
        numbers.append(failed)
    assert numbers[0] == numbers[1]
    assert 0 < len(numbers[0]) < 8


def test_a_fork_goes_on_by_itself(folder, use):
    """With an iterator under way: the child asks again for what only its parent would get."""
    make = lambda: MergedDataset(  # noqa: E731
        [slow(JsonlIterableDataset(str(folder / "jsonl"), shuffle_buffer=20, block_size=2, name="rows", percent=1))]
    )
    want = [sample["value"] for sample in islice(make(), 120)]
    use(SlowLink(0.02))
    stream = iter(make())
    got = [next(stream)["value"] for _ in range(3)]
    child = os.fork()
    if child == 0:
        rest = [sample["value"] for sample in islice(stream, 117)]
        os._exit(0 if got + rest == want else 1)
    assert [*got, *(sample["value"] for sample in islice(stream, 117))] == want
    assert os.waitpid(child, 0)[1] == 0


def test_workers_read_ahead(folder, use):
    """Each process has threads of its own; the trainer, which reads nothing, has none. So has one that is sent it."""
    link = SlowLink()
    use(link)
    dataset = MergedDataset([slow(JsonlIterableDataset(str(folder / "jsonl"), name="rows", percent=1))], cyclic=False)
    loader = DataLoader(dataset, batch_size=40, num_workers=2, collate_fn=mixed_collate, multiprocessing_context="fork")
    assert sum(len(batch) for batch in loader) == 163
    assert not link.requests
    assert sum(1 for _ in pickle.loads(pickle.dumps(dataset))) == 163


@pytest.fixture
def advised(monkeypatch):
    """What the kernel was told to read."""
    found = []
    monkeypatch.setattr(windows, "advise", lambda url, begin, end: found.append((begin, end)))
    return found


def test_local_files_are_advised_once_they_were_waited_for(folder, advised):
    """Their next windows, until for many windows nobody waited; the stream is the same."""
    make = lambda: JsonlIterableDataset(  # noqa: E731
        str(folder / "jsonl"), shuffle_buffer=4, block_size=2, name="rows", percent=1
    )
    source = make()
    want = [sample["value"] for sample in islice(MergedDataset([make()]), 400)]
    assert not advised
    stream = iter(MergedDataset([source]))
    got = [next(stream)["value"] for _ in range(50)]
    source.source.shards.reads.note(took=0.5, computed=0.001, gave_up=3)
    got += [sample["value"] for sample in islice(stream, 350)]
    assert got == want
    # About 32 windows of two blocks, and what was ahead of them; small ones are told together.
    assert 32 <= len(advised) <= 80


@pytest.mark.parametrize(
    ("took", "computed", "gave_up", "is_slow"),
    [(0.1, 0.01, 2, True), (0.1, 0.01, 0, False), (0.1, 0.03, 2, False), (0.01, 0.0, 2, False)],
)
def test_what_counts_as_slow(took, computed, gave_up, is_slow):
    """A wait of some length, that is long beside the copying, and for something else than the processor."""
    reads = SlowReads()
    reads.note(took, computed, gave_up)
    assert reads.judge() == is_slow


def test_what_is_read_ahead_is_set_by_recipe_and_environment(monkeypatch):
    """The recipe's counts where both say something; connections are a node's, at least 4 for each of its processes."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert ahead_settings(None, None) == (256 << 20, 8)
    assert ahead_settings(None, 16).connections == 4
    monkeypatch.setenv("STREAMDATA_READ_AHEAD_BYTES", "1000")
    assert ahead_settings(None, None).read_ahead_bytes == 1000
    assert ahead_settings(5, None).read_ahead_bytes == 5


@pytest.mark.parametrize(("name", "value"), [("connections", 0), ("read_ahead_bytes", -1), ("connections", 2.0)])
def test_settings_that_are_not_counts_are_refused(name, value):
    """Where the mixture is made."""
    with pytest.raises(ValueError, match=f"{name}: expected a whole number"):
        MergedDataset([Numbers("a", 3)], **{name: value})


def test_settings_of_the_environment_and_of_inner_mixtures_are_checked(monkeypatch):
    """The error says where the value stands."""
    with pytest.raises(ValueError, match="no `connections` in a mixture below another one, got 4"):
        MergedDataset([MergedDataset([Numbers("a", 3)], name="inner", percent=1, connections=4)])
    monkeypatch.setenv("STREAMDATA_READ_AHEAD_BYTES", "1G")
    with pytest.raises(ValueError, match="STREAMDATA_READ_AHEAD_BYTES in the environment: expected a whole number"):
        MergedDataset([Numbers("a", 3)])


def test_windows_of_a_small_source_share_their_requests(tmp_path, use):
    """More each time that the reader waits: fewer requests in the first epoch, and few in later ones."""
    link, num_requests = SlowLink(0.005), []
    use(link)
    for cyclic, count in ((False, 2048), (True, 4 * 2048)):
        source = rows(tmp_path / "rows", 2048, block_size=1, shuffle_buffer=64)
        link.requests.clear()
        assert sum(1 for _ in islice(MergedDataset([source], cyclic=cyclic), count)) == count
        num_requests.append(len(link.requests))
        size = sum(path.stat().st_size for path in (tmp_path / "rows").iterdir())
        assert sum(end - begin for _, begin, end in link.requests) < size * (1.05 * count / 2048 + cyclic)
    assert num_requests[0] < 0.9 * 2048  # how soon windows grow depends on how often the reader had to wait
    assert num_requests[1] < num_requests[0] + 800  # of three times 2048 more
    assert held_bytes() == (0, 0)


@pytest.mark.parametrize("settings", [{}, {"connections": 3}, {"read_ahead_bytes": 0}])
def test_no_more_requests_are_in_flight_than_connections_whatever_is_read(tmp_path, monkeypatch, settings):
    """Rows of a manifest, records, lines of sidecars and compressed shards of several sources, over all of a run."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_network, "made", None)
    write_tars(tmp_path / "data" / "tar", [9] * 60)
    lines = Path(write_jsonl(tmp_path / "data" / "gz", [9])) / "00000.jsonl"
    objects = {f"d/gz/{number}.jsonl.gz": gzip.compress(lines.read_bytes(), mtime=0) for number in range(60)}
    make_manifest(take_stock([str(tmp_path / "data" / "tar")]), num_processes=1)
    objects |= {f"d/tar/{path.name}": path.read_bytes() for path in (tmp_path / "data" / "tar").iterdir()}
    with s3_server(objects) as server:
        options = {"endpoint": server.url, "anonymous": True}
        tars = MetaDistributedWebDataset(
            "s3://d/tar", meta_names=["score"], storage_options=options, shuffle_buffer=300, name="tar", percent=2
        )
        rows = JsonlIterableDataset("s3://d/gz", storage_options=options, name="gz", percent=1)
        server.delay_s = 0.005
        assert sum(1 for _ in islice(MergedDataset([tars, rows], **settings), 300)) == 300
        assert server.most_in_flight <= settings.get("connections", 64)
    network().close()
