"""What a recipe may expand to."""

from collections.abc import Callable

import pytest

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import MAX_PROBLEMS, check_recipe
from tests.cpu import cpu_within

Write = Callable[..., str]


def bomb(levels: int) -> str:
    """Each line names the one before ten times."""
    lines = [f'a{level}: "' + f"${{a{level - 1}}}" * 10 + '"\n' for level in range(1, levels)]
    return "a: ${a" + str(levels - 1) + "}\na0: xxxxxxxxxx\n" + "".join(lines)


@pytest.mark.parametrize("value", ["[1]", "{b: 1}"])
def test_a_mapping_or_list_is_no_part_of_a_text(write: Write, value: str) -> None:
    """Python's form of it is none of a recipe's."""
    with pytest.raises(RecipeError, match=r"expected text or a number inside a longer text, got a (dict|list)"):
        instantiate_from_yaml(write(f"a: {value}\nc: x ${{a}}\n"))


def test_resolvers_write_texts_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the environment."""
    monkeypatch.setenv("A_LONG_TEXT", "x" * 500)
    recipe = write("a: ${oc.env:A_LONG_TEXT}/${oc.env:A_LONG_TEXT}\n")
    assert len(instantiate_from_yaml(recipe, limits={"num_nodes": 23})["a"]) == 1001
    with pytest.raises(RecipeError, match=r"recipe\.yaml:1:4: a: the recipe has more nodes"):
        instantiate_from_yaml(recipe, limits={"num_nodes": 22})


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
        ({"num_nodes": 34}, r"inner\.yaml:3:\d: root: the recipe has more nodes than may be \(num_nodes\)"),
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
        ("- x\n" * (1 << 18), r":\d+:3: root: the recipe has more nodes than may be \(num_nodes\)"),
        ("[" * (1 << 20), ":1:101: root: nested deeper than 100 levels"),
        ("".join(f"- '${{oc.env:A,b}} x{n}'\n" for n in range(10_000)), "more nodes than may be"),
        ("a: ${" + " " * 1_000_000 + "b}", "more nodes than may be"),
        ("a: '" + "${oc.env:" * 100 + "b" + "}" * 100 + "'", "more nodes than may be"),
        ("a: '" + "${variables:x," * 5000 + "1" + "}" * 5000 + "'", "more nodes than may be"),
        ("a: '" + "\\" * 1_000_000 + "x${b}'", "more nodes than may be"),
        ("a: '${r:" + '" ' * 500_000 + "}'", "more nodes than may be"),
    ],
    ids=["nodes", "levels", "interpolations", "spaces", "nested", "defaults", "backslashes", "quotes"],
)
def test_a_recipe_takes_a_second_at_most(write: Write, content: str, problem: str) -> None:
    """Whatever it is made of: no part of reading it is quadratic."""
    recipe = write(content)
    with cpu_within(1), pytest.raises(RecipeError, match=problem):
        instantiate_from_yaml(recipe)


def test_a_text_that_is_decoded_is_bounded(write: Write) -> None:
    """OmegaConf's parser reads it."""
    recipe = write("y: '[" + "1," * 60_000 + "1]'\nx: ${oc.decode:${y}}")
    with cpu_within(1), pytest.raises(RecipeError, match="x: the recipe has more nodes than may be"):
        instantiate_from_yaml(recipe)


def test_what_select_leads_to_is_resolved_once(write: Write) -> None:
    """Each level selects the one below ten times."""
    levels = [f"a{level}: '" + f"${{oc.select:a{level - 1}}}" * 10 + "'\n" for level in range(1, 12)]
    with cpu_within(1):
        assert instantiate_from_yaml(write("a0: ''\n" + "".join(levels)))["a11"] == ""


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
