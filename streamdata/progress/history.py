"""What a run has delivered by now: sums for each node, and for people a line for each generation."""

from collections.abc import Mapping
from typing import Any, Final

from streamdata.progress.finals import COUNTS, sums
from streamdata.progress.progress import Progress
from streamdata.progress.to_state import States

_MAX_LINES: Final = 20
"""Kept of earlier generations."""


def compact(states: Mapping[str, Any]) -> States:
    """Leave out of states what is of earlier sizes, of which the newest header says all that counts.

    Args:
        states: Of all ranks, joined; those of one rank may still be joined with the others' afterwards.

    Raises:
        StateError: They are not what `to_state` fills.
    """
    return dict(Progress(states).entries.columns)


def totals_of_nodes(progress: Progress) -> dict[str, dict[str, float]]:
    """What was delivered of each node since the run began, over all ranks and passes.

    Returns:
        By path: `samples`, `tokens`, `cost` and the `COUNTS`, without those that are 0.
    """
    # Over all passes: what earlier sizes delivered of any is in their header.
    totals = {path: dict(held) for path, held in progress.before.totals.items()}
    for epoch_pass in progress.passes():
        counted = progress.base(epoch_pass).counts
        for path in progress.paths():
            held, first = progress.finals(epoch_pass, path), counted.get(path, (0, 0, 0, 0))
            given: dict[str, float] = {
                "samples": int(held.draws.sum()),
                "tokens": int(held.tokens.sum()),
                "cost": float(held.cost.sum()),
                **dict(zip(COUNTS, map(int.__sub__, sums(first, held), first), strict=True)),
            }
            total = totals.setdefault(path, {})
            total |= {name: total.get(name, 0) + value for name, value in given.items() if value}
    return totals


def history_of(progress: Progress) -> list[Mapping[str, Any]]:
    """Describe the generations, oldest first.

    Returns:
        Of each its number, `step`, size, `weights`, what was drawn in it (`samples`, and `cost` where there is one),
        and `batch_size` where it is known.
    """
    return [*progress.before.sizes, *_lines(progress)]


def last_lines(progress: Progress) -> list[Mapping[str, Any]]:
    """Those of them that a header keeps."""
    return history_of(progress)[-_MAX_LINES:]


def _lines(progress: Progress) -> list[dict[str, Any]]:
    # Below the top: what a yield function over all gave has an entry of its own, of which batches are made.
    tops = [path for path in progress.paths() if path and "." not in path]
    lines: list[dict[str, Any]] = []
    for generation in sorted(progress.generations):
        samples, cost, given = 0, 0.0, 0
        for epoch_pass in progress.passes():
            for path in [*tops, ""]:
                after, before = (progress.finals(epoch_pass, path, before=generation + more) for more in (1, 0))
                # Cursors count since the size began.
                drawn = int(after.draws.sum() - before.draws.sum())
                samples, given = samples + drawn * bool(path), given + drawn * (not path)
                cost += float(after.cost.sum() - before.cost.sum())
        header, batches = progress.header(generation), progress.num_batches_in(generation)
        line: dict[str, Any] = {"generation": generation, "step": progress.step(generation), "samples": samples}
        line |= {name: header[name] for name in ("dp_size", "num_workers", "weights")}
        if cost:
            line["cost"] = cost
        if batches:
            line["batch_size"] = -(-(given or samples) // batches)
        lines.append(line)
    return lines
