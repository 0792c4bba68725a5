"""What a recipe may expand to."""

import sys
from collections.abc import Callable

import pytest

from streamdata.errors import RecipeError
from streamdata.recipe import check_recipe, instantiate_from_yaml
from streamdata.recipe.check import MAX_PROBLEMS
from tests.cpu import cpu_within

Write = Callable[..., str]


def bomb(levels: int) -> str:
    """Each line names the one before ten times."""
    lines = [f'a{level}: "' + f"${{a{level - 1}}}" * 10 + '"\n' for level in range(1, levels)]
    return "a: ${a" + str(levels - 1) + "}\na0: xxxxxxxxxx\n" + "".join(lines)


def test_a_bomb_of_interpolations_is_an_error(write: Write) -> None:
    """Long before it fills the memory; what a checker reports says where."""
    with pytest.raises(RecipeError, match="write more characters into texts than may be"):
        instantiate_from_yaml(write(bomb(11)))
    problems = check_recipe(write(bomb(11)), limits={"interpolated_chars": 1000})
    assert problems[0].location == "recipe.yaml:1:4"


def test_what_is_written_in_place_of_interpolations_is_counted(write: Write) -> None:
    """As often as it is written, of all texts of a file together; a whole value costs nothing."""
    recipe = write("a: xxxxx\nb: ${a}\nc: ${b}/${a}\nd: [1]\ne: ${d}\n")
    whole = {"a": "xxxxx", "b": "xxxxx", "c": "xxxxx/xxxxx", "d": [1], "e": [1]}
    assert instantiate_from_yaml(recipe, limits={"interpolated_chars": 10}) == whole
    with pytest.raises(RecipeError, match=r"recipe\.yaml:3:4: c: interpolations write more"):
        instantiate_from_yaml(recipe, limits={"interpolated_chars": 9})


@pytest.mark.parametrize("value", ["[1]", "{b: 1}"])
def test_a_mapping_or_list_is_no_part_of_a_text(write: Write, value: str) -> None:
    """Python's form of it is none of a recipe's."""
    with pytest.raises(RecipeError, match="expected text or a number inside a longer text, got a mapping or a list"):
        instantiate_from_yaml(write(f"a: {value}\nc: x ${{a}}\n"))


def test_resolvers_write_texts_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the environment."""
    monkeypatch.setenv("A_LONG_TEXT", "x" * 500)
    recipe = write("a: ${oc.env:A_LONG_TEXT}/${oc.env:A_LONG_TEXT}\n")
    assert len(instantiate_from_yaml(recipe, limits={"interpolated_chars": 1000})["a"]) == 1001
    with pytest.raises(RecipeError, match="write more characters"):
        instantiate_from_yaml(recipe, limits={"interpolated_chars": 999})


def test_a_chain_of_interpolations_is_resolved_once(write: Write) -> None:
    """Nodes that each name the next one twice take time linear in their number."""
    lines = [
        f"a{level}: {{x: '${{a{level - 1}.x}}', y: '${{a{level - 1}.x}}${{a{level - 1}.y}}'}}" for level in range(1, 40)
    ]
    recipe = write("a0: {x: '', y: ''}\n" + "\n".join(lines))
    assert instantiate_from_yaml(recipe)["a39"] == {"x": "", "y": ""}


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"file_bytes": 28}, r"root: expected at most 28 bytes, got more\n"),
        ({"total_bytes": 40}, r"inner\.yaml:1:1: root: all files together have more than 40 bytes\n"),
        ({"num_files": 1}, r"inner\.yaml:1:1: root: more than 1 files are included"),
        ({"num_interpolations": 1}, r"inner\.yaml:1:1: root: all files together have more than 1 interpolations"),
        ({"repeated_nodes": 1}, "aliases add more than 1 nodes"),
        ({"num_nodes": 14}, r"inner\.yaml:2:1: root: all files together have more nodes than may be \(num_nodes\)"),
        (
            {"expression_chars": 7},
            r"inner\.yaml:3:4: c: interpolations of all files .* \(expression_chars\)",
        ),
    ],
)
def test_the_caller_sets_limits(write: Write, limits: dict[str, int], problem: str) -> None:
    """Of one file, or of all together, each as often as it is included."""
    write("a: &a [1, 1]\nb: *a\nc: ${b}\n", "inner.yaml")
    recipe = write("x: ${z}\nz: 1\ny: {include: inner.yaml}\n")
    assert instantiate_from_yaml(recipe)["y"]["c"] == [1, 1]
    with pytest.raises(RecipeError, match=problem):
        instantiate_from_yaml(recipe, limits=limits)
    assert len(check_recipe(recipe, limits=limits)) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("- x\n" * (1 << 18), r":32768:3: root: all files together have more nodes than may be \(num_nodes\)"),
        ("[" * (1 << 20), ":1:101: root: nested deeper than 100 levels"),
        ("- '${a} x'\n" * 10_000, r"\(expression_chars\)"),
        ("a: ${" + " " * 1_000_000 + "b}", r"\(expression_chars\)"),
        ("a: '" + "${oc.env:" * 100 + "b" + "}" * 100 + "'", r"\(expression_chars\)"),
        ("a: '" + "${variables:x," * 5000 + "1" + "}" * 5000 + "'", "at most 100 interpolations within one"),
        ("a: '" + "\\" * 1_000_000 + "x${b}'", r"\(expression_chars\)"),
        ("a: '${r:" + '" ' * 500_000 + "}'", r"\(expression_chars\)"),
    ],
    ids=["nodes", "levels", "interpolations", "spaces", "nested", "defaults", "backslashes", "quotes"],
)
def test_a_recipe_takes_a_second_at_most(write: Write, content: str, problem: str) -> None:
    """Whatever it is made of: no part of reading it is quadratic."""
    recipe = write(content)
    with cpu_within(1), pytest.raises(RecipeError, match=problem):
        instantiate_from_yaml(recipe)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("y: '[" + "1," * 40_000 + "1]'\nx: ${oc.decode:${y}}", r"oc\.decode .*\(expression_chars\)"),
        ("y: 'a: [1]'\nx: ${oc.create:${y}}", r"oc\.create: expected a mapping or a list, got text"),
        ("b: 1\nx: \"${oc.create:{a:'\\\\${b}'}}\"", r"oc\.create: expected values without"),
        ("x: ${oc.coerce:antigravity.Type,1}", r"oc\.coerce: expected bool"),
    ],
    ids=["decode", "yaml", "create", "import"],
)
def test_resolvers_take_no_texts_without_bounds(write: Write, content: str, problem: str) -> None:
    """Nor do they import what a recipe names."""
    recipe = write(content)
    with cpu_within(1):
        with pytest.raises(RecipeError, match=problem):
            instantiate_from_yaml(recipe)
        assert check_recipe(recipe)
    assert "antigravity" not in sys.modules


def test_what_select_leads_to_is_resolved_once(write: Write) -> None:
    """Each level selects the one below ten times."""
    levels = [f"a{level}: '" + f"${{oc.select:a{level - 1}}}" * 10 + "'\n" for level in range(1, 12)]
    with cpu_within(1):
        assert instantiate_from_yaml(write("a0: ''\n" + "".join(levels)))["a11"] == ""
    assert instantiate_from_yaml(write("a: '1'\nb: '${oc.decode:${a}}'\nc: ${oc.coerce:int,'5'}"))["c"] == 5


def test_limits_of_recipes_are_checked(write: Write) -> None:
    """With the name that may be meant."""
    with pytest.raises(ValueError, match="recipe: limits: unknown limit 'file_byte', did you mean 'file_bytes'"):
        instantiate_from_yaml(write("a: 1"), limits={"file_byte": 1})


def test_a_check_knows_the_limits_of_sources(write: Write) -> None:
    """Before anything is read."""
    target = "target: streamdata.JsonlIterableDataset\nparams: {path: x.jsonl, limits: {line_byte: 1}}\n"
    (problem,) = check_recipe(write(target))
    assert "limits: unknown limit" not in problem.message
    assert problem.message.startswith("unknown limit 'line_byte', did you mean 'line_bytes'?")


def test_a_check_ends_after_a_thousand_problems(write: Write) -> None:
    """Each unknown target costs a guess; the last problem says where it ended."""
    recipe = write("- {target: streamdata.Jsonl}\n" * 1100)
    problems = check_recipe(recipe)
    assert [problem.kind for problem in problems] == ["error"] * MAX_PROBLEMS + ["not checked"]
    assert problems[-1].location == f"{recipe}:{MAX_PROBLEMS + 1}:3"
