"""The deliveries of a run by now: sums for each node, and for people a line for each generation."""

from collections.abc import Mapping
from typing import Any

from streamdata.states.progress import Progress
from streamdata.states.table import COUNTS


def totals_of_nodes(progress: Progress) -> dict[str, dict[str, float]]:
    """Sum up what was delivered of each node since the run began, over all ranks and passes.

    Returns:
        By path: `samples`, `tokens`, `cost` and the `COUNTS`, without those that are 0.
    """
    # Over all passes: what earlier sizes delivered of any is in their header.
    totals = {path: dict(held) for path, held in progress.before.totals.items()}
    for epoch_pass in progress.passes():
        for path in progress.paths():
            last = progress.last(epoch_pass, path)
            if not path and not last["given"].any():  # a top without a function gives what its sources' entries say
                continue
            given = {
                name: last[column].sum().item()
                for name, column in (("samples", "draws"), ("tokens", "tokens"), ("cost", "cost"))
            }
            first = progress.base(epoch_pass).counts.get(path, (0, 0, 0, 0))
            given |= zip(COUNTS, map(int.__sub__, progress.counts(epoch_pass, path), first), strict=True)
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


def _line(progress: Progress, generation: int) -> dict[str, Any]:
    written = progress.headers[generation]
    line: dict[str, Any] = {"generation": generation, "step": progress.step(generation), "samples": 0}
    line |= {name: written[name] for name in ("dp_size", "num_workers", "weights")}
    given, cost = 0, 0.0
    for epoch_pass in progress.passes():
        for path in (path for path in progress.paths() if "." not in path):
            # Cursors count since the size began.
            after, before = (progress.last(epoch_pass, path, generation + more) for more in (1, 0))
            drawn, costs = ((after[name].sum() - before[name].sum()).item() for name in ("draws", "cost"))
            # What a yield function over all gave is made into batches, what its sources gave is drawn.
            line["samples"] += drawn if path else 0
            given += 0 if path else drawn
            cost += costs
    if cost:
        line["cost"] = cost
    if batches := int((progress.batches(generation + 1) - progress.batches(generation)).sum()):
        line["batch_size"] = -(-given // batches)
    return line
