import os
from concurrent.futures import Future
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamdata.io.storage import stamp_of
from streamdata.shards.ahead import spans as spans_module
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


def chain_of(shard, begin, sizes, other):
    """Spans that follow one another, and perhaps another shard's that begins at the byte at which they end."""
    ends = (begin + np.cumsum([0, *sizes])).tolist()
    own = list(zip(repeat(shard), ends, ends[1:], strict=False))
    return own + [(1 - shard, ends[-1], ends[-1] + other)][: other > 0]


NUMBERS, SIZES = st.integers(0, 1), st.integers(1, 9)
SPANS = st.tuples(NUMBERS, st.integers(0, 90), SIZES).map(lambda span: (span[0], span[1], span[1] + span[2]))
CHAINS = st.builds(chain_of, NUMBERS, st.integers(0, 10), st.lists(SIZES, max_size=9), st.integers(0, 1))


@given(st.one_of(st.lists(SPANS, max_size=9), CHAINS), st.booleans(), st.integers(0, 3))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spans_are_read_whatever_comes_at_once(tmp_path, chosen, is_remote, short):
    """In any sequence, from any of two shards, and where the system gives less than was asked for."""
    texts = [bytes(range(100)), bytes(range(100, 200))]
    for path, text in zip(urls := [str(tmp_path / name) for name in "ab"], texts, strict=True):
        Path(path).write_bytes(text)
    asked, real = [], os.preadv

    def submit_range(url, begin, end, stamp):
        asked.append(end - begin)
        (answer := Future()).set_result(texts[urls.index(url)][begin:end])
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spans_module, "MAX_REQUEST_BYTES", 20)
        patched.setattr(spans_module, "is_remote", lambda url: is_remote)
        patched.setattr(spans_module, "submit_range", submit_range)
        patched.setattr(os, "preadv", lambda fd, parts, at: real(fd, [parts[0][: max(1, len(parts[0]) - short)]], at))
        stamps = [stamp_of(url) for url in urls]
        memory, begins = spans_module.read_spans(urls, stamps, np.array(chosen, np.int64).reshape(-1, 3))
    for (shard, begin, end), at in zip(chosen, begins.tolist(), strict=True):
        assert bytes(memory[at : at + end - begin]) == texts[shard][begin:end]
    assert max(asked, default=0) <= 20
