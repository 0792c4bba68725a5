"""Ranges that are read now: within the connections of the process, whichever way they go."""

import pytest

from streamdata.io import one_pass
from streamdata.io.remote.network import Network
from streamdata.io.remote.requests import GoneError
from tests.io.servers import http_server

DATA = bytes(range(256)) * 40
SPANS = [(10 * number, 10 * number + 9) for number in range(40)]


@pytest.fixture
def sender(monkeypatch):
    """The network of this process has three connections."""
    network = Network(3)
    monkeypatch.setattr(one_pass, "network", lambda: network)
    yield network
    network.close()


@pytest.mark.parametrize("is_busy", [True, False])
def test_ranges_of_a_file_share_the_connections_of_the_process(sender, is_busy):
    """Together with all else that it is asked."""
    with http_server({"a": DATA}) as server:
        others = [sender.submit(f"{server.url}/a", 0, 1) for _ in range(9 * is_busy)]
        assert one_pass.fetch_many(f"{server.url}/a", SPANS, "") == [DATA[begin:end] for begin, end in SPANS]
        assert all(other.result(5).data == DATA[:1] for other in others)
        assert server.most_at_once <= 3


def test_ranges_that_nobody_waits_for_any_more_are_cancelled(sender):
    """With the first one that fails."""
    stalls = lambda request: "404" if request.headers["range"] == "bytes=0-8" else "stall"  # noqa: E731
    with http_server({"a": DATA}) as server:
        sender.submit(f"{server.url}/a", 0, 1).result(5)
        server.fault = stalls
        with pytest.raises(GoneError):
            one_pass.fetch_many(f"{server.url}/a", SPANS, "")
        server.fault = lambda _: None
        assert sender.submit(f"{server.url}/a", 0, 1).result(5).data == DATA[:1]
