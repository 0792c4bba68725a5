import threading
from concurrent.futures import Future

import numpy as np
import pytest

from streamdata.io.storage import NO_STAMP
from streamdata.shards.ahead import read_ahead as room
from streamdata.shards.ahead.read_ahead import AheadSettings, LaneAhead, ReadAhead, Upcoming
from streamdata.shards.ahead.spans import FileSpans
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

    def answer_first(self) -> None:
        """Answer what was asked for first of what is not answered."""
        next(future for future in self.futures if not future.done()).set_result(b"0123456789")

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


def test_a_lane_that_ends_sends_nothing_more(store):
    """Neither what its other sources had waiting while the first let go of its connection."""
    lane = lane_of(3)
    kept = [entered(lane, 1.0, name) for name in "abc"]
    lane.close()
    assert store.urls == ["a0"]
    assert room.read_ahead().held_bytes == 0
    del kept


def test_a_source_that_is_collected_while_requests_are_chosen_does_not_end_the_others(store, monkeypatch):
    """A collection of garbage closes it, at any moment."""
    gone, kept = entered(lane_of(1), 0.5, "gone"), entered(lane_of(1), 1.0, "kept")
    real = room.heappop

    def collected(heap):
        gone.close()
        return real(heap)

    monkeypatch.setattr(room, "heappop", collected)
    store.answer_all()
    assert not gone.is_on
    assert "kept1" in store.urls
    kept.close()
    assert room.read_ahead().held_bytes == 0


def test_a_source_that_is_collected_while_a_request_is_sent_sends_nothing_from_within(store, monkeypatch):
    """Whoever sends holds a lock then, as an executor does."""
    gone, kept = entered(lane_of(1), 0.5, "gone"), entered(lane_of(1), 1.0, "kept")
    lock, real = threading.Lock(), store.submit

    def submit(*asked):
        assert lock.acquire(blocking=False), "sent from within"
        gone.close()
        lock.release()
        return real(*asked)

    monkeypatch.setattr(room.read_ahead(), "_submit", submit)
    store.answer_all()
    assert "kept1" in store.urls
    kept.close()
    assert room.read_ahead().held_bytes == 0


def test_who_is_collected_sends_nothing_and_who_waits_does(store):
    """The thread in which garbage is collected may hold the lock of what sends: to send there would wait for ever."""
    gone, kept = entered(lane_of(1), 0.5, "gone"), entered(lane_of(1), 1.0, "kept")
    gone.close()
    assert store.urls == ["gone0"]
    threading.Timer(0.2, store.answer_all).start()
    assert next(kept._chunk.load.memories()) == b"0123456789"
    kept.close()


def test_nothing_is_asked_for_ahead_of_what_others_need_now(store):
    """Of a bound of four records, two are for what is read: the first may not take the second's room, which comes."""
    lane = lane_of(2, read_ahead_bytes=40, connections=9)
    first = entered(lane, 1.0, "first")
    first._num_wanted = 9
    first.enter(1)
    assert store.urls == ["first0", "first1", "first2", "first3"]
    assert room.read_ahead().held_bytes == 30
    entered(lane, 1.0, "second")
    assert store.urls[4:] == ["second0"]
    assert room.read_ahead().held_bytes == 40
    lane.close()


def test_another_lane_has_room_beside_what_was_asked_for_ahead(store):
    """What is ahead takes half of the bound, in all lanes together; the second lane asks when the first has less."""
    first = entered(lane_of(1, read_ahead_bytes=40, connections=9), 1.0, "first")
    first._num_wanted = 9
    first.enter(1)
    assert store.urls == ["first0", "first1", "first2", "first3"]
    second = entered(lane_of(1, read_ahead_bytes=40, connections=9), 1.0, "second")
    assert store.urls[4:] == ["second0"]
    assert room.read_ahead().most_held_bytes == 40
    first.close()
    room.read_ahead().send()
    assert store.urls[5:] == ["second1"]
    second.close()
    assert room.read_ahead().held_bytes == 0


def test_a_record_that_is_larger_than_the_bound_is_read_alone(store):
    """Nothing ahead of it, and nothing ahead beside it."""
    source = entered(lane_of(1, read_ahead_bytes=5, connections=9), 1.0, "large")
    for number in range(3):
        assert store.urls == [f"large{n}" for n in range(number + 1)]
        assert room.read_ahead().held_bytes == 10
        store.answer_all()
        source.enter(number + 1)
    source.close()


def test_a_reader_that_waited_has_more_ahead(store):
    """Twice as much each time; who did not wait has as much as before."""
    source = entered(lane_of(1, connections=99), 1.0, "waits", count=99)
    ahead = []
    for number, waits in enumerate([True, True, True, False, False]):
        present = source._chunk.load
        if waits:
            threading.Timer(0.02, store.answer_first).start()
        else:
            store.answer_first()
        assert next(present.memories()) == b"0123456789"
        source.enter(number + 1)
        ahead.append(sum(len(load.chunks) for load in source._queue) - 1)
    assert ahead == [2, 4, 8, 8, 8]
    source.close()


def test_a_lane_that_is_dropped_leaves_no_requests_behind(store):
    """However many iterators a process begins and drops."""
    for _ in range(3):
        entered(lane_of(1), 1.0, "gone")._lane.close()
    room.read_ahead().send()
    assert room.read_ahead()._heaps == [[], []]
