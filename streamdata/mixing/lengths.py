"""How much there is of each source.

1. number of samples of a run → `check_lengths` → how often it reads each source, with advice
2. a lane in a finite pass → `count_samples` → how many samples it still gets. Nothing is read for it but shards without
   an index, whose records are counted once on a node.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from streamdata.errors import shown
from streamdata.mixing.checks import FACTORS, is_length
from streamdata.mixing.clock import Clocks
from streamdata.mixing.leaf import Run
from streamdata.mixing.tree import Node, in_recipe, mean_node_shares, node_shares, num_in
from streamdata.sources.files.sequential_source import SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource

MANY_EPOCHS: Final = 4.0
"""From which on there is something to say: up to there repeated text is nearly as good as new (Muennighoff et al.,
"Scaling Data-Constrained Language Models", arXiv 2305.16264)."""
_FEW: Final = 0.5
"""Below which there is."""
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def check_lengths(top: Node, required: float | None) -> list[dict[str, Any]]:
    """Compute how often a run of a given length reads each source of records.

    Args:
        top: The tree.
        required: How many samples the run takes of the top mixture, before its yield function; None where that is open.

    Returns:
        For each source `name` (its path), `share` (of the whole stream, on average over the run), `length` (what it
        says, or its records), `multiplier`, `divisor`, `epochs` (None where `required` is) and `advice`.

    Raises:
        ValueError: `required` is no number above 0; or a source neither has a number of records that is known, nor says
            its length.
    """
    if required is not None and not is_length(required):
        raise ValueError(f"check_length: expected the number of samples of a run, above 0, got {shown(required)}")
    # Of schedules the shares at the start, where it is open until when they count.
    if required is None:
        shares = {path: share.overall for path, share in node_shares(top).items()}
    else:
        shares = mean_node_shares(top, float(required))
    taken = None if required is None else {path: required * share for path, share in shares.items()}
    lengths = lengths_by(top, shares, taken)
    for node, each in zip(top.leaves(), lengths, strict=True):
        if each["length"] is None:
            raise ValueError(
                f"source {shown(node.path)} ({type(node.dataset).__name__}){in_recipe(node.dataset)}: expected a "
                "length, got a source whose records nobody has counted\n"
                "  Set its attribute `length` to how many samples an epoch has."
            )
    return lengths


def lengths_by(top: Node, shares: Mapping[str, float], taken: Mapping[str, float] | None) -> list[dict[str, Any]]:
    """Describe how often each source is read, given the number of samples that a run takes of it.

    Args:
        top: The tree.
        shares: Of the whole stream, by path.
        taken: How many samples, or of a source without `length` records, the run takes; None where that is open.

    Returns:
        As `check_lengths`; `length` and `epochs` are None where nobody has counted the records.
    """
    parents = {child.path: node for node in top.walk() for child in node.children}
    found: list[dict[str, Any]] = []
    for node in top.leaves():
        factors = {name: value for name in FACTORS if is_length(value := getattr(node.dataset, name, None))}
        multiplier, divisor = (factors.get(name, 1) for name in FACTORS[1:])
        # Before the records: a packer makes other samples of them, which only who wrote the recipe has counted.
        length: Any = factors[FACTORS[0]] if FACTORS[0] in factors else num_in(node, "records")
        epochs = None
        if taken is not None and length is not None:
            epochs = taken[node.path] / (length * multiplier / divisor)
        found.append(
            {
                "name": node.path,
                "share": shares[node.path],
                "length": length,
                "multiplier": multiplier,
                "divisor": divisor,
                "epochs": epochs,
                "advice": "" if epochs is None else _advice(node, parents[node.path], length, epochs),
            }
        )
    return found


def _advice(node: Node, parent: Node, length: float, epochs: float) -> str:
    if node.max_epochs is not None and epochs > node.max_epochs:
        return f"ends before, after max_epochs={node.max_epochs}: lower its percent, or raise max_epochs"
    if epochs > MANY_EPOCHS:
        lacking = math.ceil(length * (epochs / MANY_EPOCHS - 1))
        more = f"{count_text(lacking)} record{'' if lacking == 1 else 's'}"
        # What follows a schedule or a size has no one number to be set; nor has what is alone.
        what = "add"
        if len(parent.children) > 1 and all(type(child.dataset.percent) in (int, float) for child in parent.children):
            weights: Any = parent.weights
            rest = math.fsum(weight for path, weight in weights.items() if path != node.path)
            part = MANY_EPOCHS / epochs * weights[node.path] / (weights[node.path] + rest)
            what = f"lower its weight to {rest * part / (1 - part):.2g} or add"
        return f"is read {epochs:.3g} times: to stay within {MANY_EPOCHS:.0f} epochs, {what} {more}"
    if epochs < _FEW:
        return f"{100 * epochs:.3g} % of it is read: raise its percent, or leave it so if that is meant"
    return ""


def count_text(number: float) -> str:
    """Format a number; from a million on with three digits: 1,200,000 is "1.2 M"."""
    if number < _UNITS[-1][0]:
        return f"{number:,.0f}"
    rounded = float(f"{number:.3g}")  # before the unit is chosen: 999,900,000 is 1 G
    size, unit = next(each for each in _UNITS if rounded >= each[0])
    return f"{rounded / size:,.12g} {unit}"


def lengths_text(lengths: list[dict[str, Any]]) -> str:
    """Format the result of `check_lengths` as a table."""
    header = ["source", "share", "length", "multiplier", "divisor", "epochs", "advice"]
    rows = [header]
    for each in lengths:
        epochs = "" if each["epochs"] is None else f"{each['epochs']:.3g}"
        factors = [f"{each[name]:,}" for name in ("length", "multiplier", "divisor")]
        rows.append([each["name"], f"{100 * each['share']:.3g} %", *factors, epochs, each["advice"]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if 0 < column < len(header) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def check_countable(run: Run, node: Node) -> None:
    """Raise unless every source of the tree gives one sample per record, in a known number.

    Raises:
        ValueError: A source is endless or uncountable; the message names it, and says what can be done.
    """
    if node.is_endless and node.path:  # within a mixture that ends without it
        return
    if (reason := "it goes on without end" if node.is_endless else _why_uncountable(run, node)) is not None:
        while node.is_endless and node.is_mixture:  # to the source that lets it be so
            node = next(child for child in node.children if child.is_endless)
        raise ValueError(
            f"source {shown(node.path or 'the top')}: how many samples are left is not known: {reason}\n"
            "  Give steps_per_epoch, which cuts the stream into stretches of as many batches on each rank."
        )
    for child in node.children:
        check_countable(run, child)


def _why_uncountable(run: Run, node: Node) -> str | None:
    dataset, reason = node.dataset, None
    functions = [name for name in ("single_process_fn", "process_fn") if getattr(dataset, name, None) is not None]
    if node.is_mixture:
        varies = "the costs of samples" if dataset.cost is not None else "schedules" if node.shares else None
        if dataset.customized_yield_fn is not None:
            reason = "its customized_yield_fn joins samples"
        elif dataset.stop == "first_exhausted" and varies is not None:
            reason = f"with stop='first_exhausted' that depends on {varies}"
    elif functions:
        reason = f"its {functions[0]} may give none or several of a record"
    elif getattr(dataset, "max_bad", 0):
        reason = f"up to max_bad={dataset.max_bad} records may fail"
    elif run.skips.of(node.path) is not None:
        reason = "`skip` leaves records of it out"
    elif isinstance(node.source, OwnStreamSource):
        reason = "it is an iterable, which does not say how many records it has"
    elif isinstance(node.source, SequentialSource) and (pipe := node.source.shards.pipe):
        reason = (
            f"its shard {shown(pipe)} is what a command gives, others perhaps each time: write it to a file, whose "
            "records `streamdata index` counts, or the run does"
        )
    return reason


def count_samples(run: Run, node: Node) -> float:
    """The number of samples that the lane still gets from a countable node; inf if it is endless."""
    if node.is_endless:
        return math.inf
    if not node.is_mixture:
        lane = run.deals.lane(node, run.lane.index)
        if isinstance(lane.dealt.source, SequentialSource):
            lane.dealt = replace(lane.dealt, source=lane.dealt.source.counted)
        state = run.entries.node_state(node.path)
        position = lane.start if state is None else state.cursor.position
        of_windows = lane.counts(lane.window_start(position) if run.from_window else position)
        assert of_windows is not None, "countable"
        return sum(of_windows)
    counts = [count_samples(run, child) for child in node.children]
    if node.dataset.stop == "all_exhausted":
        return sum(counts)
    # As many as are drawn until a draw finds a source at its end.
    clocks = Clocks(run, node, ())
    # A source of which the lane never had a share is left out, and ends nothing.
    there = [i for i, child in enumerate(node.children) if run.deals.has_share(child, run.lane.index)]
    begins, pace = clocks.begin(), clocks.pace(0.0)
    ends = [(pace.advance(i, begins[i], math.inf, counts[i]).clock, i) for i in there if counts[i] < math.inf]
    if not ends:
        return 0
    end, last = min(ends)
    # Ties go to the source that comes first.
    limits = {i: math.nextafter(end, math.inf) if i < last else end for i in there}
    return sum(pace.advance(i, begins[i], limits[i], counts[i]).draws for i in there)
