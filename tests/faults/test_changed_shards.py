"""Shards are missing, there twice, or others than they were."""

import errno
import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdata import (
    CsvDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ShardError,
    to_state,
)
from streamdata.io.storage import stamp_of
from streamdata.shards.index.indexing import IndexJob, build
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.faults.damaged_files import write_shards
from tests.faults.outcomes import SAYS_ALL, after_damage
from tests.streams import plain, resumed

KINDS = {".jsonl": JsonlIterableDataset, ".csv": CsvDataset, ".tar": MetaDistributedWebDataset}


def one_shard(folder: Path, suffix: str) -> tuple[Path, Any]:
    """A shard of a record or more, and what reads it."""
    if suffix == ".csv":
        path = folder / "00000.csv"
        path.write_text("a\n1\n")
    else:
        path = write_shards(folder / "s", suffix) / f"00000{suffix}"
    return path, KINDS[suffix.removesuffix(".gz")](str(path)).source.shards


def stream(path: object) -> MergedDataset:
    """A pass of JSONL shards."""
    dataset = JsonlIterableDataset(path, shuffle_buffer=4, block_size=2)
    dataset.name, dataset.percent = "s", 1
    return MergedDataset([dataset], cyclic=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three shards of six lines."""
    return write_shards(tmp_path / "s", ".jsonl")


@pytest.mark.parametrize(
    "path", ["{}/00003.jsonl", "{}/{{00000..00003}}.jsonl", "{}/00000.jsonl,{}/0.jsonl", "{}/none"]
)
def test_a_shard_that_is_missing_at_the_start_is_one_error(folder, path) -> None:
    """22: before a step is made; the pattern is named, and which part of it is missing."""
    with pytest.raises(
        FileNotFoundError, match=r"shards: pattern '[^']+'.*: expected a file or directory, got none"
    ) as e:
        stream(path.format(folder, folder))
    assert SAYS_ALL.search(str(e.value))


def test_a_shard_that_is_removed_in_a_run_is_one_error(folder, caplog) -> None:
    """22: when it is read next; what came before is delivered."""
    path = folder / "00001.jsonl"
    outcome = after_damage(lambda: stream(str(folder)), path.unlink, caplog, after=4)
    assert type(outcome.error) is ShardError
    assert f"shard '{path}': it was removed after it was indexed, expected a file, got none" in outcome.said


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".csv", ".tar.gz"])
def test_shards_that_are_read_from_their_start_are_missed_likewise(suffix: str, tmp_path: Path) -> None:
    """Each is opened when its turn comes, by the path."""
    path, shards = one_shard(tmp_path, suffix)
    assert next(shards.stream(0))
    path.unlink()
    with pytest.raises(ShardError, match=f"shard '{path}': it was removed after it was indexed, expected a file, got"):
        next(shards.stream(0))


def test_a_sidecar_of_a_shard_that_is_read_from_its_start_is_missed_likewise(tmp_path: Path) -> None:
    """It is opened with the shard."""
    path = write_shards(tmp_path / "s", ".tar.gz") / "00000.tar.gz"
    shards = MetaDistributedWebDataset(str(path), meta_names=["score"]).source.shards
    sidecar = path.with_name("00000.meta.jsonl")
    sidecar.unlink()
    with pytest.raises(
        ShardError, match=f"shard '{sidecar}': it was removed after it was indexed, expected a file, got"
    ):
        next(shards.stream(0))


def test_a_shard_that_is_removed_before_it_is_indexed_is_missed_likewise(folder: Path) -> None:
    """Between its listing and its turn."""
    path = folder / "00001.jsonl"
    job = IndexJob("jsonl", str(path), stamp_of(str(path)))
    path.unlink()
    with pytest.raises(ShardError, match="it was removed after it was indexed"):
        build(job)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".tar"])
def test_a_link_to_itself_is_the_system_s_error_with_the_shard(suffix: str, tmp_path: Path) -> None:
    """At the start, and in the place of a shard that was found before."""
    path, shards = one_shard(tmp_path, suffix)
    path.unlink()
    path.symlink_to(path)
    by_index = lambda: shards.window(*[np.array([number]) for number in (0, 0, 1)])  # noqa: E731
    first = (lambda: next(by_index().take([0]))) if hasattr(shards, "window") else lambda: next(shards.stream(0))
    for read in (first, lambda: stamp_of(str(path))):
        with pytest.raises(OSError, match="Too many levels") as caught:
            read()
        assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, str(path))


def test_a_shard_that_a_manifest_lists_is_missed_when_it_is_first_read(folder, caplog) -> None:
    """22: at the start nothing is asked for."""
    make_manifest(take_stock([str(folder)]), num_processes=1)
    path = folder / "00001.jsonl"
    outcome = after_damage(lambda: stream(str(folder)), path.unlink, caplog)
    assert outcome.delivered
    assert type(outcome.error) is ShardError
    assert re.search(rf"shard '{re.escape(str(path))}': .*expected .*, got none\n.*streamdata index", outcome.said)


@pytest.mark.parametrize("second", ["{}/00000.jsonl", "{}/./00000.jsonl", "{}/0000[0-1].jsonl", "{}"])
def test_a_shard_listed_twice_is_one_error(folder, second) -> None:
    """23: however it is spelt; both ways in which it was asked for are named."""
    with pytest.raises(ValueError, match=r"expected '.*00000.jsonl' once, got it by '.*' and by '.*'") as caught:
        stream([f"{folder}/00000.jsonl", second.format(folder)])
    assert SAYS_ALL.search(str(caught.value))


def test_a_copy_under_another_name_is_another_shard(folder) -> None:
    """23: contents are not compared, since that would read all of them."""
    os.link(folder / "00000.jsonl", folder / "copy.jsonl")
    delivered = [(sample["__url__"], sample["__key__"]) for sample in stream(str(folder))]
    assert len(delivered) == len(set(delivered)) == 4 * 6


@pytest.mark.parametrize("has_manifest", [False, True])
def test_a_shard_that_changed_since_the_checkpoint(folder, has_manifest) -> None:
    """24: with as many records and bytes it is read as it is, in the same order; a manifest says that it is another."""
    if has_manifest:
        make_manifest(take_stock([str(folder)]), num_processes=1)
    whole = [plain(sample) for sample in stream(str(folder))]
    states = to_state(list(islice(stream(str(folder)), 3)))
    path = folder / "00001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"at": "1', b'"at": "7'))
    os.utime(path, ns=(1, 1))
    again = resumed(lambda: stream(str(folder)), states)
    if has_manifest:
        with pytest.raises(ShardError, match=rf"shard '{path}': it was replaced or modified") as caught:
            list(again)
        assert SAYS_ALL.search(str(caught.value))
    else:
        want = [sample | {"at": sample["at"].replace("1/", "7/")} for sample in whole[3:]]
        assert [plain(sample) for sample in again] == want
