"""Several processes that index the same folder at once, one of which is killed."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdata import MergedDataset, MetaDistributedWebDataset, named
from streamdata.shards.index import indexing
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.shard_files import write_tars

SIZES = [40] * 12


def index(folder: Path) -> None:
    """As `streamdata index` does, with one process."""
    make_manifest(take_stock([str(folder)]), num_processes=1)


def read(folder: Path) -> None:
    """As a trainer does, which indexes what no manifest lists."""
    dataset = MetaDistributedWebDataset(str(folder), meta_names=["score"])
    mixture = MergedDataset([named(dataset, name="a", percent=1)], cyclic=False)
    assert sorted(sample["score"] for sample in mixture) == [n / 2 for n in range(sum(SIZES))]


def start(function: Callable[[Path], None], folder: Path) -> int:
    """Call it in a process that is forked; return its number."""
    if pid := os.fork():
        return pid
    try:
        function(folder)
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tars with sidecars, and nothing known of them."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    return Path(write_tars(tmp_path / "shards", SIZES))


@pytest.mark.parametrize("killed_after_s", [0.002, 0.01, 0.03, 0.08])
def test_one_of_several_indexers_is_killed(folder: Path, tmp_path: Path, killed_after_s: float) -> None:
    """The others wait for it, and end; the manifest is the one that a single process makes."""
    pids = [start(function, folder) for function in (index, index, read, index)]
    time.sleep(killed_after_s)
    os.kill(pids[0], signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes[1:] == [0, 0, 0]
    read(folder)
    found = (folder / "streamdata.manifest").read_bytes()
    (folder / "streamdata.manifest").unlink()
    index(folder)
    assert (folder / "streamdata.manifest").read_bytes() == found
    visible = sorted(path.name for path in folder.glob("[!.]*"))
    assert len(visible) == 2 * len(SIZES) + 1


def test_an_indexer_that_is_killed_is_gone_on_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had indexed is not indexed again."""
    pid = start(index, folder)
    while len(list(folder.glob(".*.index"))) < 5:
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob(".*.tar.index")}
    if (folder / "streamdata.manifest").exists():
        pytest.skip("it was faster than the kill")
    index(folder)
    assert kept
    assert all(path.stat().st_mtime_ns == mtime for path, mtime in kept.items())
    read(folder)


def test_a_manifest_says_how_sidecars_join_though_the_first_attempt_failed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as for want of memory or of a network: that a sidecar does not join is another matter."""
    index(folder)
    manifest = folder / "streamdata.manifest"
    whole = manifest.read_bytes()
    manifest.unlink()

    real, tried = indexing.build_each, set[str]()

    def fail_first(*jobs: indexing.IndexJob, **options: Any) -> object:
        if jobs[0].url not in tried:
            tried.add(jobs[0].url)
            raise TimeoutError
        return real(*jobs, **options)

    monkeypatch.setattr(indexing, "build_each", fail_first)
    index(folder)
    assert manifest.read_bytes() == whole


def test_one_manifest_has_one_lock_by_any_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of other shards meanwhile is not lost."""
    (folder.parent / "link").symlink_to(folder)
    monkeypatch.chdir(folder.parent)
    index(folder)
    locks = Path(os.environ["STREAMDATA_CACHE"]) / "locks"
    before = set(locks.iterdir())
    for name in ("shards", "link", "./shards/../link"):
        index(Path(name))
    assert set(locks.iterdir()) == before
