"""The choice of rows: `rows → lengths, measured or from the cache → numbers of the rows that stay`."""

import hashlib
import logging
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.chats.prompt_reader import EMPTY, MEDIA_CUT, PromptReader
from streamdata.chats.settings import WHO
from streamdata.errors import SourceError
from streamdata.io.file_cache import FileCache
from streamdata.run.processes import ProcessError, Team, processes

logger = logging.getLogger("streamdata")
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Chunk = tuple[int, list[int]]
"""The place of its first length among all, and the numbers of its rows."""

NOT_MEASURED: Final = -1
WORTH_A_PROCESS: Final = 500
"""Rows: of text they are soon measured, but of images they take longer than a process takes to start."""
CHUNK: Final = 16  # rows that a process is sent at a time
AHEAD: Final = 4  # chunks that a process has at most: with two, it often waited while this one measured a chunk


class Kept(NamedTuple):
    """The rows that stay.

    Attributes:
        path: The file of their numbers, int64; None where all rows stay.
        size: How many they are.
        digest: A hash of their numbers.
        dropped: How many others there are, by reason.
    """

    path: Path | None
    size: int
    digest: str
    dropped: dict[str, int]


def choose_rows(reader: PromptReader) -> Kept:
    """Chooses the rows that stay, and logs how many do not.

    Raises:
        SourceError: None stays.
    """
    rows, config = reader.rows, reader.config
    if not len(rows):
        paths = [file.path for file in rows.files]
        raise SourceError(f"{WHO}: expected rows, got none in {paths}\n  Look at the data.")
    cache = FileCache(config.cache_dir)
    size = len(rows) if config.max_samples < 0 else min(config.max_samples, len(rows))
    numbers = np.arange(size)
    if config.shuffle and size < len(rows):
        # NumPy's own generator, which keeps its streams between versions: verl chooses by it, so the rows are the same.
        numbers = np.random.default_rng(config.seed or 0).choice(len(rows), size, replace=False)
    stay = numbers
    dropped: dict[str, int] = {}
    if config.filter_prompts or reader.measures_tokens:
        ascending = np.argsort(numbers)  # files of lengths are asked for in the order of their rows
        lengths = np.empty(len(numbers), dtype=np.int32)
        lengths[ascending] = measured(reader, cache, numbers[ascending])
        overlong = (lengths > config.max_prompt_length) & config.filter_overlong_prompts
        stay = numbers[(lengths >= 0) & ~overlong]
        reasons = {"empty": lengths == EMPTY, "media cut": lengths == MEDIA_CUT, "overlong": overlong}
        dropped = {reason: int(of_it.sum()) for reason, of_it in reasons.items() if of_it.any()}
    counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    if not len(stay):
        raise SourceError(
            f"{WHO}: expected rows that stay, got none of {len(numbers)}: {counts}\n"
            "  Raise max_prompt_length, or look at the data."
        )
    if dropped:
        logger.warning("%s: dropped %d of %d rows: %s", WHO, len(numbers) - len(stay), len(numbers), counts)
    # Without a file: millions of rows that all stay need no list of their numbers.
    content = b"" if len(stay) == len(rows) else stay.astype("<i8").tobytes()
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    if not content:
        return Kept(None, len(stay), digest, dropped)
    name, write = f"kept/{digest}.i64", partial(Path.write_bytes, data=content)
    path = cache.get(name, write)
    # One that holds other numbers is damaged: readers look at single numbers, so that only here all are compared.
    if path.read_bytes() != content:
        path = cache.publish(name, write)
    return Kept(path, len(stay), digest, dropped)


class _FileLengths(NamedTuple):
    """The lengths that are asked for of one file of rows.

    Attributes:
        path: Its file of lengths in the cache.
        span: Which of the rows asked for are its own.
        local: Their numbers in the file.
        num_rows: How many rows the file has.
    """

    path: Path
    span: slice
    local: Int64s
    num_rows: int

    def stored(self) -> Int32s:
        """The lengths of all rows of the file, which their checksum follows; NOT_MEASURED where the two disagree."""
        if self.num_rows and self.path.exists():
            content = np.fromfile(self.path, "<i4")
            is_whole = len(content) == self.num_rows + 1
            if is_whole and zlib.crc32(content[:-1].data) == content[-1:].view("<u4")[0]:
                return content[:-1]
        return np.full(self.num_rows, NOT_MEASURED, dtype=np.int32)


def measured(reader: PromptReader, cache: FileCache, numbers: Int64s) -> Int32s:
    """Returns the lengths of rows, int32, shape (n,); only those are measured that are not in the cache.

    They are kept in one file per file of rows, under the hashes of its content and of the reader's policy, so that they
    serve whoever reads the same file under another path, with others, or in part. Images that rows name by their paths
    are taken to stay as they are. Where the user's own code takes part, nothing is kept: no hash says that it does the
    same as before.

    Args:
        reader: Measures a row.
        cache: Keeps the lengths.
        numbers: The rows' numbers, ascending.
    """
    workers = reader.config.filter_overlong_prompts_workers
    if own := reader.own_code():
        logger.info("%s: prompts are measured at each start, since their lengths depend on %s", WHO, ", ".join(own))
        values = np.full(len(numbers), NOT_MEASURED, dtype=np.int32)
        measure_rows(reader, numbers, values, workers)
        return values
    rows, files, policy = reader.rows, [], reader.policy()
    for number in range(rows.locate(int(numbers[0]))[0], rows.locate(int(numbers[-1]))[0] + 1):
        first, end = rows.first(number), rows.first(number + 1)
        span = slice(*np.searchsorted(numbers, [first, end]).tolist())
        name = f"lengths/{rows.files[number].digest}-{policy}.i32"
        files.append(_FileLengths(cache.directory / name, span, numbers[span] - first, end - first))
    values = np.concatenate([file.stored()[file.local] for file in files])
    if (values != NOT_MEASURED).all():
        return values
    with ExitStack() as locks:
        # In one order everywhere: processes with the same files in another order would wait for each other's locks.
        for name in sorted({f"lengths/{file.path.name}" for file in files}):
            locks.enter_context(cache.lock(name))
        # Another process may have measured meanwhile.
        values = np.concatenate([file.stored()[file.local] for file in files])
        missing = np.flatnonzero(values == NOT_MEASURED)
        found = np.full(len(missing), NOT_MEASURED, dtype=np.int32)
        try:
            measure_rows(reader, numbers[missing], found, workers)
        finally:  # what was measured before an error or a Ctrl-C is published too: images take hours
            values[missing] = found
            for file in files:
                lengths = np.array(file.stored())  # read again: two files of the same content share one of lengths
                lengths[file.local] = values[file.span]
                content = lengths.astype("<i4").tobytes()
                content += zlib.crc32(content).to_bytes(4, "little")
                cache.publish(f"lengths/{file.path.name}", partial(Path.write_bytes, data=content))
    return values


def measure_rows(reader: PromptReader, indices: Int64s, values: Int32s, workers: int) -> None:
    """Measures rows, with a progress bar on a terminal.

    Args:
        reader: Measures a row; it is pickled to other processes.
        indices: The rows' numbers, shape (n,).
        values: Where the lengths are written as they come, shape (n,), NOT_MEASURED before.
        workers: Processes, this one included.

    Raises:
        Exception: The error of `measure`, of a row that failed.
        SourceError: Another process cannot measure.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    others = min(workers, len(indices) // WORTH_A_PROCESS + 1) - 1
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    try:
        with progress, processes(partial(lengths_of, reader), others) as team:
            task = progress.add_task("measuring prompts", total=len(indices))
            for count in share_out(team, reader, indices, values):
                progress.advance(task, count)
    except ProcessError as error:
        raise SourceError(
            f"{WHO}: expected other processes to measure prompts, got one that cannot: {error}\n"
            "  Define what they need at the top of a module that they can import, or set "
            "filter_overlong_prompts_workers: 1."
        ) from error


def share_out(team: Team[Chunk, list[int]], reader: PromptReader, indices: Int64s, values: Int32s) -> Iterator[int]:
    """Gives chunks to other processes and measures some here meanwhile; yields how many rows were measured."""

    def measure(chunk: Chunk) -> list[int]:
        start, rows = chunk
        for number, index in enumerate(rows, start):  # one by one: what was measured before a failure is kept
            values[number] = reader.measure(index)
        return list(map(int, values[start : start + len(rows)]))

    chunks = ((start, indices[start : start + CHUNK].tolist()) for start in range(0, len(indices), CHUNK))
    for (start, rows), lengths in team.run(chunks, ahead=AHEAD, here=measure):
        done = len(lengths)
        values[start : start + done] = lengths
        measure((start + done, rows[done:]))  # the next row failed there: here it says why
        yield len(rows)


def lengths_of(reader: PromptReader, chunk: Chunk, _: object = None) -> list[int]:
    """Measures the rows before the first that fails."""
    found: list[int] = []
    with suppress(Exception):  # whatever it is, the parent meets it again; those before it stay in the list
        found.extend(reader.measure(index) for index in chunk[1])
    return found
