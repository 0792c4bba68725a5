"""States in words: under which topologies and weights they were written, and what was delivered of each source."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from streamdata.progress import COUNTS, Progress
from streamdata.progress.finals import sums
from streamdata.progress.joining import named_ranks
from streamdata.recipe.percent import STEPS, Weight
from streamdata.view.table import table


def describe_states(states: Mapping[str, Any]) -> str:
    """Describe the states of some or all ranks of a run.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return "nothing was delivered yet"
    headers = {int(key.split("/")[1]): value for key, value in states.items() if key.startswith("generation/")}
    deals = {header.get("deal", 0): header for _, header in sorted(headers.items())}
    lines = list(_generations(headers))
    for epoch_pass in sorted({number for deal in deals for number in progress.passes(deal)}):
        lines += [f"pass {epoch_pass}", _sources(progress, epoch_pass, deals)]
    return "\n".join([*lines, *_ranks(progress)])


def _generations(headers: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each generation, also for those that compacting left no entries of."""
    gone = {line["generation"]: line for line in headers[max(headers)].get("history", ())}
    for number, facts in sorted({**gone, **headers}.items()):
        given = ", ".join(
            f"{path} {counts.get('samples', 0):,}" for path, counts in sorted(facts.get("sources", {}).items())
        )
        more = f"; its entries are left out, it gave samples: {given}" if number not in headers else ""
        yield f"generation {number}: {_topology(facts)}; weights: {_weights(facts)}{more}"


def _topology(facts: Mapping[str, Any]) -> str:
    size, workers = facts["dp_size"], facts["num_workers"]
    return f"{size} {'rank' if size == 1 else 'ranks'} with {workers} {'worker' if workers == 1 else 'workers'} each"


def _weights(facts: Mapping[str, Any]) -> str:
    weights = facts.get("weights", {}).items()
    return ", ".join(f"{path} {_weight(weight)}" for path, weight in weights) or "not known"


def _weight(weight: Weight) -> str:
    """A number, or a schedule as a recipe has it."""
    if isinstance(weight, dict):
        return f"{{steps: {json.dumps(weight[STEPS])}}}"
    return json.dumps(weight) if isinstance(weight, list) else f"{weight:g}"


def _sources(progress: Progress, epoch_pass: int, deals: Mapping[int, Mapping[str, Any]]) -> str:
    names = [name for name in COUNTS if name != "records"]
    rows = [["source", "samples", *names, ""]]
    for path in sorted(progress.paths()):
        samples, counts = _counts(progress, epoch_pass, path, deals)
        rows.append([path or "(the top)", f"{samples:,}", *(f"{counts[name]:,}" for name in names), ""])
    return table(rows)


def _counts(
    progress: Progress, epoch_pass: int, path: str, deals: Mapping[int, Mapping[str, Any]]
) -> tuple[int, dict[str, int]]:
    """The samples of a node in a pass, and its other counts, which go on over changes of topology."""
    samples, totals = 0, [0] * len(COUNTS)
    for deal, header in deals.items():
        finals = progress.finals(deal, epoch_pass, path)
        base = header.get("base", {}).get(str(epoch_pass), {})
        # Of deals that are not held any more the header says what they had come to.
        samples, totals = samples + int(finals.draws.sum()), sums(base.get("counts", {}).get(path, totals), finals)
    return samples, dict(zip(COUNTS, totals, strict=True))


def _ranks(progress: Progress) -> Iterator[str]:
    size = progress.topology().dp_size
    lacking = sorted(set(range(size)) - set(progress.ranks()))
    idle = [rank for rank in lacking if progress.is_idle(rank)]
    missing = [rank for rank in lacking if rank not in idle]
    if idle:
        yield f"delivered nothing since the topology last changed: {named_ranks(idle)}"
    yield f"missing: {named_ranks(missing)} of {size}" if missing else "no rank is missing"
