"""The examples that log what a run reads, where the libraries are there."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(monkeypatch):
    """Runs an example for a few batches, beside the recipes."""
    monkeypatch.chdir(EXAMPLES.parent)

    def run(name, *arguments):
        main = runpy.run_path(str(EXAMPLES / name))["main"]
        monkeypatch.setitem(main.__globals__, "NUM_BATCHES", 4)
        monkeypatch.setitem(main.__globals__, "LOG_EVERY", 2)
        main(*map(str, arguments))

    return run


def test_tensorboard_gets_a_curve_of_each_number(run_example, demo_data, tmp_path):
    """With the values that the states have."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run_example("log_to_tensorboard.py", demo_data, tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(one.step, one.value) for one in events.Scalars("data/samples")] == [(2, 32), (4, 64)]
    assert {"data/epochs/docs", "data/tokens/docs", "data/reading_s/tiles", "data/waiting_s"} <= set(
        events.Tags()["scalars"]
    )


def test_wandb_gets_them_offline(run_example, demo_data, tmp_path, monkeypatch):
    """Nothing is sent."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run_example("log_to_wandb.py", demo_data)
    assert list(tmp_path.rglob("*.wandb"))
