"""`streamdata trace`: which records made the batch at a step, and at which steps a record came."""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from streamdata.errors import one_line
from streamdata.states.loading import is_rank_file, read_states
from streamdata.tools.cli.run import build_mixture
from streamdata.tools.cli.ticker import Ticker
from streamdata.tools.trace import Trace
from streamdata.tools.view.tree import table

_QUIET_S = 2.0
"""So long nothing is shown of how far it is."""


def open_trace(
    recipe: Path,
    paths: Sequence[Path],
    variables: Mapping[str, Any],
    allow: Collection[str] | None,
    batch: int | None,
    include_roots: Sequence[str] = (),
) -> Trace:
    """Build the recipe, and read all states.

    Raises:
        StreamdataError: The recipe cannot be built, or the states are none of it.
    """
    states = [dict(read.states) for group in _together(paths) for read in read_states(group)]
    return Trace(build_mixture(recipe, variables, allow, include_roots), states, batch)


def trace_step(trace: Trace, step: int, *, as_json: bool) -> None:
    """Print the records of a step.

    Raises:
        StateError: The states do not reach back to it, or the stream ends before it.
    """
    with _progress(trace):
        traced = trace.at(step)
    if as_json:
        found = {"step": traced.step, "records": traced.records, "how": traced.how, "from": traced.origin}
        typer.echo(json.dumps(found))
        return
    typer.echo(f"step {traced.step}: {len(traced.records)} records, by {traced.how} from step {traced.origin}")
    rows = [[record["source"], _name(record)] for record in traced.records]
    typer.echo(table([["source", "record"], *rows]))


def find_record(trace: Trace, name: str, *, as_json: bool) -> bool:
    """Print the steps at which a record came or comes; whether there is one.

    Raises:
        SourceError: No source of the recipe has such records.
    """
    url, _, key = name.rpartition("#")
    with _progress(trace):
        is_index = key.isdecimal() and trace.is_indexed(url)
        steps = trace.find(url, index=int(key)) if is_index else trace.find(url=url, key=key)
    if as_json:
        typer.echo(json.dumps({"find": name, "steps": steps, "delivered": trace.num_steps}))
    elif steps:
        typer.echo(
            "\n".join(f"step {step}{'' if step < trace.num_steps else ', which is still to come'}" for step in steps)
        )
    else:
        typer.echo(f"{one_line(name)}: it came at no step, and does not come", err=True)
    return bool(steps)


def _name(record: Mapping[str, Any]) -> str:
    return f"{record['url']}#{record['key']}" if "url" in record else f"{record['source']}#{record['index']}"


def _together(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The files of ranks by their folders, each a step; all else by itself."""
    is_rank = {path: path.is_file() and is_rank_file(path.read_bytes()) for path in paths}
    yield from ([path] for path in paths if not is_rank[path])
    for _, group in groupby(sorted(path for path in paths if is_rank[path]), attrgetter("parent")):
        yield list(group)


@contextmanager
def _progress(trace: Trace) -> Iterator[None]:
    """While it lasts, say on stderr how far reading is, once that takes some time."""
    began = time.monotonic()
    with Ticker(Console(stderr=True)) as ticker:

        def show(done: int, total: int) -> None:
            if time.monotonic() - began > _QUIET_S:
                ticker.tick(lambda: f"looked through {done:,} of {total:,}")

        trace.on_progress = show
        yield
