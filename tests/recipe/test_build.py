import functools
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdata import MergedDataset, instantiate_from_yaml
from streamdata.errors import RecipeError
from tests.streams import Numbers

pytestmark = pytest.mark.usefixtures("zoo")
Write = Callable[..., str]


def test_target_and_params_are_called_and_other_keys_become_attributes(write: Write) -> None:
    """The plainest recipe."""
    built = instantiate_from_yaml(write("target: zoo.Source\nparams: {img_size: 3}\nname: web\npercent: 1e-1\n"))
    assert (type(built).__name__, built.img_size, built.seq_len) == ("Source", 3, 16)
    assert (built.name, built.percent) == ("web", 0.1)


@pytest.mark.parametrize("params", ["", "null", "{}"])
def test_params_may_be_empty(write: Write, params: str) -> None:
    """Null and an empty mapping call without arguments."""
    assert instantiate_from_yaml(write(f"target: zoo.Any\nparams: {params}\n")).given == {}


def test_a_target_without_params_is_the_thing_itself(write: Write) -> None:
    """Functions, classes, constants."""
    built = instantiate_from_yaml(write("[{target: zoo.double}, {target: zoo.Any}, {target: zoo.NUMBER}]"))
    zoo = sys.modules["zoo"]
    assert built == [zoo.double, zoo.Any, 7]


def test_everything_nests(write: Write) -> None:
    """In params, attributes, lists and plain mappings, to any depth."""
    built = instantiate_from_yaml(
        write("""
        - target: zoo.Mix
          params:
            datasets: [{target: zoo.Any, params: {inner: {k: [{target: zoo.double}]}}}]
          single_process_fn: {target: zoo.Any, params: {size: 2}}
        """)
    )
    zoo = sys.modules["zoo"]
    assert built[0].datasets[0].given == {"inner": {"k": [zoo.double]}}
    assert built[0].single_process_fn.given == {"size": 2}
    ((first,), [], *rest) = instantiate_from_yaml(write("- [{target: zoo.Any, params: {}}]\n- []\n- [[{}, null]]\n"))
    assert (type(first), rest) == (zoo.Any, [[[{}, None]]])


def test_arguments_called_target_and_include_are_arguments(write: Write) -> None:
    """The keys of params name parameters, whatever they are."""
    built = instantiate_from_yaml(write("target: zoo.Any\nparams: {target: os.system, include: x.yaml, params: 3}\n"))
    assert built.given == {"target": "os.system", "include": "x.yaml", "params": 3}


def test_an_interpolated_target_is_built_for_each_use(write: Write) -> None:
    """Two sources that share a description are two objects."""
    built = instantiate_from_yaml(write("a: {target: zoo.Any, params: {}}\nb: ${a}\n"))
    assert type(built["b"]) is type(built["a"])
    assert built["a"] is not built["b"]


def test_a_dynamic_object_is_passed_by_identity(write: Write) -> None:
    """As a parameter, an attribute, and through an interpolation."""
    thing = object()
    recipe = write("target: zoo.Any\nparams: {x: '${dynamic_objs:t}', y: '${params.x}'}\nz: ${dynamic_objs:t}\n")
    built = instantiate_from_yaml(recipe, dynamic_objs={"t": thing})
    assert built.given["x"] is built.given["y"] is built.z is thing


def test_functools_partial_takes_its_function_as_func(write: Write) -> None:
    """A recipe can bind arguments of a function."""
    built = instantiate_from_yaml(write("target: functools.partial\nparams: {func: {target: zoo.double}, x: 4}\n"))
    assert isinstance(built, functools.partial)
    assert built() == 8


def test_a_partial_of_the_standard_library_is_refused(write: Write) -> None:
    """Its function is a target of its own."""
    with pytest.raises(RecipeError, match=r":2:25: params\.func\.target: 'os\.system' is refused"):
        instantiate_from_yaml(
            write("target: functools.partial\nparams: {func: {target: os.system}, command: 'true'}\n")
        )


def test_a_constructors_exception_is_wrapped_with_its_location(write: Write) -> None:
    """File, line, column, path, target, the exception's type and text; the cause is the exception itself."""
    recipe = write("params:\n  datasets:\n  - 1\n  - target: zoo.broken\n    params: {path: x.tar}\n")
    with pytest.raises(RecipeError) as caught:
        instantiate_from_yaml(recipe)
    assert str(caught.value) == (
        "recipe.yaml:4:5: params.datasets[1] (zoo.broken): FileNotFoundError: [Errno 2] no such shard: 'x.tar'"
    )
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.__cause__.filename == "x.tar"


@pytest.mark.parametrize(
    ("code", "text", "place"),
    [
        ("def leave(): raise SystemExit(3)", "target: script.leave\nparams: {}\n", "root (script.leave): "),
        ("raise SystemExit(3)", "target: script.leave\nparams: {}\n", "target: importing 'script' failed with "),
        (
            "class Leaves:\n    x = property(fset=lambda *_: exit(3))",
            "target: script.Leaves\nparams: {}\nx: 1\n",
            "x (script.Leaves): setting the attribute 'x' failed with ",
        ),
    ],
)
def test_a_target_that_exits_is_an_error_like_others(zoo: Path, write: Write, code: str, text: str, place: str) -> None:
    """At its location: the process does not end with its code."""
    (zoo / "script.py").write_text(code)
    with pytest.raises(RecipeError, match=re.escape(f"{place}SystemExit: 3")):
        instantiate_from_yaml(write(text))


def test_an_error_without_text_has_its_location(zoo: Path, write: Write) -> None:
    """Its class may fail where it is to become text."""
    mute = "class MuteError(Exception):\n    def __str__(self): raise LookupError\n    __repr__ = __str__\n"
    (zoo / "script.py").write_text(f"{mute}def make(): raise MuteError")
    with pytest.raises(RecipeError, match=re.escape("recipe.yaml:1:1: root (script.make): MuteError: (no text")):
        instantiate_from_yaml(write("target: script.make\nparams: {}\n"))


def test_an_interrupt_of_a_target_is_passed_on(zoo: Path, write: Write) -> None:
    """As it is."""
    (zoo / "script.py").write_text("def leave(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        instantiate_from_yaml(write("target: script.leave\nparams: {}\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "target: zoo.Source\nparams:\n  img_sice: 3\n",
            r":3:3: params\.img_sice \(zoo\.Source\): unknown parameter 'img_sice', did you mean 'img_size'\?\n  It",
        ),
        (
            "- target: zoo.Source\n  params: {}\n",
            r":1:3: \[0\] \(zoo\.Source\): missing parameters: img_size; given: none",
        ),
        ("target: zoo.Any\nparams: {1: 2}\n", r":2:10: params\[1\] \(zoo\.Any\): expected a parameter's name, got 1"),
        ("target: zoo.NUMBER\nparams:\n", r":1:1: root \(zoo\.NUMBER\): expected a callable, got int"),
        ("a: {target: zoo.Sorce}\n", r":1:13: a\.target: module 'zoo' has no 'Sorce', did you mean 'Source'"),
        ("target: zoo.Strict\nparams:\nname: x\n", r":3:1: name \(zoo\.Strict\): setting .* ValueError: no field name"),
        ("target: zoo.Slotted\nparams:\nvalu: x\n", r":3:1: valu .*AttributeError.*, did you mean 'value'\?"),
        (
            "target: zoo.give_class\nparams:\nname: x\n",
            r":3:1: name .*attributes cannot be set on <class 'zoo\.Source'>",
        ),
    ],
)
def test_errors_of_building_have_their_location(write: Write, text: str, message: str) -> None:
    """File, line, column, path, what was expected."""
    with pytest.raises(RecipeError, match=r"recipe\.yaml" + message):
        instantiate_from_yaml(write(text))


def test_parameters_are_checked_before_anything_below_is_built(write: Write) -> None:
    """A misspelt parameter is told before the slow work starts."""
    with pytest.raises(RecipeError, match="unknown parameter 'dataset', did you mean 'datasets'"):
        instantiate_from_yaml(write("target: zoo.Mix\nparams: {dataset: [{target: zoo.broken, params: {path: x}}]}\n"))


def test_an_included_bare_target_takes_no_attributes(write: Write) -> None:
    """They would change the imported thing for everyone; told through two includes, before anything is imported."""
    write("target: zoo.Any", "inner.yaml")
    write("include: inner.yaml", "middle.yaml")
    with pytest.raises(RecipeError, match=r"recipe\.yaml:1:1: root: an included target without params"):
        instantiate_from_yaml(write("include: middle.yaml\nname: x\n"))
    assert "zoo" not in sys.modules


def test_an_include_of_an_object_takes_no_params(write: Write) -> None:
    """They would be set as an attribute, and do nothing."""
    write("target: zoo.Any\nparams: {}", "inner.yaml")
    with pytest.raises(RecipeError, match=r":2:1: params: an include takes no params\n  Use variables"):
        instantiate_from_yaml(write("include: inner.yaml\nparams: {x: 1}\n"))


def test_built_objects_know_their_location(write: Write) -> None:
    """Of the mapping that names them, be it an include; objects without room for it are built all the same."""
    write("target: zoo.Any\nparams: {}", "inner.yaml")
    built = instantiate_from_yaml(
        write(
            "- {target: zoo.Any, params: {}}\n- {target: zoo.Slotted, params: {}}\n- {target: zoo.Strict, params: {}}\n"
            "- {include: inner.yaml}\n- {include: inner.yaml, name: x}\n- {target: zoo.double, params: {x: 1}}\n"
        )
    )
    locations = [getattr(thing, "_recipe_location", None) for thing in built]
    assert locations == ["recipe.yaml:1:3", None, "recipe.yaml:3:3", "inner.yaml:1:1", "recipe.yaml:5:3", None]


def test_shared_results_are_not_marked(write: Write) -> None:
    """A class that a function returns belongs to everyone."""
    built = instantiate_from_yaml(write("target: zoo.give_class\nparams:\n"))
    assert "_recipe_location" not in vars(built)


def test_objects_remember_the_dynamic_objects_below_them(write: Write) -> None:
    """With their locations, those of includes and attributes too, and only their own."""
    write("fn: ${dynamic_objs:a}", "inner.yaml")
    a, b = object(), object()
    recipe = write("""\
        target: zoo.Mix
        params:
          datasets:
            - {target: zoo.Mix, params: {datasets: {include: inner.yaml}}}
            - {target: zoo.Mix, params: {datasets: 1}}
        hook: ${dynamic_objs:b}
        """)
    built = instantiate_from_yaml(recipe, dynamic_objs={"a": a, "b": b})
    below = ("inner.yaml:1:5: fn", a)
    assert built.uses == [below, ("recipe.yaml:6:7: hook", b)]
    assert built.datasets[0].uses == [below]
    assert not hasattr(built.datasets[1], "uses")


def test_an_included_object_remembers_what_is_set_on_it(write: Write) -> None:
    """The last call holds everything below."""
    write("target: zoo.Mix\nparams: {datasets: [], fn: '${dynamic_objs:f}'}", "inner.yaml")
    built = instantiate_from_yaml(write("include: inner.yaml\nhook: ${dynamic_objs:f}\n"), dynamic_objs={"f": 1})
    assert [location for location, _ in built.uses] == ["inner.yaml:2:28: params.fn", "recipe.yaml:2:7: hook"]


def test_built_objects_can_be_pickled(write: Write) -> None:
    """Nothing that is noted on them stands in the way."""
    built: Any = instantiate_from_yaml(write("target: zoo.Any\nparams: {x: [1]}\nname: n\n"))
    assert pickle.loads(pickle.dumps(built)).name == "n"


def test_an_unused_variable_is_said_by_its_value(write: Write) -> None:
    """That another recipe of this process has used one of its name says nothing of it."""
    instantiate_from_yaml(write("target: zoo.Any\nparams: {n: '${variables:rate}'}\n"), {"rate": 1})
    with pytest.warns(UserWarning, match="the variables 'rate' are not used"):
        instantiate_from_yaml(write("target: zoo.Any\n", "other.yaml"), {"rate": 2})


def test_an_object_that_does_not_take_its_dynamic_objects_is_named(write: Write) -> None:
    """Whatever it raises."""
    fails = "target: zoo.Fails\nparams: {fn: '${dynamic_objs:fn}'}\n"
    with pytest.raises(RecipeError, match=r"root \(zoo.Fails\): RuntimeError: mine"):
        instantiate_from_yaml(write(fails), {}, {"fn": len})


def test_an_include_of_a_list_takes_no_params(write: Write) -> None:
    """As one of a target takes none."""
    write("[1, 2]\n", "list.yaml")
    with pytest.raises(RecipeError, match="an include takes no params"):
        instantiate_from_yaml(write("target: zoo.Any\nparams: {l: {include: list.yaml, params: {a: 1}}}\n"))


def test_a_bad_name_is_told_once() -> None:
    """Not as the source's name, too."""
    with pytest.raises(ValueError, match=r"source 0 \(Numbers\): expected a unique name") as raised:
        MergedDataset([Numbers("a.b", 3)])
    assert str(raised.value).count("a.b") == 1
