import json
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from omegaconf import OmegaConf

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.check import check_recipe
from tests.cpu import cpu_within

Write = Callable[..., str]


@pytest.fixture
def register() -> Iterator[Callable[[str, Any], None]]:
    """Registers resolvers as an application does, under whichever name OmegaConf has for that."""
    names: list[str] = []

    def _register(name: str, resolver: Any) -> None:
        names.append(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of two names, OmegaConf 2.3 calls the one deprecated, 2.4 the other
            OmegaConf.register_new_resolver(name, resolver)

    yield _register
    for name in names:
        OmegaConf.clear_resolver(name)


def test_interpolation_of_nodes_and_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative, embedded and environment interpolations keep working."""
    monkeypatch.setenv("DATA_ROOT", "/data")
    built = instantiate_from_yaml(write("a: {b: [1, 2], c: '${.b}'}\nd: ${a.b[1]}\ne: '${oc.env:DATA_ROOT}/${d}'\n"))
    assert built == {"a": {"b": [1, 2], "c": [1, 2]}, "d": 2, "e": "/data/2"}


def test_a_list_root_can_be_interpolated(write: Write) -> None:
    """Indexes name its nodes."""
    assert instantiate_from_yaml(write("- 3\n- x: ${0}\n")) == [3, {"x": 3}]


def test_resolvers_of_the_application_work_and_survive(write: Write, register: Callable[[str, Any], None]) -> None:
    """Whatever they return arrives: scalars, nested data with markers, and objects."""
    thing = object()
    register("thing", lambda: thing)
    register("wrap", lambda value: {"in": [value]})
    built = instantiate_from_yaml(
        write("a: '${thing:}'\nb: ${wrap:${c}}\nc: ${dynamic_objs:o}\n"), dynamic_objs={"o": thing}
    )
    assert built["a"] is thing
    assert built["b"]["in"][0] is thing
    assert OmegaConf.has_resolver("thing")


def test_an_error_of_a_resolver_without_text_has_its_location(
    write: Write, register: Callable[[str, Any], None]
) -> None:
    """Nothing fails where it is quoted."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise LookupError("no text")

    def fail() -> None:
        raise MuteError

    register("mute", fail)
    with pytest.raises(RecipeError, match=r"recipe.yaml:1:4: a: \(no text"):
        instantiate_from_yaml(write("a: '${mute:}'\n"))


def test_no_resolver_of_ours_is_registered(write: Write) -> None:
    """Building leaves OmegaConf's global state alone."""
    instantiate_from_yaml(write("a: ${variables:x}\nb: ${dynamic_objs:o}\n"), {"x": 1}, {"o": 2})
    assert not OmegaConf.has_resolver("variables")
    assert not OmegaConf.has_resolver("dynamic_objs")


def test_an_applications_own_resolver_called_variables_survives(
    write: Write, register: Callable[[str, Any], None]
) -> None:
    """It is neither used nor removed."""
    register("variables", lambda name: f"theirs {name}")
    assert instantiate_from_yaml(write("a: ${variables:x}\n"), {"x": "ours"}) == {"a": "ours"}
    assert OmegaConf.create({"a": "${variables:x}"}).a == "theirs x"


def test_two_recipes_are_built_at_once(write: Write) -> None:
    """Each thread sees its own values."""
    recipe = write("a: ${variables:x}\nb: ${a}\nc: ${dynamic_objs:o}\n")
    objects = [object() for _ in range(40)]

    def build(number: int) -> Any:
        return instantiate_from_yaml(recipe, {"x": number}, {"o": objects[number]})

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(build, range(40)))
    assert built == [{"a": n, "b": n, "c": objects[n]} for n in range(40)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x:\n  - y: ${nope.z}\n", r"recipe\.yaml:2:8: x\[0\]\.y: Interpolation key 'nope\.z' not found"),
        ("x: ${oc.env:NO_SUCH_NAME}\n", r"recipe\.yaml:1:4: x: .*NO_SUCH_NAME"),
        ("x: ${nobody:1}\n", r"recipe\.yaml:1:4: x: Unsupported interpolation type nobody\n  Register it"),
        ("a: 1\nx: ['${']\n", r"recipe\.yaml:2:5: x\[0\]: expected valid interpolations, got one"),
        ("x: ${y}\ny: ${x}\n", r"recipe\.yaml:2:4: y: expected interpolations that end"),
        ("y: 1\nx: ${oc.dict.keys:y}\n", r"recipe\.yaml:2:4: x: expected the name of a mapping"),
        ("x: ${oc.create:'[1'}\n", r"recipe\.yaml:1:4: x: in the text of oc\.create: not valid YAML"),
        ("x: {y: '${x}'}\n", r"recipe\.yaml:1:8: x\.y: expected interpolations that end"),
        ("x: '???'\n", r"recipe\.yaml:1:4: x: expected a value instead of '\?\?\?'"),
        ("x: ['???']\n", r"recipe\.yaml:1:5: x\[0\]: expected a value"),
        ("x: ${dynamic_objs:o}\ny: a ${x}\n", r"recipe\.yaml:2:4: y: expected text or a number .*, got an object"),
    ],
)
def test_what_does_not_resolve_has_its_location(write: Write, text: str, message: str) -> None:
    """OmegaConf's exceptions become recipe errors with line, column and path."""
    with pytest.raises(RecipeError, match=message):
        instantiate_from_yaml(write(text), dynamic_objs={"o": object()})


def test_the_cause_is_kept(write: Write, register: Callable[[str, Any], None]) -> None:
    """The exception of a resolver stays reachable."""
    register("half", lambda number: 1 / number)
    with pytest.raises(RecipeError, match=r"x: division by zero") as caught:
        instantiate_from_yaml(write("x: ${half:0}\n"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_interpolation_bombs_are_errors(write: Write) -> None:
    """Nodes that name nodes eight times over are stopped."""
    lines = ["a0: [1]"] + [f"a{n}: [{', '.join([f'${{a{n - 1}}}'] * 8)}]" for n in range(1, 9)]
    lines = [line.replace("${", "'${").replace("}", "}'") for line in lines]
    with cpu_within(3), pytest.raises(RecipeError, match="more nodes than may be"):
        instantiate_from_yaml(write("\n".join(lines)))


def test_interpolations_that_nest_without_bound_are_errors(write: Write) -> None:
    """Each node names the one before, so that the last is 200 levels deep though none looks deep."""
    lines = ["a0: [1]"] + [f"a{n}: ['${{a{n - 1}}}']" for n in range(1, 200)]
    with pytest.raises(
        RecipeError,
        match=r"recipe\.yaml:\d+:\d+: a\d+\[0\]: nested deeper than 100 levels\n  Aliases and interp",
    ):
        instantiate_from_yaml(write("\n".join(lines)))


def test_a_problem_is_told_where_it_is_written(write: Write) -> None:
    """Once, whoever names its node."""
    problems = check_recipe(write("b: ${a}\na: {x: '${nope}', y: [1]}\nc: ${a.y}\n"))
    assert [problem.location for problem in problems] == ["recipe.yaml:2:8"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.select:b.c}", 1),
        ("${oc.select:b.gone,7}", 7),
        ("${oc.decode:'[${b.c}, 2]'}", [1, 2]),
        ("${.b.d[0]}", 5),
        ("${e.c}", 1),
        ("${b.${oc.decode:c}}", 1),
        (r"\${b} ${b.c}", "${b} 1"),
        ("${oc.dict.keys:b}", ["c", "d"]),
        ("${oc.dict.values:e}", [1, [5]]),
        ("${oc.create:'x: [1]'}", {"x": [1]}),
        ("${oc.create:{x: ${b.c}}}", {"x": 1}),
    ],
)
def test_ways_to_name_a_node(write: Write, text: str, value: object) -> None:
    """By OmegaConf's own resolvers, relative, through another interpolation, escaped."""
    built = instantiate_from_yaml(write(f"b: {{c: 1, d: [5]}}\na: {json.dumps(text)}\ne: ${{b}}\n"))
    assert built["a"] == value


@pytest.mark.parametrize("text", ["${oc.coerce:antigravity.Type,1}", "${oc.deprecated:b}"])
def test_other_resolvers_of_omegaconf_are_refused(write: Write, text: str) -> None:
    """They import what a recipe names, or need OmegaConf's containers."""
    (problem,) = check_recipe(write(f"a: {json.dumps(text)}\nb: {{}}\n"))
    assert "Known are oc.env, oc.decode, oc.select, oc.create, oc.dict.keys, oc.dict.values." in problem.message
    assert "antigravity" not in sys.modules


def test_a_resolver_that_wants_the_containers_is_an_error(write: Write, register: Callable[[str, Any], None]) -> None:
    """There are none that it could be given."""
    register("above", lambda _parent_: _parent_.b)
    with pytest.raises(RecipeError, match=r"a: a resolver in a recipe is given no _parent_ and no _node_"):
        instantiate_from_yaml(write("a: '${above:}'\nb: 1\n"))
