"""Prints the table: `python -m tests.benchmarks [tar jsonl collate …]`."""

import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks import (
    blend,
    collate,
    images,
    jsonl,
    memory,
    mixing,
    packing,
    parquet,
    plan,
    prepare,
    prompts,
    remote,
    resume,
    state,
    stores,
    tar,
)
from tests.benchmarks.measure import Row, Scale

_MODULES = (
    tar,
    jsonl,
    parquet,
    images,
    collate,
    mixing,
    resume,
    memory,
    state,
    stores,
    blend,
    plan,
    packing,
    prepare,
    prompts,
    remote,
)
GROUPS = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
DIRECTORY = Path(__file__).parents[2] / "build" / "bench"
_PACKAGES = ("torch-streamdata", "torch", "webdataset", "orjson", "numpy")


def machine() -> str:
    """Where and when the figures were measured, and with what."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].strip() if names else model
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {versions}"


def lines(groups: Sequence[str], directory: Path, scale: Scale) -> Iterator[str]:
    """The table in Markdown, line by line as it is measured."""
    yield f"{machine()}; of works run by turns the best time of each; page cache warm\n"
    yield "| work | reach | got | | from |"
    yield "|---|---|---|---|---|"
    for group in groups:
        for row in GROUPS[group].rows(directory, scale):
            yield _line(row)


def _line(row: Row) -> str:
    verdict = {True: "ok", False: "**MISS**", None: ""}[row.ok]
    return f"| {row.work} | {row.reach} | {row.got} | {verdict} | {row.from_} |"


def main() -> None:
    """Print all, or the groups that are named."""
    begin = time.perf_counter()
    for line in lines(sys.argv[1:] or list(GROUPS), DIRECTORY, Scale()):
        print(line, flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
