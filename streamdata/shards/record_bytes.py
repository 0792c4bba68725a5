"""Records of shards that have an index each: `runs → where their records lie → their bytes`."""

from collections.abc import Sequence

import numpy as np

from streamdata.errors import ShardError
from streamdata.shards.coming import FileSpans
from streamdata.shards.indexed import IndexedFiles, Runs
from streamdata.shards.readers import Int64s
from streamdata.shards.recent import ReadBuffer
from streamdata.shards.spans import read_spans
from streamdata.shards.storage import check_shards


class RecordBytes:
    """Where the records of some runs lie, and their bytes: read at each take, or all at the first one, and kept.

    Args:
        files: The shards.
        runs: Of their records.
        offsets: Of each run's records, and of what follows the last of them.
        own: Which of the offsets are where a record begins.
        buffer: Memory to read into.

    Raises:
        ShardError: A record does not lie within its shard: an index may come with a shard from anywhere.
    """

    def __init__(self, files: IndexedFiles, runs: Runs, offsets: Int64s, own: Int64s, buffer: ReadBuffer) -> None:
        self._files, self._runs, self._buffer = files, runs, buffer
        self.shards = runs.per_record(runs.shards)
        self.begins, self.ends = offsets[own], offsets[own + 1]
        wrong = np.flatnonzero((self.begins >= self.ends) | (self.begins < 0) | (self.ends > files.sizes[self.shards]))
        if len(wrong):
            first = int(wrong[0])
            raise ShardError(
                f"index of '{files.urls[int(self.shards[first])]}': record {int(runs.numbers()[first])} expected "
                f"within the shard, got bytes {int(self.begins[first])} to {int(self.ends[first])}\n"
                "  Delete the index; it is then built again."
            )
        self.sizes = self.ends - self.begins
        self.num_bytes = int(self.sizes.sum())
        self._spans = np.stack([self.shards, self.begins, self.ends], axis=1)
        self._kept: tuple[memoryview, Int64s] | None = None
        # A path is looked at once per window: on a network file system that may be a request, other than `fstat`.
        self._at_their_paths: set[int] = set()
        self.is_cached = False
        """Whether its bytes are taken from the page cache."""

    @property
    def file_spans(self) -> FileSpans:
        """Where the records lie."""
        return FileSpans(self._files.urls, self._files.stamps, self._spans)

    def take_cached(self, spans: Sequence[FileSpans]) -> bool:
        """Whether all of these spans that are remote are in the page cache; if so, the records are taken from there."""
        self.is_cached = self.is_cached or self._files.take_cached(spans)
        return self.is_cached

    def read(self, chosen: Int64s, *, keep: bool) -> tuple[memoryview, Int64s]:
        """Memory that holds these records, and where each begins in it.

        Args:
            chosen: Positions in the runs.
            keep: Read all records at once, for this and later calls.

        Raises:
            ShardError: A shard is not what was indexed.
        """
        files = self._files
        if not keep:
            spans = self._spans[chosen]
            began = files.reads.begin()
            lend, known = self._buffer.lend, self._at_their_paths
            found = read_spans(files.urls, files.stamps, spans, lend, known, from_cache=self.is_cached)
            files.reads.end(began)
            return found
        if self._kept is None:
            began = files.reads.begin()
            self._kept = self._read_runs()
            files.reads.end(began)
        else:  # what is in memory was checked when it was read; to ask again of a remote shard would be a request
            shards = set(self.shards[chosen].tolist())
            check_shards(files.urls, files.stamps, {shard for shard in shards if not files.is_remote[shard]})
        memory, begins = self._kept
        return memory, begins[chosen]

    def _read_runs(self) -> tuple[memoryview, Int64s]:
        """As `read`, of all records; a run is one span, so that few are sorted."""
        runs = self._runs
        lasts = np.cumsum(runs.counts) - 1
        spans = np.stack([runs.shards, self.begins[lasts - runs.counts + 1], self.ends[lasts]], axis=1)
        files = self._files
        memory, offsets = read_spans(files.urls, files.stamps, spans, self._buffer.lend, from_cache=self.is_cached)
        return memory, self.begins + runs.per_record(offsets - spans[:, 1])
