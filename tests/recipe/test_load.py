from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe

Write = Callable[..., str]


def test_an_include_is_built_with_the_same_variables(write: Write) -> None:
    """Its other keys are set on the result, and override."""
    write("x: ${variables:x}\ny: [1]\nz: keep\n", "inner.yaml")
    built = instantiate_from_yaml(write("a: {include: inner.yaml, y: '${b}', w: 4}\nb: 2\n"), {"x": 3})
    assert built == {"a": {"x": 3, "y": 2, "z": "keep", "w": 4}, "b": 2}


@pytest.mark.usefixtures("zoo")
def test_attributes_override_those_of_an_included_object(write: Write) -> None:
    """They are set after the included recipe has set its own."""
    write("target: zoo.Any\nparams: {}\nname: inner\npercent: 1\n", "inner.yaml")
    built = instantiate_from_yaml(write("include: inner.yaml\nname: outer\nlength: ${variables:n,5}\n"))
    assert (built.name, built.percent, built.length) == ("outer", 1, 5)


def test_includes_are_sought_beside_the_file_then_in_the_working_directory(write: Write) -> None:
    """The including file's directory wins."""
    write("from: beside", "sub/part.yaml")
    write("from: cwd", "part.yaml")
    write("from: only cwd", "other.yaml")
    write("a: {include: part.yaml}\nb: {include: other.yaml}\n", "sub/recipe.yaml")
    assert instantiate_from_yaml("sub/recipe.yaml") == {"a": {"from": "beside"}, "b": {"from": "only cwd"}}


def test_include_names_may_hold_variables_and_interpolations(write: Write) -> None:
    """A name is resolved like any other value."""
    write("1: one", "part-7.yaml")
    recipe = write("n: ${variables:n}\na: {include: 'part-${n}.yaml'}\nb: {include: 'part-${variables:n}.yaml'}\n")
    assert instantiate_from_yaml(recipe, {"n": 7}) == {"n": 7, "a": {1: "one"}, "b": {1: "one"}}


def test_an_included_list_is_delivered(write: Write) -> None:
    """Any root can be included where nothing is set on it."""
    write("[1, 2]", "inner.yaml")
    assert instantiate_from_yaml(write("a: {include: inner.yaml}")) == {"a": [1, 2]}


def test_attributes_on_an_included_list_are_errors(write: Write) -> None:
    """A list takes none."""
    write("[1, 2]", "inner.yaml")
    with pytest.raises(RecipeError, match=r"recipe\.yaml:1:23: x \(inner\.yaml\): setting the attribute 'x' failed"):
        instantiate_from_yaml(write("{include: inner.yaml, x: 1}"))


def test_a_missing_include_names_the_chain(write: Write) -> None:
    """The message says where it was sought, and each include that led there, innermost first."""
    write("deep: {include: gone.yaml}", "b.yaml")
    write("- include: b.yaml", "a.yaml")
    with pytest.raises(RecipeError) as caught:
        instantiate_from_yaml(write("x:\n  include: a.yaml"))
    first, looked, *chain = str(caught.value).split("\n")
    assert first == "b.yaml:1:17: deep.include: the included file 'gone.yaml' was not found"
    assert looked.startswith(f"  Looked for {Path.cwd() / 'gone.yaml'}")
    assert chain == [
        "  included from a.yaml:1:12: [0].include",
        "  included from recipe.yaml:2:12: x.include",
    ]


@pytest.mark.parametrize("start", ["a.yaml", "b.yaml"])
def test_a_cycle_of_includes_names_the_chain(write: Write, start: str) -> None:
    """A file that includes itself through another one is an error, not a RecursionError."""
    write("x: {include: b.yaml}", "a.yaml")
    write("y: {include: sub/../a.yaml}", "b.yaml")
    write("", "sub/empty.yaml")
    with pytest.raises(
        RecipeError, match=r"(?s)included by itself \(a cycle\).*included from [ab]\.yaml:1:14: [xy]\.include"
    ):
        instantiate_from_yaml(start)


def test_errors_inside_an_include_name_the_chain(write: Write) -> None:
    """Whatever is wrong there."""
    write("a: ${variables:x}", "inner.yaml")
    with pytest.raises(RecipeError, match=r"(?s)^inner\.yaml:1:4: a: .*\n  included from recipe\.yaml:1:10: include$"):
        instantiate_from_yaml(write("include: inner.yaml"))


def test_includes_that_multiply_are_bounded(write: Write) -> None:
    """Files that include the next one twice are stopped."""
    for number in range(10):
        write(f"- include: {number + 1}.yaml\n- include: {number + 1}.yaml\n", f"{number}.yaml")
    write("[]", "10.yaml")
    with pytest.raises(RecipeError, match="more nodes than may be"):
        instantiate_from_yaml("0.yaml", limits={"num_nodes": 500})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r":1:1: root: expected a mapping or a list as the root, got an empty file"),
        ("7", r":1:1: root: expected a mapping or a list as the root, got a single value \(int\)"),
        ("a:\n  target: 3\n", r":2:11: a\.target: expected text after 'target', got 3"),
        ("a: {include: [x]}", r":1:14: a\.include: expected text after 'include'"),
        ("target: zoo.Any\ninclude: x.yaml\n", r":2:1: include: expected either 'target' or 'include'"),
        ("target: zoo.Any\nparams: [1]\n", r":2:9: params: expected a mapping or null as params, got \[1\]"),
        ("target: zoo.Any\nname: x\n", r":1:1: root \(zoo\.Any\): a target without params .* got name\n  Add 'params"),
        ("target: zoo.Any\nparams:\n__class__: x\n", r":3:1: __class__: expected the name of an attribute"),
        ("target: zoo.Any\nparams:\n3: x\n", r":3:1: \[3\]: expected the name of an attribute"),
    ],
)
def test_malformed_recipes_say_where(write: Write, text: str, message: str) -> None:
    """Shapes are checked before anything is imported."""
    with pytest.raises(RecipeError, match=r"recipe\.yaml" + message):
        instantiate_from_yaml(write(text))


def test_a_missing_recipe_is_an_error_with_its_cause() -> None:
    """The file system's own exception stays reachable."""
    with pytest.raises(RecipeError, match=r"nowhere\.yaml:1:1: root: cannot be read: No such file") as caught:
        instantiate_from_yaml("nowhere.yaml")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_path_object_is_accepted(write: Write) -> None:
    """As everywhere in Python."""
    built: Any = instantiate_from_yaml(Path(write("a: 1")))
    assert built == {"a": 1}


VALUES = {
    "text": ["1e3", "yes", "null", "<<", "=", "2020-01-01", "a\nb\\ ", "\u2028é", "w " * 100],
    "numbers": [1, -2.5, 1e-3, 1e300, float("inf"), 2**70, True, None],
    "nested": {1: {"two": [[], {}]}, "<<": 3},
}


@pytest.mark.parametrize("kind", [dict, OmegaConf.create], ids=["dict", "DictConfig"])
def test_a_mapping_is_a_recipe(write: Write, zoo: Path, kind: Callable[[Any], Any]) -> None:
    """It means what the same file would: references, includes from the working directory, values as they are."""
    write("target: zoo.Any\nparams: {size: '${variables:n}'}\n", "inner.yaml")
    recipe = kind({"target": "zoo.Any", "params": {"n": "${variables:n}", "in": {"include": "inner.yaml"}, **VALUES}})
    assert [problem for problem in check_recipe(recipe, {"n": 2}) if problem.kind == "error"] == []
    built: Any = instantiate_from_yaml(recipe, {"n": 2})
    assert built.given.pop("in").given == {"size": 2}
    assert built.given == {"n": 2, **VALUES}


def test_a_mapping_has_no_lines_to_point_at() -> None:
    """The path tells; what no file can hold is refused, and so is what has no end."""
    found = check_recipe({"a": [{"target": "nowhere_at_all.X"}]}, {"unused": 1})
    assert [str(problem).partition("\n")[0] for problem in found] == [
        "<recipe>: root: the variable 'unused' is not used by the recipe",
        "<recipe>: a[0].target: no module 'nowhere_at_all' was found",
    ]
    with pytest.raises(RecipeError, match=r"<recipe>: a: expected text, numbers, paths, .*, got builtins\.object"):
        instantiate_from_yaml({"a": object()})
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(RecipeError, match=r"<recipe>: again\..*: nested deeper than 100 levels"):
        instantiate_from_yaml(endless)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RecipeError, match=r"<recipe>: deep\[0\].*: nested deeper than 100 levels"):
        instantiate_from_yaml({"deep": deep})
