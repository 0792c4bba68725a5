"""`streamdata index`: manifests made, brought up to date, and compared."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.shard_files import write_tars

Streamdata = Callable[..., Result]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))


def test_each_path_gets_its_manifest_and_a_summary(streamdata: Streamdata, tmp_path: Path) -> None:
    """Or all get one where it is told."""
    one, two = (write_tars(tmp_path / name, [3, 2]) for name in ("one", "two"))
    done = streamdata("index", one, two, "-j", 1)
    assert (done.exit_code, done.stdout.count("4 files"), done.stdout.count("5 records")) == (0, 2, 2), done.output
    both = tmp_path / "both.manifest"
    done = streamdata("index", one, two, "-o", both)
    assert (done.exit_code, "8 files" in done.stdout, both.exists()) == (0, True, True), done.output


def test_check_names_each_shard_that_differs(streamdata: Streamdata, tmp_path: Path) -> None:
    """And exits 1; after a second index all is well."""
    folder = Path(write_tars(tmp_path / "tars", [3, 2, 1, 1]))
    assert streamdata("index", folder).exit_code == 0
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder}/streamdata.manifest: all is as it says\n")
    os.utime(folder / "00000.tar", ns=(1, 1))
    (folder / "00001.tar").write_bytes((folder / "00001.tar").read_bytes() + bytes(512))
    (folder / "00002.tar").unlink()
    (folder / "00004.tar").write_bytes((folder / "00003.tar").read_bytes())
    done = streamdata("index", "--check", folder)
    assert done.exit_code == 1
    said = ["00000.tar: it was modified", "00001.tar: expected 10240 bytes, got 10752", "00002.tar: it is gone",
            "00004.tar: the manifest does not name it", "5 differ"]  # fmt: skip
    assert [text for text in said if text not in done.stdout] == []  # the fifth is the sidecar of the one that is gone
    assert streamdata("index", folder).exit_code == 0
    assert streamdata("index", "--check", folder).exit_code == 0


def test_a_manifest_that_is_damaged_is_named_by_check(streamdata: Streamdata, tmp_path: Path) -> None:
    """Its rows with their shard; index makes it anew."""
    folder = Path(write_tars(tmp_path / "tars", [3], sidecars=False))
    streamdata("index", folder)
    path = folder / "streamdata.manifest"
    data = path.read_bytes()
    path.write_bytes(data[:-9] + b"x" + data[-8:])
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, "00000.tar: its index 'tar' in the manifest is damaged" in done.stdout) == (1, True)
    path.write_bytes(data[:40] + b"x" + data[41:])
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, "error: manifest" in done.stderr) == (1, True)
    assert (streamdata("index", folder).exit_code, path.read_bytes()) == (0, data)


def test_what_is_no_shard_is_a_message(streamdata: Streamdata, tmp_path: Path) -> None:
    """No traceback: a folder without shards, a check without a manifest, an output of another name."""
    (tmp_path / "empty").mkdir()
    done = streamdata("index", tmp_path / "empty")
    assert (done.exit_code, "expected a directory of shards" in done.stderr) == (1, True)
    folder = write_tars(tmp_path / "tars", [1])
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, "expected a manifest" in done.stderr) == (1, True)
    assert streamdata("index", folder, "-o", "x.json").exit_code == 2
