"""As many batches on every rank of a pass over shards that are read from their start: their records are counted."""

import gzip
import logging
import os
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streamdata import (
    CsvDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ShardError,
    StreamLoader,
    merge_states,
    mixed_collate,
    named,
    to_state,
)
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.shard_files import write_jsonl, write_tars
from tests.streams import through_json

SIZES = [5, 4, 3, 1]
TARGETS = {"tar": MetaDistributedWebDataset, "jsonl": JsonlIterableDataset, "csv": CsvDataset}
WRITE = {"tar": lambda folder, sizes: write_tars(folder, sizes, sidecars=False), "jsonl": write_jsonl}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path, kind: str, sizes: list[int] = SIZES) -> Path:
    """Compressed shards of so many records."""
    WRITE[kind](folder, sizes)
    for path in list(folder.iterdir()):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


def make_loader(path: object, kind: str, rank: int, size: int, uneven: str, **more: Any) -> StreamLoader:
    """One pass over a folder in batches of two, its shards shuffled three records at a time."""
    attributes = {"length": more.pop("length")} if "length" in more else {}
    source = TARGETS[kind](str(path), shuffle_buffer=3, name="a", percent=1, **more)
    source.__dict__.update(attributes)
    dataset = MergedDataset([source], cyclic=False, seed=4)
    dataset.set_data_parallel(size, rank)
    return StreamLoader(dataset, 2, uneven=uneven, collate=mixed_collate)


def real(batches: list[Any]) -> Counter:
    """The records that do not only fill up."""
    samples = (sample for batch in batches for sample in batch if not sample.get("__padding__"))
    return Counter((sample["__url__"], sample["__key__"]) for sample in samples)


def read(*args: Any, size: int = 2, **more: Any) -> list[list[Any]]:
    """The batches of each rank."""
    folder, kind, uneven = args
    return [list(make_loader(folder, kind, rank, size, uneven, **more)) for rank in range(size)]


def nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a shard to count its records fails."""
    monkeypatch.setattr("streamdata.shards.index.indexing.count_records", None)


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
@pytest.mark.parametrize("size", [2, 3])
def test_uneven_shards_make_even_ranks(tmp_path: Path, kind: str, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Padded, each record comes once; what is dropped is told; else the different numbers are an error."""
    folder = write(tmp_path / "a", kind)
    padded = read(folder, kind, "pad", size=size)
    assert len({len(batches) for batches in padded}) == 1
    whole = sum(map(real, padded), Counter())
    assert (set(whole.values()), whole.total()) == ({1}, sum(SIZES))
    with caplog.at_level(logging.WARNING):
        dropped = read(folder, kind, "drop", size=size)
    assert len({len(batches) for batches in dropped}) == 1
    left_out = whole - sum(map(real, dropped), Counter())
    assert sum(int(record.args[0]) for record in caplog.records if "leaves out" in record.msg) == left_out.total() > 0
    with pytest.raises(ValueError, match=r"rank \d has \d batches left and rank \d has \d"):
        read(folder, kind, "error", size=size)


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_even_shards_are_read_to_their_end(tmp_path: Path, kind: str) -> None:
    """By ranks of as many records, in all three modes; a user's length is not believed."""
    folder = write(tmp_path / "a", kind, [3, 3])
    for uneven in ("error", "drop", "pad"):
        ranks = read(folder, kind, uneven, length=1000)
        assert [len(batches) for batches in ranks] == [2, 2]
        assert sum(map(real, ranks), Counter()).total() == 6


@pytest.mark.parametrize(
    ("uneven", "more"),
    [
        ("drop", {}),
        ("pad", {}),
        ("pad", {"holdout": 0.4}),
        ("drop", {"holdout": 0.4, "part": "valid"}),
    ],
)
def test_even_after_a_resume(tmp_path: Path, uneven: str, more: dict[str, Any]) -> None:
    """At any step, under as many ranks and another number: as many batches each, each record of the part once."""
    folder = write(tmp_path / "a", "jsonl", [6, 5, 5, 4, 6, 5])
    whole = sum(map(real, read(folder, "jsonl", "pad", **more)), Counter())
    steps = len(read(folder, "jsonl", uneven, **more)[0])
    for step, new_size in ((step, size) for step in range(1, steps, 3) for size in (2, 3)):
        loaders = [make_loader(folder, "jsonl", rank, 2, uneven, **more) for rank in range(2)]
        before = [list(islice(loader, step)) for loader in loaders]
        states = through_json(merge_states(*(loader.state_dict() for loader in loaders)))
        later = [make_loader(folder, "jsonl", rank, new_size, uneven, **more) for rank in range(new_size)]
        for loader in later:
            loader.load_state_dict(states)
        after = [list(loader) for loader in later]
        assert len({len(batches) for batches in after}) == 1, f"step {step}"
        assert new_size != 2 or len(after[0]) == steps - step
        found = sum(map(real, before + after), Counter())
        if uneven == "pad":
            assert found == whole, f"step {step}"
        elif new_size == 2:  # of other ranks one may have nothing left of this pass, and all read the next
            assert not found - whole, f"step {step}"


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_shards_are_counted_once_on_a_node(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes later finds the counts; of a shard that was written anew it finds none."""
    folder = write(tmp_path / "a", kind)
    first = read(folder, kind, "pad")
    with monkeypatch.context() as patch:
        nobody_counts(patch)
        assert list(map(real, read(folder, kind, "pad"))) == list(map(real, first))
    (changed,) = write(tmp_path / "b", kind, [8]).iterdir()
    os.replace(changed, folder / changed.name)
    assert sum(map(real, read(folder, kind, "pad")), Counter()).total() == 8 + sum(SIZES[1:])


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_a_manifest_has_the_counts(
    tmp_path: Path, cache: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On every node; of a copy too, whose versions are those that are met first."""
    folder = write(tmp_path / "a", kind)
    make_manifest(take_stock([str(folder)]))
    shutil.copytree(folder, tmp_path / "copy")
    os.utime(next((tmp_path / "copy").glob("*.gz")), ns=(1, 1))
    shutil.rmtree(cache)
    nobody_counts(monkeypatch)
    for place in (folder, tmp_path / "copy"):
        assert sum(map(real, read(place, kind, "pad")), Counter()).total() == sum(SIZES)
    assert TARGETS[kind](str(folder)).num_records == sum(SIZES)


def test_csv_is_counted_as_it_is_read(tmp_path: Path) -> None:
    """Without its header and blank lines; a value may go over two."""
    for name, rows in (("a.csv", '1\n\n"2\n2"\n3\n'), ("b.csv", "4\n")):
        (tmp_path / name).write_text("n\n" + rows)
    ranks = read(tmp_path, "csv", "pad")
    assert ([len(batches) for batches in ranks], sum(map(real, ranks), Counter()).total()) == ([2, 2], 4)


@pytest.mark.parametrize("uneven", ["error", "drop", "pad"])
def test_a_pipe_is_refused_with_what_to_do(tmp_path: Path, uneven: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may give others each time; nothing of it is run."""
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    with pytest.raises(ValueError, match=r"source 'a'.*'pipe:cat x'.*a command[\s\S]*`streamdata index` counts"):
        read("pipe:cat x", "jsonl", uneven, length=4)


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
def test_a_damaged_shard_is_named(tmp_path: Path, kind: str) -> None:
    """Before the first batch."""
    folder = write(tmp_path / "a", kind)
    path = min(folder.iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ShardError, match=rf"{path}': .*the end of the file within compressed data"):
        read(folder, kind, "drop")


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_within_a_mixture_counts_are_those_of_what_comes(tmp_path: Path, stop: str) -> None:
    """A lane that has a shard without records is at its end there at once, as one that reads it."""
    folder = write(tmp_path / "a", "jsonl", [7, 0, 4, 2])
    for rank in range(3):
        shards = JsonlIterableDataset(str(folder), name="a", percent=2)
        dataset = MergedDataset([shards, named(list(range(20)), name="b", percent=1)], cyclic=False, stop=stop)
        dataset.set_data_parallel(3, rank)
        assert dataset.samples_left(0)[rank, 0] == len(list(dataset))


@pytest.mark.parametrize("part", ["train", "valid"])
def test_what_is_left_of_a_part_is_counted_after_any_sample(tmp_path: Path, part: str) -> None:
    """Within a group of shuffled records, too."""
    folder = write(tmp_path / "a", "jsonl", [9, 5, 7])
    source = JsonlIterableDataset(str(folder), shuffle_buffer=4, name="a", percent=1, holdout=0.4, part=part)
    dataset = MergedDataset([source], cyclic=False)
    states = [to_state([sample]) for sample in dataset]
    for number, state in enumerate(states, 1):
        dataset.set_dataloader_states(state)
        dataset.set_epoch(0)
        assert dataset.samples_left(0).tolist() == [[len(states) - number]]
