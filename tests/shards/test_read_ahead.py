from concurrent.futures import Future

import numpy as np
import pytest

from streamdata.io.remote.addresses import StorageOptions
from streamdata.io.remote.hosts import health_of
from streamdata.io.remote.requests import FailureError
from streamdata.io.storage import NO_STAMP
from streamdata.shards.ahead import read_ahead as room
from streamdata.shards.ahead.read_ahead import AheadSettings, LaneAhead, ReadAhead
from streamdata.shards.ahead.spans import FileSpans
from streamdata.shards.ahead.upcoming import Upcoming
from streamdata.shards.ahead.windows import PlannedWindow


class HeldBack:
    """What read-ahead sits on; each answer comes when the test says so."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.futures: list[Future[bytes]] = []

    def submit(self, url: str, begin: int, end: int, stamp: object) -> "Future[bytes]":
        """Ask for a range."""
        self.urls.append(f"{url}{begin // 10}")
        self.futures.append(Future())
        return self.futures[-1]

    def answer_all(self) -> None:
        """Answer one after another, also what is sent meanwhile."""
        for future in self.futures:  # it grows
            if not future.done():
                future.set_result(b"0123456789")


@pytest.fixture
def store(monkeypatch):
    """The one of this process sits on it."""
    found = HeldBack()
    monkeypatch.setattr(room._read_ahead, "made", ReadAhead(found.submit))
    return found


def windows(name, count, num_records=1):
    """Windows of records of ten bytes, side by side."""
    for number in range(count):
        begins = 10 * np.arange(number * num_records, (number + 1) * num_records)
        spans = np.stack([np.zeros_like(begins), begins, begins + 10], axis=1)
        yield PlannedWindow(number, number, [FileSpans([name], [NO_STAMP], spans)], np.arange(num_records))


def lane_of(num_sources, read_ahead_bytes=1000, connections=1):
    return LaneAhead(AheadSettings(read_ahead_bytes, connections), heap=[(0.0, 0)], num_sources=num_sources)


def entered(lane, pace, name, count=9):
    """A source whose first chunk was begun."""
    upcoming = Upcoming(lane, pace)
    upcoming.begin(windows(name, count))
    upcoming.enter(0)
    next(upcoming.chunks())
    return upcoming


def test_requests_are_sent_by_due_time(store):
    """Over one connection: what two sources need now, then the next record of the one that is drawn more often."""
    lane = lane_of(2)
    kept = [entered(lane, 10.0, "seldom"), entered(lane, 1.0, "often")]
    store.answer_all()
    assert store.urls == ["seldom0", "often0", "often1", "seldom1"]
    del kept


def test_as_many_requests_are_under_way_as_there_are_connections(store):
    """The others wait for an answer."""
    kept = [entered(lane_of(3, connections=2), 1.0, name) for name in "abc"]
    assert store.urls == ["a0", "a1"]
    store.futures[0].set_result(b"0123456789")
    assert len(store.urls) == 3
    del kept


def test_a_slow_store_leaves_connections_to_the_others(store):
    """It has three of four, though all that waits is its own; alone it has all of them."""
    slow = entered(lane_of(1, connections=4), 0.001, "s3://slow/", count=99)
    fast = entered(lane_of(1, connections=4), 1.0, "s3://fast/")
    assert [url[5:9] for url in store.urls] == ["slow", "slow", "fast", "fast"]
    slow._most_ahead = 64
    room.read_ahead().fill(slow._lane)
    for future in store.futures[2:4]:
        future.set_result(b"0123456789")
    assert store.urls[4:] == ["s3://slow/2"]
    fast.enter(1)
    next(fast.chunks())
    assert store.urls[5:] == ["s3://fast/2"]
    fast.close()
    assert store.urls[6:] == ["s3://slow/3"]
    slow.close()


def test_what_a_failing_store_was_asked_for_holds_no_connection(store):
    """It waits to be asked again, for up to two minutes; another store may answer meanwhile."""
    failing = entered(lane_of(1, connections=2), 1.0, "s3://failing/")
    assert [url[5:9] for url in store.urls] == ["fail", "fail"]
    health_of("s3://failing/", StorageOptions()).failed(FailureError("no", 503))
    good = entered(lane_of(1, connections=2), 1.0, "s3://good/")
    assert store.urls[2:] == ["s3://good/0", "s3://good/1"]
    good.close()
    failing.close()


def test_a_lane_that_ends_sends_nothing_more(store):
    """Neither what its other sources had waiting while the first let go of its connection."""
    lane = lane_of(3)
    kept = [entered(lane, 1.0, name) for name in "abc"]
    lane.close()
    assert store.urls == ["a0"]
    assert room.read_ahead().counts.held_bytes == 0
    del kept


def test_a_source_that_is_collected_while_requests_are_chosen_does_not_end_the_others(store, monkeypatch):
    """A collection of garbage closes it, at any moment."""
    gone, kept = entered(lane_of(1), 0.5, "gone"), entered(lane_of(1), 1.0, "kept")
    due, chosen = Upcoming.due, []

    def collected(upcoming, number):
        if upcoming is gone and gone.is_on and store.futures[1:] and store.futures[1].done():
            chosen.append(number)
            gone.close()
        return due(upcoming, number)

    monkeypatch.setattr(Upcoming, "due", collected)
    store.answer_all()
    assert chosen
    assert "kept1" in store.urls
    kept.close()


def test_nothing_is_asked_for_ahead_of_what_others_need_now(store):
    """A bound of two records for two sources: the first may not take the room of the second, which has not begun."""
    first = entered(lane := lane_of(2, read_ahead_bytes=20, connections=9), 1.0, "first")
    assert store.urls == ["first0"]
    entered(lane, 1.0, "second")
    assert room.read_ahead().counts.held_bytes == 20
    first.close()


def test_another_lane_takes_the_room_of_what_was_asked_for_ahead(store):
    """Which is asked for again when there is room."""
    first = entered(lane_of(1, read_ahead_bytes=20, connections=9), 1.0, "first")
    assert store.urls == ["first0", "first1"]
    store.answer_all()
    second = entered(lane_of(1, read_ahead_bytes=20, connections=9), 1.0, "second")
    store.answer_all()
    assert store.urls[2] == "second0"
    assert room.read_ahead().counts.most_held_bytes == 20
    second.close()
    assert first.enter(1).content == 1
    chunk = next(first.chunks())
    store.answer_all()
    assert list(chunk.memories()) == [b"0123456789"]
    assert store.urls[3] == "first1"
