"""Damaged records of readable shards: forgiven under `max_bad`, or left out by `skip`; all others come exactly once."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata import (
    CsvDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    ShardError,
    merge_states,
    to_state,
)
from tests.shard_files import write_tars
from tests.streams import Numbers, assert_exact_resume, delivered, identity, loaded

MakeSource = Callable[[], Any]
BAD = {3, 4, 11, 19}
"""Of 20 records."""


def write_lines(folder: Path) -> list[Path]:
    """Two shards of lines."""
    folder.mkdir(exist_ok=True)
    paths = [folder / "0.jsonl", folder / "1.jsonl"]
    for shard, path in enumerate(paths):
        lines = [
            "{broken" if number in BAD else json.dumps({"n": number}) for number in range(10 * shard, 10 * shard + 10)
        ]
        path.write_text("\n".join(lines) + "\n")
    return paths


def jsonl(folder: Path) -> MakeSource:
    """Read by their indexes."""
    write_lines(folder)
    return lambda: JsonlIterableDataset(str(folder), block_size=2, shuffle_buffer=6)


def packed(folder: Path) -> MakeSource:
    """The same, compressed."""
    for path in write_lines(folder):
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return lambda: JsonlIterableDataset(str(folder), shuffle_buffer=4)


def table(folder: Path) -> MakeSource:
    """Rows without a field, with a stray quote, with other text."""
    folder.mkdir(exist_ok=True)
    bad = {3: b"3", 4: b'"4"x,y', 11: b"11,M\xfcller", 19: b"19,2,3"}
    rows = [b"n,m", *(bad.get(number, b"%d,x" % number) for number in range(20))]
    (folder / "0.csv").write_bytes(b"\n".join(rows) + b"\n")
    return lambda: CsvDataset(str(folder), shuffle_buffer=4)


def parquet(folder: Path) -> MakeSource:
    """Times in nanoseconds, some of which Python's types cannot hold."""
    folder.mkdir(exist_ok=True)
    times = pa.array([10**9 + (number in BAD) for number in range(20)], pa.timestamp("ns"))
    pq.write_table(pa.table({"n": range(20), "at": times}), folder / "0.parquet", row_group_size=5)
    return lambda: ParquetDataset(str(folder), shuffle_buffer=8)


def tar(folder: Path) -> MakeSource:
    """Lines of sidecars."""
    for shard, path in enumerate(sorted(Path(write_tars(folder, [10, 10])).glob("*.meta.jsonl"))):
        lines = path.read_text().splitlines()
        path.write_text("\n".join("{" if 10 * shard + at in BAD else line for at, line in enumerate(lines)) + "\n")
    return lambda: MetaDistributedWebDataset(str(folder), meta_names=["score"], block_size=2, shuffle_buffer=6)


class Failing(Numbers):
    """A map-style dataset that cannot read some."""

    def __getitem__(self, index: int) -> dict:
        if index in BAD:
            raise OSError(f"bad disk at {index}")
        return super().__getitem__(index)


KINDS = {
    "lines": jsonl,
    "compressed lines": packed,
    "csv": table,
    "parquet": parquet,
    "sidecars": tar,
    "map-style": lambda _: lambda: Failing("s", 20),
}


def threes(records):
    """Each three records as one sample and its echo; the last may have fewer."""
    while some := [record for record in (next(records, None) for _ in range(3)) if record]:
        keys = [str(record.get("__key__", record.get("__index__"))) for record in some]
        yield {"keys": keys}
        yield {"keys": [], "echo": keys}


class Mixed:
    """Makes a finite or endless stream of such a source, and of another one beside it."""

    def __init__(self, kind: str, folder: Path, *, cyclic: bool = False, skip=None, **attributes: object) -> None:
        self.make_source, self.cyclic, self.skip = KINDS[kind](folder), cyclic, skip
        self.attributes = {"max_bad": 1000, **attributes}

    def with_others(self, **attributes: object) -> "Mixed":
        """The same data with other attributes."""
        other = copy(self)
        other.skip = attributes.pop("skip", self.skip)
        other.attributes = {**self.attributes, **attributes}
        return other

    def __call__(self) -> MergedDataset:
        source = self.make_source()
        for name, value in {"name": "s", "percent": 1, **self.attributes}.items():
            setattr(source, name, value)
        sources = [source, Numbers("b", 7)]
        stop = {} if self.cyclic else {"stop": "all_exhausted"}
        return MergedDataset(sources, cyclic=self.cyclic, skip=self.skip, **stop)


def kept(record):
    """A function that looks at each record."""
    return [record, {"half": True}]


@pytest.mark.parametrize("kind", KINDS)
def test_those_around_damaged_records_are_delivered_once(kind, tmp_path, caplog):
    """Each lane says which it forgave, and the states count them."""
    make = Mixed(kind, tmp_path / "s")
    samples = [sample for batch in loaded(make(), 2) for sample in batch]
    of_source = Counter(identity(sample) for sample in samples if sample["__datasetname__"] == "s")
    assert (len(of_source), set(of_source.values())) == (16, {1})
    logged = [record.getMessage() for record in caplog.records if "of max_bad=1000" in record.getMessage()]
    assert len(logged) == 4
    if kind != "map-style":
        ends = [message.split("raised DamagedRecordError: ")[1] for message in logged]
        assert len(set(ends)) == 4
        assert all(str(tmp_path) in end for end in ends)


@pytest.mark.each_value
@pytest.mark.parametrize(
    "functions", [{}, {"single_process_fn": kept}, {"process_fn": threes}], ids=["records", "one to one", "bursts"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_around_damaged_records_is_exact(kind, functions, tmp_path):
    """After every step, over epochs; also within the open burst of a stream function."""
    make = Mixed(kind, tmp_path / "s", cyclic=True, **functions)
    assert_exact_resume(make, steps=24, beyond=16, num_workers=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_is_fed_again_where_nothing_is_forgiven_any_more(kind, tmp_path):
    """What it passed over was forgiven when it was first fed: the error is of what comes after it."""
    make = Mixed(kind, tmp_path / "s", process_fn=threes)
    samples, states = iter(make()), {}
    for sample in samples:
        states.update(to_state([sample]))
        if "echo" not in sample and sample["__datasetname__"] == "s" and states["cursor/0/0/0/0/s"].get("bad"):
            break
    again = make.with_others(max_bad=0)()
    again.set_dataloader_states(json.loads(json.dumps(states)))
    want, got = (next(sample for sample in rest if "echo" in sample) for rest in (samples, iter(again)))
    assert got["echo"] == want["echo"] == sample["keys"]


@pytest.mark.parametrize("process_fn", [None, threes], ids=["records", "bursts"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_sizes_share_out_what_is_around_damaged_records(kind, process_fn, tmp_path):
    """2 ranks of 2 workers, stopped somewhere, then 3 of 1: each record once, beside what open bursts give again."""
    make = Mixed(kind, tmp_path / "s", **({"process_fn": process_fn} if process_fn else {}))
    before, parts = [], []
    for rank in range(2):
        dataset, states = make(), {}
        dataset.set_data_parallel(2, rank)
        for batch, _ in zip(loaded(dataset, 2), range(7), strict=False):
            states.update(to_state(batch))
            before += batch
        parts.append(states)
    after = []
    for rank in range(3):
        dataset = make()
        dataset.set_data_parallel(3, rank)
        dataset.set_dataloader_states(json.loads(json.dumps(merge_states(*parts))))
        after += [sample for batch in loaded(dataset, 1) for sample in batch]
    if process_fn is None:
        assert Counter(map(identity, before + after)) == delivered(make, 1, 0)
        return
    echoes = [sample["echo"] for sample in before + after if "echo" in sample]
    keys = [sample["keys"] for sample in before + after if sample.get("keys")]
    whole = [sample["keys"] for sample in make() if sample.get("keys")]
    want = Counter(key for some in whole for key in some)
    assert Counter(key for some in keys for key in some) == want == Counter(key for some in echoes for key in some)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "map-style"])
def test_skip_reaches_damaged_records_by_url_and_key(kind, tmp_path, caplog):
    """As a sample's `__url__` and `__key__` would be; then nothing is forgiven, and nothing fails."""
    make = Mixed(kind, tmp_path / "s")
    whole = delivered(make, 1, 0)
    failures = [record.getMessage() for record in caplog.records if "of max_bad=1000" in record.getMessage()]
    places = [message.split(") ", 1)[1].split(": reading raised")[0].rsplit(", key ", 1) for message in failures]
    skip = [{"source": "s", "url": url, "key": key.strip("'")} for url, key in places]
    assert len(skip) == 4
    skipping = make.with_others(skip=skip, max_bad=0)
    assert delivered(skipping, 2, 2) == whole
    assert_exact_resume(skipping.with_others(process_fn=threes), steps=10, beyond=10)


def test_skip_reaches_damaged_records_by_index(tmp_path):
    """Of map-style datasets."""
    skip = [{"source": "s", "index": index} for index in BAD]
    make = Mixed("map-style", tmp_path, skip=skip, max_bad=0)
    assert sum(delivered(make, 1, 0).values()) == 16 + 7


def test_more_than_max_bad_is_the_error_of_the_last(tmp_path):
    """With its place, and what to do."""
    with pytest.raises(ShardError, match=r"\d\.jsonl:\d+:2: expected a JSON object") as caught:
        list(Mixed("lines", tmp_path / "s", max_bad=3)())
    (note,) = caught.value.__notes__
    assert note.startswith(f"source 's': reading failed at {tmp_path}/s/")
    assert "It is failure number 4, and max_bad=3" in note


def test_an_index_that_does_not_fit_is_never_forgiven(tmp_path):
    """A line that is a whole record with another behind it, by the index, is of another shard."""
    make = Mixed("lines", tmp_path / "s")
    source = make().datasets[0]
    path = Path(source.urls[0])
    stamp = path.stat()
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"n": 0}\n{"n": 1}\n', b'{"n":0}\n{"n":  1}\n'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(ShardError, match="by the index, got another line"):
        list(make())
