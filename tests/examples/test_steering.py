"""Weights that follow from losses: kept over a kill, and drawn."""

import importlib
import json
import os
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from streamdata import StoreWriter
from tests.launched import script
from tests.ranks import apart
from tests.stores.tiny_stores import KEYS

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "steering.svg"


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that kills and draws."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("steering_killed")


def train(data: Path, run: Path, *options: str) -> None:
    """As one rank, in a fork."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "1", "RANK": "0"}
    apart(as_script, [str(ROOT / "examples" / "steering.py"), str(data), str(run), "--every=2", *options], group)


def as_script(command: list[str], env: dict[str, str]) -> None:
    os.environ.update(env)
    script(*command)


def test_weights_follow_losses_and_are_kept(tmp_path: Path, killed: ModuleType) -> None:
    """What is drawn is what the last setting asked for, in the same iteration and after a resume with other workers."""
    for name in ("code", "docs"):
        with StoreWriter("bin", tmp_path / "tokens" / name, KEYS["seq"]) as writer:
            writer.append({"sequence": np.arange(128 * 90) % 7})
    train(tmp_path, tmp_path / "run", "--steps=6", "--workers=0")
    train(tmp_path, tmp_path / "run", "--steps=8", "--workers=1")
    (_, before), (lanes, after) = killed.parts_of(tmp_path / "run")
    assert lanes == "1 \N{MULTIPLICATION SIGN} 1"
    assert [line.step for line in [*before, *after]] == [2, 4, 6, 8]
    assert before[2].losses["code"] < before[0].losses["code"]
    assert before[2].wanted["noise"] < 0.1
    for line in (*before, *after):
        assert sum(line.wanted.values()) == pytest.approx(1, abs=1e-3)
        assert line.drawn == pytest.approx(line.wanted, abs=2.5 / 48)  # of 48 windows
    assert killed.draw(killed.parts_of(tmp_path / "run")).count("✕") == 1


def test_a_part_ends_where_the_next_one_went_on(tmp_path: Path, killed: ModuleType) -> None:
    """What was done after the last step that was saved was done again."""
    shares = {"wanted": {"code": 1.0}, "drawn": {"code": 1.0}, "losses": {"code": 2.0}}
    for name, steps in (("000000-2x1-0", [20, 40, 60]), ("000040-1x2-0", [60, 80])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"step": n, **shares}) + "\n" for n in steps))
    parts = killed.parts_of(tmp_path)
    assert [[line.step for line in lines] for _, lines in parts] == [[20, 40], [60, 80]]


def test_the_picture_shows_all_parts(killed: ModuleType) -> None:
    """As the last run that was kept drew it."""
    words = re.findall(r">(\d) . (\d)( \(.*\))?</text>", PICTURE.read_text())
    assert [(int(ranks), int(workers)) for ranks, workers, _ in words] == killed.PARTS
