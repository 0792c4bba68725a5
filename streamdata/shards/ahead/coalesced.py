"""Which bytes are asked for at once: `spans of records → requests of 1 to 8 MB, and which of them holds each span`."""

from typing import Final, NamedTuple

import numpy as np

from streamdata.io.storage import Int64s

MAX_REQUEST_BYTES: Final = 8 << 20
"""Of several spans together; one that is larger is one request."""


class Requested(NamedTuple):
    """What is asked for."""

    pieces: list[tuple[int, int, int]]
    """Shard, begin and end of each request, in the order in which the spans first need them."""
    of_span: Int64s
    """The number of the request that holds each span; -1 for an empty one."""
    first_uses: list[int]
    """The number of the first span that each request holds."""


def coalesced(spans: Int64s, *, gaps: bool = True) -> Requested:
    """Join spans to requests that are less than twice the bytes that are wanted of them.

    Args:
        spans: Shard, begin and end of each, (n, 3), in the order in which they are used.
        gaps: Whether spans may be joined that do not touch.
    """
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    order = order[spans[order, 1] < spans[order, 2]]
    runs, run_of = _runs(spans[order], order)
    found: list[list[int]] = []  # shard, begin, end, bytes wanted, first span
    requests = []
    for shard, begin, end, first in runs.tolist():
        last = found[-1] if found else None
        if last is None or last[0] != shard or not _may_join(last, begin, end, gaps=gaps):
            last = [shard, begin, end, 0, first]
            found.append(last)
        last[3] += max(0, end - max(begin, last[2])) if last[3] else end - begin
        last[2], last[4] = max(last[2], end), min(last[4], first)
        requests.append(len(found) - 1)
    by_use = sorted(range(len(found)), key=lambda request: found[request][4])
    ranks = np.empty(len(found), np.int64)
    ranks[by_use] = np.arange(len(found))
    of_span = np.full(len(spans), -1, np.int64)
    if requests:
        of_span[order] = ranks[requests][run_of]
    in_order = [found[request] for request in by_use]
    return Requested([(shard, begin, end) for shard, begin, end, *_ in in_order], of_span, [one[4] for one in in_order])


def _runs(spans: Int64s, numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Sorted spans, those that touch as one: shard, begin, end and least number of each run; and the run of each span.

    Where a run would be more than one request they stay as they are: the loop over them then joins as many as fit.
    """
    is_first = np.ones(len(spans), np.bool_)
    is_first[1:] = (spans[1:, 0] != spans[:-1, 0]) | (spans[1:, 1] > spans[:-1, 2])
    starts = np.flatnonzero(is_first)
    if len(starts):
        ends, least = np.maximum.reduceat(spans[:, 2], starts), np.minimum.reduceat(numbers, starts)
        if (ends - spans[starts, 1]).max() <= MAX_REQUEST_BYTES:
            return np.stack([spans[starts, 0], spans[starts, 1], ends, least], axis=1), np.cumsum(is_first) - 1
    return np.column_stack([spans, numbers]), np.arange(len(spans))


def _may_join(request: list[int], begin: int, end: int, *, gaps: bool) -> bool:
    _, first, last, wanted, _ = request
    if begin <= last:  # it touches, or it is the same record again
        return max(last, end) - first <= MAX_REQUEST_BYTES or end <= last
    return gaps and end - first <= MAX_REQUEST_BYTES and end - first < 2 * (wanted + end - begin)
