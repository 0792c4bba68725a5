"""Parquet files as shards: `files → row groups → windows of runs of rows, each group decoded once in a window`."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from streamdata.remote.addresses import keep_in
from streamdata.remote.cache_settings import CacheSettings
from streamdata.shards.decoded_runs import DecodedRuns, GroupRun
from streamdata.shards.listed import stamps_known
from streamdata.shards.manifest_file import NOTHING_KNOWN, Known
from streamdata.shards.parquet_footers import RowGroups
from streamdata.shards.parquet_window import ParquetWindow
from streamdata.shards.readers import Int64s
from streamdata.shards.run_decoder import RunDecoder
from streamdata.shards.stamps import stamps_of
from streamdata.shards.storage import base_name, close_unused, is_pipe, is_remote

_MAX_RUN_ROWS = 1 << 20  # so that the positions of a window take little beside its rows


class ParquetShards:
    """Parquet files; what is called a shard here is one of their row groups.

    Args:
        urls: The files.
        columns: Those that are read; None for all.
        max_open_bytes: How much is decoded and kept at most.
        known: What is known of the files already.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: A file is damaged, lacks a column, or has one of another type than the first file.
    """

    def __init__(
        self, urls: list[str], columns: Sequence[str] | None, max_open_bytes: int, known: Known = NOTHING_KNOWN
    ) -> None:
        for url in filter(is_pipe, urls):
            raise ValueError(f"parquet: expected files, got '{url}', which cannot be sought in\n  Write it to a file.")
        close_unused(urls)
        stamps = stamps_known(urls, known)
        unknown = [url for url in urls if url not in stamps]
        stamps.update(zip(unknown, stamps_of(unknown), strict=True))
        self.urls, self.max_open_bytes = urls, max_open_bytes
        self.has_remote = any(map(is_remote, urls))
        self.groups = RowGroups(urls, [stamps[url] for url in urls], columns, at_once=self.has_remote)
        self.num_records, self.sizes = self.groups.num_records, self.groups.sizes
        self.fits = int(self.sizes.sum()) <= max_open_bytes
        """Whether all of it stays decoded, by what footers say."""
        # Else the present window and the next one are kept, each with room for what footers say too little of.
        self.window_bytes = max(1, max_open_bytes // 3)
        """Of a window, at most, where not all of the source stays."""
        self.run_rows = self.num_records if self.fits else _run_rows(self.groups, self.window_bytes)
        """Rows of each group that are decoded together, at most."""
        self.decodes_ahead = not self.has_remote and not self.fits
        self._kept_bytes = max_open_bytes if self.fits else max_open_bytes // 2
        self.decoder = RunDecoder(self.groups, self._kept_bytes, keeps_all=self.fits)
        self.cache: CacheSettings | None = None
        self._asked: set[GroupRun] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asked": set()}

    def use_cache(self, cache: CacheSettings | None) -> None:
        """Keep pages of the files there; None as the environment says."""
        self.cache = self.decoder.cache = cache
        keep_in(cache, self.urls)

    def cache_keys(self) -> list[str]:
        """None: which pages a row group takes is not known by its size."""
        return []

    def is_slow(self) -> bool:
        """Whether groups are better asked for before they are needed."""
        return self.has_remote

    def confirm(self, *, wait: bool) -> None:
        """Raise ShardError where what a cache had is not what the files are now."""
        self.decoder.confirmations.check(wait=wait)

    def identity(self) -> list[tuple[str, int]]:
        """Of each row group the base name of its file, and its number of rows."""
        names = list(map(base_name, self.urls))
        files = self.groups.file_of.tolist()
        return list(zip(map(names.__getitem__, files), self.num_records.tolist(), strict=True))

    def url_of(self, shard: int) -> str:
        """The file of a row group."""
        return self.groups.url_of(shard)

    def last_line(self, file: int) -> int:
        """The number of the last row of a file, which is its key; -1 where there is none."""
        return int(self.groups.rows_of_file[file]) - 1

    def anomalies(self) -> dict[str, int]:
        return {}

    def prefetch_rows(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> "Sequence[Future[Any]]":
        """Nothing: what is known of the groups is here."""
        return ()

    def window(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> ParquetWindow:
        """The window of the runs [first, first + count) of the groups."""
        return ParquetWindow(self, shards, firsts, counts)

    def new_decoded(self) -> DecodedRuns:
        """Where a window keeps what it decodes: its own, gone with it, unless all of the source stays."""
        # What no later window needs is let go of first: memory that is used again costs less than new memory.
        return self.decoder.kept_here() if self.fits else DecodedRuns(self._kept_bytes)

    def decode_ahead(self, present: tuple[Int64s, Int64s], later: Sequence[tuple[Int64s, Int64s]]) -> None:
        """Decode in a thread what the windows that come later will need, and let go of what no window needs.

        Args:
            present: Group and first row of each run of the present window.
            later: Of other windows.
        """

        def runs_of(shards: Int64s, firsts: Int64s) -> list[GroupRun]:
            return [self.run_at(shard, row) for shard, row in zip(shards.tolist(), firsts.tolist(), strict=True)]

        self.decoder.ask(runs_of(*present), list(dict.fromkeys(run for window in later for run in runs_of(*window))))

    def run_at(self, shard: int, row: int) -> GroupRun:
        """The run in which a row of a group is decoded."""
        size = int(self.run_rows[shard])
        first = row // size * size
        return GroupRun(shard, first, min(size, int(self.num_records[shard]) - first))

    def spans_of(self, run: GroupRun) -> Int64s:
        """What is asked for ahead of it, (n, 3): nothing where that was done, and what it gave stays here."""
        if self.fits and run in self._asked:
            return np.zeros((0, 3), np.int64)
        self._asked.add(run)
        file = int(self.groups.file_of[run.shard])
        spans = self.groups.facts[run.shard].spans
        return np.array([(file, begin, end) for begin, end in spans], np.int64).reshape(-1, 3)


def _run_rows(groups: RowGroups, max_bytes: int) -> Int64s:
    """All rows of each group, or those of the fewest parts, as large as each other, that may be kept."""
    rows = groups.num_records
    most = np.clip(np.where(groups.sizes <= max_bytes, rows, max_bytes // groups.row_bytes), 1, _MAX_RUN_ROWS)
    parts = -(-rows // most)
    even: Int64s = -(-rows // parts)
    return even
