"""What a run has delivered by now: sums for each node, and for people a line for each generation and change."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamdata.errors import shown
from streamdata.progress.finals import COUNTS, sums
from streamdata.progress.header import Tree
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
    return Progress(states).table.as_dict()


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
            if not path and not held.given.any():  # a top without a function gives what its sources' entries say
                continue
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
    return [*progress.before.sizes, *(_line(progress, number) for number in progress.generations)]


def last_lines(progress: Progress) -> list[Mapping[str, Any]]:
    """Those of them that a header keeps."""
    return history_of(progress)[-_MAX_LINES:]


def _line(progress: Progress, generation: int) -> dict[str, Any]:
    written = progress.headers[generation]
    line: dict[str, Any] = {"generation": generation, "step": progress.step(generation), "samples": 0}
    line |= {name: written[name] for name in ("dp_size", "num_workers", "weights")}
    given, cost = 0, 0.0
    for epoch_pass in progress.passes():
        for path in (path for path in progress.paths() if "." not in path):
            drawn, costs = (_given_in(progress, name, epoch_pass, path, generation) for name in ("draws", "cost"))
            # What a yield function over all gave is made into batches, what its sources gave is drawn.
            line["samples"] += drawn if path else 0
            given += 0 if path else drawn
            cost += costs
    if cost:
        line["cost"] = cost
    if batches := int((progress.batches(generation + 1) - progress.batches(generation)).sum()):
        line["batch_size"] = -(-given // batches)
    return line


def _given_in(progress: Progress, name: str, epoch_pass: int, path: str, generation: int) -> Any:
    # Cursors count since the size began.
    after, before = (progress.column(name, epoch_pass, path, generation + more).sum().item() for more in (1, 0))
    return after - before


def describe_changes(progress: Progress, now: Tree) -> Iterator[str]:
    """Yield a line for each source that was removed or renamed, joins, returns, or has another weight."""
    if not progress:
        return
    before = progress.tree(progress.newest)
    held = {*progress.paths(), *progress.before.nodes}
    removed = {path: node for path, node in before.nodes.items() if path not in now.nodes}
    for path, node in now.nodes.items():
        if path not in before.nodes and path in held:
            yield f"source {shown(path)} returns, and goes on where it stood"
        elif path not in before.nodes:
            twin = next((old for old, was in removed.items() if was == node), None)
            hint = "" if twin is None else f" (was {shown(twin)} renamed? where it stood counts for that name alone)"
            yield f"source {shown(path)} is new since the states were written, and starts at its beginning{hint}"
        elif path in before.weights and before.weights[path] != now.weights[path]:
            weights = f"{now.weights[path]} now, had {before.weights[path]} in the states"
            yield f"source {shown(path)} has the weight {weights}"
    for path in removed:
        kept = "where it stood is kept for when it returns"
        yield f"source {shown(path)} was removed since the states were written; {kept}"
