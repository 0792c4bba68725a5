"""Every recipe in configs/ checks, builds, runs and resumes exactly, on the data of the demo."""

from pathlib import Path

import pytest

from streamdata import MergedDataset, instantiate_from_yaml
from streamdata.recipe.check import check_recipe
from tests.streams import assert_exact_resume

ROOT = Path(__file__).parents[2]
VARIABLES = {
    "demo": {"seq_len": 64, "img_size": 16},
    "gpt": {"seq_len": 512},
    "image_text": {"img_size": 16, "seed": 3},
    "nested": {"seq_len": 64},
    "joined": {"min_chars": 900},
    "tokens": {"seq_len": 64},
    "prompts": {"seq_len": 64, "copies": 3},
}


def build(name, data):
    """The recipe's mixture."""
    built = instantiate_from_yaml(ROOT / "configs" / f"{name}.yaml", variables={"data": str(data), **VARIABLES[name]})
    return built["dataset"] if isinstance(built, dict) else built


def test_all_recipes_are_tested():
    """A new recipe needs its variables here."""
    assert {path.stem for path in (ROOT / "configs").glob("*.yaml")} == set(VARIABLES)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_recipe_checks(name):
    """Without an import, before anything is built."""
    problems = check_recipe(ROOT / "configs" / f"{name}.yaml", variables={"data": "x", **VARIABLES[name]})
    assert [problem for problem in problems if problem.kind != "not checked"] == []


@pytest.mark.parametrize("name", VARIABLES)
def test_a_recipe_resumes_exactly(name, demo_data):
    """From every one of its first steps."""
    assert isinstance(build(name, demo_data), MergedDataset)
    assert_exact_resume(lambda: build(name, demo_data), steps=6, beyond=6, num_workers=2, batch_size=2)


def test_the_demo_recipe_delivers_without_transformers(demo_data, python):
    """Its workers would import it one by one, for seconds before the first batch."""
    code = f"""
import sys
from streamdata import instantiate_from_yaml
samples = iter(instantiate_from_yaml({str(ROOT / "configs" / "demo.yaml")!r}, variables={{"data": {str(demo_data)!r}}}))
print(len({{next(samples)["__datasetname__"] for _ in range(32)}}), "transformers" in sys.modules)
"""
    assert python("-c", code).stdout.split() == ["4", "False"]
