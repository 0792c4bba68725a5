"""`streamdata state`: what states hold, and joining or shortening them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from streamdata.progress import merge_states
from streamdata.progress.saved_states import read_states
from streamdata.run.publish import publish
from streamdata.view.states import describe_states


def show_states(paths: Sequence[Path]) -> None:
    """Describe the states of each path.

    Raises:
        StateError: A file is torn, or holds no states.
    """
    for number, path in enumerate(paths):
        if number:
            typer.echo()
        (read,) = read_states([path])
        typer.echo(f"{path}: {read.origin}" if read.origin else str(path))
        typer.echo(describe_states(read.states))


def write_states(paths: Sequence[Path], output: Path, *, compacted: bool) -> None:
    """Join the states of all paths, and write them as one JSON file.

    Raises:
        StateError: A file is torn or holds no states, or they are not of one run.
        OSError: The output cannot be written.
    """
    joined: Mapping[str, Any] = merge_states(*(read.states for read in read_states(paths)))
    if compacted:
        from streamdata.progress.history import compact

        joined = compact(joined)
    publish(output, [json.dumps(dict(joined)).encode(), b"\n"])
    typer.echo(f"{output}: {len(joined):,} entries, {output.stat().st_size:,} bytes")
