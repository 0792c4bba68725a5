"""Parquet files as a source: `row groups → blocks of rows → windows, a group decoded once in each → records`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from streamdata.errors import positive, shown
from streamdata.io.remote.addresses import CacheSetting, options_of_source, read_cache_settings
from streamdata.recipe.named_source import Percent
from streamdata.shards.ahead.windows import Chunk
from streamdata.shards.parquet.file import ROW_SUFFIXES
from streamdata.shards.parquet.shards import ParquetShards, ParquetWindow
from streamdata.shards.readers import DamagedRecordError
from streamdata.shards.urls import find_shards
from streamdata.sources.files.shard_source import BlockSource, Indices, OpenedWindow, ShardDataset
from streamdata.sources.functions.process_functions import PerRecordFn, StreamFns
from streamdata.sources.order.blocks import Part, check_cut, cut_shards
from streamdata.sources.source import ReadTask, Record

MAX_OPEN_BYTES = 384 << 20  # a window has a third of it, 128 MiB, since footers may say too little


class RowGroupSource(BlockSource):
    """Row groups of parquet files, cut into blocks that never cross a row group.

    A row costs the decoding of its group up to it. So where not all of the source can stay decoded, a block is all of a
    group, or as much of it as may be kept of a window; what stays is cut as other shards are.
    """

    shards: ParquetShards

    def __init__(self, shards: ParquetShards, shuffle_buffer: int) -> None:
        rows = shards.num_records  # each group has some
        # No more than a group has, so that a window of many small groups has as many rows as others.
        blocks = np.minimum(cut_shards(shards, None, None), rows) if shards.fits else shards.run_rows
        super().__init__("parquet", shards, blocks, shuffle_buffer)
        if not shards.fits:
            most = int((-(-shards.sizes * blocks // rows)).max(initial=1))
            # All groups of a window are open at once.
            self.blocks_per_window = max(1, min(self.blocks_per_window, shards.window_bytes // max(1, most)))

    def fetch(self, numbers: Sequence[int], part: Part | None = None) -> Iterator[Record | DamagedRecordError | None]:
        # One group after the other: those of a window are decoded before its first row.
        for _, some in groupby(numbers, lambda number: int(np.searchsorted(self._record_ends, number, side="right"))):
            yield from super().fetch(list(some), part)

    def _read_window(
        self, task: ReadTask, epoch: int, opened: OpenedWindow, chunks: Iterable[Chunk | None]
    ) -> Iterator[tuple[Iterable[int], Iterator[Record]]]:
        window: ParquetWindow = opened.window  # type: ignore[assignment]
        # Each chunk is taken up when the first group that it brings is due, and let go of when that is decoded.
        window.come(iter(chunks))
        try:
            yield from super()._read_window(task, epoch, opened, (None,))
        finally:  # the chunks lead to the window: see `come`
            window.come(iter(()))

    def _holds(
        self, part: Part, positions: Indices, shards: Indices, firsts: Indices, counts: Indices
    ) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        # By the row's number in its file, so that a file of other row groups has the same parts.
        return super()._holds(part, positions, shards, firsts + self.shards.first_rows[shards], counts)


class ParquetDataset(ShardDataset):
    """Rows of parquet files as dicts of Python types; `__key__` is the row's number in its file, from "0".

    A column of lists of integers gives int64 tensors, of shape (n,); a struct stays a dict, such as an image's
    `{bytes, path}`. To read only some files of a folder, such as one split, use a glob.

    Args:
        path: A brace expression, a glob, a directory with all below it, a list of these, or several joined by commas.
            Of a folder of this machine that Hugging Face's `save_to_disk` wrote, its `.arrow` files are read, a record
            batch as a row group.
        process_fn: A stream function, or a list of several, see `docs/guides/sources.md`.
        columns: The names of the columns to read; None for all.
        single_process_fn: A function of one record, called first.
        shuffle_buffer: Records among which a lane shuffles, about, and at least those of a block. 0 keeps the order
            inside blocks.
        max_open_bytes: The decoded bytes that each lane keeps. A source that fits, by its files' footers, stays so:
            each group is decoded once, and the source is cut as other shards are, into at least 512 blocks of at most
            64 rows and 4 MiB. In a larger source a block is a whole row group; a group of more than a third of this
            bound is divided into even parts, and reading a part decodes all parts before it.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        cache: Where pages of remote files are kept on the node, `{path, max_bytes}`; see
            `docs/guides/object-stores.md`. None: as the top mixture says, or else STREAMDATA_DATA_CACHE.
        storage_options: Options of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A file is listed twice.
        ShardError: A file is damaged, lacks a column, or has one of another type than the others.
        ImportError: pyarrow is missing.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        process_fn: StreamFns | None = None,
        *,
        columns: Sequence[str] | None = None,
        single_process_fn: PerRecordFn | None = None,
        shuffle_buffer: int = 1000,
        max_open_bytes: int = MAX_OPEN_BYTES,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        cache: CacheSetting = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        settings = read_cache_settings(cache)
        self.process_fn, self.single_process_fn = process_fn, single_process_fn
        check_cut(None, None, shuffle_buffer)
        positive("ParquetDataset: max_open_bytes", max_open_bytes)
        urls, known = find_shards(path, ROW_SUFFIXES, None, options_of_source(storage_options, "ParquetDataset"))
        # All footers are read here: a file of another schema is to be an error at the start, not after a day.
        shards = ParquetShards(urls, _names(columns), max_open_bytes, known)
        self.source = RowGroupSource(shards, shuffle_buffer)
        self.cache = settings


def _names(columns: Sequence[str] | None) -> list[str] | None:
    if columns is None:
        return None
    names = [] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(
            f"ParquetDataset: expected columns to be a list of different names, got {shown(columns)}\n"
            "  Leave it out to read all columns."
        )
    return names
