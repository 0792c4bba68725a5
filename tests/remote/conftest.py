"""What tests of several clients need."""

import pytest

from streamdata.remote import Network, once, retries, web_client


@pytest.fixture
def short_waits(monkeypatch):
    """Some hundredths of a second instead of minutes."""
    waits = {"DEADLINE_S": 0.5, "_FIRST_WAIT_S": 0.002, "_LONGEST_WAIT_S": 0.02, "_LOOK_S": 0.005}
    for name, seconds in waits.items():
        monkeypatch.setattr(retries, name, seconds)
    for module in (once, web_client):
        monkeypatch.setattr(module, "STALL_S", 0.1)


@pytest.fixture
def sender(short_waits):
    """A network of its own."""
    network = Network(16)
    yield network
    network.close()
