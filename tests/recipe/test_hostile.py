import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata.recipe.targets import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, python: Callable) -> dict:
    """What a process saw that built every target with hostile parameters."""
    folder = tmp_path_factory.mktemp("hostile")
    cache = str(folder / "cache")
    own = {"STREAMDATA_CACHE": cache, "HOME": cache, "HF_HOME": cache, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMDATA_", "HF_"))} | own
    done = python("-m", "tests.recipe.hostile_builds", folder, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_no_hostile_parameter_runs_or_writes_anything(outcome: dict) -> None:
    """No process, no code out of files, no library; nothing is written but in the cache and as indexes."""
    assert outcome["seen"] == []
    assert outcome["outside"] == []


def test_the_same_targets_build_with_sound_parameters(outcome: dict) -> None:
    """So that the hostile ones were refused for what they are."""
    functions = {
        "collate_fn",
        "prompt_collate",
        "dpo_collate",
        "grpo_collate",
        "mixed_collate",
        "H5Store",
        "MegatronStore",
        "MmapStore",
    }
    assert set(TARGETS) - set(outcome["sound"]) == {f"streamdata.{name}" for name in functions}
    assert set(outcome["sound"].values()) == {"built"}


def test_attacks_are_refused_and_a_check_finds_them(outcome: dict) -> None:
    """Private names, writers, another source, commands."""
    assert set(outcome["attacks"].values()) == {"RecipeError"}
    assert min(outcome["checked"].values()) > 0
