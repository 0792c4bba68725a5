"""A picture of shares over a run whose weights follow a schedule, while its ranks and its mixture change.

`python examples/shares.py docs/shares.svg`. Each rank of a job draws from its own `MergedDataset`, here one after the
other in this process; where the job changes, all ranks' states are joined, and other ranks go on from them. The wide
lines are what was drawn, the thin ones what the recipe asks for.
"""

import json
import logging
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from streamdata import MergedDataset, merge_states, named, to_state

NUM_RECORDS, BATCH_SIZE = 100_000, 4
COLOURS = {"web": "#0b6fb8", "books": "#c2410c", "code": "#15803d"}

Schedule = float | list[list[float]] | dict[str, list[list[float]]]
Count = tuple[int, dict[str, int]]
"""Samples that the whole job has drawn by then, and how many of each source since the count before."""


class Stretch(NamedTuple):
    """A part of the run under one number of ranks and one mixture."""

    ranks: int
    num_samples: int
    percents: dict[str, Schedule]


# At each time these add up to the same between two points, so that shares are linear where percents are.
WEB: Schedule = [[0, 0.7], [27_600, 0.3]]
BOOKS: Schedule = [[0, 0.3], [27_600, 0.7]]
BEFORE = {"web": WEB, "books": BOOKS, "code": {"steps": [[0, 0], [6_000, 0.25]]}}
AFTER = {**BEFORE, "code": 1.0}
RUN = [Stretch(8, 9_600, BEFORE), Stretch(12, 9_600, BEFORE), Stretch(12, 4_800, AFTER), Stretch(4, 7_200, AFTER)]


def build(percents: dict[str, Schedule]) -> MergedDataset:
    """Sources of numbers, with these weights."""
    return MergedDataset([named(range(NUM_RECORDS), name=name, percent=value) for name, value in percents.items()])


def drawn_by(rank: int, stretch: Stretch, states: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What one rank draws in a stretch, and its states after that."""
    dataset = build(stretch.percents)
    dataset.set_data_parallel(stretch.ranks, rank)
    dataset.set_dataloader_states(states)
    samples, own = list(islice(dataset, stretch.num_samples // stretch.ranks)), dict(states)
    for begin in range(0, len(samples), BATCH_SIZE):  # the batches of a trainer
        own.update(to_state(samples[begin : begin + BATCH_SIZE]))
    return samples, own


def run_through(run: Sequence[Stretch], bin_size: int) -> Iterator[Count]:
    """Draw all stretches; count the sources in bins of so many samples of the whole job.

    Raises:
        AssertionError: A record came twice.
    """
    states: dict[str, Any] = {}
    time, seen = 0, Counter[tuple[str, int]]()
    for stretch in run:
        ranks = [drawn_by(rank, stretch, states) for rank in range(stretch.ranks)]
        states = json.loads(json.dumps(dict(merge_states(*(own for _, own in ranks)))))
        # Ranks step together, so the job's samples are those of all ranks by turns.
        steps = zip(*(samples for samples, _ in ranks), strict=True)
        drawn = [(sample["__datasetname__"], sample["__index__"]) for step in steps for sample in step]
        seen.update(drawn)
        for begin in range(0, len(drawn), bin_size):
            part = drawn[begin : begin + bin_size]
            time += len(part)
            yield time, Counter(name for name, _ in part)
    assert max(seen.values()) == 1, "a record came twice"


def percent_at(percent: Schedule, time: float) -> float:
    """What a schedule says at a time."""
    if isinstance(percent, int | float):
        return float(percent)
    points = percent["steps"] if isinstance(percent, dict) else percent
    times = [begin for begin, _ in points]
    last = max(0, bisect_right(times, time) - 1)
    if isinstance(percent, dict) or time <= times[0] or last + 1 == len(points):
        return points[last][1]
    (begin, low), (end, high) = points[last], points[last + 1]
    return low + (high - low) * (time - begin) / (end - begin)


def shares_at(percents: dict[str, Schedule], time: float) -> dict[str, float]:
    """The share that each source is to have at a time."""
    values = {name: percent_at(percent, time) for name, percent in percents.items()}
    return {name: value / sum(values.values()) for name, value in values.items()}


def draw_picture(run: Sequence[Stretch], counts: Sequence[Count]) -> str:
    """The SVG."""
    end = sum(stretch.num_samples for stretch in run)
    width, height, left, top, most = 760, 210, 46, 30, 0.75

    def point(time: float, share: float) -> str:
        return f"{left + width * time / end:.1f},{top + height * (1 - share / most):.1f}"

    def line(points: Sequence[str], style: str) -> str:
        return f'<polyline points="{" ".join(points)}" fill="none" {style}/>'

    def text(place: str, words: str, style: str = "") -> str:
        x, y = place.split(",")
        return f'<text x="{x}" y="{y}" {style}>{words}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 66} {top + height + 48}" {_FONT}>',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75):
        parts.append(line([point(0, share), point(end, share)], 'stroke="#ddd"'))
        parts.append(text(point(0, share - 0.015), f"{share:.0%} ", 'text-anchor="end" dx="-6"'))
    parts += _stretches(run, point, line, text)
    for name, colour in COLOURS.items():
        bins = [(time, sum(count.values()), count[name]) for time, count in counts]
        got = [point(edge, part / size) for time, size, part in bins for edge in (time - size, time)]
        parts.append(line(got, f'stroke="{colour}" stroke-width="4" stroke-opacity="0.35" stroke-linejoin="round"'))
        wanted = [point(time, shares[name]) for time, shares in _wanted(run)]
        parts.append(line(wanted, f'stroke="{colour}"'))
        last = shares_at(run[-1].percents, end)[name]
        parts.append(text(point(end, last - 0.015), name, f'dx="6" fill="{colour}" font-weight="bold"'))
    parts.append(text(f"{left + width / 2},{top + height + 40}", "samples that the job has drawn", _MIDDLE))
    return "\n".join([*parts, "</svg>\n"])


_FONT = 'font-family="sans-serif" font-size="15" fill="#333"'
_MIDDLE = 'text-anchor="middle"'


def _stretches(
    run: Sequence[Stretch], point: Callable[..., str], line: Callable[..., str], text: Callable[..., str]
) -> Iterator[str]:
    """Where each stretch begins, and what it is."""
    time = 0
    for before, stretch in pairwise([None, *run]):
        if before is not None:
            yield line([point(time, 0), point(time, 0.77)], 'stroke="#888" stroke-dasharray="3 3"')
        yield text(point(time, -0.06), f"{time:,}", _MIDDLE)
        changed = before is not None and before.percents != stretch.percents
        words = f"{stretch.ranks} ranks" + (", code: percent 1" if changed else "")
        yield text(point(time + stretch.num_samples / 2, 0.78), words, _MIDDLE)
        time += stretch.num_samples
    yield text(point(time, -0.06), f"{time:,}", _MIDDLE)


def _wanted(run: Sequence[Stretch]) -> Iterator[tuple[float, dict[str, float]]]:
    """Points between which all shares are linear; two of them where a share jumps."""
    begin, just = 0, 1e-6
    for stretch in run:
        end = begin + stretch.num_samples
        lists = [value["steps"] if isinstance(value, dict) else value for value in stretch.percents.values()]
        points = {time for some in lists if isinstance(some, list) for time, _ in some if begin < time < end}
        for time in sorted({begin, *points, *(time - just for time in points), end - just}):
            yield time, shares_at(stretch.percents, time)
        begin = end


def main(path: str, run: Sequence[Stretch] = RUN, bin_size: int = 240) -> None:
    """Draw the run, write its picture, and say how close the whole job kept to its shares."""
    counts = list(run_through(run, bin_size))
    Path(path).write_text(draw_picture(run, counts), encoding="utf-8")
    ranks = ", ".join(str(stretch.ranks) for stretch in run)
    print(f"{counts[-1][0]:,} samples by {ranks} ranks, no record twice; the picture is {path}")


if __name__ == "__main__":
    logging.getLogger("streamdata").setLevel(logging.ERROR)  # each of the ranks says what changed
    main(*sys.argv[1:])
