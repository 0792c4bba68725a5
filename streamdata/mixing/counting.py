"""How many samples lanes still get of a finite pass, where that follows from where they stand.

Nothing is read for it but shards without an index, whose records are counted once on a node.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from streamdata.errors import shown
from streamdata.mixing.child import Run
from streamdata.mixing.clocks import Clocks
from streamdata.mixing.tree import Node
from streamdata.sources.files.sequential_source import SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource

_FUNCTIONS = ("single_process_fn", "process_fn")


def check_countable(run: Run, top: Node) -> None:
    """Refuse a tree of which some source may not give one sample for each record, in a number that is known.

    Raises:
        ValueError: It is one; the message names the source, and says what can be done.
    """
    why = _why_endless(top) if top.is_endless else next(_reasons(run, top), None)
    if why is not None:
        raise ValueError(
            f"{why}\n  Give steps_per_epoch, which cuts the stream into stretches of as many batches on each rank."
        )


def _why_endless(node: Node) -> str:
    """Names a source that goes on without end, and lets its mixture do so."""
    while node.is_mixture and (endless := [child for child in node.children if child.is_endless]):
        node = endless[0]
    who = f"source {shown(node.path)}" if node.path else "the top mixture"
    return f"{who}: how many samples are left is not known: it goes on without end"


def _reasons(run: Run, node: Node) -> Iterator[str]:
    """Why it is not known how many samples nodes give: of one that is endless it does not matter."""
    if node.is_endless:
        return
    reason = _of_mixture(node) if node.is_mixture else _of_records(run, node)
    if reason is not None:
        yield f"source {shown(node.path or 'the top')}: how many samples are left is not known: {reason}"
    for child in node.children:
        yield from _reasons(run, child)


def _of_mixture(node: Node) -> str | None:
    if node.dataset.customized_yield_fn is not None:
        return "its customized_yield_fn joins samples"
    varies = "the costs of samples" if node.dataset.cost is not None else "schedules" if node.shares else None
    if node.dataset.stop == "first_exhausted" and varies is not None:
        return f"with stop='first_exhausted' that depends on {varies}"
    return None


def _of_records(run: Run, node: Node) -> str | None:
    dataset = node.dataset
    assert node.source is not None, "a source of records has blocks"
    if functions := [name for name in _FUNCTIONS if getattr(dataset, name, None) is not None]:
        return f"its {functions[0]} may give none or several of a record"
    if getattr(dataset, "max_bad", 0):
        return f"up to max_bad={dataset.max_bad} records may fail"
    if run.skips.of(node.path) is not None:
        return "`skip` leaves records of it out"
    if isinstance(node.source, OwnStreamSource):
        return "it is an iterable, which does not say how many records it has"
    if isinstance(node.source, SequentialSource) and (pipe := node.source.shards.pipe):
        return (
            f"its shard {shown(pipe)} is what a command gives, others perhaps each time: write it to a file, whose "
            "records `streamdata index` counts, or the run does"
        )
    return None


def count_samples(run: Run, node: Node) -> float:
    """How many samples the lane still gets of a countable node; infinitely many of an endless one."""
    if node.is_endless:
        return math.inf
    if not node.is_mixture:
        return _count_records(run, node)
    counts = [count_samples(run, child) for child in node.children]
    return sum(counts) if node.dataset.stop == "all_exhausted" else _until_first_ends(run, node, counts)


def _count_records(run: Run, node: Node) -> int:
    lane = run.deals.lane(node, run.lane.index)
    if isinstance(lane.dealt.source, SequentialSource):
        lane.dealt = replace(lane.dealt, source=lane.dealt.source.counted)
    standing = run.entries.standing(node.path)
    position = lane.start if standing is None or standing.cursor is None else standing.cursor.position
    counts = lane.counts(lane.window_start(position) if run.from_window else position)
    assert counts is not None, "countable"
    return sum(counts)


def _until_first_ends(run: Run, node: Node, counts: list[float]) -> int:
    """How many draws a mixture makes until one finds a source at its end."""
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
