import os
import threading
from concurrent.futures import Future
from weakref import WeakSet

import numpy as np
import pytest

from streamdata.io.storage import NO_STAMP
from streamdata.shards.ahead import read_ahead
from streamdata.shards.ahead import windows as requests
from streamdata.shards.ahead.read_ahead import AheadSettings, LaneAhead, Upcoming, held_bytes
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


@pytest.fixture
def store(monkeypatch):
    """The read-ahead of this process sits on it."""
    found = HeldBack()
    monkeypatch.setattr(requests, "submit", found.submit)
    monkeypatch.setattr(read_ahead._lanes, "made", WeakSet())  # others may be left of other tests
    yield found
    assert held_bytes() == (0, 0)


def windows(name, count, num_records=1):
    """Windows of records of ten bytes, side by side."""
    for number in range(count):
        begins = 10 * np.arange(number * num_records, (number + 1) * num_records)
        spans = np.stack([np.zeros_like(begins), begins, begins + 10], axis=1)
        yield PlannedWindow(number, number, [FileSpans([name], [NO_STAMP], spans)], np.arange(num_records))


def windows_apart(name, num_records):
    """One window of records that are no neighbours, and so are requested one by one."""
    begins = 40 * np.arange(num_records)
    spans = np.stack([np.zeros_like(begins), begins, begins + 10], axis=1)
    yield PlannedWindow(0, 0, [FileSpans([name], [NO_STAMP], spans)], np.arange(num_records))


def lane_of(num_sources, read_ahead_bytes=1000, connections=64):
    return LaneAhead(AheadSettings(read_ahead_bytes, connections), num_sources=num_sources)


def entered(lane, name, count=9):
    """A source whose first chunk was begun."""
    upcoming = Upcoming(lane)
    upcoming.begin(windows(name, count))
    upcoming.enter(0)
    next(upcoming.chunks())
    return upcoming


def read(upcoming, store, *, waits=False):
    """Read the present chunk, which comes before that, or only after a while."""
    if waits:
        threading.Timer(0.05, store.answer_first).start()
    else:
        store.answer_first()
    assert next(upcoming._chunk.load.memories()) == b"0123456789"


def test_what_is_needed_now_is_asked_for_before_what_comes_after(store):
    """Of each source one window ahead; the next one as soon as the reader goes on."""
    lane = lane_of(2)
    first = entered(lane, "first")
    entered(lane, "second")
    assert store.urls == ["first0", "first1", "second0", "second1"]
    first.enter(1)
    assert store.urls[4:] == ["first2"]
    lane.close()


def test_a_lane_that_ends_cancels_what_was_asked_for(store):
    """The last first, so that nothing takes the place of what was cancelled; what has come stays with its reader."""
    lane = lane_of(3)
    kept = [entered(lane, name) for name in "abc"]
    store.futures[0].set_result(b"0123456789")
    cancelled = []
    for number, future in enumerate(store.futures):
        future.add_done_callback(lambda _, number=number: cancelled.append(number))
    lane.close()
    assert cancelled == [0, 1, 3, 2, 5, 4]
    assert all(future.cancelled() for future in store.futures[1:])
    del kept


def test_nothing_is_asked_for_ahead_of_what_others_need_now(store):
    """Of a bound of four records, two are for what is read: the first may not take the second's room, which comes."""
    lane = lane_of(2, read_ahead_bytes=40)
    first = entered(lane, "first")
    first._num_wanted = 9
    first.enter(1)
    assert store.urls == ["first0", "first1", "first2", "first3"]
    assert held_bytes() == (10, 20)
    entered(lane, "second")
    assert store.urls[4:] == ["second0"]
    assert held_bytes() == (20, 20)
    lane.close()


def test_another_lane_has_room_beside_what_was_asked_for_ahead(store):
    """What is ahead takes half of the bound, in all lanes together; the second lane asks when the first has less."""
    first = entered(lane_of(1, read_ahead_bytes=40), "first")
    first._num_wanted = 9
    first.enter(1)
    assert store.urls == ["first0", "first1", "first2", "first3"]
    second = entered(lane_of(1, read_ahead_bytes=40), "second")
    assert store.urls[4:] == ["second0"]
    first.close()
    second.enter(1)
    assert store.urls[5:] == ["second1", "second2"]
    second.close()


def test_a_record_that_is_larger_than_the_bound_is_read_alone(store):
    """Nothing ahead of it, and nothing ahead beside it."""
    source = entered(lane_of(1, read_ahead_bytes=5), "large")
    for number in range(3):
        assert store.urls == [f"large{n}" for n in range(number + 1)]
        source.enter(number + 1)
    source.close()


def test_a_reader_that_waited_has_more_ahead(store):
    """Twice as much each time; who did not wait has as much as before."""
    source = entered(lane_of(1), "waits", count=99)
    ahead = []
    for number, waits in enumerate([True, True, True, False, False]):
        read(source, store, waits=waits)
        source.enter(number + 1)
        ahead.append(sum(len(load.chunks) for load in source._queue) - 1)
    assert ahead == [2, 4, 8, 8, 8]
    source.close()


def test_who_waits_most_does_not_take_all(store):
    """Of twenty sources each has a twentieth of what is for the present, and eight times as much ahead at most."""
    lane = lane_of(20, read_ahead_bytes=20 * 2 * 10)
    greedy = entered(lane, "greedy", count=999)
    greedy._num_wanted = greedy._most_under_way = 256
    greedy.enter(1)
    assert greedy.held_bytes()[1] == 90
    lane.close()


def test_few_requests_of_each_source_are_under_way_until_it_waits(store):
    """What is needed first goes first, in all sources: of each its share of the connections, four at least."""
    lane = lane_of(4, connections=20)
    several = [Upcoming(lane) for _ in range(4)]
    for number, one in enumerate(several):
        one.begin(windows_apart(f"{number}-", 9))
        one.enter(0)
    assert [sum(url.startswith(f"{number}-") for url in store.urls) for number in range(4)] == [5, 5, 5, 5]
    read(several[0], store, waits=True)
    assert sum(url.startswith("0-") for url in store.urls) == 7
    lane.close()


def test_what_cannot_be_asked_for_is_an_error_of_what_needs_it(store, monkeypatch):
    """Not before: what comes before it is read."""
    source = entered(lane_of(1), "fails")

    def fails(*_):
        raise OSError("no thread")

    monkeypatch.setattr(requests, "submit", fails)
    store.answer_first()
    source.enter(1)
    read(source, store)
    source.enter(2)
    with pytest.raises(OSError, match="no thread"):
        next(source._chunk.load.memories())
    source.close()


def test_a_fork_asks_again_and_cancels_nothing_of_its_parent(store, monkeypatch):
    """The answers to a parent do not come to its child."""
    source = entered(lane_of(1), "forks")
    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(requests, "submit", lambda url, *_: url.encode())
            found = next(source._chunk.load.memories()), held_bytes()
            source.enter(1)
            is_well = found == (b"forks", (10, 10)) and held_bytes() == (10, 10)
            source.close()
            os._exit(not is_well)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert not any(future.cancelled() for future in store.futures)
    source.close()
