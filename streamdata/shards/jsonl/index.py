"""The index of a JSONL shard: 12 bytes per row, where its line begins and how many blank lines there are before it."""

import numpy as np

from streamdata.errors import ShardError
from streamdata.io.one_pass import Ahead, byte_source
from streamdata.io.storage import FileStamp
from streamdata.shards.index.index_file import Contents
from streamdata.shards.jsonl.lines import MAX_LINE_BYTES, Lines, lines_of
from streamdata.shards.jsonl.rows import doubtful_integers, integer_flaw

# A row's line number is its own number plus the blank lines before it.
DTYPE = np.dtype([("offset", "<u8"), ("blanks", "<u4")])
ELEMENT = 2**32 - 1
"""What stands for the blank lines of an element of an array, which ends a byte before the next one begins."""
_MAX_BLANKS = ELEMENT - 1


def build_rows(
    url: str, stamp: FileStamp | None = None, ahead: Ahead | None = None, max_bytes: int = MAX_LINE_BYTES
) -> Contents:
    """Rows of the shard's records and one for its end; what is passed over are blank lines (the first from 1).

    Raises:
        ShardError: There are more blank lines than 32 bits count, a line of more than `max_bytes`, or the file is of
            another format.
    """
    source = byte_source(url, stamp, ahead)
    parts = [np.zeros(0, DTYPE)]
    blanks = first_blank = num_rows = long_integers = 0
    stop = source.size
    for piece in lines_of(source, url, max_bytes=max_bytes):
        rows = np.zeros(len(piece.numbers), DTYPE)
        rows["offset"] = piece.starts + piece.offset
        rows["blanks"] = piece.numbers - np.arange(num_rows, num_rows + len(rows))
        if piece.are_elements:
            rows["blanks"], stop = ELEMENT, piece.offset + piece.end
        parts.append(rows)
        if not blanks and piece.num_blank:
            first_blank = piece.first_blank() + 1
        blanks, num_rows = blanks + piece.num_blank, num_rows + len(rows)
        if blanks > _MAX_BLANKS:
            raise ShardError(f"shard '{url}': {blanks} blank lines, expected at most {_MAX_BLANKS}\n  Remove them.")
        long_integers += _long_integers(piece)
    end = np.zeros(1, DTYPE)
    end["offset"], end["blanks"] = stop, blanks
    return Contents(np.concatenate([*parts, end]), blanks, first_blank, long_integers)


def _long_integers(piece: Lines) -> int:
    """How many of the lines hold an integer that 64 bits cannot."""
    doubtful = np.unique(np.searchsorted(piece.ends, doubtful_integers(piece.buffer)))
    whole = doubtful[doubtful < len(piece.ends)].tolist()  # after the last line there may be the beginning of another
    return sum(integer_flaw(piece.line(line)) is not None for line in whole)
