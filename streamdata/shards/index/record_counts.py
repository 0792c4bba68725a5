"""How many records a shard has that is read from its start: `all of its bytes → one number, kept as its index`."""

from typing import Final

import numpy as np

from streamdata.io.one_pass import Ahead, SourceFile, byte_source
from streamdata.io.storage import FileStamp, is_remote
from streamdata.io.streams import open_stream
from streamdata.recipe.limits import ShardLimits
from streamdata.shards.index.index_file import Contents
from streamdata.shards.jsonl.csv_rows import csv_records
from streamdata.shards.jsonl.lines import lines_of
from streamdata.shards.tar.records import records

_CSV: Final = "n-csv"


def csv_kind(delimiter: str) -> str:
    """The kind of the index that counts rows parted by a delimiter, by which quotes are quotes; "" as names say."""
    return _CSV + delimiter.encode().hex()


COUNT_KINDS: Final = (*map(csv_kind, ["", *map(chr, range(128))]), "n-jsonl", "n-tar")
"""The kinds of indexes that say how many records there are, as `noted`, and not where: their one row is empty."""


def count_records(kind: str, url: str, stamp: FileStamp, ahead: Ahead | None, limits: ShardLimits) -> Contents:
    """The index of a shard that is no pipe: how many records it has, those counted that are damaged.

    Raises:
        ShardError: The shard is damaged, of another format, or was changed; or one of its records exceeds the limits.
    """
    # As an index: the network of this process has a thread, which workers that are forked later would lack.
    raw = SourceFile(byte_source(url, stamp, ahead)) if is_remote(url) else None
    with open_stream(url, stamp, raw=raw) as stream:
        if kind.startswith(_CSV):
            delimiter = bytes.fromhex(kind.removeprefix(_CSV)).decode()
            count = sum(1 for _ in csv_records(stream, url, limits.line_bytes, delimiter))
        elif kind == "n-jsonl":
            count = sum(len(lines.numbers) for lines in lines_of(stream, url, max_bytes=limits.line_bytes))
        else:
            count = sum(1 for _ in records(stream, url, (), max_bytes=limits.member_bytes))
    return Contents(np.zeros(1, np.uint8), 0, 0, noted=count)
