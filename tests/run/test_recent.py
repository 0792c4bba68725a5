"""Memory is used again by one reader after another, never by two at once."""

import os
import pickle
import threading

import numpy as np

from streamdata.run.per_process import ReadBuffer
from streamdata.shards.jsonl.shards import JsonlShards


def test_memory_is_used_again_when_nobody_holds_the_view():
    """It grows with the largest."""
    buffer = ReadBuffer()
    first = buffer.lend(100).obj
    second = buffer.lend(60).obj
    assert second is first
    assert len(buffer.lend(2000)) >= 2000


def test_two_views_that_are_held_have_memory_of_their_own():
    """The second does not write over the first."""
    buffer = ReadBuffer()
    one, two = buffer.lend(10), buffer.lend(10)
    assert one.obj is not two.obj


def test_large_memory_is_not_kept():
    """What one huge record took does not stay."""
    buffer = ReadBuffer(max_kept_bytes=1000)
    assert len(buffer.lend(5000)) >= 5000
    assert len(buffer.lend(1000)) < 5000


def test_each_thread_and_each_copy_has_its_own():
    """Threads do not wait for each other; a pickle carries no memory."""
    buffer, found = ReadBuffer(), []
    mine = buffer.lend(10)
    thread = threading.Thread(target=lambda: found.append(buffer.lend(10)))
    thread.start()
    thread.join()
    assert found[0].obj is not mine.obj
    assert len(pickle.dumps(buffer)) < 100


def test_a_forked_process_does_not_write_into_its_parent_s():
    """Workers are forked from a trainer that may be reading."""
    view = ReadBuffer().lend(10)
    view[:5] = b"mine "
    child = os.fork()
    if child == 0:
        view[:5] = b"yours"
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(view[:5]) == b"mine "


def test_windows_that_live_together_keep_their_rows(tmp_path):
    """Two windows over one source, read by turns, then a third one after them."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(30)))
    shards = JsonlShards([str(path)])

    def window(first):
        return shards.window(np.array([0]), np.array([first]), np.array([10]))

    one, two = window(0), window(10)
    rows = [row["n"] for k in range(10) for window_ in (one, two) for row in window_.take([k])]
    assert rows == [n for k in range(10) for n in (k, 10 + k)]
    half_read = one.take([0, 1])
    next(half_read)
    del one, two
    assert [row["n"] for row in window(20).take(list(range(10)))] == list(range(20, 30))
    assert next(half_read)["n"] == 1
