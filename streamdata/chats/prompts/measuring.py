"""Measuring many rows: `row numbers → this process and others, a chunk each at a time → lengths`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError, one_line, text_of
from streamdata.run.processes import ProcessError, Team, processes

logger = logging.getLogger("streamdata")

NOT_MEASURED: Final = -1
WORTH_A_PROCESS: Final = 500
"""Rows: of text they are soon measured, but of images they take longer than a process takes to start."""
CHUNK: Final = 16
AHEAD: Final = 4  # chunks that a process has at most: with two, it often waited while this one measured a chunk

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Chunk = tuple[int, list[int]]
"""Where its lengths go, and the numbers of its rows."""


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
    try:
        with _progress(len(indices)) as advance, processes(partial(lengths_of, reader), others) as team:
            for count in share_out(team, reader, indices, values, chunk, ahead):
                advance(count)
    except ProcessError as error:
        raise _cannot(str(error)) from error


def share_out(
    team: Team[Chunk, list[int]],
    reader: Measures,
    indices: Int64s,
    values: Int32s,
    size: int = CHUNK,
    ahead: int = AHEAD,
) -> Iterator[int]:
    """Give chunks to other processes and measure some here meanwhile; yield how many rows were measured."""
    chunks = ((start, indices[start : start + size].tolist()) for start in range(0, len(indices), size))

    def measure(chunk: Chunk) -> list[int]:
        start, rows = chunk
        for number, index in enumerate(rows, start):  # one by one: what was measured before a failure is kept
            values[number] = reader.measure(index)
        return list(map(int, values[start : start + len(rows)]))

    for (start, rows), lengths in team.run(chunks, ahead=ahead, here=measure):
        done = len(lengths)
        values[start : start + done] = lengths
        if done < len(rows):  # the next row failed there: here it says why
            values[start + done] = reader.measure(rows[done])
            raise _cannot(f"row {rows[done]} failed there and not here")
        yield done


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


def lengths_of(reader: Measures, chunk: Chunk, _: object = None) -> list[int]:
    """The lengths of the rows before the first that fails."""
    found: list[int] = []
    try:
        for index in chunk[1]:
            found.append(reader.measure(index))  # noqa: PERF401  # what was found before a failure counts
    except Exception as error:  # whatever it is, the parent meets it again
        logger.debug("row %d: %s", chunk[1][len(found)], one_line(text_of(error)))
    return found
