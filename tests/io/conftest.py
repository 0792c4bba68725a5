"""What tests of several clients need."""

import pytest

from streamdata.io.remote import hosts, requests, web_client
from streamdata.io.remote.network import Network
from streamdata.run.lane_link import _counts


@pytest.fixture
def short_waits(monkeypatch):
    """Hundredths of a second between attempts; limits are those of a slow machine, unless a test is of them."""
    waits = {"DEADLINE_S": 60.0, "_FIRST_WAIT_S": 0.002, "_LONGEST_WAIT_S": 0.02, "_LOOK_S": 0.005}
    for name, seconds in waits.items():
        monkeypatch.setattr(requests, name, seconds)
    # A server may get the port of one that an earlier test has found dead.
    monkeypatch.setattr(hosts._healths, "made", {})


@pytest.fixture
def dies_soon(short_waits, monkeypatch):
    """A store that fails for a second is dead."""
    monkeypatch.setattr(requests, "DEADLINE_S", 1.0)


@pytest.fixture
def stalls_soon(short_waits, monkeypatch):
    """What sends no byte for a part of a second has failed."""
    monkeypatch.setattr(web_client, "STALL_S", 0.25)


@pytest.fixture
def sender(short_waits, monkeypatch):
    """A network of its own, of which nothing was asked."""
    monkeypatch.setattr(_counts, "made", None)
    network = Network(16)
    yield network
    network.close()
