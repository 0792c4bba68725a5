"""What a recipe takes from the environment is in no message of its building or its check."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata.cli.recipe_files import RecipeFiles
from streamdata.errors import RecipeError
from streamdata.recipe import check_recipe, instantiate_from_yaml

Write = Callable[..., str]
OURS = "{target: streamdata.JsonlIterableDataset, params: {path: recipe.yaml, %s}}"
LONG = "canary" * 40


@pytest.mark.parametrize("value", ["canary-91c", "canary\"s 91c'x", LONG])
@pytest.mark.parametrize(
    "written",
    [
        OURS % "block_size: '${oc.env:CANARY}'",
        OURS % "block_size: ['${oc.env:CANARY}', {a: 'x ${oc.env:CANARY}'}]",
        "{target: streamdata.JsonlIterableDataset, params: {path: 'x/${oc.env:CANARY}.jsonl'}}",
        "{target: zoo.broken, params: {path: {include: other.yaml}}}",
    ],
)
@pytest.mark.usefixtures("zoo")
def test_an_error_names_the_variable_in_place_of_its_value(write: Write, monkeypatch, value: str, written: str) -> None:
    """Whole, escaped or cut; neither in the error nor in what caused it, whichever file it came from."""
    monkeypatch.setenv("CANARY", value)
    write("['a ${oc.env:CANARY}']\n", "other.yaml")
    recipe = write(f"x: {written}\n")
    told = "".join(map(str, check_recipe(recipe, files=RecipeFiles())))
    with pytest.raises(RecipeError, match=r"\$\{oc.env:CANARY\}") as caught:
        instantiate_from_yaml(recipe)
    told += "".join(traceback.format_exception(caught.value)) + repr(caught.value.__context__)
    assert "canary" not in told
    assert "91c" not in told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (" padded-91c \n", "v.strip()"),
        ("first line\nsecond-91c", "v.partition('\\n')[2]"),
        ("it's \"91c\\", "__import__('json').dumps(v)"),
        ("eighté-91c", "__import__('json').dumps(v)"),
        ("eighté\n91c", "__import__('json').dumps(v, ensure_ascii=False)"),
        ("it's-a-91c", "repr([chr(34) + v])"),
        ("Upper-91C", "v.lower()"),
        ("[secret-91c, {key: 'other-91c'}]", "v"),
        ("[secret-91c, 'https://host']", "v"),
    ],
)
def test_other_forms_of_a_value_are_not_told(write: Write, monkeypatch, zoo: Path, value: str, told: str) -> None:
    """Stripped, a line, escaped by JSON, in other quotes, in lower case, decoded."""
    (zoo / "script.py").write_text(f"def make(v): raise ValueError({told})")
    monkeypatch.setenv("CANARY", value)
    kind = "oc.decode:${oc.env:CANARY}" if value.startswith("[") else "oc.env:CANARY"
    with pytest.raises(RecipeError, match=r"\$\{oc.env:CANARY\}") as caught:
        instantiate_from_yaml(write(f"target: script.make\nparams: {{v: '${{{kind}}}'}}\n"))
    assert "91c" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("value", ["/no/such/folder", "~/no_such_folder", "file:///no/such/folder", "no_such"])
def test_a_path_of_the_environment_is_told_where_nothing_lies(write: Write, monkeypatch, value: str) -> None:
    """Who is to mend it needs to see it; a short text may be a part of any other."""
    monkeypatch.setenv("DATA", value)
    with pytest.raises(RecipeError, match=f"pattern '.*{value[-6:]}/0.jsonl'"):
        instantiate_from_yaml(
            write("{target: streamdata.JsonlIterableDataset, params: {path: '${oc.env:DATA}/0.jsonl'}}")
        )
