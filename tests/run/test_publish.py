import errno
import os

import pytest

from streamdata.run.publish import publish, publish_made, publish_written, temporary_beside


def test_publishing_replaces_in_one_step(tmp_path):
    """The new content under the name, readable as the umask says, and nothing else left."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    publish(path, [b"new", b"er"])
    assert path.read_bytes() == b"newer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_publishing_that_fails_leaves_what_was_there(tmp_path, monkeypatch, number):
    """A failure before the rename keeps the old file and no temporary one; what was not synced is not tried again."""
    path, calls = tmp_path / "file", []
    path.write_bytes(b"old")

    def fail(fd):
        calls.append(fd)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=rf"{os.strerror(number)}: '{path}'"):
        publish(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert len(calls) == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_what_fails_in_writing_leaves_what_was_there_and_names_the_file(tmp_path, number):
    """As a full disk, which is met without a name."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(temporary):
        temporary.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=rf"{os.strerror(number)}: '{path}'"):
        publish_made(path, write)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"file": b"old"}


def test_the_order_is_write_sync_rename_sync(tmp_path, monkeypatch):
    """The content is on the disk before the name points to it, and the directory after."""
    calls = []
    real_fsync, real_replace = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), real_fsync(fd)))
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda self, target: (calls.append("rename"), real_replace(self, target))
    )
    publish(tmp_path / "file", [b"x"])
    assert [call if call == "rename" else call.endswith(".tmp") for call in calls] == [True, "rename", False]


def test_a_directory_is_published_with_all_its_files(tmp_path, monkeypatch):
    """Each is on the disk before the name is there, and under a name that readers pass over until then."""
    calls = []
    real_fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), real_fsync(fd)))
    temporary = temporary_beside(tmp_path / "shard")
    temporary.mkdir()
    assert temporary.name.startswith(".shard.")
    for name in ("b", "a"):
        (temporary / name).write_text(name)
    publish_written(temporary, tmp_path / "shard")
    assert calls == [str(temporary / "a"), str(temporary / "b"), str(temporary), str(tmp_path)]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "shard"]


def test_a_directory_is_not_published_over_another(tmp_path):
    """What is there stays, and what was written too."""
    temporary = temporary_beside(tmp_path / "shard")
    for folder in (temporary, tmp_path / "shard"):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    with pytest.raises(OSError, match="not empty"):
        publish_written(temporary, tmp_path / "shard")
    assert (tmp_path / "shard" / "file").read_text() == "shard"
    assert (temporary / "file").exists()
