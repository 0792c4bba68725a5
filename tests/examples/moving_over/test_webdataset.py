"""webdataset's stages and pipelines."""

from itertools import islice

import pytest
import webdataset

from examples.moving_over.webdataset_pipeline import pipeline_of, records_of
from streamdata import MergedDataset, RecipeError, instantiate_from_yaml
from streamdata.recipe import check_recipe
from tests.streams import assert_exact_resume

# What webdataset opens is closed when it has read it to its end, which no test does.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RECIPE = "examples/moving_over/webdataset.yaml"


def recipe(stage, **params):
    """A stage as a process function of two records."""
    target = {"target": "tests.examples.moving_over.test_webdataset.Two", "params": {}, "name": "two", "percent": 1}
    stage = {"target": f"webdataset.{stage}", "params": params}
    return {"target": "streamdata.MergedDataset", "params": {"datasets": [{**target, "process_fn": stage}]}}


class Two:
    """A map-style dataset."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"txt": b"x", "number": index}


def double(number):
    """For `map_dict`."""
    return 2 * number


def is_second(sample):
    """For `select`."""
    return sample["number"] == 1


def test_the_recipe_decodes(demo_data):
    """By position, what has no name."""
    assert [p for p in check_recipe(RECIPE, {"data": "x"}) if p.kind != "not checked"] == []
    sample = next(iter(instantiate_from_yaml(RECIPE, {"data": str(demo_data)})))
    assert sample["jpg"].size


@pytest.mark.parametrize(
    ("stage", "params", "wanted"),
    [
        ("decode", {"partial": True}, {"txt": "x", "number": 1}),
        ("map_dict", {"number": {"target": f"{__name__}.double"}}, {"number": 2}),
        ("select", {"predicate": {"target": f"{__name__}.is_second"}}, {"number": 1}),
        ("rename", {"n": "number", "keep": False}, {"n": 1}),
        ("select", {"args": [{"target": f"{__name__}.is_second"}]}, {"number": 1}),
    ],
)
def test_stages_are_process_functions(stage, params, wanted):
    """Their `data` is what they are given when they are read."""
    assert [p for p in check_recipe(recipe(stage, **params)) if p.kind != "not checked"] == []
    samples = list(instantiate_from_yaml(recipe(stage, **params)).finite())
    assert wanted.items() <= samples[-1].items()


def test_what_a_stage_lacks_is_said_when_it_is_built():
    """Not by the first worker."""
    with pytest.raises(RecipeError, match="predicate"):
        instantiate_from_yaml(recipe("select"))
    with pytest.raises(RecipeError, match="expected a list as args"):
        instantiate_from_yaml(recipe("decode", args="pil"))


@pytest.mark.parametrize("make", [records_of, pipeline_of])
def test_pipelines_resume_exactly(make, demo_data):
    """Read by streamdata, and as they are."""
    assert_exact_resume(lambda: make(str(demo_data)), steps=4, beyond=4, num_workers=2)


def test_a_pipeline_with_a_length_is_an_iterable(demo_data):
    """All of torch's datasets have a `__getitem__`."""
    urls = [str(path) for path in sorted(demo_data.glob("tiles/*.tar"))]
    pipeline = webdataset.WebDataset(urls, shardshuffle=False).with_length(7, silent=True)
    pipeline.name, pipeline.percent = "tiles", 1
    assert len(list(islice(MergedDataset([pipeline]), 3))) == 3


@pytest.mark.parametrize("field", ["process_fn", "single_process_fn"])
def test_a_stage_without_its_parameters_is_refused(field):
    """Called with the records in their place, it would give something else."""
    source = Two()
    source.name, source.percent = "two", 1
    setattr(source, field, webdataset.decode)
    with pytest.raises(ValueError, match=f"'two': {field}: expected webdataset's stage decode with its parameters"):
        MergedDataset([source])
