"""A shard that is read from its start, in chunks that are asked for before they are needed."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from streamdata.io.storage import FileStamp
from streamdata.shards.ahead.coalesced import MAX_REQUEST_BYTES
from streamdata.shards.ahead.coming import FileSpans
from streamdata.shards.ahead.portion import Portion

_FIRST_BYTES = 1 << 20  # so that the first record does not wait for a large answer


def chunk_spans(url: str, stamp: FileStamp) -> FileSpans:
    """The chunks of a shard: small at first, then as large as a request may be."""
    ends = [min(stamp.size, _FIRST_BYTES << number) for number in range(MAX_REQUEST_BYTES.bit_length())]
    ends = [end for end in ends if end < min(stamp.size, MAX_REQUEST_BYTES)]
    ends += [*range(MAX_REQUEST_BYTES, stamp.size, MAX_REQUEST_BYTES), *([stamp.size] if stamp.size else [])]
    begins = [0, *ends[:-1]][: len(ends)]
    return FileSpans([url], [stamp], np.array([np.zeros(len(ends)), begins, ends], np.int64).T)


class ChunkBytes(io.RawIOBase):
    """The bytes of a shard, chunk after chunk.

    Args:
        portions: What was asked for of it.
    """

    def __init__(self, portions: Iterator[Portion]) -> None:
        self._chunks = (chunk for portion in portions for chunk in portion.memories())
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
