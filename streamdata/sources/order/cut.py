"""How shards are cut into blocks: `records and bytes of each shard → records in each of its blocks`."""

from hashlib import blake2b
from numbers import Integral
from typing import Any

import numpy as np

from streamdata.errors import shown
from streamdata.io.storage import Int64s
from streamdata.shards.readers import IndexedShards, SequentialShards

# A window of the default 1,000 records that is read at once (they have up to 130 KB each) then takes an object store at
# most 0.04 requests per sample; with larger blocks, fewer shards would be mixed in one of 100 KB records than in one of
# text.
_BLOCK_BYTES = 4 << 20
# So that a window of the default 1,000 mixes 15 blocks of records however small: by bytes alone it would be one block
# of 1 KB records, that is, one shard after the other. Who reads a larger window may give larger blocks.
_MAX_RECORDS = 64
# A source of as many records has as many blocks, however it is cut by default: many lanes find work even in a few small
# shards. Not more, so that 240 MB in a store are blocks of 400 KB and more, each of them a request.
_MIN_BLOCKS = 512
# What a source has at least, about, where `block_bytes` is given.
_MIN_BLOCKS_BY_BYTES = 2048


def cut_shards(shards: IndexedShards, block_size: int | None, block_bytes: int | None) -> Int64s:
    """Say how many records a block of each shard has, its last one perhaps less.

    It follows from facts of the shards alone, never from the topology, and these are the same wherever the shards lie.

    Args:
        shards: What is cut, by their numbers of records and their sizes in bytes.
        block_size: Records in a block, exactly.
        block_bytes: Bytes in a block at most, by the mean record of each shard, and at most 1/2,048 of the source.
            Where neither is given, a block has at most 4 MiB, 64 records and 1/512 of the source's records.

    Returns:
        Records in a block, at least 1, int64, one per shard.
    """
    records = shards.num_records
    if block_size is not None:
        return np.full_like(records, block_size)
    # In whole bytes, rounded up, so that blocks do not exceed their bytes. No floats: they may differ by machine.
    record_bytes = np.maximum(1, -(-shards.sizes // np.maximum(1, records)))
    limit, most = _BLOCK_BYTES, None
    if block_bytes is not None:
        limit = min(block_bytes, int(shards.sizes.sum()) // _MIN_BLOCKS_BY_BYTES)
    else:
        # By records, not by bytes: a few large records may have most of the bytes, and the others would be one block.
        most = max(1, min(_MAX_RECORDS, int(records.sum()) // _MIN_BLOCKS))
    sizes: Int64s = np.clip(limit // record_bytes, 1, most)
    return sizes


def describe_cut(records: Int64s, block_sizes: Int64s) -> str:
    """Describe what determines a cut, beside the shards' numbers of records."""
    # Not the shards' bytes, from which sizes may follow: other bytes that lead to this cut give this order.
    sizes = block_sizes[records > 0].astype("<i8")
    different = np.unique(sizes).tolist() or [1]
    if len(different) == 1:
        return f"blocks of {different[0]}"
    return f"blocks of {different[0]} to {different[-1]} {blake2b(sizes.tobytes(), digest_size=6).hexdigest()}"


def check_cut(block_size: int | None, block_bytes: int | None, shuffle_buffer: int) -> None:
    """Raise ValueError unless these parameters of a source of shards are possible, each and together."""
    if block_size is not None and block_bytes is not None:
        raise ValueError(
            f"expected block_size (records) or block_bytes, got both: {block_size} and {block_bytes}\n  Remove one."
        )
    given: dict[str, Any] = {"block_size": block_size, "block_bytes": block_bytes}
    for name, value in [*given.items(), ("shuffle_buffer", shuffle_buffer)]:
        # A fraction would be cut by, and fail only where records are read.
        if (value is not None or name not in given) and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise ValueError(f"expected a whole number as {name}, got {shown(value)}")
    wrong = {name: value for name, value in given.items() if value is not None and value < 1}
    if wrong or shuffle_buffer < 0:
        raise ValueError(
            "expected block_size >= 1 and shuffle_buffer >= 0 (records), or block_bytes >= 1, "
            f"got {wrong | {'shuffle_buffer': shuffle_buffer}}\n"
            "  shuffle_buffer=0 keeps the order inside blocks."
        )


def describe_content(shards: IndexedShards | SequentialShards) -> str:
    """Say which shards they are, by a hash."""
    # Base names and sizes, not paths: a resume may find the shards in another directory.
    text = repr([tuple(pair) for pair in shards.identity()])
    return blake2b(text.encode(), digest_size=6).hexdigest()
