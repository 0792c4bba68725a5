"""States in words: under which topologies and weights they were written, and what was delivered of each source."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from streamdata.recipe.named_source import STEPS, Weight
from streamdata.states.history import history_of
from streamdata.states.loading import named_ranks
from streamdata.states.progress import Progress


def states_as_json(states: Mapping[str, Any]) -> dict[str, Any]:
    """Generations with their topologies and weights, passes and ranks, as plain JSON.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return {"generations": [], "passes": [], "ranks": 0, "workers": 0, "idle": [], "missing": []}
    idle, missing = _lacking(progress)
    size, workers = progress.topology()
    names = {"generation": "generation", "step": "step", "dp_size": "ranks", "num_workers": "workers"}
    generations = [
        {name: line[key] for key, name in names.items()} | {"weights": line.get("weights", {})}
        for line in history_of(progress)
    ]
    return {
        "generations": generations,
        "passes": _passes(progress),
        "ranks": size,
        "workers": workers,
        "idle": idle,
        "missing": missing,
    }


def describe_states(states: Mapping[str, Any], sources: Callable[[Progress], str]) -> str:
    """Describe the states of some or all ranks of a run.

    Args:
        states: What `to_state` filled.
        sources: Says what was delivered of each source.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return "nothing was delivered yet"
    return "\n".join([*_generations(history_of(progress)), sources(progress), *_ranks(progress)])


def _generations(history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for line, following in zip_longest(history, history[1:]):
        began = "" if line is history[0] else f"; from step {line['step']} on"
        given = "" if following is None else f"; {line['samples']:,} samples were drawn"
        yield f"generation {line['generation']}: {_topology(line)}; weights: {_weights(line)}{began}{given}"


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


def _passes(progress: Progress) -> list[int]:
    """Those in which ranks are."""
    passes = {number for rank in progress.ranks() if (number := progress.newest_pass(rank)) is not None}
    return sorted(passes) or [progress.before.first_pass]


def _lacking(progress: Progress) -> tuple[list[int], list[int]]:
    """The ranks that delivered nothing, and those of which nothing is known."""
    lacking = sorted(set(range(progress.topology().dp_size)) - set(progress.ranks()))
    idle = [rank for rank in lacking if rank in progress.idle]
    return idle, [rank for rank in lacking if rank not in idle]


def _ranks(progress: Progress) -> Iterator[str]:
    yield f"in pass {', '.join(map(str, _passes(progress)))}"
    size = progress.topology().dp_size
    idle, missing = _lacking(progress)
    if idle:
        yield f"delivered nothing since the topology last changed: {named_ranks(idle)}"
    yield f"missing: {named_ranks(missing)} of {size}" if missing else "no rank is missing"
