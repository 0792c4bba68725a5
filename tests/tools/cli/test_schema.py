"""`streamdata schema`: what editors say of recipes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from streamdata.recipe.targets import TARGETS
from streamdata.tools.cli.main import app

Streamdata = Callable[..., Result]
ROOT = Path(__file__).parents[3]
RECIPES = [
    path
    for folder in ("configs", "examples")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if path.parent.name != "prepare"  # settings of another command
]
SOURCE = """
target: streamdata.MergedDataset
params:
  datasets:
    - target: streamdata.SFTChatDataset
      params: {{data_files: a.jsonl, tokenizer: a, config: {{format: {format}}}, {params}}}
      name: a
      percent: 1
      {attributes}
"""
PACKER = "processor: {target: streamdata.PackTok"


@pytest.fixture(scope="module")
def schema() -> dict:
    """What the command prints."""
    done = CliRunner().invoke(app, ["schema"])
    assert done.exit_code == 0
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def complaints(schema: dict) -> Callable[[str], list[str]]:
    """The places in a recipe's text that are wrong by the schema."""
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    return lambda text: [f"{error.json_path} {error.message}" for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_is_valid(complaints: Callable[[str], list[str]], path: Path) -> None:
    """Those of `configs/` and `examples/`."""
    assert len(RECIPES) > 10
    assert complaints(path.read_text()) == []


@pytest.mark.parametrize(
    ("values", "place", "said"),
    [
        ({"params": "data_flies: b"}, "params", "'data_flies' was unexpected"),
        ({"attributes": "max_badd: 1"}, "", "'max_badd' was unexpected"),
        ({"params": f"{PACKER}ens, params: {{max_token: 1}}}}"}, "params.processor.params", "'max_token' was"),
        ({"params": "max_epochs: 1"}, "params", "'max_epochs' was unexpected"),
        ({"attributes": "holdout: half"}, "holdout", "is not valid"),
        ({"attributes": "percent: a"}, "percent", "is not valid"),
        ({"format": "alpacas"}, "params.config.format", "is not valid"),
        ({"format": "auto, formats: 1"}, "params.config", "'formats' was unexpected"),
        ({"params": f"{PACKER}ns, params: {{}}}}"}, "params.processor.target", "is not one of"),
    ],
)
def test_a_mistake_is_named_at_its_place(
    complaints: Callable[[str], list[str]], values: dict[str, str], place: str, said: str
) -> None:
    """Misspelt names, a parameter as an attribute, other types; wherever they stand."""
    sound = {"format": "alpaca", "params": "", "attributes": ""}
    assert complaints(SOURCE.format(**sound)) == []
    text = SOURCE.format(**(sound | values)).replace("percent: 1", "" if place == "percent" else "percent: 1")
    assert any(
        one.startswith(f"$.params.datasets[0]{'.' * bool(place)}{place} ") and said in one for one in complaints(text)
    )


@pytest.mark.parametrize(
    "percent",
    ["0.5", "[[0, 1]]", "{steps: [[0, 1]]}", "{by: tokens, exponent: 0.7}", "${variables:p}", "{include: p.yaml}"],
)
def test_weights_are_numbers_schedules_sizes_and_references(
    complaints: Callable[[str], list[str]], percent: str
) -> None:
    """As `check` takes them."""
    text = SOURCE.format(format="'${variables:f}'", params="processor: null", attributes="")
    assert complaints(text.replace("percent: 1", f"percent: {percent}")) == []


def test_every_target_says_what_it_takes(schema: dict) -> None:
    """With a description of it, of sources' parameters and of what may be set beside them."""
    definitions = schema["$defs"]
    assert definitions.keys() == {*TARGETS, "reference", "value"}
    for name in TARGETS:
        about = definitions[name]
        assert about["description"]
        attributes = {key: said for key, said in about["properties"].items() if key not in ("params", "target")}
        parameters = about["properties"]["params"]["properties"] if attributes else {}
        assert [key for key, said in {**parameters, **attributes}.items() if not said["description"]] == []
    shuffle = definitions["streamdata.ParquetDataset"]["properties"]["params"]["properties"]["shuffle_buffer"]
    assert shuffle["default"] == 1000


def test_the_text_is_stable(streamdata: Streamdata) -> None:
    """Sorted, so that a version differs where a target does."""
    text = streamdata("schema").stdout
    assert text == streamdata("schema").stdout
    document = json.loads(text)
    assert json.dumps(document, indent=1, sort_keys=True) == text.rstrip("\n")
