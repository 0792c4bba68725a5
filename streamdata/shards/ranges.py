"""Many ranges of many shards at once: `(shard, begin, end), … → memory`, all of the versions that were indexed."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import fsspec
import numpy as np

from streamdata.shards.readers import Int64s
from streamdata.shards.storage import FileStamp, LocalShard, check_shards, is_remote, opened, short_read


def read_spans(
    urls: Sequence[str],
    stamps: Sequence[FileStamp],
    spans: Int64s,
    lend: Callable[[int], memoryview] | None = None,
) -> tuple[memoryview, Int64s]:
    """The bytes of some spans, in one piece of memory; spans that touch are read together.

    Args:
        urls: All shards.
        stamps: Their versions.
        spans: Shard, begin and end of each span, (n, 3).
        lend: Gives memory of at least so many bytes; by default it is new.

    Returns:
        The memory, and where each span begins in it, (n,).

    Raises:
        ShardError: A shard has changed, or ends before a span does.
    """
    if not len(spans):
        return memoryview(b""), np.zeros(0, np.int64)
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    shards, begins, ends = spans[order].T
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (shards[1:] != shards[:-1]) | (begins[1:] > ends[:-1])
    firsts = np.flatnonzero(is_new)
    joined = np.stack([shards[firsts], begins[firsts], ends[np.append(firsts[1:], len(order)) - 1]], axis=1)
    sizes = joined[:, 2] - joined[:, 1]
    starts = np.cumsum(sizes) - sizes
    offsets = np.empty(len(order), np.int64)
    offsets[order] = begins + (starts - joined[:, 1])[np.cumsum(is_new) - 1]
    size = int(sizes.sum())
    memory = memoryview(bytearray(size)) if lend is None else lend(size)
    _read_sorted(urls, stamps, joined, memory)
    return memory, offsets


def _read_sorted(urls: Sequence[str], stamps: Sequence[FileStamp], spans: Int64s, memory: memoryview) -> None:
    """Fill the memory with spans sorted by shard; one shard after the other, so that few files are open at once."""
    places, end = [], 0
    for shard, begin, stop in spans.tolist():
        start, end = end, end + stop - begin
        places.append((shard, begin, memory[start:end]))
    remote: list[tuple[int, int, memoryview]] = []
    for shard, group in groupby(places, itemgetter(0)):
        if is_remote(urls[shard]):
            remote += group
        else:
            _read_local(opened(urls[shard]), stamps[shard], [(begin, piece) for _, begin, piece in group])
    if remote:
        _read_remote(urls, stamps, remote)


def _read_local(file: LocalShard, stamp: FileStamp, places: list[tuple[int, memoryview]]) -> None:
    found = [file.read_into(piece, begin) for begin, piece in places]
    file.check_path(stamp)
    for (begin, piece), got in zip(places, found, strict=True):
        if got != len(piece):
            raise short_read(file.url, begin, len(piece), got)


def _read_remote(urls: Sequence[str], stamps: Sequence[FileStamp], places: list[tuple[int, int, memoryview]]) -> None:
    """Spans of remote shards; one request to each file system, which may serve them at the same time."""
    groups: dict[int, tuple[Any, list[int]]] = {}
    paths: list[str] = []
    for number, (shard, _, _) in enumerate(places):
        filesystem, path = fsspec.core.url_to_fs(urls[shard])
        groups.setdefault(id(filesystem), (filesystem, []))[1].append(number)
        paths.append(path)
    found: list[bytes] = [b""] * len(places)
    for filesystem, numbers in groups.values():
        begins = [places[number][1] for number in numbers]
        ends = [places[number][1] + len(places[number][2]) for number in numbers]
        answers = filesystem.cat_ranges([paths[number] for number in numbers], begins, ends, on_error="raise")
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            found[number] = answer
    check_shards(urls, stamps, {shard for shard, _, _ in places})
    for (shard, begin, piece), got in zip(places, found, strict=True):
        if len(got) != len(piece):
            raise short_read(urls[shard], begin, len(piece), len(got))
        piece[:] = got
