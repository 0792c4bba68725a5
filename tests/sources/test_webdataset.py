"""Tar shards as a source: which shards, and what becomes of their members."""

import gzip
import logging
import pickle
from collections import Counter
from itertools import islice

import fsspec
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import MergedDataset, MetaDistributedWebDataset, to_state
from streamdata.fields import CURSOR
from tests.shard_files import write_tars
from tests.streams import delivered, loaded


@pytest.fixture
def mixed(tmp_path):
    """Build a finite mixture of one source over folders `a` and `b`, of 5 records each in two shards."""
    for name in "ab":
        write_tars(tmp_path / name, [2, 3])

    def make(path="{0}/a", include_dirs=None, **functions):
        folders = None if include_dirs is None else include_dirs.format(tmp_path)
        source = MetaDistributedWebDataset(path.format(tmp_path), include_dirs=folders, **functions)
        source.name, source.percent, source.max_bad = "s", 1, functions.pop("max_bad", 0)
        return MergedDataset([source], cyclic=False)

    return make


def test_include_dirs_add_copies_to_an_epoch(mixed, tmp_path):
    """`*3` gives each record of that directory three times, over all lanes together."""
    counts = delivered(lambda: mixed(include_dirs="{0}/b*3"), 2, 2)
    assert Counter(counts.values()) == {1: 5, 3: 5}
    assert {url.split("/")[-2] for (_, url, _), count in counts.items() if count == 3} == {"b"}


def test_directories_that_overlap_are_refused(mixed):
    """The error names both ways in which a shard was asked for."""
    with pytest.raises(ValueError, match=r"/a/00000.tar' once, got it by '.*/a' and by '.*/a\*2'"):
        mixed(include_dirs="{0}/b,{0}/a*2")


def test_members_arrive_as_raw_bytes_whatever_they_are_called(tmp_path):
    """Nothing is decoded on the way: a pickle stays bytes."""
    poison = pickle.dumps({"x": 1})
    with webdataset.TarWriter(str(tmp_path / "0.tar"), encoder=False) as writer:
        writer.write({"__key__": "r", "pyd": poison, "pickle": poison, "PTH": poison, "json": b'{"a": 1}'})
    source = MetaDistributedWebDataset(str(tmp_path))
    source.name, source.percent = "s", 1
    sample = next(iter(MergedDataset([source])))
    assert [sample[field] for field in ("pyd", "pickle", "pth", "json")] == [poison] * 3 + [b'{"a": 1}']


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_mapped_shards_give_the_same_samples_and_states(tmp_path_factory, data):
    """Whatever the records and windows; and states of one way go on by the other."""
    folder = tmp_path_factory.mktemp("tars")
    sizes = st.integers(0, 3000) | st.sampled_from([0, 511, 512, 513, 100_000])
    for shard in range(data.draw(st.integers(1, 3))):
        with webdataset.TarWriter(
            f"{folder}/{shard}.tar", encoder=False, mtime=data.draw(st.sampled_from([0, 0.5]))
        ) as tar:
            for number in range(data.draw(st.integers(1, 12))):
                names = data.draw(st.sets(st.sampled_from(["jpg", "txt", "seg.png", "x" * 120]), min_size=1))
                fields = {name: bytes([number]) * data.draw(sizes) for name in sorted(names)}
                tar.write({"__key__": f"dir/{number:03}", **fields})
    shuffle, options = data.draw(st.booleans()), {"block_size": data.draw(st.integers(1, 5)), "shuffle_buffer": 6}

    def samples(*, mapped, states=None):
        source = MetaDistributedWebDataset(str(folder), name="s", percent=1, mapped=mapped, **options)
        dataset = MergedDataset([source], shuffle_streaming_subsets=shuffle)
        dataset.set_dataloader_states(states or {})
        return islice(dataset, 40)

    read = list(samples(mapped=False))
    mapped = list(samples(mapped=True))
    assert list(map(without_place, mapped)) == list(map(without_place, read))
    step = data.draw(st.integers(1, 39))
    states = to_state(read[:step])
    assert states == to_state(mapped[:step])
    again = islice(samples(mapped=True, states=states), 40 - step)
    assert list(map(without_place, again)) == list(map(without_place, read[step:]))


def without_place(sample):
    """What the trainer reads; cursors hold objects of their dataset."""
    return {name: value for name, value in sample.items() if name != CURSOR}


@pytest.mark.parametrize("path", ["{0}/0.tar.gz", "memory://mapped/0.tar"])
def test_what_has_no_file_to_map_is_refused(tmp_path, path):
    """Compressed shards, and those of an object store."""
    with webdataset.TarWriter(str(tmp_path / "0.tar"), encoder=False) as tar:
        tar.write({"__key__": "r", "txt": b"1"})
    archive = (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar.gz").write_bytes(gzip.compress(archive))
    fsspec.filesystem("memory").pipe("/mapped/0.tar", archive)
    with pytest.raises(ValueError, match=f"mapped: expected uncompressed local tars, got '{path.format(tmp_path)}'"):
        MetaDistributedWebDataset(path.format(tmp_path), mapped=True)


def fails(record):
    """At one record."""
    if record["__key__"] == "r00003":
        raise KeyError("three")
    return record


def stream_fails(records):
    """The same, over a stream."""
    return map(fails, records)


@pytest.mark.parametrize("functions", [{"single_process_fn": fails}, {"process_fn": stream_fails}])
def test_a_failure_names_source_url_and_key(mixed, caplog, tmp_path, functions):
    """In the error's note; where it is forgiven, in the log line."""
    place = f"{tmp_path}/a/00001.tar, key 'r00003'"
    (what,) = functions
    with pytest.raises(KeyError) as caught:
        list(mixed(**functions))
    assert caught.value.__notes__[0].startswith(f"source 's': {what} failed at {place}")
    forgiving = mixed(**functions)
    forgiving.datasets[0].max_bad = 1
    with caplog.at_level(logging.WARNING, "streamdata"):
        assert len(list(forgiving)) == 4
    assert any(f"source 's': skipped (1 of max_bad=1) {place}" in record.getMessage() for record in caplog.records)


def test_failures_are_forgiven_per_lane(mixed):
    """Both lanes meet one, each of which is the first."""

    def always(record):
        raise KeyError(record["__key__"])

    def first_only(record):
        return always(record) if record["__key__"] in ("r00000", "r00001") else record

    dataset = mixed(single_process_fn=first_only)
    dataset.datasets[0].max_bad = 1
    dataset.shuffle_streaming_subsets = False  # so that each lane has one of the two
    samples = [sample for batch in loaded(dataset, 2) for sample in batch]
    assert sorted(sample["__key__"] for sample in samples) == ["r00002", "r00003", "r00004"]
    states = to_state(samples)
    assert [states[f"cursor/0/0/0/{worker}/s"]["bad"] for worker in (0, 1)] == [1, 1]


def test_an_output_without_a_place_has_that_of_the_last_record_pulled(mixed):
    """Its url, its key, and the other fields of the stream; what an output says itself, it keeps."""
    pulled = []

    def pairs(records):
        for first in records:
            second = next(records, first)
            pulled.append((second["__url__"], second["__key__"]))
            yield {"pair": (first["__key__"], second["__key__"])}
            yield {"__url__": "own", "__key__": "own"}

    samples = list(islice(mixed(process_fn=pairs), 4))
    assert [(sample["__url__"], sample["__key__"]) for sample in samples[::2]] == pulled[:2]
    assert [(sample["__url__"], sample["__key__"]) for sample in samples[1::2]] == [("own", "own")] * 2
    assert {sample["__datasetname__"] for sample in samples} == {"s"}
