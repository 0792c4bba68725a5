import multiprocessing
import os
import time

import pytest

from streamdata.errors import SourceError
from streamdata.io.file_cache import FileCache


def make_slowly(directory, number):
    """Ask for a file that takes a while; each process notes that it made it."""

    def make(path):
        (directory / f"made by {number}").touch()
        time.sleep(0.3)
        path.write_text("content")

    assert FileCache(str(directory / "cache")).get("a/file", make).read_text() == "content"


def test_a_file_is_made_by_one_process(tmp_path):
    """The others wait for it, as the ranks of one machine do."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=make_slowly, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(list(tmp_path.glob("made by *"))) == 1


def test_what_fails_leaves_nothing(tmp_path):
    """Neither the file nor a half of it; the next attempt makes it."""

    def fail(path):
        path.write_text("half")
        raise RuntimeError("no more room")

    cache = FileCache(str(tmp_path))
    with pytest.raises(RuntimeError, match="no more room"):
        cache.get("file", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["file.lock"]
    assert cache.get("file", lambda path: path.write_text("whole")).read_text() == "whole"


def test_the_digest_is_of_the_content(tmp_path):
    """It is found again without reading, and changes with the file."""
    path, cache = tmp_path / "data", FileCache(str(tmp_path / "cache"))
    path.write_bytes(b"x" * 1000)
    first = cache.digest(str(path))
    assert first == cache.digest(str(path))
    assert len(list((tmp_path / "cache" / "digests").glob("[!.]*[!k]"))) == 1
    path.write_bytes(b"y" * 1000)
    os.utime(path, ns=(1, 1))
    assert cache.digest(str(path)) != first


@pytest.mark.parametrize("content", [b"", b"../../../../etc/passwd", b"\xff" * 32])
def test_a_damaged_digest_is_an_error(content, tmp_path):
    """It would name files, and rows."""
    path, cache = tmp_path / "data", FileCache(str(tmp_path / "cache"))
    path.write_bytes(b"x" * 1000)
    cache.digest(str(path))
    (remembered,) = (tmp_path / "cache" / "digests").glob("[!.]*[!k]")
    remembered.write_bytes(content)
    with pytest.raises(SourceError, match="Delete the file"):
        cache.digest(str(path))


def test_a_cache_that_cannot_be_written_says_so(tmp_path):
    """And what to set."""
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="Set cache_dir"):
        FileCache(str(tmp_path / "file")).get("a", lambda path: path.touch())
