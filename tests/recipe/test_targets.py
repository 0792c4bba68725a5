from pathlib import Path

import pytest

from streamdata.recipe.targets import TargetError, callable_of, import_target

pytestmark = pytest.mark.usefixtures("zoo")


def test_nested_attributes_are_found() -> None:
    """A method of a class in a module."""
    assert import_target("zoo.Any.build")(3).given == {"size": 3}  # type: ignore[operator]


def test_submodules_are_imported_on_the_way(zoo: Path) -> None:
    """A package need not import its modules itself."""
    (zoo / "shop" / "back").mkdir(parents=True)
    (zoo / "shop" / "__init__.py").write_text("")
    (zoo / "shop" / "back" / "room.py").write_text("class Box: pass")
    assert import_target("shop.back.room.Box").__name__ == "Box"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zoo.Sorce", "module 'zoo' has no 'Sorce', did you mean 'Source'?"),
        ("zoo.Any.biuld", "type 'zoo.Any' has no 'biuld', did you mean 'build'?"),
        ("zooo.Any", "no module 'zooo' was found\n  Install it"),
        ("zoo.NUMBER.gone", "int 'zoo.NUMBER' has no 'gone'"),
    ],
)
def test_a_misspelt_target_gets_a_guess(name: str, message: str) -> None:
    """Modules, classes and attributes."""
    with pytest.raises(TargetError) as caught:
        import_target(name)
    assert message in str(caught.value)


def test_a_module_is_no_target(zoo: Path) -> None:
    """Something inside it is."""
    (zoo / "pack").mkdir()
    (zoo / "pack" / "inner.py").write_text("")
    with pytest.raises(TargetError, match=r"it is the module 'pack\.inner'"):
        import_target("pack.inner")


def test_a_failing_import_keeps_its_cause(zoo: Path) -> None:
    """The module's own exception is shown and stays reachable, a missing dependency too."""
    (zoo / "sick.py").write_text("raise RuntimeError('no driver')")
    (zoo / "needy.py").write_text("import not_installed_anywhere")
    with pytest.raises(TargetError, match="importing 'sick' failed with RuntimeError: no driver") as caught:
        import_target("sick.X")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(
        TargetError, match=r"importing 'needy' failed with ModuleNotFoundError: .*not_installed_anywhere"
    ):
        import_target("needy.X")


def test_only_callables_can_be_called() -> None:
    """Data cannot."""
    assert callable_of(3) is None
    assert callable_of(len) is len
