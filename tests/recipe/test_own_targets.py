import re
from collections.abc import Callable
from pathlib import Path

import pytest

import streamdata
from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe
from streamdata.recipe.signatures import parameters_of
from streamdata.recipe.targets import (
    TARGETS,
    TargetError,
    import_target,
    origin_of,
    public_name,
    refusal_of_name,
    refusal_of_object,
)
from tests.streams import Numbers

Write = Callable[..., str]

OURS = """
from streamdata import JsonlIterableDataset, SeqDataset, StoreWriter
from streamdata.states.cursor import Position
from streamdata.run import publish
from streamdata.io.streams import PipeBytes
from streamdata.text.templates import ChatRenderer
import functools
import streamdata

class Mine(JsonlIterableDataset):
    pass

def make(path):
    return JsonlIterableDataset(path)

start = functools.partial(PipeBytes)
pack = streamdata.ImageJsonlProcessFnBuilder(4)
"""


FORMER_NAMES = {"streamdata.collate_fn": "streamdata.prompt_collate"}


@pytest.fixture
def ours(zoo: Path) -> None:
    """A module `ours` of somebody else's, that uses streamdata."""
    (zoo / "ours.py").write_text(OURS)


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_is_public_and_its_parameters_are_known(name: str) -> None:
    """Where it is defined leads back to its public name."""
    assert name.split(".")[1] in streamdata.__all__
    target = import_target(name, [])
    assert public_name(origin_of(target)) == FORMER_NAMES.get(name, name)
    assert parameters_of(target) is not None


def test_each_public_name_is_a_target_or_is_none_on_purpose() -> None:
    """What writes, builds other recipes, is abstract or handles states cannot be named in a recipe."""
    no_targets = {
        "BaseDataset", "Pipeline", "PrepareConfig", "PrepareError", "RecipeError", "ShardError", "SourceError",
        "StateError", "Store", "StoreError", "StoreWriter", "StreamLoader", "StreamState", "StreamdataError",
        "compute_position_id_with_mask", "describe", "detect_format", "from_stateful", "gather_states",
        "instantiate_from_yaml", "load_states", "merge_states", "named", "pad_sequence_to_length", "postprocess_data",
        "by_name", "context_slice", "loss_by_source", "record_rng", "save_states", "to_device", "to_float",
        "GroupLoader", "LedgerClient", "LedgerServer", "Prompt", "PromptLedger", "StaleAttempt", "metrics", "report",
        "to_state", "write_shards",
    }  # fmt: skip
    assert set(streamdata.__all__) - {name.split(".")[1] for name in TARGETS} == no_targets


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("streamdata.sources.files.shard_datasets.JsonlIterableDataset", "Write 'streamdata.JsonlIterableDataset'."),
        ("streamdata.stores.datasets.record_datasets.DatasetFactory.load", "Write 'streamdata.DatasetFactory.load'."),
        ("streamdata.JsonlIterableDatset", "did you mean 'JsonlIterableDataset'?"),
        ("streamdata.StoreWriter", "expected one of streamdata's targets"),
        ("streamdata.StoreFactory.register", "expected one of streamdata's targets"),
        ("streamdata.MmapStore.load", "expected one of streamdata's targets"),
        ("streamdata.io.streams.PipeBytes", "expected one of streamdata's targets"),
        ("streamdata.prepare.Pipeline", "expected one of streamdata's targets"),
        ("streamdata.Pipeline", "expected one of streamdata's targets"),
    ],
)
def test_other_names_of_streamdata_are_refused(write: Write, name: str, message: str) -> None:
    """Built and checked, with and without allow."""
    recipe = write(f"target: {name}\nparams:\n")
    for allow in (None, [], ["streamdata.shards"]):
        assert message in (refusal_of_name(name, allow) or "")
        with pytest.raises(RecipeError, match=r"recipe\.yaml:1:9: target: .*is refused"):
            instantiate_from_yaml(recipe, allow=allow)
        assert [message in problem.message for problem in check_recipe(recipe, allow=allow)] == [True]


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", ["PipeBytes", "StoreWriter", "start", "publish.publish", "streamdata.StoreWriter"])
def test_another_package_does_not_lead_to_them_either(name: str) -> None:
    """By what it imports, or wraps."""
    with pytest.raises(TargetError, match="is refused: expected one of streamdata's targets"):
        import_target(f"ours.{name}")


@pytest.mark.usefixtures("ours")
def test_a_check_finds_what_leads_to_them(write: Write) -> None:
    """Where the package is imported; else nobody has looked."""
    names = ["PipeBytes", "StoreWriter", "start", "publish.publish", "streamdata.StoreWriter"]
    recipe = write("".join(f"- target: ours.{name}\n" for name in names))
    assert [problem.kind for problem in check_recipe(recipe)] == ["not checked"]
    found = check_recipe(recipe, imports=["ours"])
    assert ["expected one of streamdata's targets" in problem.message for problem in found] == [True] * len(names)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("name", ["SeqDataset", "Mine", "make", "pack", "streamdata.SeqDataset"])
def test_another_package_uses_streamdata_as_it_likes(name: str) -> None:
    """Targets that it imports, its own classes based on ours, and what it made of ours."""
    assert refusal_of_object(import_target(f"ours.{name}", ["ours"]), ["ours"]) is None


SOURCE = "target: streamdata.JsonlIterableDataset\nparams: {path: x.jsonl}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_badd: 1000", r"unknown attribute 'max_badd', did you mean 'max_bad'\?\n  It takes: name, percent"),
        ("lenght: 3", r"unknown attribute 'lenght', did you mean 'length'\?\n"),
        ("source: 1", "unknown attribute 'source'\n"),
        ("_recipe_location: x", "unknown attribute '_recipe_location'"),
        ("shuffle_buffer: 3", "expected 'shuffle_buffer' as a parameter, got it as an attribute\n  Write it below"),
    ],
)
def test_our_classes_list_their_attributes(write: Write, line: str, message: str) -> None:
    """Anything else is an error, before anything is built; also from where the file is included."""
    Path("x.jsonl").write_text("{}\n")
    write(SOURCE, "source.yaml")
    for text, location in (
        (f"{SOURCE}{line}\n", "recipe.yaml:3:1"),
        (f"include: source.yaml\n{line}\n", "recipe.yaml:2:1"),
    ):
        recipe = write(text)
        with pytest.raises(RecipeError, match=f"{location}: .*{message}"):
            instantiate_from_yaml(recipe)
        (problem,) = check_recipe(recipe)
        assert problem.location == location
        assert re.search(message, problem.message)


def test_attributes_that_apply_are_set(write: Write) -> None:
    """Of a source of shards; those of map-style datasets are for any class."""
    Path("x.jsonl").write_text("{}\n")
    recipe = write(
        f"- {{{SOURCE.strip().replace(chr(10), ', ')}, name: a, percent: 2, max_bad: 3, "
        "max_epochs: 4, process_fn: null}\n"
    )
    assert check_recipe(recipe) == []
    (source,) = instantiate_from_yaml(recipe)
    assert (source.name, source.percent, source.max_bad, source.max_epochs) == ("a", 2, 3, 4)


@pytest.mark.usefixtures("ours")
def test_classes_of_others_take_any_attribute(write: Write) -> None:
    """Also those based on ours; what a function of others builds of ours does not."""
    Path("x.jsonl").write_text("{}\n")
    extra = "max_badd: 1, records_per_block: 2, source_identity: x, single_process_fn: null}\n"
    recipe = write(
        f"- {{target: tests.streams.Numbers, params: {{name: n, size: 4}}, {extra}"
        f"- {{target: ours.Mine, params: {{path: x.jsonl}}, {extra}"
    )
    assert [problem.kind for problem in check_recipe(recipe)] == ["not checked"] * 2
    numbers, mine = instantiate_from_yaml(recipe)
    assert isinstance(numbers, Numbers)
    assert (numbers.records_per_block, mine.max_badd) == (2, 1)  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match="unknown attribute 'max_badd'"):
        instantiate_from_yaml(write("target: ours.make\nparams: {path: x.jsonl}\nmax_badd: 1\n"))


def test_a_recipe_is_refused_before_the_slow_work(write: Write) -> None:
    """A misspelt attribute is told before the source is looked for."""
    with pytest.raises(RecipeError, match="unknown attribute 'nam'"):
        instantiate_from_yaml(write("target: streamdata.JsonlIterableDataset\nparams: {path: gone}\nnam: x\n"))


def test_params_of_an_include_are_judged_like_all_else(write: Write) -> None:
    """A target, or an include, that is set in a plain mapping of another file under the key `params`."""
    write("a: 1", "plain.yaml")
    recipe = write("include: plain.yaml\nparams: {target: os.system, params: {command: 'true'}}\n")
    assert ["'os.system' is refused" in problem.message for problem in check_recipe(recipe)] == [True]
    with pytest.raises(RecipeError, match=r"recipe\.yaml:2:18: params\.target: 'os\.system' is refused"):
        instantiate_from_yaml(recipe)
    assert instantiate_from_yaml(write("include: plain.yaml\nparams: {include: plain.yaml}\n"))["params"] == {"a": 1}
    write(SOURCE, "source.yaml")
    (problem,) = check_recipe(write("include: source.yaml\nparams: {}\n"))
    assert "an include takes no params" in problem.message
