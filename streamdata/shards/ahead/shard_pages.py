"""Which pages of remote shards are wanted: `spans of records → shards, and the pages of each`."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from streamdata.io.cache.files import PAGE_BYTES
from streamdata.io.storage import FileStamp, is_remote
from streamdata.shards.ahead.coming import FileSpans


class ShardPages(NamedTuple):
    """What a window wants of a remote shard."""

    url: str
    stamp: FileStamp
    pages: list[int]
    is_begun: bool
    """Whether its first byte is among it."""


def remote_pages(files: FileSpans) -> Iterator[ShardPages]:
    """The pages that are wanted of each remote shard; of a span longer than two, the first and the last one."""
    urls, stamps, spans = files
    spans = spans[spans[:, 1] < spans[:, 2]]
    shards, begins, ends = spans.T
    begun = set(shards[begins == 0].tolist())
    most = int(ends.max(initial=0)) // PAGE_BYTES + 1
    pages = np.unique([shards * most + begins // PAGE_BYTES, shards * most + (ends - 1) // PAGE_BYTES])
    for shard, group in groupby(pages.tolist(), lambda page: page // most):
        if is_remote(urls[shard]):
            yield ShardPages(urls[shard], stamps[shard], [page % most for page in group], shard in begun)
