"""Stores of other formats, and `prepare`, are in `python -m tests.faults.power_loss`."""

import os
from pathlib import Path

import pytest

from streamdata.run.publish import publish
from tests.faults.disk import cuts, watched
from tests.faults.power_loss import SUBJECTS, replay


def left_by_cuts(folder: Path, *, is_synced: bool) -> set[bytes | None]:
    """What a file that is replaced may hold after a power cut; None where it is gone."""
    path = folder / "file"
    path.write_bytes(b"old")
    with watched(folder) as disk:
        if is_synced:
            publish(path, [b"new!"])
        else:
            path.with_name("temporary").write_bytes(b"new!")
            os.replace(path.with_name("temporary"), path)
    found = [files.get("file") for files in cuts(disk)]
    return {None if content is None else content.data for content in found}


def test_a_power_cut_leaves_the_old_or_the_new_of_what_is_synced(tmp_path: Path) -> None:
    """Of what is renamed without it also nothing, a half, or zeros: the disk that is simulated does lose things."""
    assert left_by_cuts(tmp_path, is_synced=True) == {b"old", b"new!"}
    assert left_by_cuts(tmp_path, is_synced=False) == {b"old", b"new!", b"", b"ne", b"ne\0\0", b"\0\0\0\0"}


EXPECTED = {
    "indexes": {"all records"},
    "manifest": {"a manifest", "no manifest"},
    "states": {"no step", "step 1", "step 2"},
    "file cache": {"a file", "no file"},
    "store bin": {"unfinished", "the first shards", "all shards"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_after_a_power_cut_there_is_the_old_the_new_or_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was not synced was dropped or torn; and the work can be done again."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    found = replay(SUBJECTS[name], tmp_path)
    assert found.keys() == EXPECTED[name]
    assert found.total() > 20
