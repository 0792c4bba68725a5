"""Ledgers over few records, and a clock that a test moves."""

import time
from types import SimpleNamespace

import pytest

from streamdata import MergedDataset
from streamdata.ledger import ledger as module
from tests.streams import Numbers


def prompts_of(sizes=(("a", 6), ("b", 3)), **settings):
    """A finite mixture of map-style sources: each once."""
    settings = {"cyclic": False, "stop": "all_exhausted", "seed": 3} | settings
    return MergedDataset([Numbers(name, size) for name, size in sizes], **settings)


def endless(*sizes):
    """The same, epoch after epoch."""
    return prompts_of(sizes, cyclic=True)


@pytest.fixture
def clock(monkeypatch):
    """What `time.monotonic` and `time.time` say to ledgers; tests set `.now` and `.date`."""
    fake = SimpleNamespace(now=100.0, date=1_800_000_000.0)
    stand_in = SimpleNamespace(monotonic=lambda: fake.now, time=lambda: fake.date, sleep=time.sleep)
    monkeypatch.setattr(module, "time", stand_in)
    return fake
