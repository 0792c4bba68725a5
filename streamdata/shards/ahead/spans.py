"""Spans of many shards: `shards, their versions, spans → pieces that are read together → one piece of memory`."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from streamdata.io.remote.network import network
from streamdata.io.storage import FileStamp, Int64s, cut_short, is_remote, opened_shard, submit_range

Piece = tuple[int, int, int]
"""Consecutive bytes of a shard that are read together: shard, begin, end. Plain, since one is made for nearly every
record of a shuffled window."""
MAX_REQUEST_BYTES: Final = 8 << 20
"""Bytes of several spans that are one piece, at most; a span that is larger is one, too."""
_MAX_GAP_BYTES: Final = 128 << 10
"""Bytes between two spans that are read with them, at most. Larger gaps are columns that nobody wants, or blocks that
other workers fetch."""


class FileSpans(NamedTuple):
    """One byte span for each record of a window; empty for a record without bytes in these files."""

    urls: Sequence[str]
    stamps: Sequence[FileStamp]
    spans: Int64s
    """File, begin and end, (n, 3)."""


def read_spans(
    urls: Sequence[str],
    stamps: Sequence[FileStamp],
    spans: Int64s,
    lend: Callable[[int], memoryview] | None = None,
    at_their_paths: set[int] | None = None,
) -> tuple[memoryview, Int64s]:
    """Read byte spans of files into one piece of memory; those that touch, together.

    Args:
        urls: All shards.
        stamps: Their versions.
        spans: Shard, begin and end of each span, (n, 3); none is empty.
        lend: Returns memory of at least the bytes asked for; by default it is new.
        at_their_paths: Shards whose paths need not be looked at again; those that are found there join the set.

    Returns:
        The memory, and where each span begins in it, (n,).

    Raises:
        ShardError: A shard has changed, or ends before a span does.
    """
    shard, first, last = (*spans[0, :2].tolist(), int(spans[-1, 2])) if len(spans) else (0, 0, 0)
    # In a file's own order they are one piece, which is found in a fifth of the time.
    is_one = 0 < last - first <= MAX_REQUEST_BYTES and (spans[1:, :2] == spans[:-1, ::2]).all()
    one = [(shard, first, last)], np.zeros(len(spans), np.int64)
    pieces, piece_of = one if is_one else coalesced(spans, gaps=False)
    size = sum(map(itemgetter(2), pieces)) - sum(map(itemgetter(1), pieces))
    memory = memoryview(bytearray(size)) if lend is None else lend(size)
    at, origins, asked = 0, list[int](), list[tuple[memoryview, Future[bytes]]]()
    known = set() if at_their_paths is None else at_their_paths
    try:
        for shard, group in groupby(pieces, itemgetter(0)):
            url, stamp, short = urls[shard], stamps[shard], list[tuple[int, int, int]]()
            file = None if is_remote(url) else opened_shard(url)  # one after the other, so that few are open at once
            for _, begin, end in group:
                origins.append(at - begin)  # where the first byte of its file would be
                part = memory[at : at + end - begin]
                at += end - begin
                if file is None:
                    asked.append((part, submit_range(url, begin, end, stamp)))
                    continue
                try:  # here: to call for each record of a shuffled window takes 2 % of all
                    got = os.preadv(file.fd, (part,), begin)
                except OSError:
                    got = -1
                # What failed or is short is tried again, by who says in an error where that was.
                if got < end - begin and (got := file.read_into(part, begin)) < end - begin:
                    short.append((begin, end - begin, got))
            if file is not None:
                file.check(stamp, by_path=shard not in known)
                known.add(shard)
            if short:
                raise cut_short(url, *short[0])
        with network().waiting() if asked else nullcontext():
            for part, answer in asked:
                part[:] = answer.result()
    finally:
        for _, answer in asked:
            answer.cancel()
    return memory, np.array(origins, np.int64)[piece_of] + spans[:, 1]


def coalesced(spans: Int64s, *, gaps: bool = True) -> tuple[list[Piece], Int64s]:
    """Join spans into pieces, each less than twice as large as the bytes that are wanted of it, and without large gaps.

    Args:
        spans: Shard, begin and end of each, (n, 3), in the order in which they are used.
        gaps: Whether spans may be joined that do not touch.

    Returns:
        The pieces, sorted, and the number of the one that holds each span; -1 for an empty span.
    """
    order, of_span = np.lexsort((spans[:, 1], spans[:, 0])), np.full(len(spans), -1, np.int64)
    order = order[spans[order, 1] < spans[order, 2]]
    pieces, numbers = list[Piece](), list[int]()
    shard, first, last, skipped = -1, 0, 0, 0  # of the piece under way
    for next_shard, begin, end in spans[order].tolist():
        gap, size = begin - last, end - first
        is_near = gap <= 0 or (gaps and gap <= _MAX_GAP_BYTES and 2 * (skipped + gap) < size)
        if next_shard != shard or (end > last and not (is_near and size <= MAX_REQUEST_BYTES)):
            if shard >= 0:
                pieces.append((shard, first, last))
            shard, first, last, skipped = next_shard, begin, end, 0
        elif end > last:
            last, skipped = end, skipped + gap if gap > 0 else skipped
        numbers.append(len(pieces))
    if shard >= 0:
        pieces.append((shard, first, last))
    of_span[order] = numbers
    return pieces, of_span
