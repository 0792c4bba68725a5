"""Reading in threads: one at a time, and nobody waits for long."""

import threading

import pytest

from streamdata.tools.show import reading as browse_jobs
from streamdata.tools.show.reading import BrowseJobs, StillReadingError


def test_what_is_read_soon_is_there_at_once():
    """A second question reads again; an error is raised here."""
    jobs, numbers = BrowseJobs(), iter(range(9))
    assert [jobs.result("a", lambda: next(numbers)) for _ in range(2)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        jobs.result("a", lambda: 1 / 0)
    assert jobs.result("a", lambda: next(numbers)) == 2


def test_a_long_read_says_how_far_it_is(monkeypatch):
    """It goes on meanwhile, once, and who asks again gets what it gives."""
    monkeypatch.setattr(browse_jobs, "_PATIENCE_S", 0.02)
    jobs, noted, go, calls = BrowseJobs(), threading.Event(), threading.Event(), []

    def read():
        calls.append(jobs.note(300, 5000))
        noted.set()
        go.wait(30)
        return "page"

    with pytest.raises(StillReadingError):
        jobs.result("long", read)
    noted.wait(30)
    for _ in range(2):
        with pytest.raises(StillReadingError, match="300 of 5,000"):
            jobs.result("long", read)
    with pytest.raises(StillReadingError):
        jobs.result("other", lambda: "comes after it")
    monkeypatch.setattr(browse_jobs, "_PATIENCE_S", 5)
    go.set()
    assert jobs.result("long", read) == "page"
    assert jobs.result("other", lambda: "") == "comes after it"
    assert len(calls) == 1


def test_a_result_that_nobody_came_for_is_dropped(monkeypatch):
    """With the next job; asked for again, it is read again."""
    monkeypatch.setattr(browse_jobs, "_PATIENCE_S", 0.02)
    jobs, go, done = BrowseJobs(), threading.Event(), threading.Event()

    def read():
        go.wait(30)
        return "left"

    with pytest.raises(StillReadingError):
        jobs.result("left", read)
    monkeypatch.setattr(browse_jobs, "_PATIENCE_S", 5)
    go.set()
    assert jobs.result("other", done.set) is None  # it comes after it
    assert jobs.result("other", lambda: "page") == "page"
    assert jobs.result("left", lambda: "again") == "again"
