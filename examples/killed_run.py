"""Kills a training at random, goes on with other workers and ranks, and compares it with one that nobody disturbed.

`python examples/killed_run.py demo_data run docs/killed_run.svg`, some minutes on two cores. Together the parts have
trained on exactly the samples of the whole run; where ranks and workers were the same, losses are equal to the bit.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

TRAIN = Path(__file__).with_name("train_gpt.py")
FIRST = (1, 2)
PARTS = [FIRST, FIRST, (1, 3), (2, 1), (1, 1)]  # ranks and workers; all but the last are killed
COLOURS = ["#c2410c", "#15803d", "#7c3aed", "#b45309", "#0e7490"]


class Part(NamedTuple):
    """What one start of a run has trained on that counts: up to where the next one began."""

    ranks: int
    workers: int
    losses: dict[int, float]
    samples: Counter[tuple[str, int]]


def start(data: str, run: Path, ranks: int, workers: int, script: Path = TRAIN) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of a training. Not by torchrun, whose ranks would live on where it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, str(script), data, str(run), f"--workers={workers}"]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(command, env=os.environ | group | {"RANK": str(rank)})  # noqa: S603  our own script
        for rank in range(ranks)
    ]


def wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all ranks have ended well.

    Raises:
        AssertionError: One has not.
    """
    codes = [process.wait() for process in processes]
    assert not any(codes), "a training failed"


def kill_after(processes: Sequence[subprocess.Popen[bytes]], run: Path, steps: int) -> None:
    """Kill all ranks of a training once it has come so many steps further, wherever they are then.

    Raises:
        AssertionError: It ended before.
    """
    before = _last_step(run)
    while _last_step(run) < before + steps:
        assert all(process.poll() is None for process in processes), "the training ended before it was killed"
        time.sleep(0.02)
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def _last_step(run: Path) -> int:
    lines = [path.read_text().rsplit("\n", 2)[-2:-1] for path in _logs(run)[-1:]]
    return json.loads(lines[0][0])["step"] if lines and lines[0] and lines[0][0] else 0


def _logs(run: Path) -> list[Path]:
    return sorted(run.glob("*-0.jsonl"))


def parts_of(run: Path) -> list[Part]:
    """What each start has trained on, cut back to where the next one went on."""
    starts = [(int(step), lanes) for step, lanes, _ in (path.stem.split("-") for path in _logs(run))]
    found = []
    for (begin, lanes), following in pairwise([*starts, None]):
        losses: dict[int, float] = {}
        samples: Counter[tuple[str, int]] = Counter()
        for path in sorted(run.glob(f"{begin:06}-{lanes}-*.jsonl")):
            lines = {line["step"]: line for line in map(json.loads, path.read_text().splitlines())}
            for step, line in lines.items():
                if following is None or step <= following[0]:
                    losses[step] = line["loss"]
                    samples.update((name, index) for name, index in line["samples"])
        ranks, workers = map(int, lanes.split("x"))
        found.append(Part(ranks, workers, losses, samples))
    return found


def compare(whole: Sequence[Part], parts: Sequence[Part]) -> str:
    """Say in words how the parts compare with the whole run.

    Raises:
        AssertionError: They have not trained on the same samples, or losses differ where nothing had changed.
    """
    (one,) = whole
    together = sum((part.samples for part in parts), Counter())
    assert together == one.samples, "the parts have not trained on the samples of the whole run"
    unchanged = takewhile(lambda part: (part.ranks, part.workers) == FIRST, parts)
    same = [step for part in unchanged for step in part.losses]
    losses = {step: loss for part in parts for step, loss in part.losses.items()}
    assert all(losses[step] == one.losses[step] for step in same), "a loss differs, where nothing had changed"
    last, final = max(one.losses), max(losses)
    return (
        f"{one.samples.total():,} samples, the same as a multiset; "
        f"{len(same)} losses of {len(losses)} equal to the bit, "
        f"before the first change; the last ones are {one.losses[last]:.3f} and {losses[final]:.3f}"
    )


def draw(whole: Sequence[Part], parts: Sequence[Part]) -> str:
    """The SVG: the losses of both."""
    losses = [loss for part in (*whole, *parts) for loss in part.losses.values()]
    end, low, high = max(max(part.losses) for part in (*whole, *parts)), min(losses), max(losses)
    width, height, left, top = 700, 220, 46, 44

    def point(step: float, loss: float) -> str:
        return f"{left + width * step / end:.1f},{top + height * (high - loss) / (high - low):.1f}"

    def line(part: Part, style: str) -> str:
        points = " ".join(point(step, loss) for step, loss in sorted(part.losses.items()))
        return f'<polyline points="{points}" fill="none" {style}/>'

    def text(place: str, words: str, style: str) -> str:
        x, y = place.split(",")
        return f'<text x="{x}" y="{y}" {style}>{words}</text>'

    font = 'font-family="sans-serif" font-size="15" fill="#333"'
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {top + height + 40}" {font}>',
        '<rect width="100%" height="100%" fill="#fff"/>',
        *(line(part, 'stroke="#999" stroke-width="5" stroke-opacity="0.4"') for part in whole),
    ]
    marks = (high, (high + low) / 2, low)
    shapes += [text(point(0, loss), f"{loss:.1f}", 'text-anchor="end" dx="-6" dy="4"') for loss in marks]
    for part, colour in zip(parts, COLOURS, strict=False):
        begin, last = min(part.losses), max(part.losses)
        shapes.append(line(part, f'stroke="{colour}" stroke-width="1.4"'))
        words = f"{part.ranks} \N{MULTIPLICATION SIGN} {part.workers}"
        shapes.append(text(point((begin + last) / 2, high), words, f'text-anchor="middle" dy="-22" fill="{colour}"'))
        if part is not parts[-1]:
            shapes.append(text(point(last, high), "✕", 'text-anchor="middle" dy="-6"'))
        shapes.append(text(point(last, low), f"{last}", 'text-anchor="middle" dy="18"'))
    shapes.append(text(point(end / 2, low), "step", 'text-anchor="middle" dy="34"'))
    return "\n".join([*shapes, "</svg>\n"])


def main(data: str, run: str, picture: str, seed: int = 0) -> None:
    """Train both, compare them, and draw their losses."""
    rng, folder = random.Random(seed), Path(run)
    wait(start(data, folder / "whole", *FIRST))
    (whole,) = parts_of(folder / "whole")
    share = max(whole.losses) // len(PARTS)
    for ranks, workers in PARTS[:-1]:
        kill_after(start(data, folder / "killed", ranks, workers), folder / "killed", rng.randint(share // 2, share))
    wait(start(data, folder / "killed", *PARTS[-1]))
    parts = parts_of(folder / "killed")
    print(compare([whole], parts))
    Path(picture).write_text(draw([whole], parts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
