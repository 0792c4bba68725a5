"""webdataset's stages and pipelines."""

from itertools import islice

import pytest
import webdataset

from examples.moving_over.webdataset_pipeline import pipeline_of, records_of
from streamdata import GroupByLength, MergedDataset, RecipeError, instantiate_from_yaml
from streamdata.recipe.check import check_recipe
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
    assert [problem for problem in check_recipe(RECIPE, {"data": "x"}) if problem.kind == "error"] == []
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
    samples = list(instantiate_from_yaml(recipe(stage, **params)).finite())
    assert wanted.items() <= samples[-1].items()


@pytest.mark.parametrize(
    ("stage", "params", "says"),
    [
        ("select", {}, "missing a required argument: 'predicate'"),
        ("select", {"args": [1, 2]}, "too many positional arguments"),
        ("select", {"predicat": 1}, "missing a required argument: 'predicate'"),
        ("decode", {"args": "pil"}, "expected a list as args, got 'pil'"),
        ("decod", {}, "did you mean 'decode'?"),
    ],
)
def test_a_build_knows_what_stages_take(stage, params, says):
    """From their signatures, like of any function; at their place."""
    with pytest.raises(RecipeError, match=r"params\.datasets\[0\]\.process_fn") as caught:
        instantiate_from_yaml(recipe(stage, **params))
    assert says in str(caught.value)


def test_a_check_knows_names_and_args_of_stages():
    """Where the package is imported; what they take, the build knows."""
    stages = {"sound": ("decode", {"partial": True}), "args": ("decode", {"args": "pil"}), "name": ("decod", {})}
    made = {kind: {"target": f"webdataset.{stage}", "params": params} for kind, (stage, params) in stages.items()}
    found = check_recipe(made, imports=["webdataset"])
    assert [problem.path for problem in found] == ["args.params.args", "name.target"]


def test_stages_are_chained():
    """In a list, in their order; from YAML and Python, and resumed."""
    chain = recipe("select", predicate={"target": f"{__name__}.is_second"})
    source = chain["params"]["datasets"][0]
    source["process_fn"] = [source["process_fn"], {"target": "webdataset.decode", "params": {"partial": True}}]
    assert [sample["txt"] for sample in instantiate_from_yaml(chain).finite()] == ["x"]
    assert_exact_resume(lambda: instantiate_from_yaml(chain), steps=4, beyond=4)


@pytest.mark.parametrize(("several", "says"), [([], "got \\[\\]"), ([None], "got None"), (["x"], "got 'x'")])
def test_a_list_of_something_else_is_refused(several, says):
    """And so is one with a function that keeps something."""
    source = Two()
    source.name, source.percent, source.process_fn = "two", 1, several
    with pytest.raises(ValueError, match=says):
        MergedDataset([source])
    source.process_fn = [webdataset.decode(), GroupByLength(8)]
    with pytest.raises(ValueError, match="expected functions without state_dict in a list"):
        MergedDataset([source])


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


@pytest.mark.filterwarnings("ignore:.*with_length")
def test_a_pipeline_with_a_length_is_an_iterable(demo_data):
    """All of torch's datasets have a `__getitem__`."""
    urls = [str(path) for path in sorted(demo_data.glob("tiles/*.tar"))]
    pipeline = webdataset.WebDataset(urls, shardshuffle=False).with_length(7)
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
