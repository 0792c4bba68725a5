"""Many ranges of many shards at once: `(shard, begin, end), … → bytes`, all of the versions that were indexed."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import fsspec
import numpy as np

from streamdata.shards.readers import Int64s
from streamdata.shards.storage import LocalShard, Stamp, check_shards, is_remote, opened, short_read

Buffer = TypeVar("Buffer", bytes, memoryview)


def read_spans(
    urls: Sequence[str],
    stamps: Sequence[Stamp],
    spans: Int64s,
    join: Callable[[list[bytes]], Buffer],
) -> tuple[Buffer, Int64s]:
    """The bytes of some spans, in one buffer; spans that touch are read together.

    Args:
        urls: All shards.
        stamps: Their versions.
        spans: Shard, begin and end of each span, (n, 3).
        join: Puts what was read into one buffer.

    Returns:
        The buffer, and where each span begins in it, (n,).

    Raises:
        ShardError: A shard has changed, or ends before a span does.
    """
    if not len(spans):
        return join([]), np.zeros(0, np.int64)
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    shards, begins, ends = spans[order].T
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (shards[1:] != shards[:-1]) | (begins[1:] > ends[:-1])
    firsts = np.flatnonzero(is_new)
    joined = np.stack([shards[firsts], begins[firsts], ends[np.append(firsts[1:], len(order)) - 1]], axis=1)
    sizes = joined[:, 2] - joined[:, 1]
    shift = np.cumsum(sizes) - sizes - joined[:, 1]
    offsets = np.empty(len(order), np.int64)
    offsets[order] = begins + shift[np.cumsum(is_new) - 1]
    return join(_read_sorted(urls, stamps, joined, sizes)), offsets


def _read_sorted(urls: Sequence[str], stamps: Sequence[Stamp], spans: Int64s, sizes: Int64s) -> list[bytes]:
    """The bytes of spans sorted by shard; one shard after the other, so that few files are open at once."""
    shards, firsts = np.unique(spans[:, 0], return_index=True)
    bounds = [*firsts.tolist(), len(spans)]
    pieces: list[bytes] = [b""] * len(spans)
    remote: list[int] = []
    for place, shard in enumerate(shards.tolist()):
        first, stop = bounds[place], bounds[place + 1]
        if is_remote(urls[shard]):
            remote += range(first, stop)
        else:
            begins = spans[first:stop, 1].tolist()
            pieces[first:stop] = _read_local(opened(urls[shard]), stamps[shard], begins, sizes[first:stop].tolist())
    if remote:
        fetched = _read_remote(urls, stamps, spans[remote].tolist())
        for place, piece in zip(remote, fetched, strict=True):
            pieces[place] = piece
    return pieces


def _read_local(file: LocalShard, stamp: Stamp, begins: list[int], sizes: list[int]) -> list[bytes]:
    pieces = list(map(file.pread, sizes, begins))
    if list(map(len, pieces)) != sizes:
        pieces = list(map(file.read, sizes, begins))  # one call reads at most 2 GiB
    file.check_path(stamp)
    _check_sizes(file.url, pieces, begins, sizes)
    return pieces


def _check_sizes(url: str, pieces: list[bytes], begins: list[int], sizes: list[int]) -> None:
    for piece, begin, size in zip(pieces, begins, sizes, strict=True):
        if len(piece) != size:
            raise short_read(url, begin, size, len(piece))


def _read_remote(urls: Sequence[str], stamps: Sequence[Stamp], spans: list[list[int]]) -> list[bytes]:
    """Spans of remote shards; one request to each file system, which may serve them at the same time."""
    groups: dict[int, tuple[Any, list[int]]] = {}
    paths: list[str] = []
    for place, (shard, _, _) in enumerate(spans):
        filesystem, path = fsspec.core.url_to_fs(urls[shard])
        groups.setdefault(id(filesystem), (filesystem, []))[1].append(place)
        paths.append(path)
    pieces = [b""] * len(spans)
    for filesystem, places in groups.values():
        begins, ends = [spans[place][1] for place in places], [spans[place][2] for place in places]
        found = filesystem.cat_ranges([paths[place] for place in places], begins, ends, on_error="raise")
        for place, piece in zip(places, found, strict=True):
            if isinstance(piece, Exception):
                raise piece
            pieces[place] = bytes(piece)
    check_shards(urls, stamps, {shard for shard, _, _ in spans})
    for piece, (shard, begin, end) in zip(pieces, spans, strict=True):
        _check_sizes(urls[shard], [piece], [begin], [end - begin])
    return pieces
