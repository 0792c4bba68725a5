"""Counts the files and functions of the package that a walk touches: `python -m tests.walks [WALK]`.

To understand what happens on a walk one opens these files. With a walk's name its files are listed, each with how many
of its functions ran. What runs when a module is imported does not count.
"""

import inspect
import io
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import streamdata
from streamdata import (
    MergedDataset,
    MetaDistributedWebDataset,
    StreamLoader,
    instantiate_from_yaml,
    load_states,
    save_states,
    to_state,
)

PACKAGE = str(Path(streamdata.__file__).parent)
RECIPE = """\
target: streamdata.MergedDataset
params:
  seed: 1
  datasets:
    - target: streamdata.MetaDistributedWebDataset
      name: web
      percent: 1
      params:
        path: FOLDER
        block_size: 2
"""


@contextmanager
def touched() -> Iterator[set[CodeType]]:
    """Collects the functions of the package that run meanwhile, in any thread."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def is_function(code: CodeType) -> bool:
    """Whether it is no module's or class's own body."""
    return bool(code.co_flags & inspect.CO_NEWLOCALS)


def files_of(found: set[CodeType]) -> Counter[str]:
    """The files, each with how many of its functions ran."""
    return Counter(code.co_filename.removeprefix(f"{PACKAGE}/") for code in found if is_function(code))


def shards(folder: Path) -> str:
    """Two tars with eight records each, indexed."""
    for number in range(2):
        with tarfile.open(folder / f"{number:05}.tar", "w") as tar:
            for record in range(8):
                for suffix in ("txt", "json"):
                    member = tarfile.TarInfo(f"{record}.{suffix}")
                    member.size = 2
                    tar.addfile(member, io.BytesIO(b"{}"))
    return str(folder)


def source(folder: str) -> Any:
    """The one source."""
    return MetaDistributedWebDataset(folder, name="web", percent=1)


def first_batch(folder: str) -> set[CodeType]:
    """One tar source in one mixture, by a StreamLoader in this process: from its making to a batch of 4."""
    list(MergedDataset([source(folder)], cyclic=False))
    with touched() as found:
        next(iter(StreamLoader(MergedDataset([source(folder)]), 4)))
    return found


def later_batch(folder: str) -> set[CodeType]:
    """Its third batch."""
    batches = iter(StreamLoader(MergedDataset([source(folder)]), 4))
    for _ in range(2):
        next(batches)
    with touched() as found:
        next(batches)
    return found


def recipe(folder: str) -> set[CodeType]:
    """A recipe of 10 lines to objects."""
    path = Path(folder, "recipe.yaml")
    path.write_text(RECIPE.replace("FOLDER", folder))
    instantiate_from_yaml(str(path))
    with touched() as found:
        instantiate_from_yaml(str(path))
    return found


def another_size(folder: str) -> set[CodeType]:
    """States of two ranks, saved and loaded by one, to its first sample."""
    for rank in range(2):
        dataset = MergedDataset([source(folder)])
        states: dict[str, Any] = {}
        dataset.set_data_parallel(2, rank)
        samples = iter(dataset)
        for _ in range(3):
            states.update(to_state(next(samples)))
        save_states(f"{folder}/states", states, step=3, rank=rank, size=2)
    dataset = MergedDataset([source(folder)])
    with touched() as found:
        dataset.set_dataloader_states(load_states(f"{folder}/states"))
        next(iter(dataset))
    return found


WALKS: dict[str, Callable[[str], set[CodeType]]] = {
    "first_batch": first_batch,
    "later_batch": later_batch,
    "recipe": recipe,
    "another_size": another_size,
}


def walk(name: str) -> Counter[str]:
    """The files of a walk, each with how many of its functions ran."""
    with tempfile.TemporaryDirectory() as folder:
        return files_of(WALKS[name](shards(Path(folder))))


def main(names: list[str]) -> None:
    """Prints a line for each walk, or the files of the walks that are named."""
    for name in names or WALKS:
        files = walk(name)
        print(f"{name:14}{len(files):4} files {sum(files.values()):5} functions")
        for file, count in sorted(files.items()) if names else ():
            print(f"    {count:3}  {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
