import sys
from pathlib import Path

import pytest

from streamdata.recipe.parameters import Parameters
from streamdata.recipe.source_definitions import Definitions, NotCheckedError, NotFoundError

SOURCE = """
import abc, dataclasses, functools, typing
from collections import OrderedDict
raise SystemExit("imported")
T = typing.TypeVar("T")

class Base(abc.ABC, typing.Generic[T]):
    level = 1
    def __init__(self, a, b=1, *, c): self.name = a
    @classmethod
    def make(cls, x, y=0): ...
    @staticmethod
    def still(z): ...
    def method(self, q): ...

class Child(Base[int]): ...
class Other:
    def __init__(self, other): ...
class Both(Child, Other): ...
class New:
    def __new__(cls, n, **kw): ...
    def __init__(self, n, m=0): ...
class Empty: ...
class OnDict(OrderedDict): ...
class OwnOnDict(OnDict):
    def __init__(self, path): ...
class Loop(Loop): ...

@dataclasses.dataclass(frozen=True)
class Data:
    x: int
    y: int = 0
    z: list = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(init=False)
    K: typing.ClassVar[int] = 3
@dataclasses.dataclass
class More(Data):
    w: int = 1
    x: int = 2

@unknown
def decorated(a): ...
@functools.lru_cache(maxsize=3)
def cached(a, /, b, *args, c=1, **kw): ...
@unknown
class DecoratedClass: ...
class Meta(type):
    def __call__(cls, *args): ...
class WithMeta(metaclass=Meta): ...
made = functools.partial(cached, 1)
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that must not be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from .goods import Base as Renamed\nfrom . import goods as things\n"
        "from .stars import *\nfrom shop import circle\n"
    )
    (package / "goods.py").write_text(SOURCE)
    (package / "stars.py").write_text("from .goods import Empty\nAlias = Empty\n")
    (package / "sick.py").write_text("def (:\n")
    return package


def parameters(name: str) -> list[Parameters]:
    """What the source says a target takes."""
    definitions = Definitions()
    return definitions.parameters(definitions.find(name))


BASE = Parameters(("a", "c"), ("b",))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("goods.Base", [BASE]),
        ("goods.Child", [BASE]),
        ("goods.Both", [BASE]),
        ("Renamed", [BASE]),
        ("things.Child", [BASE]),
        ("goods.New", [Parameters(("n",), accepts_any=True), Parameters(("n",), ("m",))]),
        ("goods.Empty", [Parameters()]),
        ("Empty", [Parameters()]),
        ("Alias", [Parameters()]),
        ("goods.OwnOnDict", [Parameters(("path",))]),
        ("goods.Data", [Parameters(("x",), ("y", "z"))]),
        ("goods.More", [Parameters((), ("x", "y", "z", "w"))]),
        ("goods.cached", [Parameters(("b",), ("c",), ("a",), accepts_any=True)]),
        ("goods.Base.make", [Parameters(("x",), ("y",))]),
        ("goods.Child.still", [Parameters(("z",))]),
        ("goods.Child.method", [Parameters(("self", "q"))]),
    ],
)
def test_parameters_are_read_from_source(name: str, expected: list[Parameters]) -> None:
    """Through re-exports, stars, bases, dataclasses, `__new__` and methods, importing nothing."""
    assert parameters(f"shop.{name}") == expected
    assert not [module for module in sys.modules if module.startswith("shop")]


@pytest.mark.parametrize(
    "name", ["OnDict", "decorated", "DecoratedClass", "WithMeta", "made", "Base.level", "Data.x.y"]
)
def test_what_only_running_tells_is_not_checked(name: str) -> None:
    """Unread bases, decorators, metaclasses and computed values."""
    with pytest.raises((NotCheckedError, NotFoundError)) as caught:
        parameters(f"shop.goods.{name}")
    assert isinstance(caught.value, NotCheckedError) == (name != "Data.x.y")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shop.goods.Bse", "module 'shop.goods' has no 'Bse', did you mean 'Base'?"),
        ("shop.good.Base", "module 'shop' has no 'good', did you mean 'goods'?"),
        ("nowhere_at_all.X", "no module 'nowhere_at_all' was found"),
        ("shop.goods.Base.mke", "class 'shop.goods.Base' has no 'mke', did you mean 'make'?"),
        ("shop.goods", "it is the module 'shop.goods'"),
        ("shop.sick.X", "sick.py:1: not valid Python"),
    ],
)
def test_what_does_not_exist_is_not_found(name: str, message: str) -> None:
    """With a guess."""
    with pytest.raises(NotFoundError) as caught:
        Definitions().find(name)
    assert message in str(caught.value)


def test_circles_end() -> None:
    """A class based on its own name, and a package that imports a name from itself."""
    assert parameters("shop.goods.Loop") == [Parameters()]
    with pytest.raises(NotCheckedError, match="circles"):
        parameters("shop.circle")


def test_reexports_of_the_standard_library_lead_there() -> None:
    """So that trust can judge where a name ends."""
    assert Definitions().find("shop.goods.functools.partial").name == "functools.partial"
    assert Definitions().find("shop.goods.OrderedDict").name == "collections.OrderedDict"


@pytest.mark.parametrize(("name", "sets"), [("Child", True), ("Other", False), ("OnDict", True)])
def test_classes_that_name_themselves_are_known(name: str, sets: bool) -> None:
    """By assignment in the class or a base; an unread base might."""
    definitions = Definitions()
    assert definitions.sets_attribute(definitions.find(f"shop.goods.{name}"), "name") is sets
