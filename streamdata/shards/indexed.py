"""Files with an index each: which version of each file is read, and the index rows of runs of their records."""

from collections.abc import Callable
from typing import Any

import numpy as np

from streamdata.shards.build import headers_of
from streamdata.shards.index_file import NO_STAMP, Rows
from streamdata.shards.indexing import Job, warn_of_skipped
from streamdata.shards.readers import Int64s
from streamdata.shards.runs import Runs, check_spans, gather
from streamdata.shards.storage import FileStamp, base_name, close_unused, is_remote, stamps_of


class IndexedFiles:
    """The shards of a reader. Constructing builds the indexes that are missing and reads the others' headers.

    Args:
        urls: The shards, some perhaps several times.
        job_of: The index of a shard.

    Raises:
        ShardError: A shard is damaged.
        FileNotFoundError: There is no such shard.
    """

    def __init__(self, urls: list[str], job_of: Callable[[str], Job]) -> None:
        self.urls = urls
        different = {url: place for place, url in enumerate(dict.fromkeys(urls))}
        jobs = [job_of(url) for url in different]
        close_unused([*different, *(job.sidecar for job in jobs if job.sidecar)])
        stamps = list(zip(stamps_of(list(different)), _sidecar_stamps(jobs), strict=True))
        headers = headers_of(jobs, stamps)
        for job, header in zip(jobs, headers, strict=True):
            warn_of_skipped(job, header)
        places = [different[url] for url in urls]
        self.jobs = [jobs[place] for place in places]
        self.all_stamps = [stamps[place] for place in places]
        self.stamps: list[FileStamp] = [stamp for stamp, _ in self.all_stamps]
        self.sidecars = [job.sidecar for job in self.jobs]
        self.sidecar_stamps: list[FileStamp] = [stamp for _, stamp in self.all_stamps]
        self.remote = [is_remote(url) for url in urls]
        self._sizes: Int64s = np.array([stamp.size for stamp in self.stamps], np.int64)
        self.num_records: Int64s = np.array([headers[place].num_records for place in places], np.int64)
        self.skipped = sum(headers[place].skipped for place in places)
        self.noted: Int64s = np.array([headers[place].noted for place in places], np.int64)

    def runs(self, shards: Int64s, firsts: Int64s, counts: Int64s) -> Runs:
        """The records of the runs [first, first + count)."""
        inside = (firsts >= 0) & (counts >= 0) & (firsts + counts <= self.num_records[shards])
        assert inside.all(), f"runs {np.flatnonzero(~inside)} go beyond their shards"
        is_run = counts > 0
        return Runs(shards[is_run], firsts[is_run], counts[is_run])

    def rows(self, runs: Runs, dtype: np.dtype[Any]) -> tuple[Rows, Int64s]:
        """The index rows of these runs, each with the row after it, and which of them are the records' own."""
        return gather(lambda shard: (self.jobs[shard], self.all_stamps[shard]), runs, dtype)

    def check_spans(self, runs: Runs, begins: Int64s, ends: Int64s) -> None:
        """Raise ShardError unless each record lies within its shard."""
        check_spans(lambda shard: self.urls[shard], runs, begins, ends, self._sizes)

    def identity(self) -> list[tuple[str, int]]:
        """Base name and number of records per shard."""
        return list(zip(map(base_name, self.urls), self.num_records.tolist(), strict=True))


def _sidecar_stamps(jobs: list[Job]) -> list[FileStamp]:
    sidecars = [job.sidecar for job in jobs if job.sidecar]
    return stamps_of(sidecars) if sidecars else [NO_STAMP] * len(jobs)
