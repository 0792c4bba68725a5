"""How many files of the package a record passes on its way from a shard to a sample: few enough to be read in one go.

`python -m tests.test_way_of_a_record` prints them.
"""

import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import streamdata
from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from streamdata.run.per_process import open_files
from tests.shard_files import write_jsonl, write_tars

PACKAGE = str(Path(streamdata.__file__).parent) + "/"


def files_called(run: Callable[[], object]) -> set[str]:
    """The files of the package that have a function which is called, or goes on, meanwhile."""
    found = set()

    def note(frame: Any, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            found.add(path.removeprefix(PACKAGE))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def single(record: dict[str, Any]) -> dict[str, Any]:
    """A process function."""
    return dict(record)


def way(folder: Path, kind: str, function: Callable[[dict[str, Any]], dict[str, Any]] | None) -> list[set[str]]:
    """Files on the way to the first sample, and to those after it, over several windows. The index is there already."""

    def make() -> MergedDataset:
        source: Any
        if kind == "tar":
            source = MetaDistributedWebDataset(str(folder), meta_names=["score"], single_process_fn=function)
        else:
            source = JsonlIterableDataset(str(folder), single_process_fn=function)
        source.name, source.percent = kind, 1
        return MergedDataset([source], cyclic=False)

    write_tars(folder, [700] * 3) if kind == "tar" else write_jsonl(folder, [900] * 3)
    make()
    samples: Any = None

    def start() -> None:
        nonlocal samples
        samples = iter(make())
        next(samples)

    return [files_called(start), files_called(lambda: list(islice(samples, 2000)))]


@pytest.mark.parametrize(
    ("kind", "function", "most"), [("tar", None, 19), ("jsonl", None, 16), ("tar", single, 22), ("jsonl", single, 19)]
)
def test_the_way_of_a_record_is_short(tmp_path, kind, function, most):
    """Of a tar with a sidecar and of JSONL, in a mixture of one source; the ways after the first sample."""
    open_files._values.clear()  # what other tests left open would be closed on the way
    _, steady = way(tmp_path, kind, function)
    assert len(steady) <= most, sorted(steady)


if __name__ == "__main__":
    for what in ("tar", "jsonl"):
        for each in (None, single):
            with tempfile.TemporaryDirectory() as name:
                first, after = way(Path(name), what, each)
            title = f"{what}{', with a process function' if each else ''}"
            print(f"{title}: {len(first)} files to the first sample, {len(after)} to the others")  # noqa: T201
            print("\n".join(f"  {path}" for path in sorted(after)))  # noqa: T201
