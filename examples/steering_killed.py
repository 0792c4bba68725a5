"""Kills a steered training twice, goes on with other ranks, and draws what was asked for, drawn and learnt.

`python examples/steering_killed.py demo_data run docs/steering.svg`, some minutes on two cores. `examples/steering.py`
sets the weights; each start goes on with those of the last step that all ranks have saved.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from killed_run import kill_after, start, wait

STEER = Path(__file__).with_name("steering.py")
PARTS = [(2, 1), (1, 2), (3, 1)]  # ranks and workers; all but the last are killed
KILL_AFTER = 80  # steps of a part: where the last ones of it are being saved
COLOURS = {"code": "#0b6fb8", "docs": "#c2410c", "noise": "#15803d"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 720, 170, 50, 34, 50


class Line(NamedTuple):
    """Some steps under the same weights: the last of them, shares asked for and drawn, and losses, by source."""

    step: int
    wanted: dict[str, float]
    drawn: dict[str, float]
    losses: dict[str, float]


Part = tuple[str, list[Line]]
"""Ranks and workers of a start, and what it did that counts: up to where the next one began."""


def parts_of(run: Path) -> list[Part]:
    """All starts of a run."""
    logs = sorted(run.glob("*-0.jsonl"))
    begins = [int(path.name.split("-")[0]) for path in logs]
    parts = []
    for path, following in zip(logs, [*begins[1:], sys.maxsize], strict=True):
        lines = [Line(**json.loads(line)) for line in path.read_text().splitlines()]
        lanes = path.name.split("-")[1].replace("x", " \N{MULTIPLICATION SIGN} ")
        parts.append((lanes, [line for line in lines if line.step <= following]))
    return parts


def draw(parts: Sequence[Part]) -> str:
    """The SVG: shares above, losses below."""
    lines = [line for _, part in parts for line in part]
    end, every = lines[-1].step, lines[0].step
    losses = [loss for line in lines for loss in line.losses.values()]
    low, high = min(losses), max(losses)

    def at(panel: int, step: float, value: float) -> str:
        y = TOP + panel * (HEIGHT + GAP) + HEIGHT * (1 - value)
        return f"{LEFT + WIDTH * step / end:.1f},{y:.1f}"

    def scaled(loss: float) -> float:
        return (loss - low) / (high - low)

    view = f'viewBox="0 0 {LEFT + WIDTH + 66} {TOP + 2 * HEIGHT + GAP + 44}"'
    shapes = [f'<svg xmlns="http://www.w3.org/2000/svg" {view} font-family="sans-serif" font-size="15" fill="#333">']
    shapes.append('<rect width="100%" height="100%" fill="#fff"/>')
    for panel, marks in enumerate(([(0, "0 %"), (0.5, "50 %"), (1, "100 %")], [(0, f"{low:.1f}"), (1, f"{high:.1f}")])):
        for value, words in marks:
            shapes.append(_polyline([at(panel, 0, value), at(panel, end, value)], 'stroke="#ddd"'))
            shapes.append(_text(at(panel, 0, value), words, 'text-anchor="end" dx="-6" dy="5"'))
    for name, colour in COLOURS.items():
        for shares, style in (("drawn", 'stroke-width="5" stroke-opacity="0.35"'), ("wanted", 'stroke-width="1.4"')):
            edges = [(line.step - back, getattr(line, shares)[name]) for line in lines for back in (every, 0)]
            shapes.append(_polyline([at(0, *edge) for edge in edges], f'stroke="{colour}" {style}'))
        points = [at(1, line.step - every / 2, scaled(line.losses[name])) for line in lines]
        shapes.append(_polyline(points, f'stroke="{colour}" stroke-width="1.8"'))
        style = f'dx="6" dy="5" fill="{colour}" font-weight="bold"'
        shapes.append(_text(at(1, end, scaled(lines[-1].losses[name])), name, style))
    shapes += _stretches(parts, at)
    for panel, words in enumerate(("shares: wide what was drawn, thin what was asked for", "loss, by step")):
        shapes.append(_text(at(panel, end / 2, 0), words, 'text-anchor="middle" dy="34"'))
    return "\n".join([*shapes, "</svg>\n"])


def _stretches(parts: Sequence[Part], at: Callable[..., str]) -> Iterator[str]:
    """Who trained when, and where they were killed."""
    begin = 0
    for number, (lanes, lines) in enumerate(parts):
        last = lines[-1].step
        words = lanes if number else f"{lanes} (ranks \N{MULTIPLICATION SIGN} workers)"
        yield _text(at(0, (begin + last) / 2, 1), words, 'text-anchor="middle" dy="-12"')
        for panel in (0, 1):
            yield _text(at(panel, last, 0), str(last), 'text-anchor="middle" dy="18"')
            if number + 1 < len(parts):
                yield _polyline([at(panel, last, 0), at(panel, last, 1)], 'stroke="#888" stroke-dasharray="3 3"')
        if number + 1 < len(parts):
            yield _text(at(0, last, 1), "✕", 'text-anchor="middle" dy="-10"')
        begin = last


def _polyline(points: Sequence[str], style: str) -> str:
    return f'<polyline points="{" ".join(points)}" fill="none" {style}/>'


def _text(place: str, words: Any, style: str) -> str:
    x, y = place.split(",")
    return f'<text x="{x}" y="{y}" {style}>{words}</text>'


def main(data: str, run: str, picture: str) -> None:
    """Train, kill, go on, and draw it."""
    for ranks, workers in PARTS[:-1]:
        kill_after(start(data, Path(run), ranks, workers, STEER), Path(run), KILL_AFTER)
    wait(start(data, Path(run), *PARTS[-1], STEER))
    parts = parts_of(Path(run))
    lines = [line for _, part in parts for line in part]
    furthest = max(abs(line.drawn[name] - share) for line in lines for name, share in line.wanted.items())
    print(f"{lines[-1].step} steps; a share that was drawn is at most {furthest:.2%} from the one asked for")
    Path(picture).write_text(draw(parts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
