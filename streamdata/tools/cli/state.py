"""`streamdata state`: what states hold and how they differ, and joining them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer

from streamdata.errors import one_line
from streamdata.run.publish import publish
from streamdata.states.joining import merge_states
from streamdata.states.loading import read_states
from streamdata.tools.cli.messages import say
from streamdata.tools.trace import SourceTotals, Totals, totals_of
from streamdata.tools.trace.totals import describe_states, states_as_json
from streamdata.tools.view.tree import percent_text, table

_COUNTS: Final = ("records", "dropped", "bad", "skipped")


def show_states(paths: Sequence[Path], other: Path | None, *, as_json: bool) -> None:
    """Describe what the states of all paths hold together, or what they hold more than another one does.

    Raises:
        StateError: A file is torn or holds no states, or they are not of one run.
    """
    states, origin = _joined(paths)
    totals = totals_of(states)
    if other is not None:
        totals = totals.minus(totals_of(_joined([other])[0]))
    if as_json:
        typer.echo(
            json.dumps({**asdict(totals), **states_as_json(states), "origin": origin, "diff": other and str(other)})
        )
        return
    names = ", ".join(map(str, paths))
    say(one_line(f"{names}: {origin}" if origin else names) + (f", minus {one_line(other)}" if other else ""))
    text = _sources(totals) if other is not None else describe_states(states, lambda _: _sources(totals))
    say("\n".join(map(one_line, text.split("\n"))))


def _joined(paths: Sequence[Path]) -> tuple[Mapping[str, Any], str]:
    """The states of all paths, and which step and ranks they are of."""
    found = read_states(paths)
    origin = "; ".join(read.origin for read in found if read.origin)
    return found[0].states if len(found) == 1 else merge_states(*(read.states for read in found)), origin


def _sources(totals: Totals) -> str:
    heads = ["source", "samples", "tokens", "epochs", "wanted", "achieved", *_COUNTS, ""]
    rows = [_row(source) for source in totals.sources]
    in_steps = f" in {totals.steps:,} steps" if totals.steps else ""  # which a run without our collate does not count
    all_of_it = f"{totals.samples:,} samples, {totals.tokens:,} tokens{in_steps}"
    return f"{table([heads, *rows])}\n{all_of_it}"


def _row(source: SourceTotals) -> list[str]:
    epochs = "not known" if source.epochs is None else f"{source.epochs:.4g}"
    shares = percent_text(source.wanted), percent_text(source.achieved)
    counts = (f"{getattr(source, name):,}" for name in _COUNTS)
    return [source.name, f"{source.samples:,}", f"{source.tokens:,}", epochs, *shares, *counts, ""]


def write_states(paths: Sequence[Path], output: Path) -> None:
    """Join the states of all paths, and write them as one JSON file.

    Raises:
        StateError: A file is torn or holds no states, or they are not of one run.
        OSError: The output cannot be written.
    """
    joined = merge_states(*(read.states for read in read_states(paths)))
    publish(output, [json.dumps(joined).encode(), b"\n"])
    say(f"{output}: {len(joined):,} entries, {output.stat().st_size:,} bytes")
