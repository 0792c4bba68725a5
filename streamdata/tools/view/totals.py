"""Deliveries of a run by its states: `states → Totals`, the difference of two, numbers for a logger, words.

All sums are over ranks and passes, since the run's beginning, whatever the topologies were. Tokens are the `input_ids`
or `tokens` of samples as the mixtures were given them, counted in the lanes.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final

from streamdata.errors import counted, one_line
from streamdata.mixing.tree import Node, mean_node_shares
from streamdata.recipe.named_source import PART_NAMES, STEPS, Weight
from streamdata.states.loading import named_ranks
from streamdata.states.progress import Progress, history_of, totals_of_nodes

_RECORDS: Final = re.compile(r"(?:map-style, (\d+) records|[^,]+, (\d+) records in )")
_HOLDOUT: Final = re.compile(r", part (train|valid) of holdout ([^,]+)")
_SUMS: Final = ("samples", "tokens", "records", "dropped", "bad", "skipped", "left_out", "padded")
_REPORTED: Final = (*_SUMS, "epochs", "wanted", "achieved")


@dataclass(frozen=True, kw_only=True)
class SourceTotals:
    """Sums of what was delivered of a source.

    Attributes:
        name: Its path of names.
        samples: Drawn of it.
        tokens: That these had.
        epochs: How often its records were read; None where nobody knows how many it has.
        records: Read of it.
        wanted: Its share of the stream by the weights of each time.
        achieved: Its share of all samples that were drawn.
        dropped: Records for which `single_process_fn` gave nothing.
        bad: Failures forgiven under `max_bad`.
        skipped: Records left out by `skip`.
        left_out: Samples that were read and left out by `uneven="drop"`.
        padded: Samples that `uneven="pad"` repeated to fill batches up.
    """

    name: str
    samples: int = 0
    tokens: int = 0
    epochs: float | None = None
    records: int = 0
    wanted: float = 0.0
    achieved: float = 0.0
    dropped: int = 0
    bad: int = 0
    skipped: int = 0
    left_out: int = 0
    padded: int = 0


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums of what a run has delivered.

    Attributes:
        samples: By all ranks; of a yield function over all, what it gave.
        steps: Batches of the rank that is furthest.
        tokens: In these samples.
        sources: Those of records, sorted by name.
        drawn: Samples of all sources together.
    """

    samples: int
    steps: int
    tokens: int
    sources: tuple[SourceTotals, ...]
    drawn: int

    def minus(self, other: "Totals") -> "Totals":
        """Subtract what was delivered by the states of `other`."""
        before = {source.name: source for source in other.sources}
        drawn = self.drawn - other.drawn
        sources = tuple(
            _difference(source, before.get(source.name), drawn, self.drawn, other.drawn) for source in self.sources
        )
        return Totals(
            samples=self.samples - other.samples,
            steps=self.steps - other.steps,
            tokens=self.tokens - other.tokens,
            sources=sources,
            drawn=drawn,
        )


def _difference(
    source: SourceTotals, before: SourceTotals | None, drawn: int, drawn_by_now: int, drawn_before: int
) -> SourceTotals:
    before = before or SourceTotals(name=source.name, epochs=0.0)
    sums = {name: getattr(source, name) - getattr(before, name) for name in _SUMS}
    is_known = source.epochs is not None and before.epochs is not None
    wanted = source.wanted * drawn_by_now - before.wanted * drawn_before
    return replace(
        source,
        **sums,
        epochs=source.epochs - before.epochs if is_known else None,  # type: ignore[operator]
        wanted=wanted / drawn if drawn else 0.0,
        achieved=sums["samples"] / drawn if drawn else 0.0,
    )


def totals_of(states: Mapping[str, Any]) -> Totals:
    """Sum up what states of all ranks, or of some, say.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return Totals(samples=0, steps=0, tokens=0, sources=(), drawn=0)
    lines, nodes = history_of(progress), progress.nodes()
    sums = defaultdict(Counter, {path: Counter(held) for path, held in totals_of_nodes(progress).items()})
    paths = {*sums, *nodes} - {""}
    leaves = sorted(paths - {path.rpartition(".")[0] for path in paths})
    drawn = sum(sums[path]["samples"] for path in leaves)
    wanted = _wanted(lines, leaves)
    sources = [_source(path, nodes.get(path, ""), sums[path], drawn, wanted) for path in leaves]
    tops = [""] if "" in sums else [path for path in sums if "." not in path]
    return Totals(
        samples=int(sum(sums[path]["samples"] for path in tops)),
        steps=progress.step(),
        tokens=int(sum(sums[path]["tokens"] for path in tops)),
        sources=tuple(sources),
        drawn=int(drawn),
    )


def _source(path: str, node: str, sums: Mapping[str, Any], drawn: float, wanted: Mapping[str, float]) -> SourceTotals:
    samples = int(sums["samples"])
    # Where no function is in between, only those that failed are no samples.
    records = int(sums["records"] or samples + sums["left_out"] + sums["bad"])
    size = num_records(node)
    return SourceTotals(
        name=path,
        **{name: int(sums[name]) for name in ("tokens", "dropped", "bad", "skipped", "left_out", "padded")},
        samples=samples,
        records=records,
        epochs=(records + int(sums["skipped"])) / size if size else None,
        wanted=wanted.get(path, 0.0),
        achieved=samples / drawn if drawn else 0.0,
    )


def num_records(node: str) -> float | None:
    """How many records a source has by what its header says of it; on average where some are held out."""
    found = _RECORDS.match(node)
    if found is None:
        return None
    share = 1.0
    if held_out := _HOLDOUT.search(node):
        holdout = float(held_out[2])
        share = 1 - holdout if held_out[1] == PART_NAMES[0] else holdout
    return int(found[1] or found[2]) * share


def _wanted(lines: Sequence[Mapping[str, Any]], leaves: Sequence[str]) -> dict[str, float]:
    """The mean share of each source by the weights of each generation, over what was drawn in it."""
    total, time, means = 0.0, 0.0, dict.fromkeys(leaves, 0.0)
    for line in lines:
        drawn = line["samples"]
        passed = line.get("cost", drawn)
        if drawn and (weights := line.get("weights")):
            for path, share in mean_node_shares(_tree_by(weights), time + passed, time).items():
                means[path] = means.get(path, 0.0) + share * drawn
        total, time = total + drawn, time + passed
    return {path: mean / total for path, mean in means.items()} if total else means


def _tree_by(weights: Mapping[str, Any]) -> Node:
    """The tree of which only paths and weights are known."""
    nodes = {path: Node(path=path, dataset=None, seeds=()) for path in ("", *weights)}
    for path in weights:
        nodes[path.rpartition(".")[0]].children += (nodes[path],)
    for node in nodes.values():
        node.weights = {child.path: weights[child.path] for child in node.children}
    return nodes[""]


def report(states: Mapping[str, Any]) -> dict[str, float]:
    """Report what was delivered by now, as plain numbers, ready for `wandb.log` or TensorBoard's `add_scalar`.

    Args:
        states: Of one rank, whose own numbers these then are; or of all ranks, joined by `merge_states`.

    Returns:
        `samples`, `tokens` and `steps`; and of each source `samples/NAME`, `tokens/NAME`, `records/NAME`,
        `epochs/NAME` where it is known how many records it has, `wanted/NAME` and `achieved/NAME`, the shares of the
        stream, `dropped/NAME`, `bad/NAME`, `skipped/NAME`, and of `uneven` `left_out/NAME` and `padded/NAME`; all
        since the run's beginning.

    Raises:
        StateError: They do not come from `to_state`.
    """
    totals = totals_of(states)
    numbers: dict[str, float] = {"samples": totals.samples, "tokens": totals.tokens, "steps": totals.steps}
    for source in totals.sources:
        for name in _REPORTED:
            if (value := getattr(source, name)) is not None:
                numbers[f"{name}/{source.name}"] = value
    return numbers


def states_as_json(states: Mapping[str, Any]) -> dict[str, Any]:
    """Generations with their topologies and weights, the passes in which ranks are, and ranks, as plain JSON.

    Idle ranks have delivered nothing, of missing ones nothing is known.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return {"generations": [], "passes": [], "ranks": 0, "workers": 0, "idle": [], "missing": []}
    size, workers = progress.topology()
    lacking = sorted(set(range(size)) - progress.newest_passes.keys())
    idle = [rank for rank in lacking if rank in progress.idle]
    names = {"generation": "generation", "step": "step", "dp_size": "ranks", "num_workers": "workers"}
    generations = [
        {name: line[key] for key, name in names.items()} | {"weights": line.get("weights", {})}
        for line in history_of(progress)
    ]
    return {
        "generations": generations,
        "passes": sorted(set(progress.newest_passes.values())) or [progress.before.first_pass],
        "ranks": size,
        "workers": workers,
        "idle": idle,
        "missing": [rank for rank in lacking if rank not in idle],
    }


def describe_states(states: Mapping[str, Any], sources: str) -> str:
    """Describe the states of some or all ranks of a run.

    Args:
        states: What `to_state` filled.
        sources: What was delivered of each source, in words.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return "nothing was delivered yet"
    history, generations = history_of(progress), []
    for line, following in zip_longest(history, history[1:]):
        began = "" if line is history[0] else f"; from step {line['step'] + 1} on"
        given = "" if following is None else f"; {line['samples']:,} samples were drawn"
        topology = f"{counted(line['dp_size'], 'rank')} with {counted(line['num_workers'], 'worker')} each"
        weights = ", ".join(f"{path} {_weight(weight)}" for path, weight in line.get("weights", {}).items())
        text = f"generation {line['generation']}: {topology}; weights: {weights or 'not known'}{began}{given}"
        generations.append(one_line(text))
    found = states_as_json(states)
    ranks = [f"in pass {', '.join(map(str, found['passes']))}"]
    if found["idle"]:
        ranks.append(f"delivered nothing since the topology last changed: {named_ranks(found['idle'])}")
    missing = found["missing"]
    ranks.append(f"missing: {named_ranks(missing)} of {found['ranks']}" if missing else "no rank is missing")
    return "\n".join([*generations, sources, *ranks])


def _weight(weight: Weight) -> str:
    """A number, or a schedule as a recipe has it."""
    if isinstance(weight, dict):
        return f"{{steps: {json.dumps(weight[STEPS])}}}"
    return json.dumps(weight) if isinstance(weight, list) else f"{weight:g}"
