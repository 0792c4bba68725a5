"""Spans of many shards: `shards, their versions, spans → one piece of memory`."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from streamdata.io.remote.network import network
from streamdata.io.storage import FileStamp, Int64s, cut_short, is_remote, opened_shard, submit_range

_Piece = tuple[int, int, int, int]
"""Consecutive bytes of a shard, and where they go: shard, begin, end, begin in memory. Plain, since one is made for
nearly every record of a shuffled window."""


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
    """Read byte spans of files into one piece of memory; those that begin where the one before ends, together.

    Args:
        urls: All shards.
        stamps: Their versions.
        spans: Shard, begin and end of each span, (n, 3).
        lend: Returns memory of at least the bytes asked for; by default it is new.
        at_their_paths: Shards whose paths need not be looked at again; those that are found there join the set.

    Returns:
        The memory, and where each span begins in it, (n,).

    Raises:
        ShardError: A shard has changed, or ends before a span does.
    """
    pieces, size, offsets = _pieces(spans)
    memory = memoryview(bytearray(size)) if lend is None else lend(size)
    known = set() if at_their_paths is None else at_their_paths
    remote: list[_Piece] = []
    for shard, group in groupby(pieces, itemgetter(0)):  # one after the other, so that few files are open at once
        if is_remote(urls[shard]):
            remote += group
        else:
            file, short = opened_shard(urls[shard]), list[tuple[int, int, int]]()
            for _, begin, end, at in group:
                if (got := file.read_into(memory[at : at + end - begin], begin)) < end - begin:
                    short.append((begin, end - begin, got))
            file.check(stamps[shard], by_path=shard not in known)
            if short:
                raise cut_short(file.url, *short[0])
            known.add(shard)
    if remote:
        _read_remote(urls, stamps, remote, memory)
    return memory, np.array(offsets, np.int64)


def _pieces(spans: Int64s) -> tuple[list[_Piece], int, list[int]]:
    """The pieces that are read at once, in order; how many bytes that is; and where each span begins in it.

    A loop: there are some dozen spans, for which it takes less time than the twenty calls of NumPy that it would be.
    """
    pieces: list[_Piece] = []
    size, begins = 0, []
    shard, first, last = -1, 0, 0  # of the piece under way
    for next_shard, begin, end in spans.tolist():
        if next_shard != shard or not first <= begin <= last:
            if shard >= 0:
                pieces.append((shard, first, last, size))
            size += last - first
            shard, first, last = next_shard, begin, end
        elif end > last:
            last = end
        begins.append(size + begin - first)
    if shard >= 0:
        pieces.append((shard, first, last, size))
    return sorted(pieces), size + last - first, begins


def _read_remote(urls: Sequence[str], stamps: Sequence[FileStamp], pieces: list[_Piece], memory: memoryview) -> None:
    """Pieces of remote shards, at the same time."""
    asked = [
        (piece, submit_range(urls[piece[0]], *piece[1:3], stamps[piece[0]])) for piece in pieces if piece[1] < piece[2]
    ]
    try:
        with network().waiting():
            for (_, begin, end, at), answer in asked:
                memory[at : at + end - begin] = answer.result()
    finally:
        for _, answer in asked:
            answer.cancel()
