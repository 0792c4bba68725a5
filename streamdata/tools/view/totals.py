"""Deliveries of a run: `states → Totals`, numbers for a logger, words; batches → the same, with bytes and pace.

All sums are over ranks and passes, since the run's beginning, whatever the topologies were. Tokens are the `input_ids`
or `tokens` of samples as the mixtures were given them, counted in the lanes.
"""

import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streamdata.errors import counted, one_line
from streamdata.fields import is_reserved
from streamdata.mixing.tree import Node, mean_node_shares
from streamdata.recipe.named_source import PART_NAMES, STEPS, Weight
from streamdata.run.lane_link import Traffic
from streamdata.states.cursor import States, to_state
from streamdata.states.loading import named_ranks
from streamdata.states.progress import Progress, history_of, totals_of_nodes
from streamdata.tools.view.tree import bytes_text, functions_of, percent_text, shares_of, table

if TYPE_CHECKING:
    from torch import distributed

_RECORDS: Final = re.compile(r"(?:map-style, (\d+) records|[^,]+, (\d+) records in )")
_HOLDOUT: Final = re.compile(r", part (train|valid) of holdout ([^,]+)")
_RARE: Final = ("dropped", "bad", "skipped", "left_out", "padded")
_SUMS: Final = ("samples", "tokens", "records", *_RARE)
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
        wanted: Its share of the stream by the weights of each time; None where these follow schedules, in several
            passes, each of which begins them anew, or were set while the run went on, and before anything was drawn.
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
    wanted: float | None = 0.0
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
        uncounted: Samples of open bursts, given by yield functions that do not say what is in them. What these took
            counts as drawn once they ask for more, or the pass is over.
    """

    samples: int
    steps: int
    tokens: int
    sources: tuple[SourceTotals, ...]
    drawn: int
    uncounted: int


def totals_of(states: Mapping[str, Any]) -> Totals:
    """Sum up what states of all ranks, or of some, say.

    Args:
        states: What `to_state` filled.

    Raises:
        StateError: They do not come from `to_state`.
    """
    progress = Progress(states)
    if not progress:
        return Totals(samples=0, steps=0, tokens=0, sources=(), drawn=0, uncounted=0)
    totals, nodes, due = totals_of_nodes(progress), progress.nodes(), _due(progress)
    paths = {*totals, *nodes} - {""}
    mixtures = {path.rpartition(".")[0] for path in paths}
    sums = {path: {name: int(totals.get(path, {}).get(name, 0)) for name in _SUMS} for path in sorted(paths - mixtures)}
    uncounted = 0
    for epoch_pass, path in itertools.product(progress.passes, mixtures):
        uncounted += int(progress.last(epoch_pass, path)["given"].sum()) - progress.tail(epoch_pass, path)["given"]
    drawn = sum(counts["samples"] for counts in sums.values())
    all_due = math.fsum((due or {}).get(path, 0.0) for path in sums) or 1.0
    sources = []
    for path, counts in sums.items():
        # Where no function is in between, only those that failed are no samples.
        counts["records"] = counts["records"] or counts["samples"] + counts["left_out"] + counts["bad"]
        size = num_records(nodes.get(path, ""))
        source = SourceTotals(
            name=path,
            wanted=due.get(path, 0.0) / all_due if due else None,
            achieved=counts["samples"] / (drawn or 1),  # of nothing all shares are 0
            epochs=(counts["records"] + counts["skipped"]) / size if size else None,
            **counts,
        )
        sources.append(source)
    tops = [totals[""]] if "" in totals else [held for path, held in totals.items() if "." not in path]
    samples, tokens = (int(sum(held.get(name, 0) for held in tops)) for name in ("samples", "tokens"))
    steps = progress.step()
    return Totals(samples=samples, steps=steps, tokens=tokens, sources=tuple(sources), drawn=drawn, uncounted=uncounted)


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


def _due(progress: Progress) -> dict[str, float] | None:
    """How many samples of each source the weights asked for; None where they follow schedules over several passes.

    A schedule begins anew in each pass, and states have what a generation drew in all of them together. Nor do they
    tell of generations before the last weights that were set.
    """
    if progress.known_since > progress.before.number:
        return None
    lines = history_of(progress)
    trees = [_tree_by(line.get("weights", {})) for line in lines]
    before = progress.before
    passes = {*before.finished, *before.passes, *progress.passes, *([before.first_pass] if before.sizes else ())}
    if len(passes) > 1 and any(tree.has_schedule for tree in trees):
        return None
    due, time = dict[str, float](), 0.0
    for line, tree in zip(lines, trees, strict=True):
        begun = line.get("time", time)
        time = begun + line.get("cost", line["samples"])
        if line["samples"] and tree.children:
            for path, share in mean_node_shares(tree, time, begun).items():
                due[path] = due.get(path, 0.0) + share * line["samples"]
    return due


def _tree_by(weights: Mapping[str, Any]) -> Node:
    """The tree of which only paths and weights are known."""
    nodes = {path: Node(path=path, dataset=None, seeds=()) for path in ("", *weights)}
    for path in weights:
        nodes[path.rpartition(".")[0]].children += (nodes[path],)
    for node in nodes.values():
        node.weights = {child.path: weights[child.path] for child in node.children}
    return nodes[""]


def report(states: Mapping[str, Any], group: "distributed.ProcessGroup | None" = None) -> dict[str, float]:
    """Report what was delivered by now, as plain numbers, ready for `wandb.log` or TensorBoard's `add_scalar`.

    Args:
        states: Of all ranks, joined by `load_states`, `gather_states` or `merge_states`: the numbers are then the whole
            job's. What `loader.state_dict()` gives on one of several ranks knows of this rank since the resume, and of
            the others what the loaded states said: numbers of it are too small, and do not add up over ranks.
        group: The processes of all ranks, in their sequence, such as `torch.distributed.group.WORLD`: then each of them
            must call it. By default it needs no other process.

    Returns:
        `samples`, `tokens` and `steps`; and of each source `samples/NAME`, `tokens/NAME`, `records/NAME`,
        `epochs/NAME` where it is known how many records it has, `dropped/NAME`, `bad/NAME`, `skipped/NAME`, and of
        `uneven` `left_out/NAME` and `padded/NAME`; all since the run's beginning. Shares of the stream, from 0 to 1:
        `achieved/NAME` of all samples drawn, and `wanted/NAME` as the weights of each time asked for, absent where the
        states do not know these: with schedules in several passes, and after a second `StreamLoader.set_weights`.
        `weight/NAME` is the weight that `set_weights` gave last, as it was given.

        A packer over all counts a document with the row that has its last token, a function over all without a state
        what it pulled with the next output. `dropped`, `bad` and `skipped` count once a burst is over; until then
        `records` and `epochs` lack those records. Of others, which do not say what is in their outputs or are below
        another mixture, also `uncounted`: how many samples they gave of open bursts, whose records count for their
        sources once they ask for more, or the pass is over.

        With a `group` also `cost`, that of the rows or groups of this rank since the size last changed, and `cost_max`,
        the largest of all ranks: of a `customized_yield_fn` that balances, 0 of others.

    Raises:
        StateError: They do not come from `to_state`.
    """
    totals, progress = totals_of(states), Progress(states)
    numbers: dict[str, float] = {"samples": totals.samples, "tokens": totals.tokens, "steps": totals.steps}
    for source in totals.sources:
        for name in _REPORTED:
            if (value := getattr(source, name)) is not None:
                numbers[f"{name}/{source.name}"] = value
    if totals.uncounted:
        numbers["uncounted"] = totals.uncounted
    if progress:
        live = progress.tree(progress.newest).set_percents
        numbers |= {f"weight/{path}": held.percent for path, held in live.items()}
    return numbers if group is None else numbers | _costs(progress, group)


def _costs(progress: Progress, group: "distributed.ProcessGroup") -> dict[str, float]:
    """The cost of what this rank's yield function gave, and the largest of all ranks."""
    from torch import distributed

    size, own = distributed.get_world_size(group), 0.0
    if progress and progress.topology().dp_size == size:  # else the present size has delivered nothing yet
        of_passes = (progress.last(epoch_pass, "")["cost"].reshape(size, -1) for epoch_pass in progress.passes)
        own = math.fsum(float(costs[distributed.get_rank(group)].sum()) for costs in of_passes)
    costs = [own] * size
    distributed.all_gather_object(costs, own, group=group)
    return {"cost": own, "cost_max": max(costs)}


def totals_table(sources: Sequence[SourceTotals], columns: Sequence[str], uncounted: int) -> str:
    """Show sums of sources in a table that fits the terminal, a line for each source.

    Args:
        sources: Of which a line is each.
        columns: Attributes that are shown beside the name.
        uncounted: As of `Totals`; a line below says of how many samples the sources lack what is in them.
    """
    cells: dict[str, Callable[[Any], str]] = dict.fromkeys(("wanted", "achieved"), percent_text)
    cells["epochs"] = lambda epochs: "not known" if epochs is None else f"{epochs:.4g}"
    rows = [[cells.get(name, "{:,}".format)(getattr(source, name)) for name in columns] for source in sources]
    named = [[source.name, *row, ""] for source, row in zip(sources, rows, strict=True)]
    given = counted(uncounted, "sample")
    note = f"\nwithout the records in {given} of open bursts: they count once a burst ends" if uncounted else ""
    return table([["source", *columns, ""], *named], (0,)) + note


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
    names = {"generation": "generation", "step": "step", "samples": "samples", "dp_size": "ranks"}
    names["num_workers"] = "workers"
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


def describe_states(states: Mapping[str, Any]) -> str:
    """Describe the states of some or all ranks of a run.

    Args:
        states: What `to_state` filled.

    Raises:
        StateError: They do not come from `to_state`.
    """
    found, totals = states_as_json(states), totals_of(states)
    if not found["generations"]:
        return "nothing was delivered yet"
    lines = []
    for number, line in enumerate(found["generations"], 1):
        topology = f"{counted(line['ranks'], 'rank')} with {counted(line['workers'], 'worker')} each"
        weights = ", ".join(f"{path} {_weight(weight)}" for path, weight in line["weights"].items())
        began = "" if number == 1 and not line["step"] else f"; from step {line['step'] + 1} on"
        given = "" if number == len(found["generations"]) else f"; {line['samples']:,} samples were drawn"
        text = f"generation {line['generation']}: {topology}; weights: {weights or 'not known'}{began}{given}"
        lines.append(one_line(text))
    # What nothing was counted of has no column: a terminal is narrow.
    counts = [name for name in _RARE if any(getattr(source, name) for source in totals.sources)]
    columns = ["samples", "tokens", "epochs", "wanted", "achieved", "records", *counts]
    lines.append(totals_table(totals.sources, columns, totals.uncounted))
    in_steps = f" in {totals.steps:,} steps" if totals.steps else ""  # which a run without our collate does not count
    lines.append(f"{totals.samples:,} samples, {totals.tokens:,} tokens{in_steps}")
    lines.append(f"in pass {', '.join(map(str, found['passes']))}")
    if found["idle"]:
        lines.append(f"delivered nothing since the topology last changed: {named_ranks(found['idle'])}")
    missing = found["missing"]
    lines.append(f"missing: {named_ranks(missing)} of {found['ranks']}" if missing else "no rank is missing")
    return "\n".join(lines)


def _weight(weight: Weight) -> str:
    """A number, or a schedule as a recipe has it."""
    if isinstance(weight, dict):
        return f"{{steps: {json.dumps(weight[STEPS])}}}"
    return json.dumps(weight) if isinstance(weight, list) else f"{weight:g}"


_NUMBER_BYTES: Final = 8
_MAX_SHARES: Final = 6
"""Sources that the live line names; the summary names all."""


class Delivery:
    """Accumulates what a run delivers, and how fast.

    What was drawn, dropped and forgiven comes from the states, so it is what the batches account for: never what
    workers read ahead, and with a `customized_yield_fn` everything up to the burst under way.

    Args:
        dataset: What is iterated: a mixture, or a source alone.
        states: What the run resumed from.

    Attributes:
        samples: Delivered by this run.
        size_bytes: Of their contents, see `estimate_bytes`.
        states: The checkpoint after the last batch.
    """

    def __init__(self, dataset: Any, states: Mapping[str, Any] | None = None) -> None:
        self.samples = self.size_bytes = 0
        self.states: States = dict(states or {})
        shares = shares_of(dataset)
        self._wanted = {path: share.overall for path, share in shares.items() if not share.node.children}
        functions = [functions_of(share.node.dataset) for share in shares.values()]
        self._costs = sorted({names["cost"] for names in functions if "cost" in names})
        self._traffic = getattr(dataset, "traffic", Traffic)
        self._start = time.monotonic()
        self._first: tuple[float, int, int] | None = None
        """When the first batch had come, its samples and bytes: workers start before it, at a pace of their own."""

    def add(self, batch: list[dict[str, Any]]) -> None:
        """Count a batch, a list of samples."""
        self.samples += len(batch)
        self.size_bytes += sum(map(estimate_bytes, batch))
        self.states.update(to_state(batch))
        self._first = self._first or (time.monotonic(), self.samples, self.size_bytes)

    def sources(self) -> list[SourceTotals]:
        """Sums of each source over all lanes seen, since the stream began; in the order of the recipe."""
        totals = totals_of(self.states)
        held = {source.name: source for source in totals.sources if totals.drawn}
        return [held.get(path, SourceTotals(name=path, wanted=share)) for path, share in self._wanted.items()]

    def line(self) -> str:
        """How far it is, how fast, and the shares so far, in one line."""
        sources = sorted(self.sources(), key=lambda source: -(source.wanted or 0))
        shares = [f"{source.name} {percent_text(source.achieved)}" for source in sources[:_MAX_SHARES]]
        if len(sources) > _MAX_SHARES:
            shares.append(f"{len(sources) - _MAX_SHARES} more")
        elapsed, traffic = time.monotonic() - self._start, self._traffic()
        waiting = f"{traffic.waiting:.0%} waiting for stores  " if traffic.is_any else ""
        return f"{elapsed:.1f} s  {self.samples:,} samples  {self._rates()}  {waiting}{', '.join(shares)}"

    def summary(self) -> str:
        """All that was delivered, with wanted and achieved shares."""
        if self._first is None:
            return "no batch was delivered"
        elapsed, late = time.monotonic() - self._start, self._first[0] - self._start
        total = f"{self.samples:,} samples, {bytes_text(self.size_bytes)} in {elapsed:.1f} s"
        later = f", then {self._rates()}" if self.samples > self._first[1] else ""
        lines, traffic = [f"{total}; the first batch after {late:.2f} s{later}"], self._traffic()
        if traffic.is_any:
            requests = f"{traffic.requests:,} requests, {traffic.retries:,} of them repeated"
            cached = f"{bytes_text(traffic.cached_bytes)} of the cache by {traffic.cache_hits:,} hits"
            waited = f"readers waited {traffic.waiting:.0%} of their time"
            lines.append(f"from stores: {bytes_text(traffic.num_bytes)} by {requests}; {cached}; {waited}")
        return "\n".join([*lines, self.table()])

    def _rates(self) -> str:
        """Samples and bytes a second, since the first batch."""
        since, samples, size_bytes = self._first or (0.0, 0, 0)
        duration = max(time.monotonic() - since, 1e-9)
        rate = bytes_text((self.size_bytes - size_bytes) / duration)
        return f"{(self.samples - samples) / duration:,.0f} samples/s, {rate}/s"

    def table(self) -> str:
        """A table of wanted and achieved shares, a line for each source; with a note where a cost was weighed."""
        columns = ("wanted", "achieved", "samples", "dropped", "bad")
        costs = (f"wanted are shares of {cost}, achieved are shares of samples" for cost in self._costs)
        return "\n".join([totals_table(self.sources(), columns, totals_of(self.states).uncounted), *costs])


def estimate_bytes(value: Any) -> int:
    """Estimate the size of a value's content, in bytes.

    Tensors, arrays and bytes count as they are, images by their pixels' bands, text by its characters, other things as
    numbers. The fields that streamdata adds to a sample (`__url__` …) count nothing.
    """
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(estimate_bytes(part) for name, part in value.items() if not is_reserved(name))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(estimate_bytes, value))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "getbands") and hasattr(value, "size"):
        return int(value.size[0] * value.size[1] * len(value.getbands()))
    return 0 if value is None else _NUMBER_BYTES
