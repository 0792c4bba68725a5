"""`streamdata check --data`: every record of a recipe, read once."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from streamdata.errors import one_line
from streamdata.run.processes import ProcessDiedError, forks
from streamdata.tools.cli.ticker import Ticker
from streamdata.tools.data_check.data_check import DataCheck, DataTask
from streamdata.tools.data_check.data_records import Fault, Findings

_REMEDY = re.compile(r"\.?\n  (?=\S)")
"""Where a message goes on with what to do."""


def check_data(
    recipe: Path,
    variables: Mapping[str, Any],
    allow: Collection[str] | None,
    jobs: int | None,
    include_roots: Sequence[str] = (),
) -> bool:
    """Read all records, show what is wrong by kind and place, and return whether nothing is.

    Args:
        recipe: The file.
        variables: Its variables.
        allow: The packages whose targets are accepted; None for all but the standard library.
        jobs: How many processes read; None for one on each core.
        include_roots: Folders with files that it may include.

    Raises:
        RecipeError: A source cannot be built.
    """
    check, found, began = DataCheck(recipe, variables, allow, include_roots), Findings(), time.monotonic()
    tasks, parts, so_far = list(check.tasks(found)), dict[DataTask, Findings](), Findings()
    num_processes = min(jobs or len(os.sched_getaffinity(0)), len(tasks))
    with Ticker(Console(stderr=True), plain_interval_s=10.0) as ticker:
        for task, part in _parts(check, tasks, num_processes):
            parts[task] = part
            so_far.join(part)
            ticker.tick(partial(_progress, len(parts), len(tasks), so_far, time.monotonic() - began))
    for task in tasks:  # in the recipe's order, whichever process was faster
        found.join(parts[task])
    for line in _lines(found):
        typer.echo(line)
    sources = _counted(check.num_sources, "source")
    typer.echo(f"data: {_counted(found.num_records, 'record')} of {sources} read: {_summary(found)}")
    return not found.counts


def _parts(check: DataCheck, tasks: Sequence[DataTask], count: int) -> Iterator[tuple[DataTask, Findings]]:
    """What is found in each task, as it comes; that its process died is a fault, and new ones do the other tasks."""
    waiting = dict.fromkeys(tasks)
    while waiting:
        found = defaultdict[DataTask, Findings](Findings)  # what is under way when a process dies is read again
        try:
            # One reads in a process of its own, too: a function that ends it must not end the command.
            with forks(check, count) as team:
                for task, counted in team.run(tuple(waiting), report=partial(_take, found)):
                    del waiting[task]
                    found[task].join(counted)
                    yield task, found[task]
        except ProcessDiedError as error:
            check.note_death(error.task, error, found[error.task])
            del waiting[error.task]
            yield error.task, found[error.task]


def _take(found: Mapping[DataTask, Findings], told: tuple[DataTask, Fault]) -> None:
    task, fault = told
    found[task].faults.append(fault)


def _progress(done: int, total: int, found: Findings, seconds: float) -> str:
    rate = found.num_records / max(seconds, 1e-9)
    share = f"{done / total:.0%} of {total:,} shards and runs"
    return f"{share}  {found.num_records:,} records  {rate:,.0f}/s  {found.counts.total():,} faults"


def _lines(found: Findings) -> Iterator[str]:
    """The faults, by source and kind."""
    for fault in sorted(found.faults, key=lambda fault: (fault.source, fault.kind)):  # stable: in the files' order
        source = f" {one_line(fault.source)}:" if fault.source else ""
        yield f"error: {fault.kind}:{source} {_in_one_line(fault.message)}"
    if unlisted := found.counts.total() - len(found.faults):
        yield f"… and {unlisted:,} more, of which each shard lists the first of their kind alone"


def _in_one_line(message: str) -> str:
    """A fault is a line: what to do about it stands in the same one, other line ends are escaped."""
    return one_line(_REMEDY.sub(". ", message))


def _summary(found: Findings) -> str:
    kinds = [f"{kind}: {number:,}" for kind, number in sorted(found.counts.items())]
    dropped = f"; {found.num_dropped:,} dropped by functions" if found.num_dropped else ""
    return (", ".join(kinds) or "nothing is wrong") + dropped


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
