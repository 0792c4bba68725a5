import ast
import sys
from pathlib import Path

import pytest

from streamdata.recipe.source_modules import Alias, Computed, Imported, SourceModules


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that must not be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(
        "raise SystemExit('imported')\n"
        "from typing import TYPE_CHECKING\n"
        "import os.path, numpy as np\n"
        "from .back import Box as Crate\n"
        "from ..shop import other\n"
        "from .stars import *\n"
        "if TYPE_CHECKING:\n    from .lazy import Lazy\nelse:\n    Lazy = make()\n"
        "try:\n    from fast import work\nexcept ImportError:\n    work = None\n"
        "Alias = Crate\nBoth, Two = make()\nLENGTH: int = 3\n"
        "def run(): ...\n"
    )
    (tmp_path / "shop" / "back.py").write_text("class Box: ...\n")
    return tmp_path / "shop"


@pytest.mark.usefixtures("shop")
def test_bindings_are_read_from_source() -> None:
    """Imports, relative ones too, aliases, definitions; what only running tells is computed."""
    module = SourceModules().find("shop")
    assert module is not None
    assert module.names["os"] == Imported("os")
    assert module.names["np"] == Imported("numpy")
    assert module.names["Crate"] == Imported("shop.back", "Box")
    assert module.names["Lazy"] == Imported("shop.lazy", "Lazy")
    assert module.names["Alias"] == Alias("Crate")
    assert isinstance(module.names["run"], ast.FunctionDef)
    assert [module.names[name] for name in ("work", "Both", "Two", "LENGTH")] == [Computed()] * 4
    assert module.stars == ["shop.stars"]
    assert list(module.submodules()) == ["back"]


@pytest.mark.usefixtures("shop")
def test_submodules_are_found_without_importing_their_parents() -> None:
    """Neither the package nor the module runs."""
    module = SourceModules().find("shop.back")
    assert module is not None
    assert "Box" in module.names
    assert not {"shop", "shop.back"} & set(sys.modules)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("name", ["shop.gone", "nowhere_at_all", "shop.back.deeper"])
def test_modules_that_do_not_exist_are_none(name: str) -> None:
    """No exception, for the caller knows the location."""
    assert SourceModules().find(name) is None


def test_extensions_have_no_source() -> None:
    """They are known to exist, and that is all."""
    module = SourceModules().find("orjson.orjson")
    assert module is not None
    assert not module.has_source


@pytest.mark.parametrize(
    "line", ["def __getattr__(name): ...", "globals()['x'] = 1", "import sys\nsys.modules[__name__] = 1"]
)
def test_modules_that_may_hold_more_than_they_show_are_dynamic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A name that their source does not show may still be there."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dynamic_one.py").write_text(line)
    module = SourceModules().find("dynamic_one")
    assert module is not None
    assert module.is_dynamic
