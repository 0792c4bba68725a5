"""What torchtitan's versions ask of a loader: stand-ins of their base classes, and how their trainers build one.

0.3.0 is https://pypi.org/project/torchtitan/0.3.0/, "main" is commit b5bcd76c66d0acb1a08b176d9639425bc55e0b2a of
https://github.com/pytorch/torchtitan; "installed" is the package that Python finds, such as a checkout on PYTHONPATH.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import pytest

from tests.compat.jobs import SCRIPTS, needs


class Configurable:
    """As `torchtitan/config/configurable.py` of both: what a config builds is the class that it stands in."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """What both versions' configs have."""

        owner: ClassVar[Any] = None

        def build(self, **runtime: Any) -> Any:
            """The loader."""
            return self.owner(config=self, **runtime)

    def __init_subclass__(cls) -> None:
        cls.Config.owner = cls


class RowLoader(ABC, Configurable):
    """`BaseDataLoader` of 0.3.0, in `torchtitan/components/dataloader.py`, but for the protocol `Stateful`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """What its configs have."""

        dataset: str = ""
        dataset_path: str | None = None

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


class FlatLoader(ABC, Configurable):
    """`BaseDataLoader` of the main branch, in `torchtitan/components/data/loader.py`, but for `Stateful`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """It has nothing."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """The trainer calls it at its end."""


MODULES = {
    "0.3.0": ("torchtitan.components.dataloader", RowLoader),
    "main": ("torchtitan.components.data.loader", FlatLoader),
}
VERSIONS: list[Any] = [*MODULES, pytest.param("installed", marks=needs("torchtitan"))]


def keywords(titan_loader: ModuleType, length: int, num_rows: int, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """What `torchtitan/trainer.py` of its version gives to `config.dataloader.build`."""
    replica = {"dp_world_size": size, "dp_rank": rank, "tokenizer": None}
    if titan_loader.FLAT:
        return {**replica, "max_context_length": length, "num_tokens_per_batch": num_rows * length}
    return {**replica, "seq_len": length, "local_batch_size": num_rows, "snapshot_every_n_steps": 5}


def build(titan_loader: ModuleType, rank: int = 0, size: int = 1) -> Any:
    """A loader of batches of two rows of 40 tokens, as its version's trainer builds it."""
    return titan_loader.TitanLoader.Config(num_workers=0).build(**keywords(titan_loader, 40, 2, rank, size))


def load(version: str) -> ModuleType:
    """The example, imported beside a stand-in of that version, or beside what is installed."""
    stand_ins = {} if version == "installed" else _stand_ins(version)
    with _modules({**stand_ins, "titan_loader": ..., "tiny": ...}):
        return importlib.import_module("titan_loader")


def _stand_ins(version: str) -> dict[str, ModuleType | None]:
    packages = ("torchtitan", "torchtitan.components", "torchtitan.components.data")
    name, base = MODULES[version]
    module = ModuleType(name)
    module.BaseDataLoader = base
    lacking = dict.fromkeys(other for other, _ in MODULES.values())  # None is a module that there is not
    return {**{package: ModuleType(package) for package in packages}, **lacking, name: module}


@contextmanager
def _modules(modules: dict[str, Any]) -> Iterator[None]:
    """Others of these names meanwhile; `...` is one that is imported anew."""
    before = {name: sys.modules.pop(name) for name in modules if name in sys.modules}
    sys.modules.update({name: module for name, module in modules.items() if module is not ...})
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield
    finally:
        sys.path.remove(str(SCRIPTS))
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)
