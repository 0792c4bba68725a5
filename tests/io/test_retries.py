"""When a request is made again, by a clock of the test's own."""

import random
from types import SimpleNamespace

import pytest

from streamdata.io.remote import requests
from streamdata.io.remote.requests import Asked, DeadHostError, FailureError, HostHealth, Patience


@pytest.fixture
def now(monkeypatch):
    """The time, which tests set."""
    clock = [1000.0]
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def wait(patience, now):
    """Wait for the next attempt; for how long that was."""
    began = now[0]
    while (seconds := patience.begin()) is not None:
        assert 0 < seconds <= 0.1
        now[0] += seconds
    return now[0] - began


def waits_of(now, failures):
    """The waits before each attempt of a request that fails so often and then is answered."""
    patience = Patience(Asked("fetch", "s3://bucket/a"), health := HostHealth())
    waits = []
    for number in range(failures + 1):
        waits.append(wait(patience, now))
        if number < failures:
            patience.failed(FailureError("status 503", 503))
    patience.succeeded()
    assert (patience.attempts, health.failing_since) == (failures + 1, None)
    return waits


def test_four_failures_and_an_answer_are_five_attempts_with_growing_waits(now):
    """Each wait is a random part, from its half on, of one that doubles from 0.2 s to 8 s."""
    all_waits = [waits_of(now, 4) for _ in range(30)]
    for number, most in enumerate([0.0, 0.2, 0.4, 0.8, 1.6]):
        waits = [waits[number] for waits in all_waits]
        assert all(most / 2 - 1e-6 <= waited <= most + 1e-6 for waited in waits)
        assert len({round(waited, 6) for waited in waits}) > 27 if number else not any(waits)  # two may be alike


def test_waits_are_at_most_eight_seconds(now):
    """However often it failed; also where the server asks for more."""
    assert 4 <= max(waits_of(now, 9)) <= 8 + 1e-6
    patience = Patience(Asked("fetch", "s3://bucket/a"), HostHealth())
    wait(patience, now)
    patience.failed(FailureError("status 503", 503, wait=3600))
    assert wait(patience, now) == pytest.approx(8)


def test_a_store_that_never_answers_is_dead_after_two_minutes(now):
    """With the number of attempts, the time and the last word."""
    began = now[0]
    with pytest.raises(
        DeadHostError, match=r"'s3://bucket/a': expected .* status 503, .* \(attempts \d+, during 12\d s"
    ):
        waits_of(now, 10_000)
    assert 120 <= now[0] - began <= 130


def test_what_a_user_draws_does_not_depend_on_what_failed(now):
    """Another thread would draw from the generator that the training has seeded."""
    before = random.getstate()
    waits_of(now, 4)
    assert random.getstate() == before
