from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.resolve import References, resolve
from streamdata.recipe.yaml_tree import Locations

Write = Callable[..., str]


def value_of(text: Any, variables: dict[str, Any] | None = None, objects: dict[str, object] | None = None) -> Any:
    """What a text becomes as the value of a key, beside `b: B`."""
    references = References(variables or {}, objects or {})
    return resolve({"a": text, "b": "B"}, references, Locations("r.yaml"))["a"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet="a\\${}?'", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab$.", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_a_whole_reference_gives_the_value_itself(value: object) -> None:
    """With its type, whatever braces, backslashes or question marks are in it."""
    assert value_of("${variables:x}", {"x": value}) == value


@given(st.text(alphabet="a\\${}?'", max_size=8))
def test_an_embedded_reference_gives_its_literal_text(value: str) -> None:
    """A `${` in a value means nothing, and what surrounds it still works."""
    assert value_of("<${variables:x}|${b}>", {"x": value}) == f"<{value}|B>"


@pytest.mark.parametrize(
    ("default", "value"),
    [
        ("16", 16),
        ("1e-3", 0.001),
        ("text", "text"),
        ("null", None),
        ("", None),
        ("[1, 2]", [1, 2]),
        ("{k: 1}", {"k": 1}),
        ("'7'", "7"),
        ("${b}", "B"),
        ("x/${b}", "x/B"),
        ("${variables:y,3}", 3),
        ("[1, ${b}]", [1, "B"]),
        ("~/x y=1", "~/x y=1"),
        ("a,b", "a,b"),
        ("${oc.decode:'[1]'}", [1]),
        ("s3://bucket/key", "s3://bucket/key"),
        ("it's", "it's"),
        ("???", "???"),
    ],
)
def test_a_default_is_yaml_or_an_interpolation(default: str, value: object) -> None:
    """Defaults have types, and may name other values."""
    got = value_of(f"${{variables:x,{default}}}")
    assert got == value
    assert type(got) is type(value)


def test_a_given_value_overrides_the_default() -> None:
    """Also when it is null."""
    assert value_of("${variables:x,16}", {"x": 3}) == 3
    assert value_of("${variables:x,16}", {"x": None}) is None


def test_embedded_defaults_are_text() -> None:
    """A default inside a longer text keeps its spelling."""
    assert value_of("img_${variables:n,007}-${variables:m,'x y'}-${variables:k,${b}}") == "img_007-x y-B"


@pytest.mark.parametrize("value", [Path("/data"), (1, (2, "${b}")), b"raw", "???", 3, True])
def test_paths_tuples_and_bytes_keep_their_type(value: object) -> None:
    """What OmegaConf would change or refuse arrives unchanged."""
    got = value_of("${variables:x}", {"x": value})
    assert got == value
    assert type(got) is type(value)


def test_a_value_inside_another_interpolation() -> None:
    """A variable may be a part of a node's name, or an argument of a resolver, there quoted."""
    assert value_of("${${variables:key}}", {"key": "b"}) == "B"
    assert value_of("${oc.decode:${variables:text}}", {"text": "[1, {k: 2}]"}) == [1, {"k": 2}]
    assert value_of("${oc.env:NO_SUCH_NAME,${variables:other,fallback}}") == "fallback"
    assert value_of("${oc.env:NO_SUCH_NAME,${variables:none}}", {"none": None}) is None


def test_a_value_cannot_inject_an_interpolation() -> None:
    """Braces in a value that is part of a node's name are a part of it."""
    with pytest.raises(RecipeError, match="not found"):
        value_of("${${variables:key}}", {"key": "b},${oc.env:HOME"})


def test_an_escaped_reference_stays_text() -> None:
    """A backslash before it is all that is needed."""
    assert value_of(r"\${variables:x}", {}) == "${variables:x}"


def test_a_dynamic_object_arrives_by_identity() -> None:
    """Also through an interpolation that points at it."""
    marker = object()
    references = References({}, {"o": marker})
    resolved = resolve({"a": "${dynamic_objs:o}", "c": "${a}"}, references, Locations("r.yaml"))
    assert resolved["a"].value is marker
    assert resolved["c"].value is marker


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pre-${dynamic_objs:o}", "must be the whole value"),
        ("${oc.decode:${dynamic_objs:o}}", "expected text, got another value"),
        ("${dynamic_objs:o,1}", "takes no default"),
        ("${dynamic_objs:p}", r"no dynamic object 'p' was given.*; given: o"),
        ("${variables:imgsize}", r"no variable 'imgsize' was given, did you mean 'img_size'\?; given: bad, img_size"),
        ("x-${variables:gone}", "no variable 'gone'"),
        ("${variables:img_size", "expected valid interpolations"),
        ("${variables:${b}}", "no variable 'B' was given"),
        ("${variables:x,[1}", "in the default of 'x': not valid YAML"),
        ("${variables:bad}", r"'bad': .*got builtins\.object\n  Pass an object as one of dynamic_objs, and write"),
        ("is ${variables:bad}", "in the variable 'bad': "),
    ],
)
def test_unusable_references_say_where_and_why(text: str, message: str) -> None:
    """Each error has a location and a path, and names what was given."""
    with pytest.raises(RecipeError, match=r"r\.yaml:1:1: a: (?s:.*)" + message):
        value_of(text, {"img_size": 3, "bad": object()}, {"o": object()})


def test_a_missing_variable_is_located_by_line_and_path(write: Write) -> None:
    """The first line says file, line, column and path; the second what to do."""
    recipe = write("params:\n  datasets:\n    - a: 1\n    - params:\n        img_size: ${variables:img_size}\n")
    with pytest.raises(RecipeError) as caught:
        instantiate_from_yaml(recipe, {"seq_len": 3})
    assert str(caught.value) == (
        "recipe.yaml:5:19: params.datasets[1].params.img_size: no variable 'img_size' was given; given: seq_len\n"
        "  Pass variables={'img_size': …} (commands: --var img_size=…), or write a default: ${variables:img_size,…}."
    )


def test_a_reference_as_a_key_is_an_error(write: Write) -> None:
    """It would otherwise stay there unresolved."""
    with pytest.raises(RecipeError, match=r"recipe\.yaml:1:1: .*only works in values"):
        instantiate_from_yaml(write("${variables:x}: 1\n"))


def test_an_object_in_a_nested_variable_is_an_error() -> None:
    """Lists and dicts are searched."""
    with pytest.raises(RecipeError, match="in the variable 'x'"):
        value_of("${variables:x}", {"x": {"k": [1, (object(),)]}})


def test_a_variable_that_holds_itself_is_an_error() -> None:
    """Not a RecursionError."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(RecipeError, match="nested deeper than 100"):
        value_of("${variables:x}", {"x": loop})


def test_unused_variables_warn_once_and_at_the_caller(write: Write) -> None:
    """Used are names in includes too, and those whose default was not needed."""
    write("value: ${variables:inner}\n", "inner.yaml")
    recipe = write("a: {include: inner.yaml}\nb: ${variables:other,1}\n")
    with pytest.warns(UserWarning, match=r"^recipe\.yaml: the variables 'misspelt' are not used") as caught:
        instantiate_from_yaml(recipe, {"inner": 1, "other": 2, "misspelt": 3})
    assert [warning.filename for warning in caught] == [__file__]


def test_unused_variables_are_said_once_per_process(write: Write) -> None:
    """Of those that no recipe used: one dict of them may serve several."""
    train, valid = write("a: ${variables:of_train}", "train.yaml"), write("a: ${variables:of_valid}", "valid.yaml")
    instantiate_from_yaml(train, {"of_train": 1})
    variables = {"of_train": 1, "of_valid": 2, "of_nobody": 3}
    with pytest.warns(UserWarning, match=r"the variables 'of_nobody' are not used"):
        instantiate_from_yaml(valid, variables)
    assert instantiate_from_yaml(valid, variables) == {"a": 2}, "warnings are errors here"


def test_all_variables_used_warns_nothing(write: Write) -> None:
    """Warnings are errors here."""
    assert instantiate_from_yaml(write("a: ${variables:x}"), {"x": 1}) == {"a": 1}
