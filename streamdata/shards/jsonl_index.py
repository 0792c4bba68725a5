"""The index of a JSONL shard: 12 bytes per row, where its line begins and how many blank lines there are before it."""

import numpy as np

from streamdata.errors import ShardError
from streamdata.shards.index_file import Rows
from streamdata.shards.json_lines import lines_of
from streamdata.shards.storage import byte_source

# A row's line number is its own number plus the blank lines before it.
DTYPE = np.dtype([("offset", "<u8"), ("blanks", "<u4")])
_MAX_BLANKS = 2**32 - 1


def build_rows(url: str) -> tuple[Rows, int, int]:
    """Rows of the shard's records and one for its end, the number of blank lines, the first of them (from 1).

    Raises:
        ShardError: There are more blank lines than 32 bits count.
    """
    source = byte_source(url)
    parts = [np.zeros(0, DTYPE)]
    blanks = first_blank = lines = 0
    for piece in lines_of(source):
        before = blanks + np.cumsum(piece.is_blank)
        rows = np.zeros(len(before), DTYPE)
        rows["offset"], rows["blanks"] = piece.starts + piece.offset, before
        parts.append(rows[~piece.is_blank])
        if not blanks and piece.is_blank.any():
            first_blank = lines + int(piece.is_blank.argmax()) + 1
        blanks, lines = int(before[-1]), lines + len(before)
        if blanks > _MAX_BLANKS:
            raise ShardError(f"shard '{url}': {blanks} blank lines, expected at most {_MAX_BLANKS}\n  Remove them.")
    end = np.zeros(1, DTYPE)
    end["offset"], end["blanks"] = source.size, blanks
    return np.concatenate([*parts, end]), blanks, first_blank
