"""What `examples/moving_over` says of Megatron-LM, runs."""

import runpy
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streamdata import instantiate_from_yaml
from streamdata.recipe.check import check_recipe
from tests.stores.tiny_stores import write_old_megatron
from tests.streams import in_lane

MOVING_OVER = Path(__file__).parents[3] / "examples" / "moving_over"


@pytest.fixture
def pairs(tmp_path):
    """Documents that end with 0, in two pairs."""
    rng = np.random.default_rng(0)
    for name, documents in (("wiki", 200), ("code", 300)):
        sequences = [[*rng.integers(1, 100, rng.integers(20, 300)).tolist(), 0] for _ in range(documents)]
        write_old_megatron(tmp_path / name, sequences, 8, "uint16", list(range(documents + 1)))
    return tmp_path


def test_the_recipe_gives_samples(pairs):
    """In the shares of the command line, with the marks that it asks for."""
    variables = {"data": str(pairs)}
    assert check_recipe(MOVING_OVER / "megatron.yaml", variables=variables) == []
    dataset = instantiate_from_yaml(MOVING_OVER / "megatron.yaml", variables=variables)
    samples = list(islice(in_lane(dataset, 0, 1), 300))
    assert Counter(sample["dataset_idx"] for sample in samples)[0] == pytest.approx(90, abs=15)
    assert all({"input_ids", "target_ids", "loss_mask", "position_ids"} <= sample.keys() for sample in samples)


def test_the_script_runs(pairs, monkeypatch, capsys):
    """And prints what it found."""
    monkeypatch.setattr("sys.argv", ["megatron.py", str(pairs)])
    runpy.run_path(str(MOVING_OVER / "megatron.py"))
    first, second = capsys.readouterr().out.splitlines()
    assert "samples; the first begins at" in first
    assert second.startswith("1000 samples; the first has the fields cu_seqlens, dataset_idx, input_ids, loss_mask")
