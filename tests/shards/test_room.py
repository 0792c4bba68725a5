"""A room is used again by one window after another, never by two that live."""

import pickle
import threading

import numpy as np

from streamdata.shards.jsonl import JsonlShards
from streamdata.shards.room import Room


class User:
    """Uses a room for as long as it lives."""


def test_memory_is_used_again_when_its_user_is_gone():
    """It grows with the largest."""
    room, user = Room(), User()
    first = room.lend(user, 100)
    del user
    second = room.lend(later := User(), 60)
    assert second is first
    assert len(room.lend(User(), 200)) >= 200
    assert later


def test_two_users_that_live_have_their_own():
    """The second does not write over the first."""
    room, one, two = Room(), User(), User()
    assert room.lend(one, 10) is not room.lend(two, 10)


def test_each_thread_and_each_copy_has_its_own():
    """Threads do not wait for each other; a pickle carries no memory."""
    room, user, found = Room(), User(), []
    mine = room.lend(user, 10)
    thread = threading.Thread(target=lambda: found.append(room.lend(user, 10)))
    thread.start()
    thread.join()
    assert found[0] is not mine
    assert len(pickle.dumps(room)) < 100


def test_windows_that_live_together_keep_their_rows(tmp_path):
    """Two windows over one source, read by turns, then a third one after them."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(30)))
    shards = JsonlShards([str(path)])

    def window(first):
        return shards.window(np.array([0]), np.array([first]), np.array([10]))

    one, two = window(0), window(10)
    rows = [window_.take([k])[0]["n"] for k in range(10) for window_ in (one, two)]
    assert rows == [n for k in range(10) for n in (k, 10 + k)]
    del one, two
    assert [row["n"] for row in window(20).take(list(range(10)))] == list(range(20, 30))
