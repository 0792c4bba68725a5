"""States in words: under which topologies and weights they were written, and what was delivered of each source."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamdata.progress import COUNTS, Progress, history_of
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
    history = history_of(progress)
    return "\n".join([*_generations(headers, history), _sources(history), *_ranks(progress)])


def _generations(headers: Mapping[int, Mapping[str, Any]], history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each generation, also for those that compacting left no entries of."""
    for line in history:
        given = ", ".join(
            f"{_name(path)} {counts.get('samples', 0):,}" for path, counts in sorted(line["sources"].items())
        )
        more = "" if line["generation"] in headers else f"; its entries are left out, it gave samples: {given}"
        yield f"generation {line['generation']}: {_topology(line)}; weights: {_weights(line)}{more}"


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


def _sources(history: Sequence[Mapping[str, Any]]) -> str:
    """What was delivered of each source and what not, in all generations and passes."""
    # By the lines and not by the entries: some of these may have been left out by `compact`.
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in history:
        for path, counts in line["sources"].items():
            totals[path].update(counts)
    names = ["samples", *(name for name in COUNTS if name != "records")]
    rows = [[_name(path), *(f"{counts[name]:,}" for name in names), ""] for path, counts in sorted(totals.items())]
    return table([["source", *names, ""], *rows])


def _name(path: str) -> str:
    return path or "(the top)"


def _ranks(progress: Progress) -> Iterator[str]:
    passes = sorted({number for rank in progress.ranks() if (number := progress.newest_pass(rank)) is not None})
    yield f"in pass {', '.join(map(str, passes or [progress.first_pass]))}"
    size = progress.topology().dp_size
    lacking = sorted(set(range(size)) - set(progress.ranks()))
    idle = [rank for rank in lacking if progress.is_idle(rank)]
    missing = [rank for rank in lacking if rank not in idle]
    if idle:
        yield f"delivered nothing since the topology last changed: {named_ranks(idle)}"
    yield f"missing: {named_ranks(missing)} of {size}" if missing else "no rank is missing"
