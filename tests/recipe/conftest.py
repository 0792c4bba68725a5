"""Recipes and a package of targets, written anew for each test."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ZOO = """
import dataclasses
import functools
import os
import pathlib
from os import system as run
from subprocess import Popen as Starter

class Source:
    def __init__(self, img_size, seq_len=16):
        self.img_size, self.seq_len = img_size, seq_len

class Mix:
    def __init__(self, datasets, fn=None):
        self.datasets, self.fn = datasets, fn
    def remember_dynamic_objects(self, uses):
        self.uses = uses

class Fails(Mix):
    def __init__(self, fn):
        self.fn = fn
    def remember_dynamic_objects(self, uses):
        raise RuntimeError("mine")

class Any:
    def __init__(self, **given):
        self.given = given
    @classmethod
    def build(cls, size=1):
        return cls(size=size)

class Slotted:
    __slots__ = ("value",)

class Strict:
    def __setattr__(self, name, value):
        raise ValueError(f"no field {name}")

class Path2(pathlib.PosixPath):
    pass

@dataclasses.dataclass
class Point:
    x: int
    y: int = 0

def double(x):
    return 2 * x

def broken(path):
    raise FileNotFoundError(2, "no such shard", path)

def give_class():
    return Source

NUMBER = 7
runner = functools.partial(os.system)
cached_run = functools.lru_cache(os.system)
formatter = "{0.__class__}".format
bound = functools.partial(double, 4)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a recipe into the working directory, and returns its name."""
    monkeypatch.chdir(tmp_path)

    def _write(text: str, name: str = "recipe.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return _write


@pytest.fixture
def zoo(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of an importable module `zoo`; what is imported from there is forgotten afterwards."""
    directory = tmp_path_factory.mktemp("targets")
    (directory / "zoo.py").write_text(ZOO, encoding="utf-8")
    monkeypatch.syspath_prepend(directory)
    before = set(sys.modules)
    yield directory
    for name in set(sys.modules) - before:
        if str(directory) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
