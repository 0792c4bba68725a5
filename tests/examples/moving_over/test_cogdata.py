"""Recipes of CogData's, with their targets renamed."""

from itertools import islice
from pathlib import Path

import pytest

from streamdata import JsonlIterableDataset, instantiate_from_yaml, to_state
from streamdata.recipe.check import check_recipe
from tests.streams import plain

RECIPE = Path("examples/moving_over/cogdata.yaml")


def variables(data):
    """What its tests pass."""
    return {"data": str(data), "img_size": 16, "max_text_len": 64, "tokenizer_name": f"{data}/tokenizer"}


def test_a_recipe_checks():
    """Its lengths are known attributes."""
    assert [problem for problem in check_recipe(RECIPE, variables("x")) if problem.kind != "not checked"] == []


def test_a_recipe_builds_and_resumes(demo_data):
    """As CogData's tests do it."""
    dataset = instantiate_from_yaml(RECIPE, variables(demo_data))
    iterator, states = iter(dataset), {}
    for sample in islice(iterator, 12):
        states.update(to_state(sample))
    assert {"tokens", "img", "image"} <= {name for sample in islice(iterator, 8) for name in sample}
    again = instantiate_from_yaml(RECIPE, variables(demo_data))
    first = next(again.__iter_from__(states))
    whole = islice(iter(instantiate_from_yaml(RECIPE, variables(demo_data))), 12, 13)
    assert plain(first) == plain(next(whole))


def test_lengths_are_said_in_samples(demo_data, capsys):
    """400,000 tokens in rows of 64."""
    dataset = instantiate_from_yaml(RECIPE, variables(demo_data))
    rows = {row["name"]: row for row in dataset.check_length(25_000)}
    assert list(rows) == ["pairs", "text", "sft.crops"]
    assert rows["text"]["epochs"] == pytest.approx(1)
    assert rows["sft.crops"] | {"advice": ""} == {
        "name": "sft.crops", "share": 0.5, "length": 200, "multiplier": 1, "divisor": 1, "epochs": 62.5, "advice": "",
    }  # fmt: skip
    dataset.print_dataset_length_stats(25_000)
    assert "sft.crops" in capsys.readouterr().out


def test_a_source_alone_is_iterated(demo_data):
    """CogData's tests look at sources one by one, and at their files."""
    node = {"target": "streamdata.JsonlIterableDataset", "params": {"path": f"{demo_data}/docs"}, "name": "docs"}
    source = instantiate_from_yaml(node)
    assert isinstance(source, JsonlIterableDataset)
    source.set_data_parallel(8, 5)
    assert next(iter(source))["__dprank__"] == 5
    assert source.urls == sorted(map(str, Path(demo_data, "docs").glob("*.jsonl")))
