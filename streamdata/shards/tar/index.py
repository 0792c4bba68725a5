"""The index of a tar shard: 8 bytes per record, where its headers begin and their CRC32."""

from array import array

import numpy as np

from streamdata.errors import ShardError
from streamdata.io.one_pass import byte_source
from streamdata.shards.index.index_file import Contents
from streamdata.shards.tar.headers import ANY_SIZE, BLOCK, Member
from streamdata.shards.tar.records import TarRecord, interleaved, key_hash, records

# Headers begin at multiples of 512, so 32 bits reach to 2 TiB.
DTYPE = np.dtype([("block", "<u4"), ("crc", "<u4")])


class TarRows:
    """Where the records of a tar lie, as these come.

    Args:
        url: The tar.
    """

    def __init__(self, url: str) -> None:
        self._url, self._end = url, 0
        self._offsets, self._crcs, self._hashes, self._skipped = array("Q"), array("I"), array("Q"), array("Q")

    def skip(self, member: Member) -> None:
        """Take in a member that is of no record."""
        self._skipped.append(member.offset)

    def add(self, record: TarRecord) -> None:
        """Take in the next record."""
        self._offsets.append(record.offset)
        self._crcs.append(record.crc())
        self._hashes.append(key_hash(record.key))
        self._end = record.end

    def contents(self) -> Contents:
        """Rows of the records and one for their end, the number of members passed over, the offset of the first.

        Raises:
            ShardError: Two records have one key, or the archive is larger than 2 TiB.
        """
        url, end, offsets, skipped = self._url, self._end, self._offsets, self._skipped
        _check_keys_differ(url, np.array(self._hashes, np.uint64), offsets)
        if end >= BLOCK << 32:
            raise ShardError(f"shard '{url}': expected at most 2 TiB, got {end} bytes\n  Split it into several shards.")
        rows = np.zeros(len(offsets) + 1, DTYPE)
        rows["block"][:-1] = np.array(offsets, np.uint64) // BLOCK
        rows["block"][-1] = end // BLOCK
        rows["crc"][:-1] = self._crcs
        return Contents(rows, len(skipped), skipped[0] if skipped else 0)


def _check_keys_differ(url: str, hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]", offsets: "array[int]") -> None:
    """Raise if two records have one key; equal hashes are looked at again, since they may be chance."""
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    for twin in twins.tolist():
        first, second = (_key_at(url, offsets[int(order[index])]) for index in (twin, twin + 1))
        if first == second:
            raise interleaved(url, first, offsets[int(order[twin + 1])], offsets[int(order[twin])])


def _key_at(url: str, offset: int) -> str:
    return next(records(byte_source(url), url, (), None, offset, max_bytes=ANY_SIZE)).key
