"""Measuring many rows: `row numbers → this process and others, a chunk each at a time → lengths`.

The other processes run `main` and nothing else. Each gets the reader in a file without a name, since a large one would
block a socket until the process has started, and its chunks through a socket. It ends when that is closed, so that it
cannot outlive its parent. Processes of multiprocessing will not do: scripts without a `__main__` guard would run again,
and daemonic workers may not start any.
"""

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError

logger = logging.getLogger("streamdata")

NOT_MEASURED: Final = -1
WORTH_A_PROCESS: Final = 500
"""Rows: of text they are soon measured, but of images they take longer than a process takes to start."""
CHUNK: Final = 16
AHEAD: Final = 4  # chunks that a process has at most: with two, it often waited while this one measured a chunk

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Measures(Protocol):
    """What measures one row."""

    def measure(self, index: int) -> int:
        """The length of row `index`, or a negative number that says why it has none."""


def measure_rows(
    reader: Measures,
    indices: Int64s,
    values: Int32s,
    workers: int,
    *,
    chunk: int = CHUNK,
    ahead: int = AHEAD,
    worth_a_process: int = WORTH_A_PROCESS,
) -> None:
    """Measure rows, with a progress bar on a terminal.

    Args:
        reader: Measures a row; it is pickled to other processes.
        indices: The rows' numbers, shape (n,).
        values: Where the lengths are written as they come, shape (n,), NOT_MEASURED before.
        workers: Processes, this one included.
        chunk: How many rows a process is sent at a time.
        ahead: Chunks that a process has at most.
        worth_a_process: How many rows are worth starting another process.

    Raises:
        Exception: What `measure` raised, of a row that failed.
        SourceError: Another process cannot measure.
    """
    others = min(workers, len(indices) // worth_a_process + 1) - 1
    with _progress(len(indices)) as advance, processes(reader, others) as team:
        for count in share_out(team, reader, indices, values, chunk, ahead):
            advance(count)


def share_out(
    team: Sequence["Connection[Any, Any]"],
    reader: Measures,
    indices: Int64s,
    values: Int32s,
    chunk: int = CHUNK,
    ahead: int = AHEAD,
) -> Iterator[int]:
    """Give chunks to other processes and measure some here meanwhile; yield how many rows were measured."""
    starts = deque(range(0, len(indices), chunk))
    load: dict[Any, int] = dict.fromkeys(team, 0)
    while starts or any(load.values()):
        for member in team:
            while starts and load[member] < ahead:
                start = starts.popleft()
                member.send((start, indices[start : start + chunk].tolist()))
                load[member] += 1
        # This process waits for the others only when nothing is left to measure here.
        ready: list[Any] = wait(load, timeout=0 if starts else None)
        for member in ready:
            yield _receive(member, reader, indices, values, chunk)
            load[member] -= 1
        if starts:
            start = starts.popleft()
            part = indices[start : start + chunk].tolist()
            for number, index in enumerate(part, start):  # one by one: what was measured before a failure is kept
                values[number] = reader.measure(index)
            yield len(part)


def _receive(member: Any, reader: Measures, indices: Int64s, values: Int32s, chunk: int) -> int:
    try:
        start, lengths, trouble = member.recv()
    except (EOFError, ConnectionError) as error:
        raise _cannot("it ended") from error
    if trouble is not None:
        raise _cannot(trouble)
    end = start + len(lengths)
    values[start:end] = lengths
    if end < min(start + chunk, len(indices)):
        # The next row failed there. Not every exception survives pickling, so that it is raised again here.
        values[end] = reader.measure(int(indices[end]))
        raise _cannot(f"row {indices[end]} failed there and not here")
    return len(lengths)


def _cannot(why: str) -> SourceError:
    return SourceError(
        f"RLHFDataset: expected other processes to measure prompts, got one that cannot: {why}\n"
        "  Define what they need at the top of a module that they can import, or set "
        "filter_overlong_prompts_workers: 1."
    )


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring prompts", total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def processes(reader: Measures, count: int) -> Iterator[list["Connection[Any, Any]"]]:
    """`count` processes that have the reader; they are gone afterwards."""
    started: list[subprocess.Popen[bytes]] = []
    team: list[Connection[Any, Any]] = []
    try:
        if count > 0:
            with _pickled(reader) as file:
                for _ in range(count):
                    ours, theirs = socket.socketpair()
                    team.append(Connection(ours.detach()))
                    with theirs:
                        started.append(_start(theirs.fileno(), file.fileno()))
        yield team
    finally:
        for member in team:
            member.close()
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def _pickled(reader: Measures) -> Iterator[IO[bytes]]:
    with TemporaryFile() as file:
        try:
            pickle.dump(reader, file)
        except Exception as error:
            raise _cannot(f"{type(error).__name__}: {error}") from error
        file.flush()
        yield file


def _start(chunks: int, reader: int) -> "subprocess.Popen[bytes]":
    """Start a process with these descriptors of a socket and a file."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    # One thread each: there are as many processes as were asked for.
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", str(chunks), str(reader)]
    fds = [chunks, reader]
    return subprocess.Popen(command, env=environment, pass_fds=fds, stdin=subprocess.DEVNULL)  # noqa: S603  # our own


def _lengths(reader: Measures, indices: Sequence[int]) -> list[int]:
    """The lengths of the rows before the first that fails."""
    found: list[int] = []
    try:
        for index in indices:
            found.append(reader.measure(index))  # noqa: PERF401  # what was found before a failure counts
    except Exception as error:  # whatever it is, the parent meets it again
        logger.debug("row %d: %s", indices[len(found)], error)
    return found


def main() -> None:
    """Measure chunks until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent ends us
    parent: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        reader: Measures | None = None
        trouble = None
        try:
            with open(int(sys.argv[2]), "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                reader = pickle.loads(content)  # noqa: S301  # our own parent's, in a file that nobody else can open
        except (AttributeError, ImportError) as error:
            trouble = f"{type(error).__name__}: {error}"
        while True:
            start, indices = parent.recv()
            parent.send((start, _lengths(reader, indices) if reader is not None else [], trouble))
    except (EOFError, ConnectionError):
        sys.exit()
