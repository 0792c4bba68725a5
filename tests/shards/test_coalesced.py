import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamdata.shards.ahead.spans import MAX_REQUEST_BYTES, coalesced

MB = 1 << 20


def requests_of(*spans):
    return coalesced(np.array(spans, np.int64).reshape(-1, 3))[0]


def test_spans_that_touch_are_one_request_up_to_its_bound():
    """Four of 4 MB are two of 8 MB."""
    assert requests_of(*((0, n * 4 * MB, (n + 1) * 4 * MB) for n in range(4))) == [(0, 0, 8 * MB), (0, 8 * MB, 16 * MB)]


def test_gaps_are_read_where_that_is_less_than_twice_what_is_wanted():
    """A gap as large as what lies around it is not; nor are two shards joined."""
    assert requests_of((0, 0, 10), (0, 29, 39)) == [(0, 0, 39)]
    assert requests_of((0, 0, 10), (0, 30, 40)) == [(0, 0, 10), (0, 30, 40)]
    assert requests_of((0, 0, 10), (1, 10, 20)) == [(0, 0, 10), (1, 10, 20)]


def test_large_gaps_are_not_read():
    """In a shard's own order they are what another worker reads: two would fetch nearly all of it, each."""
    assert requests_of((0, 0, MB), (0, MB + (128 << 10), 2 * MB)) == [(0, 0, 2 * MB)]
    assert requests_of((0, 0, MB), (0, MB + (128 << 10) + 1, 2 * MB)) == [(0, 0, MB), (0, MB + (128 << 10) + 1, 2 * MB)]


def test_each_span_says_which_piece_has_it():
    """Whichever is used first; an empty span is in none."""
    pieces, of_span = coalesced(np.array([(1, 0, 5), (0, 90, 95), (0, 7, 7), (1, 5, 9)], np.int64))
    assert pieces == [(0, 90, 95), (1, 0, 9)]
    assert of_span.tolist() == [1, 0, -1, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 9)), max_size=30), st.booleans())
def test_each_span_is_in_its_request(spans, gaps):
    """Requests do not overlap, bring less than twice what is wanted, and without gaps nothing else."""
    unit = MAX_REQUEST_BYTES // 8
    apart = np.array([(shard, begin * unit, (begin + size) * unit) for shard, begin, size in spans], np.int64)
    apart = apart.reshape(-1, 3)
    pieces, of_span = coalesced(apart, gaps=gaps)
    wanted = np.zeros((3, 60), np.bool_)
    for (shard, begin, end), request in zip(apart.tolist(), of_span.tolist(), strict=True):
        assert (request < 0) == (begin == end)
        if request >= 0:
            assert pieces[request][0] == shard
            assert pieces[request][1] <= begin < end <= pieces[request][2]
            wanted[shard, begin // unit : end // unit] = True
    for shard, begin, end in pieces:
        has = wanted[shard, begin // unit : end // unit].mean()
        assert has > 0.5 if gaps else has == 1
