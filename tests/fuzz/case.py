"""A kind of file, and one case of it: `sound files + random numbers → damaged files → read twice → outcome`."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from streamdata import StreamdataError
from tests.fuzz.mutation import mutate, mutate_tree

Files = dict[str, bytes]
_TIME_NS = 10**18


@dataclass(frozen=True)
class Packing:
    """How a file is compressed: what is inside is changed as often as what is outside."""

    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Kind:
    """A kind of file that is read.

    Attributes:
        name: Its name.
        target: Which of the files is damaged.
        sound: Makes the sound sets of files.
        read: Reads all that a folder holds, into something whose `repr` tells it.
        repair: Makes the checksums of a changed file fit again.
        packing: Of the target.
        tree: Whether it is JSON, which is changed as a tree as often as as bytes; or what parses and writes it.
        words: What stands in such files.
        leaves: The same, of trees.
        allowed: What reading may raise.
        is_foreign: Whether a C library parses it, whose crashes are not ours.
    """

    name: str
    target: str
    sound: Callable[[], Iterable[Files]]
    read: Callable[[Path], Any]
    repair: Callable[[bytes], bytes] | None = None
    packing: Packing | None = None
    tree: tuple[Callable[[bytes], Any], Callable[[Any], bytes]] | None = None
    words: tuple[bytes, ...] = ()
    leaves: tuple[Any, ...] = ()
    allowed: tuple[type[BaseException], ...] = (StreamdataError,)
    is_foreign: bool = False
    _made: list[Files] = field(default_factory=list)

    def made(self) -> list[Files]:
        """The sound sets of files, made once."""
        if not self._made:
            self._made.extend(self.sound())
        return self._made

    def case(self, rng: Random) -> Files:
        """A set of files, of which the target is damaged."""
        files = dict(rng.choice(self.made()))
        files[self.target] = self._damaged(files[self.target], rng)
        return files

    def _damaged(self, content: bytes, rng: Random) -> bytes:
        if self.packing is not None:
            if rng.randrange(2):
                return mutate(content, rng)
            return self.packing.pack(self._inner(self.packing.unpack(content), rng))
        return self._inner(content, rng)

    def _inner(self, content: bytes, rng: Random) -> bytes:
        if self.tree is not None and rng.randrange(3):
            parse, write = self.tree
            damaged = write(mutate_tree(parse(content), rng, self.leaves))
            if not rng.randrange(8):
                damaged = mutate(damaged, rng, self.words)
        else:
            damaged = mutate(content, rng, self.words)
        return self.repair(damaged) if self.repair is not None and rng.randrange(4) else damaged


JSON = (json.loads, lambda tree: json.dumps(tree).encode())


def write_files(folder: Path, files: Files) -> None:
    """Write a case."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(_TIME_NS, _TIME_NS))  # indexes and manifests say when their shards were written


def outcome_of(kind: Kind, folder: Path, files: Files) -> str:
    """How reading a case twice ends: `fine` or `error`, where it may so.

    Raises:
        AssertionError: The second reading ends otherwise than the first one.
        BaseException: Whatever else reading raises.
    """
    write_files(folder, files)
    try:
        first, second = (_reading(kind, folder) for _ in range(2))
    finally:
        shutil.rmtree(folder)
    assert first == second, f"read again, it gives {second[:300]}\n  and not {first[:300]}"
    return "error" if first.startswith("!") else "fine"


def _reading(kind: Kind, folder: Path) -> str:
    try:
        return repr(kind.read(folder))
    except kind.allowed as error:
        return f"!{type(error).__name__}"
