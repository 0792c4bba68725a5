"""Files of a store read once, with pieces fetched ahead."""

import pytest

from streamdata.errors import ShardError
from streamdata.io import one_pass
from streamdata.io.one_pass import byte_source
from streamdata.io.storage import stamp_of
from tests.io.servers import http_server

DATA = bytes(range(250)) * 4


@pytest.fixture
def far(monkeypatch):
    """A server with a file of a thousand bytes, read in pieces of a hundred."""
    monkeypatch.setattr(one_pass, "_CHUNK_BYTES", 100)
    with http_server({"x": DATA}) as server:
        yield server


def spans(server):
    """The ranges that were asked for."""
    return sorted(tuple(map(int, one.headers["range"].removeprefix("bytes=").split("-"))) for one in server.log)


@pytest.mark.parametrize("num_pieces", [0, 1, 3, 50])
@pytest.mark.parametrize("step", [7, 100, 333, 5000])
def test_all_bytes_come_once_and_in_order(far, num_pieces, step):
    """However many pieces are ahead, and however much is read at a time."""
    url = f"{far.url}/x"
    stamp = stamp_of(url)
    far.log.clear()
    source = byte_source(url, stamp, num_pieces)
    assert b"".join(source.read(step, at) for at in range(0, len(DATA), step)) == DATA
    assert spans(far) == [(at, at + 99) for at in range(0, 1000, 100)]


def test_what_is_passed_over_is_not_fetched_again_and_again(far):
    """Headers of large members lie far apart: after the first one nothing is fetched ahead."""
    url = f"{far.url}/x"
    stamp = stamp_of(url)
    far.log.clear()
    source = byte_source(url, stamp, 1)
    assert [source.read(3, at) for at in (0, 400, 800)] == [DATA[at : at + 3] for at in (0, 400, 800)]
    assert spans(far) in ([(0, 99), (100, 199), (400, 499), (800, 899)], [(0, 99), (400, 499), (800, 899)])


def test_a_piece_that_does_not_come_is_an_error_where_it_is_read(far):
    """Not before, and as an error of the shard."""
    url = f"{far.url}/x"
    stamp = stamp_of(url)
    far.fault = lambda request: "404" if request.headers["range"] == "bytes=300-399" else None
    source = byte_source(url, stamp, 8)
    assert source.read(300, 0) == DATA[:300]
    with pytest.raises(ShardError, match="bytes 300 to 400: expected a file, got status 404"):
        source.read(10, 300)
