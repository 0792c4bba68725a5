import collections
import functools
import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamdata import instantiate_from_yaml
from streamdata.errors import RecipeError
from streamdata.recipe.targets import (
    PERMITTED,
    TargetError,
    import_target,
    refusal_of_name,
    refusal_of_object,
    validated_allow,
)

Write = Callable[..., str]


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "importlib.import_module",
        "posix.system",
        "builtins.dict.fromkeys",
        "builtins.str.format",
        "pathlib.Path.cwd",
        "pickle.loads",
        "_io.open",
        "ctypes.CDLL",
        "operator.methodcaller",
        "test.support.script_helper.assert_python_ok",
        "distutils.spawn.spawn",
        "types.FunctionType",
    ],
)
def test_the_standard_library_is_refused_by_name(name: str) -> None:
    """Before anything is imported; the message lists what is accepted."""
    assert "of the standard library only these are targets: builtins.bool" in (refusal_of_name(name) or "")


@pytest.mark.parametrize("name", ["", "zoo", ".zoo.Any", "zoo..Any", "zoo.Any ", "zoo.a-b", "..x", "zoo:Any", "zoo.1"])
def test_names_must_be_absolute_and_dotted(name: str) -> None:
    """Relative, empty and malformed names are refused."""
    assert "expected a dotted name" in (refusal_of_name(name) or "")


@pytest.mark.parametrize("name", ["zoo.Any.__init__", "zoo.double.__globals__", "zoo.__class__.__base__", "__main__.X"])
def test_names_with_dunder_parts_are_refused(name: str) -> None:
    """They reach into Python itself."""
    assert "begins with '__'" in (refusal_of_name(name) or "")


@pytest.mark.parametrize("name", ["streamdata.recipe.instantiate_from_yaml", "streamdata.instantiate_from_yaml"])
def test_a_recipe_cannot_build_another_one_under_other_rules(name: str) -> None:
    """It would escape `allow`."""
    assert "expected one of streamdata's targets" in (refusal_of_name(name, ["my_pkg"]) or "")
    assert "expected one of streamdata's targets" in (refusal_of_object(instantiate_from_yaml) or "")


@pytest.mark.parametrize("name", sorted(PERMITTED))
def test_the_documented_exceptions_are_accepted(name: str) -> None:
    """Each one can be imported as a target."""
    assert import_target(name) is PERMITTED[name]


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize(
    "name",
    [
        "zoo.os.system",
        "zoo.run",
        "zoo.Starter",
        "zoo.runner",
        "zoo.cached_run",
        "zoo.formatter",
        "zoo.Path2.write_text",
        "zoo.Path2.cwd",
        "zoo.dataclasses.dataclass",
        "zoo.dataclasses.sys.exit",
        "zoo.functools.reduce",
    ],
)
def test_aliases_of_the_standard_library_are_refused(name: str) -> None:
    """An object is judged by where it was defined, or by the modules on the way to it."""
    with pytest.raises(TargetError, match="is refused"):
        import_target(name)


@pytest.mark.parametrize(
    "obj",
    [
        eval,
        importlib.import_module,
        functools.partial(functools.partial(eval)),
        "a".format,
        str.format,
        {}.get,
        dict.fromkeys,
        print,
        list[int],
        collections.Counter,
        type,
        object,
        "x".__len__,
        functools.lru_cache(eval),
    ],
)
def test_objects_of_the_standard_library_are_refused(obj: object) -> None:
    """Functions, classes, methods, partials and generic aliases alike."""
    assert "is refused" in (refusal_of_object(obj) or "")


@pytest.mark.parametrize(
    "obj", [3, "text", None, [1], {"a": 1}, np.float32, np.dot, np.add, np.random.default_rng, Path("x")]
)
def test_data_and_objects_of_other_packages_are_accepted(obj: object) -> None:
    """Any other importable target is accepted by default."""
    assert refusal_of_object(obj) is None


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize(
    "name", ["zoo.Any", "zoo.Any.build", "zoo.double", "zoo.NUMBER", "zoo.bound", "zoo.functools.partial"]
)
def test_other_packages_are_accepted(name: str) -> None:
    """Classes, methods, functions, constants and partials of their own functions."""
    import_target(name)
    import_target(name.replace("functools.partial", "double"), allow=["zoo"])


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("name", ["numpy.dot", "builtins.dict", "zoo.functools.partial", "zoobar.X"])
def test_allow_narrows_to_named_packages(name: str) -> None:
    """Also for what a named package re-exports, and on the boundary of a name."""
    with pytest.raises(TargetError, match=r"is refused: the caller allows only streamdata, zoo"):
        import_target(name, allow=["zoo"])


def test_allow_judges_the_object_too() -> None:
    """An accepted name may lead to an object from elsewhere."""
    assert "'numpy.dot' is refused" in (refusal_of_object(np.dot, ["zoo"]) or "")
    assert refusal_of_object(np.dot, ["numpy"]) is None
    assert "is refused" in (refusal_of_object(np.random.default_rng(0), ["zoo"]) or "")


def test_a_static_method_of_an_extension_is_judged_by_its_class() -> None:
    """It knows neither its module nor its class."""
    import_target("tokenizers.Tokenizer.from_file", allow=["tokenizers"])
    assert "is refused" in (refusal_of_object(str.maketrans, holder=type("X", (str,), {"__module__": "os"})) or "")


def test_allow_keeps_streamdata_and_accepts_subpackages() -> None:
    """A dotted entry allows what is inside it."""
    assert refusal_of_name("streamdata.SeqDataset", []) is None
    assert refusal_of_name("a.b.C", ["a.b"]) is None
    assert refusal_of_name("a.bc.C", ["a.b"]) is not None


@pytest.mark.parametrize("allow", ["zoo", [3], ["zoo-x"], [""]])
def test_allow_must_be_a_list_of_names(allow: object) -> None:
    """A single text would be taken letter by letter."""
    with pytest.raises(ValueError, match="expected a list of package names"):
        validated_allow(allow)  # type: ignore[arg-type]


@pytest.mark.usefixtures("zoo")
def test_allow_is_not_granted_by_yaml(write: Write) -> None:
    """A key of that name is an attribute like any other."""
    recipe = write(
        "a: {target: zoo.Any, params: {}, allow: [builtins, numpy]}\nb: {target: numpy.dot}\nallow: [numpy]\n"
    )
    with pytest.raises(RecipeError, match=r"recipe\.yaml:2:13: b\.target: 'numpy\.dot' is refused"):
        instantiate_from_yaml(recipe, allow=["zoo"])


def test_all_names_are_judged_before_any_import(write: Write, zoo: Path) -> None:
    """A recipe with one refused target imports nothing at all, not even from an include."""
    (zoo / "loud.py").write_text("raise SystemExit('imported')")
    write("target: os.system\nparams: {command: 'true'}", "inner.yaml")
    with pytest.raises(RecipeError, match=r"inner\.yaml:1:9: target: 'os\.system' is refused"):
        instantiate_from_yaml(write("- target: loud.X\n- include: inner.yaml\n"))
