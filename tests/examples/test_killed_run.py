import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from examples import killed_run
from streamdata import StoreWriter
from tests.launched import script
from tests.ranks import apart
from tests.stores.tiny_stores import KEYS

PICTURE = Path(__file__).parents[2] / "docs" / "killed_run.svg"


def write_log(run: Path, name: str, steps: dict[int, list[int]]) -> None:
    """What a rank has trained on, one sample a step and loss."""
    run.mkdir(exist_ok=True)
    lines = [{"step": step, "loss": 1 / step, "samples": [["a", n] for n in found]} for step, found in steps.items()]
    (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_was_not_saved_does_not_count(tmp_path: Path) -> None:
    """A part ends where the next one went on; samples of all its ranks count."""
    write_log(tmp_path, "000000-1x2-0.jsonl", {1: [0], 2: [1], 3: [8]})
    write_log(tmp_path, "000002-2x1-0.jsonl", {3: [2]})
    write_log(tmp_path, "000002-2x1-1.jsonl", {3: [3]})
    first, second = killed_run.parts_of(tmp_path)
    assert (first.ranks, first.workers, list(first.losses)) == (1, 2, [1, 2])
    assert second.samples == Counter([("a", 2), ("a", 3)])


def test_a_difference_is_found(tmp_path: Path) -> None:
    """Another sample, or another loss before anything has changed."""
    write_log(tmp_path, "000000-1x2-0.jsonl", {1: [0], 2: [1]})
    (whole,) = killed_run.parts_of(tmp_path)
    assert "2 samples, the same as a multiset; 2 losses of 2 equal to the bit" in killed_run.compare([whole], [whole])
    with pytest.raises(AssertionError, match="the samples of the whole run"):
        killed_run.compare([whole], [whole._replace(samples=Counter([("a", 0)]))])
    with pytest.raises(AssertionError, match="a loss differs"):
        killed_run.compare([whole], [whole._replace(losses={1: 1.0, 2: 0.25})])
    assert killed_run.draw([whole], [whole]).count("polyline") == 2


class Fork:
    """A command of Python as a fork of a process that has imported torch, which waits until it has ended well."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        apart(as_script, command[1:], env)

    def wait(self) -> int:
        return 0


def as_script(command: list[str], env: dict[str, str]) -> None:
    os.environ.update(env)
    script(*command)


def test_the_training_reads_each_window_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank with a worker, to the end of the pass."""
    for name in ("code", "docs"):
        with StoreWriter("bin", tmp_path / "tokens" / name, KEYS["seq"]) as writer:
            writer.append({key: np.arange(128 * 30 + 1) % 4096 for key in KEYS["seq"]})
    monkeypatch.setattr(killed_run.subprocess, "Popen", Fork)
    killed_run.wait(killed_run.start(str(tmp_path), tmp_path / "run", 1, 1))
    (part,) = killed_run.parts_of(tmp_path / "run")
    assert set(part.samples.values()) == {1}
    assert part.samples.total() == 60
    assert list(part.losses) == [1, 2, 3]


def test_the_picture_shows_all_parts() -> None:
    """As the last run that was kept drew it."""
    words = re.findall(r">(\d) . (\d)</text>", PICTURE.read_text())
    assert [(int(ranks), int(workers)) for ranks, workers in words] == killed_run.PARTS
