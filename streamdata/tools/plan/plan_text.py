"""A plan as text, and as plain JSON."""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from streamdata.errors import one_line
from streamdata.mixing.lengths import count_text
from streamdata.tools.plan.demand import NUM_MOMENTS, bars
from streamdata.tools.plan.draws import Draw
from streamdata.tools.plan.make_plan import RunPlan, SourcePlan, listed
from streamdata.tools.view.tree import counted, percent_text, table

Paint = Callable[[str, str], str]
"""Colours a text by how much there is to do."""

_MAX_LANES: Final = 8
_MAX_BLOCK_SOURCES: Final = 8


def plan_text(plan: RunPlan, paint: Paint) -> str:
    """The plan for a person to read.

    Args:
        plan: The plan.
        paint: Colours a line.
    """
    notes = "\n".join(f"note: {one_line(note)}" for note in plan.notes)
    parts = [_headline(plan), _sources(plan, paint), _advice(plan, paint), notes, _schedules(plan), _needs(plan)]
    parts += [_draws(plan), _lanes(plan)]
    return "\n\n".join(part for part in parts if part)


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """The plan as plain JSON, without numbers that JSON has not."""
    amount = plan.amount
    return {
        "samples": plan.samples,
        "tokens": plan.tokens,
        "ends_after": plan.ends_after,
        "dp": amount.dp_size,
        "workers": amount.num_workers,
        "batch": amount.batch_size,
        "lanes": amount.lane.count,
        "sources": [asdict(source) for source in plan.sources],
        "draws": [{name: value for name, value in asdict(draw).items() if value is not None} for draw in plan.draws],
        "blocks": [lane._asdict() for lane in plan.lanes],
        "schedules": [line._asdict() for line in plan.schedules],
        "per_worker": plan.needs._asdict(),
        "notes": plan.notes,
    }


def _headline(plan: RunPlan) -> str:
    amount = plan.amount
    tokens = "" if not plan.tokens else f", {_rounded(plan.tokens)} tokens"
    who = f"{counted(amount.dp_size, 'rank')} with {counted(amount.num_workers, 'worker')}"
    lanes = counted(amount.lane.count, "lane")
    text = f"{plan.samples:,.0f} samples{tokens}, on {who}: {lanes}, batches of {amount.batch_size:,}"
    if plan.ends_after is not None:
        text += f"\nthe stream ends before, after {_rounded(plan.ends_after)} samples"
    return text


def _sources(plan: RunPlan, paint: Paint) -> str:
    header = ["source", "records", "tokens", "share", "samples", "epochs", "first repeat", "bytes", ""]
    rows = [header, *(_row(source) for source in plan.sources)]
    first, *lines = table(rows).split("\n")
    return "\n".join([first, *(paint(line, each.level) for line, each in zip(lines, plan.sources, strict=True))])


def _row(source: SourcePlan) -> list[str]:
    about = "≈ " if source.records_are_estimated else ""
    return [
        source.name,
        "not counted" if source.records is None else f"{about}{source.records:,}",
        _tokens(source),
        percent_text(source.share),
        _rounded(source.samples),
        "?" if source.epochs is None else f"{source.epochs:.3g}",
        _repeat(source),
        "?" if source.bytes is None else _bytes(source.bytes),
        "",
    ]


def _tokens(source: SourcePlan) -> str:
    number, per = source.tokens, ""
    if number is None:
        number, per = source.tokens_per_record, " each"
    if number is None:
        return ""
    if not source.tokens_are_estimated and source.tokens is not None:
        return _rounded(number)
    if source.tokens_interval is None:
        return f"≈ {_rounded(number)}{per}"
    low, high = source.tokens_interval
    half = 100 * (high - low) / 2 / number if number else 0.0
    return f"≈ {_rounded(number)} ± {half:.2g} %{per}"


def _repeat(source: SourcePlan) -> str:
    if source.first_repeat is None:
        return "?" if source.epochs is None else ""
    if source.first_repeat_is == "within" and source.first_repeat_last is not None:
        return f"{source.first_repeat:,} to {source.first_repeat_last:,}"
    return f"{'≈ ' if source.first_repeat_is == 'estimated' else ''}{source.first_repeat:,}"


def _advice(plan: RunPlan, paint: Paint) -> str:
    lines = [
        paint(f"{one_line(source.name)}{':' if source.advice[0].isdigit() else ''} {source.advice}", source.level)
        for source in plan.sources
        if source.advice
    ]
    return "\n".join(lines)


def _schedules(plan: RunPlan) -> str:
    if not plan.schedules:
        return ""
    highest = max(share for line in plan.schedules for share in line.shares)
    rows = [[f"shares over {plan.samples:,.0f} samples", "first", "last", "least", "most", ""]]
    for line in plan.schedules:
        shown = [percent_text(share) for share in (line.shares[0], line.shares[-1], min(line.shares), max(line.shares))]
        rows.append([line.name, *shown, bars(line.shares, highest)])
    return f"{table(rows)}\n{NUM_MOMENTS} moments, bars up to {percent_text(highest)}"


def _needs(plan: RunPlan) -> str:
    needs = plan.needs
    unknown = f"; not known of {one_line(listed(needs.unknown))}" if needs.unknown else ""
    return (
        f"a worker holds at most {_bytes(needs.held_bytes)} of shards{unknown}, beside functions and the process "
        f"itself (here {_bytes(needs.process_bytes)}, mostly shared after a fork), and {needs.descriptors:,} open files"
    )


def _draws(plan: RunPlan) -> str:
    if not plan.draws:
        return ""
    header = ["draw", "source", "clock", "next", "epoch", "window", "block", "record"]
    rows = [header, *map(_cells, plan.draws)]
    return "the first draws of rank 0, worker 0\n" + table(rows)


def _cells(draw: Draw) -> list[str]:
    clocks, block = [f"{draw.clock:.3f}", f"{draw.next_clock:.3f}"], "" if draw.block is None else f"{draw.block}"
    record = "" if draw.record is None else f", record {draw.record}"
    place = f"{one_line(draw.url)}{record}" if draw.url else "" if draw.index is None else f"index {draw.index}"
    return [f"{draw.number}", draw.source, *clocks, f"{draw.epoch}", f"{draw.window}", block, place]


def _lanes(plan: RunPlan) -> str:
    if not plan.lanes:
        return ""
    shown, names = plan.lanes[:_MAX_LANES], list(plan.lanes[0].blocks)[:_MAX_BLOCK_SOURCES]
    rows = [["rank, worker", *map(one_line, names), ""]]
    for lane in shown:
        blocks = [" ".join(map(str, lane.blocks[name])) + " …" for name in names]
        rows.append([f"{lane.rank}, {lane.worker}", *blocks, ""])
    left = plan.amount.lane.count - len(shown)
    return "the first blocks of each lane\n" + table(rows) + (f"\nand {left:,} lanes more" if left else "")


def _rounded(number: float) -> str:
    if math.isinf(number):
        return "without end"
    return f"{number:,.0f}" if number < 1e6 else count_text(number)  # noqa: PLR2004


def _bytes(number: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"
