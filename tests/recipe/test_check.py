import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from streamdata.recipe.check import check_recipe
from streamdata.recipe.targets import PERMITTED
from streamdata.recipe.yaml_tree import Kind, Problem

Write = Callable[..., str]


def errors(problems: list[Problem]) -> list[str]:
    """The first lines of the errors."""
    return [str(problem).split("\n")[0] for problem in problems if problem.kind == "error"]


@pytest.mark.usefixtures("zoo")
def test_all_errors_are_reported_at_once(write: Write) -> None:
    """Variables, interpolations, includes, targets and parameters, each with its location."""
    recipe = write("""\
        a: ${variables:img_siz}
        b: ${nowhere}
        c: {include: gone.yaml}
        d: {target: os.system, params: {}}
        e: {target: zoo.Sorce}
        f: {target: zoo.Source, params: {img_sise: 1, seq_len: '${variables:seq}'}}
        g: {target: zoo.Any, name: x}
        h: 1
        h: 2
        i: {target: zoo.Any, params: {3: 1}}
        """)
    bare = "a target without params is the imported thing itself, and takes no attributes"
    assert errors(check_recipe(recipe, {"img_size": 1, "seq": 2}, imports=["zoo"])) == [
        "recipe.yaml:9:1: h: the key 'h' is given twice, the first time in line 8",
        "recipe.yaml:1:4: a: no variable 'img_siz' was given, did you mean 'img_size'?; given: img_size, seq",
        "recipe.yaml:2:4: b: Interpolation key 'nowhere' not found",
        "recipe.yaml:3:14: c.include: the included file 'gone.yaml' was not found",
        f"recipe.yaml:7:4: g (zoo.Any): {bare}, got name",
        "recipe.yaml:10:31: i.params[3] (zoo.Any): expected a parameter's name, got 3",
        "recipe.yaml:4:13: d.target: 'os.system' is refused: of the standard library only these are targets: "
        + ", ".join(PERMITTED),
        "recipe.yaml:5:13: e.target: module 'zoo' has no 'Sorce', did you mean 'Source'?",
        "recipe.yaml:6:34: f.params.img_sise (zoo.Source): unknown parameter 'img_sise', did you mean 'img_size'?",
        "recipe.yaml:6:4: f (zoo.Source): missing parameters: img_size; given: img_sise, seq_len",
    ]


LOUD = "a: {target: loud.Box, params: {y: 1}}\nb: {target: loud.inner.Box, params: {x: 1}}\n"


@pytest.fixture
def loud(zoo: Path) -> None:
    """A package that leaves a file behind, and speaks, when it is imported."""
    (zoo / "loud").mkdir()
    (zoo / "loud" / "__init__.py").write_text("from loud.inner import Box\nopen('imported', 'w')\nprint('hello')\n")
    (zoo / "loud" / "inner.py").write_text("class Box:\n def __init__(self, x): ...\n")


@pytest.mark.usefixtures("loud")
def test_a_package_that_nobody_names_is_not_imported(write: Write) -> None:
    """It is only looked whether it is there, and said once that nobody has looked into it."""
    (problem,) = check_recipe(write(LOUD))
    assert (problem.location, problem.kind) == ("recipe.yaml:1:13", "not checked")
    assert problem.message == "not checked: 'loud' is not imported, but by --import loud"
    assert not Path("imported").exists()


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize("named", [{"imports": ["loud"]}, {"allow": ["loud"]}])
def test_a_package_that_is_named_is_imported_elsewhere(write: Write, named: dict[str, list[str]]) -> None:
    """In a child process, with what it prints: not in this one."""
    assert [problem.path for problem in check_recipe(write(LOUD), **named)] == ["a.params.y", "a"]
    assert Path("imported").exists()
    assert "loud" not in sys.modules


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise RuntimeError('no driver')", "importing 'sick' failed with RuntimeError: no driver"),
        ("import os; os._exit(3)", "the process that imports it failed: it died with exit code 3"),
        ("import sys; sys.exit(3)", "importing 'sick' failed with SystemExit: 3"),
    ],
)
def test_a_package_that_cannot_be_imported_is_a_problem(write: Write, zoo: Path, code: str, says: str) -> None:
    """Whatever it does instead."""
    (zoo / "sick.py").write_text(code)
    (problem,) = check_recipe(write("target: sick.X\nparams:\n"), imports=["sick"])
    assert problem.kind == "error"
    assert says in problem.message


CLASSES = """
import typing
from collections.abc import Callable, Sequence

class Plain:
    def __init__(self, a: int, b: "str | None" = None, c: typing.Literal["x", 1] = "x", *, d: Sequence[str] = ()): ...
    @classmethod
    def make(cls, size: float, fn: Callable = None): ...
"""


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ("{a: 1, b: x, c: 1, d: [x]}", []),
        ("{a: '1'}", ["expected an integer, got '1'\n  Write it without quotes."]),
        ("{a: 1, b: 2}", ["expected text or null, got 2"]),
        ("{a: 1, c: y}", ["expected 'x' or 1, got 'y'"]),
        ("{a: 1, d: [1]}", ["expected a list of text, got [1]"]),
        ("{a: {target: builtins.int, params: {}}, d: '${dynamic_objs:x}'}", []),
    ],
)
def test_values_are_compared_with_types(write: Write, zoo: Path, params: str, says: list[str]) -> None:
    """Of packages that are imported; what is built or given may be anything."""
    (zoo / "typed.py").write_text(CLASSES)
    found = check_recipe(write(f"target: typed.Plain\nparams: {params}\n"), imports=["typed"])
    assert [problem.message for problem in found] == says


@pytest.mark.usefixtures("zoo")
def test_a_sound_recipe_has_no_problems(write: Write) -> None:
    """Includes, bare targets, partials, dataclasses, dynamic objects and interpolations."""
    write("target: zoo.Source\nparams: {img_size: '${variables:n}'}\n", "inner.yaml")
    recipe = write("""\
        a: {include: inner.yaml, name: x}
        b: {target: functools.partial, params: {func: {target: zoo.double}, x: '${dynamic_objs:any}'}}
        c: {target: zoo.Point, params: {x: 1}}
        d: {target: zoo.Any.build, params: {size: '${c.params.x}'}}
        e: {target: builtins.dict, params: {k: 1}}
        f: {target: zoo.functools.partial}
        """)
    assert check_recipe(recipe, {"n": 3}, imports=["zoo"]) == []


@pytest.mark.usefixtures("zoo")
def test_dynamic_names_are_checked_where_they_are_known(write: Write) -> None:
    """Without a list any name will do."""
    recipe = write("a: ${dynamic_objs:x}")
    assert check_recipe(recipe) == []
    assert check_recipe(recipe, dynamic_objs_names=["x"]) == []
    assert "no dynamic object 'x'" in errors(check_recipe(recipe, dynamic_objs_names=["y"]))[0]


def test_an_object_within_a_text_is_an_error(write: Write) -> None:
    """Whether its name is known or not."""
    (problem,) = check_recipe(write("a: x-${dynamic_objs:o}"))
    assert "inside a longer text, got an object\n  It must be the whole value" in problem.message


def test_unused_variables_are_warnings(write: Write) -> None:
    """As they are in building."""
    (problem,) = check_recipe(write("a: 1"), {"x": 1})
    assert (problem.kind, problem.message) == ("warning", "the variable 'x' is not used by the recipe")


@pytest.mark.parametrize("text", ["target: kept.Kept\nparams: {}", "a: ${appl:1}"])
def test_what_is_not_known_is_not_an_error(write: Write, zoo: Path, text: str) -> None:
    """Classes made in C, and the application's resolvers."""
    (zoo / "kept.py").write_text("class Kept(dict): ...")
    problems = check_recipe(write(text), imports=["kept"])
    assert [problem.kind for problem in problems] == ["not checked"]


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("target", ["zoo.run", "zoo.Starter", "zoo.os.system", "zoo.functools.reduce"])
def test_aliases_of_the_standard_library_are_seen(write: Write, target: str) -> None:
    """Where the package is imported."""
    (problem,) = check_recipe(write(f"target: {target}"), imports=["zoo"])
    assert "is refused: of the standard library" in problem.message


def test_allow_narrows_the_check(write: Write) -> None:
    """By name, as in building."""
    (problem,) = check_recipe(write("target: numpy.dot"), allow=["my_pkg"])
    assert "the caller allows only my_pkg, streamdata" in problem.message


def test_a_file_included_twice_is_reported_once_per_location(write: Write) -> None:
    """Each chain of includes is one problem."""
    write("a: {target: os.system}", "inner.yaml")
    problems = check_recipe(write("- include: inner.yaml\n- include: inner.yaml\n"))
    assert [problem.chain for problem in problems] == [
        ("recipe.yaml:1:12: [0].include",),
        ("recipe.yaml:2:12: [1].include",),
    ]


def test_params_of_another_type_are_reported_beside_attributes(write: Write) -> None:
    """A number has no names in which an attribute could be."""
    problems = check_recipe(write("target: streamdata.CsvDataset\nparams: 5\nname: x"))
    assert "expected a mapping or null as params, got 5" in str(problems[0])


@pytest.mark.parametrize("target", ["[]", "{a: 1}", "1.5"])
def test_a_target_that_is_no_text_is_reported_below_params_too(write: Write, target: str) -> None:
    """Where texts are looked for that would be commands."""
    problems = check_recipe(write(f"target: streamdata.CsvDataset\nparams: {{path: {{target: {target}}}}}"))
    assert any("expected text after 'target'" in str(problem) for problem in problems)


@pytest.mark.parametrize("text", ["a: [1", "", "a: &x [*x]"])
def test_unreadable_recipes_are_reported_not_raised(write: Write, text: str) -> None:
    """A problem like any other."""
    assert len(check_recipe(write(text))) == 1


@pytest.mark.parametrize(
    "text", ["a: 'x ${variables:gone'", "a: '${b.${variables:gone}}'", "target: ${variables:gone}"]
)
def test_a_missing_value_does_not_hide_or_multiply_problems(write: Write, text: str) -> None:
    """What depends on it is passed over."""
    assert 1 <= len(check_recipe(write(text + "\nb: {null_: 1}\n" if "target" not in text else text))) <= 2


def test_a_missing_variable_is_one_error(write: Write) -> None:
    """However often it is named: nothing is said of values that it is a part of, in a longer text or by another."""
    text = """\
        target: streamdata.JsonlIterableDataset
        params:
          path: "${variables:data}/docs"
          limits: "${params.path}/y"
          process_fn: {target: streamdata.TextJsonlProcessFnBuilder, params: {tokenizer_name: "${variables:data}/t"}}
          holdout: "${oc.env:HOME,${variables:data}}"
        """
    texts: list[object] = []

    def look(_: str, params: Mapping[str, object]) -> Iterator[tuple[str, str, Kind]]:
        texts.extend(value for value in params.values() if isinstance(value, str))
        yield from ()

    said = [problem.message.partition(";")[0] for problem in check_recipe(write(text), files=look)]
    assert said[0] == "no variable 'data' was given"
    assert said[1:] == ["missing parameters: max_sequence_length"] * (len(said) - 1)
    assert texts == []
