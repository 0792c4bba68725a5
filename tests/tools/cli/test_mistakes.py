"""Thirty usual mistakes in a recipe: each is an error at the line of its key, with what to do about it."""

from pathlib import Path
from typing import NamedTuple

import pytest

from streamdata.recipe.check import check_recipe
from streamdata.recipe.yaml_tree import Problem
from streamdata.tools.cli.recipe_files import RecipeFiles

SOUND = """\
target: streamdata.MergedDataset
params:
  seed: 1
  cyclic: true
  datasets:
    - target: streamdata.JsonlIterableDataset
      params:
        path: shards
        shuffle_buffer: 100
        process_fn:
          target: streamdata.TextJsonlProcessFnBuilder
          params:
            max_sequence_length: 64
            tokenizer_name: tokenizer
      name: web
      percent: 0.5
    - target: streamdata.MetaDistributedWebDataset
      params:
        path: tars/*.tar
        meta_names: [caption]
      name: tiles
      percent: 0.5
      max_bad: 3
"""


class Mistake(NamedTuple):
    """A line of the recipe, what stands in its place, the column that is named, and what is said of it."""

    right: str
    wrong: str
    column: int
    says: str
    lines_above: int = 0


MISTAKES = {
    "a target of streamdata is misspelt": Mistake(
        "target: streamdata.JsonlIterableDataset", "target: streamdata.JsonlIterableDatset", 15,
        "did you mean 'JsonlIterableDataset'?",
    ),
    "streamdata itself is misspelt": Mistake(
        "target: streamdata.JsonlIterableDataset", "target: streamdta.JsonlIterableDataset", 15,
        "no module 'streamdta' was found, did you mean 'streamdata'?",
    ),
    "a target without its module": Mistake(
        "target: streamdata.JsonlIterableDataset", "target: JsonlIterableDataset", 15, "expected a dotted name"
    ),
    "a target by its file": Mistake(
        "target: streamdata.JsonlIterableDataset",
        "target: streamdata.sources.files.shard_datasets.JsonlIterableDataset", 15,
        "Write 'streamdata.JsonlIterableDataset'",
    ),
    "a package that is not installed": Mistake(
        "target: streamdata.JsonlIterableDataset", "target: my_pakage.Dataset", 15, "put its directory on PYTHONPATH"
    ),
    "a command of the standard library": Mistake(
        "target: streamdata.JsonlIterableDataset", "target: os.listdir", 15, "only these are targets"
    ),
    "a parameter is misspelt": Mistake("shuffle_buffer: 100", "shufle_buffer: 100", 9, "did you mean 'shuffle_buf"),
    "a parameter of a mixture is misspelt": Mistake("seed: 1", "sede: 1", 3, "did you mean 'seed'?"),
    "a parameter is missing": Mistake("path: shards", "block_size: 1", 7, "missing parameters: path", 2),
    "an attribute is misspelt": Mistake("max_bad: 3", "max_bda: 3", 7, "did you mean 'max_bad'?"),
    "a parameter beside params": Mistake("max_bad: 3", "meta_names: [a]", 7, "expected 'meta_names' once"),
    "an attribute below params": Mistake("seed: 1", "max_epochs: 2", 3, "unknown parameter 'max_epochs'"),
    "a number in quotes": Mistake("shuffle_buffer: 100", "shuffle_buffer: '100'", 9, "Write it without quotes"),
    "a text for a number": Mistake("seed: 1", "seed: random", 3, "expected an integer, got 'random'"),
    "a fraction for a count": Mistake("shuffle_buffer: 100", "shuffle_buffer: 0.5", 9, "expected an integer, got 0.5"),
    "a text for a switch": Mistake("cyclic: true", "cyclic: 'no'", 3, "expected true or false, got 'no'"),
    "a list for a number": Mistake("seed: 1", "seed: [1]", 3, "expected an integer, got [1]"),
    "a list with other elements": Mistake("meta_names: [caption]", "meta_names: [1]", 9, "a list of text, got [1]"),
    "a number as an attribute is text": Mistake("max_bad: 3", "max_bad: '3'", 7, "Write it without quotes"),
    "a text for a function": Mistake(
        "shuffle_buffer: 100", "single_process_fn: my_pkg.clean", 9, "Write {target: my_pkg.clean}"
    ),
    "a text for a function as an attribute": Mistake(
        "max_bad: 3", "process_fn: my_pkg.clean", 7, "Write {target: my_pkg.clean}"
    ),
    "a folder that does not exist": Mistake("path: shards", "path: shard", 9, "expected a file or directory, got none"),
    "a glob that finds nothing": Mistake("path: tars/*.tar", "path: tars/*.tgz", 9, "got nothing"),
    "a folder of other files": Mistake("path: shards", "path: tars", 9, "expected a directory of shards (.jsonl"),
    "a shard of braces that is not there": Mistake("path: tars/*.tar", "path: 'tars/{0,1}.tar'", 9, "'tars/1.tar'"),
    "a tokenizer that does not exist": Mistake(
        "tokenizer_name: tokenizer", "tokenizer_name: ./tokeniser", 13, "that `save_pretrained` wrote"
    ),
    "a variable that is misspelt": Mistake("seed: 1", "seed: ${variables:sed}", 9, "did you mean 'seed'?"),
    "a name is given twice": Mistake("name: tiles", "name: web", 13, "expected a unique name, got 'web' again"),
    "a weight in percent signs": Mistake("percent: 0.5", "percent: 50%", 16, "expected a positive number"),
    "a root that is no mixture": Mistake("", "", 1, "as the root"),
}  # fmt: skip
ROOT = """\
target: streamdata.DecodeImages
params: {fields: [jpg], size: 8}
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the sound recipe names."""
    for name in ("shards/a.jsonl", "shards/b.jsonl", "tars/0.tar", "tars/0.meta.jsonl", "tokenizer/tokenizer.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(text: str, **options: bool) -> list[Problem]:
    """The problems of a recipe, as the command finds them."""
    Path("r.yaml").write_text(text)
    return check_recipe("r.yaml", {"seed": 1}, files=RecipeFiles(**options), is_streamed=True)


def errors(text: str) -> list[Problem]:
    """Its errors."""
    return [problem for problem in check(text) if problem.kind == "error"]


def test_there_are_thirty() -> None:
    """And the recipe that each is made in is sound."""
    assert len(MISTAKES) == 30
    assert errors(SOUND) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_the_line_of_its_key(name: str) -> None:
    """Once, with its remedy."""
    mistake = MISTAKES[name]
    text = SOUND.replace(mistake.right, mistake.wrong, 1) if mistake.wrong else ROOT
    lines = zip(SOUND.splitlines(), text.splitlines(), strict=False)
    line = next(number for number, (right, wrong) in enumerate(lines, 1) if right != wrong) - mistake.lines_above
    found = errors(text)
    assert [problem.location for problem in found] == [f"r.yaml:{line}:{mistake.column}"], found
    assert mistake.says in found[0].message


@pytest.mark.parametrize(
    "path",
    [
        "[shards/a.jsonl, shards/b.jsonl]", "'shards/{a,b}.jsonl'", "s3://bucket/none/*.jsonl",
        "'https://host/{0..9}.jsonl'", "${dynamic_objs:paths}", "{target: my.paths}", "shards/a.jsonl",
    ],
)  # fmt: skip
def test_what_is_there_or_elsewhere_is_no_mistake(path: str) -> None:
    """Lists, braces, globs, urls, and what is known only when it is built."""
    text = SOUND.replace("path: shards", f"path: {path}")
    assert [problem for problem in errors(text) if "target" not in problem.path] == []


@pytest.mark.parametrize("name", ["gpt2", "org/name", "${dynamic_objs:tokenizer}"])
def test_a_tokenizer_of_the_hub_is_no_mistake(name: str) -> None:
    """Nobody asks the hub."""
    assert errors(SOUND.replace("tokenizer_name: tokenizer", f"tokenizer_name: {name}")) == []


def test_a_tokenizer_that_is_not_here_is_not_checked_and_says_so() -> None:
    """It may be a name of the hub, or a slip."""
    found = check(SOUND.replace("tokenizer_name: tokenizer", "tokenizer_name: tokenizzer"))
    (problem,) = (problem for problem in found if "tokenizzer" in problem.message)
    assert problem.kind == "not checked"
    assert problem.message.startswith("not checked: no folder 'tokenizzer' is here, and it looks like a hub name")


def test_meta_names_need_sidecars(data: Path) -> None:
    """Beside each shard that is found."""
    (data / "tars" / "0.meta.jsonl").unlink()
    text = "target: streamdata.MetaDistributedWebDataset\nparams:\n  path: tars\n  meta_names: [score]\n"
    (found,) = errors(text)
    assert (found.location, "expected a sidecar" in found.message) == ("r.yaml:4:3", True)
    (data / "tars" / "0.meta.jsonl").touch()
    assert errors(text) == []
    (found,) = errors(text.replace("path: tars", "path: gone"))
    assert found.location == "r.yaml:3:3"


@pytest.mark.parametrize(
    ("name", "slip"), [("SFTChat", "max_lenght"), ("Preference", "chosen_ky"), ("RLHF", "max_prompt_lenght")]
)
def test_keys_of_a_config_are_checked(name: str, slip: str) -> None:
    """But what is built, or made of variables, is not looked at."""
    own = "truncation: '${dynamic_objs:x}', apply_chat_template_kwargs: {a: {target: os.getcwd}}"
    text = (
        f"target: streamdata.{name}Dataset\n"
        f"params: {{data_files: shards/a.jsonl, tokenizer: tokenizer, config: {{{slip}: 8, {own}}}}}\n"
    )
    said = [problem.message for problem in errors(text) if problem.path == "params.config"]
    assert len(said) == 1
    assert f"{slip!r}, did you mean" in said[0]
    assert not [problem for problem in errors(text.replace(f"{slip}: 8, ", "")) if problem.path == "params.config"]


@pytest.mark.parametrize("name", ["SFTChat", "Preference"])
def test_actions_of_roles_are_checked(name: str) -> None:
    """Not at the first sample, which `max_bad` would skip, and all others after it."""
    params = "data_files: shards/a.jsonl, tokenizer: tokenizer, config: {actions: {assistant: last}}"
    (found,) = errors(f"target: streamdata.{name}Dataset\nparams: {{{params}}}\n")
    assert (found.path, found.location) == ("params.config", "r.yaml:2:60")
    assert "expected one of train, mask as actions.assistant, got 'last'" in found.message


@pytest.mark.parametrize(
    ("target", "params"),
    [
        ("DatasetFactory.load", "train_type: seq, load_path: m, window_size: 8"),
        ("BlendableDataset.from_megatron", "paths: 1 m, window_size: 8"),
    ],
)
@pytest.mark.parametrize("slip", ["options: {documents: true}", "options: {}", "documens: false"])
def test_keys_that_are_handed_on_are_checked(target: str, params: str, slip: str) -> None:
    """To the class of the dataset, as the builder does."""
    for name in ("m.bin", "m.idx"):
        Path(name).touch()
    text = f"target: streamdata.{target}\nparams: {{{params}, {slip}}}\n"
    (found,) = errors(text)
    assert (found.path, found.location) == (f"params.{slip.partition(':')[0]}", f"r.yaml:2:{len(params) + 12}")
    assert "did you mean 'documents'?" in found.message or "options" in slip
    assert errors(text.replace(slip, "documents: true, dtype: null")) == []


def test_keys_of_a_train_type_are_those_of_its_class() -> None:
    """A class that somebody registers has its own, of which nothing is known before it is imported."""
    Path("m.bin").touch()
    Path("m.idx").touch()
    text = "target: streamdata.DatasetFactory.load\nparams: {train_type: TYPE, load_path: m, documents: true}\n"
    assert errors(text.replace("TYPE", "mine")) == []
    (found,) = errors(text.replace("TYPE", "dpo"))
    assert found.path == "params.documents"


def test_stores_and_blends_are_looked_for() -> None:
    """By the rules of stores: a Megatron prefix is one."""
    for name in ("m.bin", "m.idx"):
        Path(name).touch()
    blend = "target: streamdata.BlendableDataset.from_megatron\nparams: {paths: 0.3 m 0.7 n, window_size: 8}\n"
    load = "target: streamdata.DatasetFactory.load\nparams: {train_type: seq, load_path: PATH, window_size: 8}\n"
    assert "'n'" in check_recipe_text(blend)
    assert check_recipe_text(load.replace("PATH", "m")) == ""
    assert "no/such" in check_recipe_text(load.replace("PATH", "no/such"))


@pytest.mark.parametrize("params", ["JsonlIterableDataset\nparams: {path: shards}", "SeqDataset\nparams: {}"])
def test_a_source_may_be_the_root(params: str) -> None:
    """It is mixed alone; without a name and a percent, which are looked at where they are given."""
    found = errors(f"target: streamdata.{params}\n")
    assert not [problem for problem in found if "root" in problem.message]
    (found,) = errors("target: streamdata.JsonlIterableDataset\nname: a.b\nparams: {path: shards}\n")
    assert found.location == "r.yaml:2:7"
    assert found.message.startswith("expected a unique name without '.', got 'a.b'")


def check_recipe_text(text: str) -> str:
    """The errors of a recipe whose root may be anything."""
    Path("r.yaml").write_text(text)
    return "\n".join(str(problem) for problem in check_recipe("r.yaml", files=RecipeFiles()) if problem.kind == "error")
