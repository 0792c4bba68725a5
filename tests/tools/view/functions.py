"""Process functions for the tests of what looks at a stream, good and bad."""

import os
import random
import sys

from streamdata import record_rng


def same(record: dict) -> dict:
    """Pure."""
    return record


def odd(record: dict) -> dict | None:
    """Drops the even numbers."""
    return record if record["value"] % 2 else None


def seeded(record: dict) -> dict:
    """Random, as it should be."""
    return {**record, "noise": float(record_rng(record).random())}


def noisy(record: dict) -> dict:
    """Draws from the global generator, which a resume does not repeat."""
    return {**record, "noise": random.random()}


def failing(record: dict) -> dict:
    """Fails at one record in five."""
    if record["value"] % 5 == 0:
        raise ValueError(f"no {record['value']}")
    return record


def exiting(record: dict) -> dict:
    """Ends the process at one record in five, as scripts do."""
    if record["value"] % 5 == 0:
        sys.exit(3)
    return record


def exiting_stream(records):
    """The same."""
    yield from map(exiting, records)


def refusing_stream(records):
    """Fails before it takes a record."""
    raise ValueError("no records wanted")
    yield from records


def dying(record: dict) -> dict:
    """Takes its process with it."""
    if record["value"] == 7:
        os._exit(9)
    return record


def failing_then_dying(record: dict) -> dict:
    """Both."""
    return failing(dying(record))


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError


def mute(record: dict) -> dict:
    """As `failing`, with such an error."""
    if record["value"] % 5 == 0:
        raise MuteError
    return record


def wordy(record: dict) -> dict:
    """Its message would be taken for several lines."""
    raise ValueError(f"no\nerror: forged line {'x' * 100_000}")


def pairs(records):
    """Two records to one sample, holding nothing between bursts."""
    for first in records:
        yield {"pair": (first["value"], next(records, first)["value"])}


def totals(records):
    """Holds the sum so far from one burst to the next, and does not tell."""
    total = 0
    for record in records:
        total += record["value"]
        yield {"total": total}


class Totals:
    """The same, telling.

    Args:
        state: What to tell instead of the sum.
    """

    def __init__(self, state: object = None) -> None:
        self.state = state

    def __call__(self, records):
        self.total = getattr(self, "total", 0)
        for record in records:
            self.total += record["value"]
            yield {"total": self.total}

    def state_dict(self) -> dict:
        return {"rewind": 0, "total": self.total if self.state is None else self.state}

    def load_state_dict(self, state: dict) -> None:
        if self.state == "unloadable":
            raise ValueError("cannot be loaded")
        self.total = state["total"]


def failing_stream(records):
    """Fails at one record in five."""
    return map(failing, records)


def number(record):
    """Returns what is no sample."""
    return record["value"]
