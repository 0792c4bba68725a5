"""Runs of rows of parquet's row groups: `run → decoded, at once or ahead in a thread → its rows by number`."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError
from streamdata.io.cache.cached import Confirmations, named_cache
from streamdata.io.remote.addresses import CacheSettings
from streamdata.io.remote.network import network
from streamdata.io.storage import (
    FileStamp,
    Int64s,
    check_shards,
    is_remote,
    local_path,
    opened_shard,
    submit_question,
    submit_range,
)
from streamdata.run.per_process import PerProcess, open_files
from streamdata.shards.ahead.spans import read_spans
from streamdata.shards.parquet.file import OpenParquet
from streamdata.shards.parquet.row_groups import RowGroups, open_file
from streamdata.shards.parquet.stored_rows import import_pyarrow

logger = logging.getLogger(__name__)
_TOGETHER_BYTES = 16 << 20  # of small groups, about: each call costs as much as hundreds of rows
_MAX_BATCH_BYTES = 32 << 20  # one call decodes so much, about: each next one has to wait for Python's lock


class GroupRun(NamedTuple):
    """Consecutive rows of a row group that are decoded together."""

    shard: int
    first: int
    num_rows: int


class DecodedRun(NamedTuple):
    """The decoded rows of one run of a row group."""

    batches: list[Any]
    """Mostly one."""
    num_bytes: int


class DecodedRuns:
    """A bounded cache of decoded runs; the least recently used go first.

    Args:
        max_bytes: They have together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._runs: dict[GroupRun, DecodedRun] = {}
        self.num_bytes = 0

    def get(self, run: GroupRun) -> DecodedRun | None:
        """The decoded run, if it is kept; else None."""
        decoded = self._runs.pop(run, None)
        if decoded is not None:
            self._runs[run] = decoded  # the first in the dict is the one that was used longest ago
        return decoded

    def add(self, run: GroupRun, decoded: DecodedRun) -> DecodedRun:
        """Add a decoded run."""
        self._runs[run] = decoded
        self.num_bytes += decoded.num_bytes
        return decoded

    def make_room(self, num_bytes: int) -> bool:
        """Shrink the cache to `num_bytes`; return whether any run was removed."""
        before = len(self._runs)
        while self._runs and self.num_bytes > num_bytes:
            self.num_bytes -= self._runs.pop(next(iter(self._runs))).num_bytes
        return len(self._runs) < before


Decode = Callable[[Sequence[GroupRun], Callable[[], object]], Mapping[GroupRun, DecodedRun]]
"""Decodes runs together; the second argument is called where that goes on without Python's lock."""


class DecodeAhead:
    """Decodes runs in a thread; results are kept until they are taken or other runs are asked for.

    One thread keeps up with the processing of rows; with two threads on two cores, the reader would wait for its turn.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "streamdata-decode", partial(setattr, open_files, "is_helping", True))
        self._asked: dict[GroupRun, Future[Mapping[GroupRun, DecodedRun]]] = {}

    def ask(self, kept: Sequence[GroupRun], tasks: Sequence[Sequence[GroupRun]], decode: Decode) -> None:
        """Start decoding runs in the thread; drop results that are neither asked for nor in `kept`."""
        wanted = {*kept, *chain.from_iterable(tasks)}
        dropped = [self._asked.pop(run) for run in list(self._asked) if run not in wanted]
        for task in {*dropped}.difference(self._asked.values()):
            task.cancel()
        new = [left for runs in tasks if (left := [run for run in runs if run not in self._asked])]
        is_busy = any(not task.done() for task in self._asked.values())
        begun = [self._submit(runs, decode) for runs in new]
        # A thread gets Python's lock from one that computes only after 5 ms, in which a window may be delivered.
        if begun and not is_busy:
            begun[0].wait()

    def _submit(self, runs: Sequence[GroupRun], decode: Decode) -> Event:
        begun = Event()

        def work() -> Mapping[GroupRun, DecodedRun]:
            try:
                return decode(runs, begun.set)
            finally:
                begun.set()

        task = self._thread.submit(work)
        self._asked.update(dict.fromkeys(runs, task))
        return begun

    def take(self, run: GroupRun) -> DecodedRun | None:
        """Wait for a run; None if it was not asked for, was taken already, or is too large to keep."""
        task = self._asked.pop(run, None)
        return None if task is None else task.result().get(run)


class NetworkedBytes(NamedTuple):
    """A remote file as a source of bytes, whose waiting time is counted."""

    url: str
    stamp: FileStamp

    @property
    def size(self) -> int:
        return self.stamp.size

    def read(self, size: int, offset: int) -> bytes:
        with network().waiting():
            return submit_range(self.url, offset, offset + size, self.stamp).result()


class Picks(NamedTuple):
    """Rows of a record batch, in the order asked for."""

    batch: Any
    rows: Int64s | None
    """In the batch; None: all of it, as it lies."""
    slots: Int64s
    """Places of the rows among what was asked for."""
    numbers: Int64s
    """In their file."""
    url: str

    def taken(self) -> "Picks":
        """Copy the rows into a batch of their own, unless they lie in order already."""
        return self if self.rows is None else self._replace(batch=self.some(0, len(self.slots)), rows=None)

    def some(self, begin: int, end: int) -> Any:
        """The rows at places [begin, end), as a batch."""
        if self.rows is None:
            return self.batch.slice(begin, end - begin)
        return self.batch.take(import_pyarrow().array(self.rows[begin:end]))


class RunDecoder:
    """Decodes runs of row groups.

    Args:
        groups: The row groups.
        max_bytes: A run that decodes to more than this is not kept.
        keeps_all: Whether all runs are to be kept, as footers say that they can.
    """

    def __init__(self, groups: RowGroups, max_bytes: int, *, keeps_all: bool) -> None:
        self._groups, self._max_bytes, self._keeps_all = groups, max_bytes, keeps_all
        self.cache: CacheSettings | None = None
        self.confirmations = Confirmations()
        self._own = threading.local()
        self._ahead = PerProcess(DecodeAhead)
        self.row_bytes: list[int] = groups.row_bytes.tolist()
        """Bytes of a row of each group on average: by its footer, or more where more was found when it was decoded."""
        self._too_large: set[GroupRun] = set()
        self._has_dropped = False
        self._together_bytes = min(_TOGETHER_BYTES, max_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = threading.local()

    def new_decoded(self) -> DecodedRuns:
        """Make the cache of a window's decoded runs; if the whole source fits, all windows share one."""
        # What no later window needs is let go of first: memory that is used again costs less than new memory.
        if not self._keeps_all:
            return DecodedRuns(self._max_bytes)
        if not hasattr(self._own, "decoded"):
            self._own.decoded = DecodedRuns(self._max_bytes)
        found: DecodedRuns = self._own.decoded
        return found

    def ask(self, present: Sequence[GroupRun], later: Sequence[GroupRun]) -> None:
        """Start decoding `later` runs in the thread; drop results needed by neither these nor the `present` runs."""
        self._ahead.get().ask(present, self._tasks(later), self._decode_apart)

    def _tasks(self, runs: Sequence[GroupRun]) -> list[list[GroupRun]]:
        """Group runs: small ones that one call can decode, whole groups of one file, are together."""
        tasks, num_bytes, file = list[list[GroupRun]](), 0, -1
        for run in runs:
            size, of_run = int(self._groups.sizes[run.shard]), int(self._groups.file_of[run.shard])
            is_whole = run.num_rows == self._groups.facts[run.shard].num_rows
            num_bytes += size
            if not (tasks and is_whole and of_run == file and num_bytes <= self._together_bytes):
                tasks, num_bytes = [*tasks, []], size
            tasks[-1].append(run)
            file = of_run if is_whole else -1
        return tasks

    def _decode_apart(self, runs: Sequence[GroupRun], begun: Callable[[], object]) -> dict[GroupRun, DecodedRun]:
        if len(runs) > 1:
            try:
                return self._decode_together(runs, begun)
            except ShardError:
                return {}  # when each of them is due, it is decoded by itself, and says which one it is
        decoded = self.decode(runs[0], DecodedRuns(self._max_bytes), begun=begun)
        return {} if decoded is None else {runs[0]: decoded}

    def _decode_together(self, runs: Sequence[GroupRun], begun: Callable[[], object]) -> dict[GroupRun, DecodedRun]:
        """Whole groups of one file; none if they come to more than may be kept of a window."""
        facts = [self._groups.facts[run.shard] for run in runs]
        ends = np.cumsum([run.num_rows for run in runs]).tolist()
        found: dict[GroupRun, list[Any]] = {run: [] for run in runs}
        first, num_bytes = 0, 0
        with self._opened(runs[0].shard, ()) as file:
            batches = file.batches(facts, self._groups.names, ends[-1], _MAX_BATCH_BYTES, keep_dictionaries=True)
            begun()
            for batch in batches:
                num_bytes += batch.nbytes
                if num_bytes > self._max_bytes:
                    self._together_bytes = 0  # footers say too little
                    return {}
                for run, end in zip(runs, ends, strict=True):
                    begin = max(0, end - run.num_rows - first)
                    stop = min(batch.num_rows, end - first)
                    if begin < stop:
                        found[run].append(batch.slice(begin, stop - begin))
                first += batch.num_rows
        joined = {run: _joined(batches, self._max_bytes - num_bytes) for run, batches in found.items()}
        return {run: DecodedRun(batches, sum(batch.nbytes for batch in batches)) for run, batches in joined.items()}

    def picks(self, run: GroupRun, runs: DecodedRuns, numbers: Int64s) -> Iterator[Picks]:
        """Yield rows of a run by their numbers in it."""
        decoded = self.kept(run, runs)
        batches = self._batches(run) if decoded is None else decoded.batches
        in_file = numbers + (run.first + self._groups.first_rows[run.shard])
        url, first, last = self._groups.url_texts[int(self._groups.file_of[run.shard])], 0, int(numbers.max(initial=0))
        for batch in batches:
            slots = np.flatnonzero((first <= numbers) & (numbers < first + batch.num_rows))
            if len(slots):
                rows = numbers[slots] - first
                if (np.diff(rows) == 1).all():  # as they lie: nothing needs to be copied
                    found = Picks(batch.slice(int(rows[0]), len(rows)), None, slots, in_file[slots], url)
                else:
                    found = Picks(batch, rows, slots, in_file[slots], url)
                yield found if decoded is not None else found.taken()
            first += batch.num_rows
            if first > last:
                return

    def kept(self, run: GroupRun, runs: DecodedRuns) -> DecodedRun | None:
        """The decoded run from the cache, decoded now if needed; None if it is too large to keep."""
        found = runs.get(run)
        if found is None and (found := self._ahead.get().take(run)) is not None:
            runs.make_room(runs.max_bytes - found.num_bytes)
            runs.add(run, found)
        return found or self.decode(run, runs)

    def decode(
        self,
        run: GroupRun,
        runs: DecodedRuns,
        held: Sequence[tuple[int, memoryview]] = (),
        begun: Callable[[], object] | None = None,
    ) -> DecodedRun | None:
        """Decode a run and keep it; None if it is too large to keep.

        Args:
            run: Which rows.
            runs: Where they are kept.
            held: What is in memory of the file: where each piece begins in it, and its bytes.
            begun: Called when Arrow begins to decode, which it does without Python's lock.
        """
        if run in self._too_large:
            return None
        batches, num_bytes, num_rows = list[Any](), 0, 0
        expected = int(self._groups.sizes[run.shard]) * run.num_rows // self._groups.facts[run.shard].num_rows
        self._make_room(run, expected, runs)
        for batch in self._batches(run, held, begun):
            num_bytes, num_rows = num_bytes + batch.nbytes, num_rows + batch.num_rows
            self.row_bytes[run.shard] = max(int(self._groups.row_bytes[run.shard]), num_bytes // num_rows)
            self._make_room(run, num_bytes, runs)
            if num_bytes > runs.max_bytes:
                if not self._too_large:
                    logger.warning(
                        "shard '%s': row group %d decodes to more than the %d bytes that may be kept of a window, by "
                        "max_open_bytes, of which its footer says nothing: it is decoded again for some records at a "
                        "time. Raise max_open_bytes, or write smaller groups",
                        self._groups.url_of(run.shard), self._groups.facts[run.shard].group, self._max_bytes,
                    )  # fmt: skip
                self._too_large.add(run)
                return None
            batches.append(batch)
        return runs.add(run, DecodedRun(_joined(batches, runs.max_bytes - runs.num_bytes - num_bytes), num_bytes))

    def _make_room(self, run: GroupRun, num_bytes: int, runs: DecodedRuns) -> None:
        """Let go of what was used longest ago, so that there is room for a run."""
        if runs.make_room(runs.max_bytes - num_bytes) and self._keeps_all and not self._has_dropped:
            self._has_dropped = True
            logger.warning(
                "shard '%s': its source decodes to more than the %d bytes of max_open_bytes, of which footers say "
                "less: row groups are decoded again and again. Raise max_open_bytes, which leaves the order as it is",
                self._groups.url_of(run.shard), runs.max_bytes,
            )  # fmt: skip

    def _batches(
        self, run: GroupRun, held: Sequence[tuple[int, memoryview]] = (), begun: Callable[[], object] | None = None
    ) -> Iterator[Any]:
        """The rows of a run. Those before them are decoded too: a group has no index of its rows."""
        first, end_of_run = 0, run.first + run.num_rows
        facts, names = self._groups.facts[run.shard], self._groups.names
        with self._opened(run.shard, held) as file:
            is_whole = run.num_rows == facts.num_rows
            batches = file.batches([facts], names, run.num_rows, _MAX_BATCH_BYTES, keep_dictionaries=is_whole)
            if begun is not None:
                begun()
            for batch in batches:
                begin, end = max(0, run.first - first), min(batch.num_rows, end_of_run - first)
                if begin < end:
                    yield batch.slice(begin, end - begin)
                first += batch.num_rows
                if first >= end_of_run < facts.num_rows:
                    return

    @contextmanager
    def _opened(self, shard: int, held: Sequence[tuple[int, memoryview]]) -> Iterator[OpenParquet]:
        """The file of a group, that is still of the version whose footer was read."""
        number = int(self._groups.file_of[shard])
        url, stamp = self._groups.urls[number], self._groups.stamps[number]
        file: OpenParquet = open_files.get(("parquet", url, stamp), lambda _: self._open(number))
        if is_remote(url) and not held:
            spans = np.array([(0, *span) for span in self._groups.facts[shard].spans], np.int64).reshape(-1, 3)
            memory, begins = read_spans([url], [stamp], spans)
            sizes = (spans[:, 2] - spans[:, 1]).tolist()
            pieces = zip(spans[:, 1].tolist(), begins.tolist(), sizes, strict=True)
            held = [(begin, memory[at : at + size]) for begin, at, size in pieces]
        file.file.held = list(held)
        try:
            yield file
        except ShardError:
            self._check_version(number)  # that it was replaced says more than that it cannot be read
            raise
        finally:
            file.file.held = []
        self._check_version(number)

    def _check_version(self, number: int) -> None:
        url, stamp = self._groups.urls[number], self._groups.stamps[number]
        if not is_remote(url):
            check_shards(self._groups.urls, self._groups.stamps, [number])
            opened_shard(url).check(stamp, by_path=True)

    def _open(self, number: int) -> OpenParquet:
        url, stamp = self._groups.urls[number], self._groups.stamps[number]
        if not is_remote(url):
            check_shards(self._groups.urls, self._groups.stamps, [number])
            return open_file(url, opened_shard(url), import_pyarrow().OSFile(local_path(url)))
        if named_cache(self.cache) is not None:
            self.confirmations.add(submit_question(url, stamp))
        return open_file(url, NetworkedBytes(url, stamp))


def _joined(batches: list[Any], room: int) -> list[Any]:
    """Join batches to few, each of at most so many bytes if it is new. Those given are taken from the list."""
    # Of many batches each would cost as much as several rows; while some become one, their rows are there twice.
    joined, some, num_bytes = list[Any](), list[Any](), 0
    while batches:
        some.append(batches.pop(0))
        num_bytes += some[-1].nbytes
        if not batches or num_bytes + batches[0].nbytes > room:
            joined.append(some[0] if len(some) == 1 else import_pyarrow().concat_batches(some))
            some, num_bytes = [], 0
    return joined
