"""Prints and writes the table: `python -m tests.benchmarks [--quick] [tar jsonl collate …]`."""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks import (
    balance,
    blend,
    collate,
    images,
    jsonl,
    ledger,
    memory,
    mixing,
    packing,
    parquet,
    plan,
    prepare,
    prompts,
    remote,
    resume,
    start,
    state,
    stores,
    tar,
)
from tests.benchmarks.measure import QUICK, Beside, Row, Scale

_MODULES = (
    tar,
    jsonl,
    parquet,
    images,
    collate,
    mixing,
    resume,
    memory,
    start,
    state,
    stores,
    blend,
    plan,
    packing,
    balance,
    prepare,
    prompts,
    ledger,
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


def lines(rows: Iterable[Row]) -> Iterator[str]:
    """The table in Markdown, line by line as it is measured, then the rows in which a peer is ahead."""
    yield f"{machine()}; of works run by turns the best time of each, in brackets the least and most ratio of all turns"
    yield ""
    yield "| work | reach | got | met | from | times as fast as |"
    yield "|---|---|---|---|---|---|"
    ahead = []
    for row in rows:
        ahead += [f"- {row.work}: {one}" for one in peers_ahead(row)]
        verdict = {True: "ok", False: "**MISS**", None: ""}[row.ok]
        yield f"| {row.work} | {row.reach} | {row.got} | {verdict} | {row.from_} | {'; '.join(map(str, row.beside))} |"
    yield ""
    yield "A peer is ahead:" if ahead else "No peer is ahead."
    yield ""
    yield from ahead


def peers_ahead(row: Row) -> list[Beside]:
    """The peers that are faster than ours."""
    return [one for one in row.beside if one.is_peer and round(one.ratio, 2) < 1]  # as the table shows it


def as_json(rows: Sequence[Row], seconds: float) -> str:
    """The same table for programs."""
    found = [
        {
            **asdict(row),
            "beside": [one._asdict() for one in row.beside],
            "peers_ahead": [one.name for one in peers_ahead(row)],
        }
        for row in rows
    ]
    return json.dumps({"machine": machine(), "seconds": round(seconds), "rows": found}, indent=1, ensure_ascii=False)


def main() -> None:
    """Print all groups, or those that are named, and write `table.md` and `table.json` beside the data."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--quick", action="store_true", help="fewer turns: some ten minutes")
    wanted = parser.parse_args()
    begin, done = time.perf_counter(), []

    def measured() -> Iterator[Row]:
        for group in wanted.groups or GROUPS:
            for row in GROUPS[group].rows(DIRECTORY, QUICK if wanted.quick else Scale()):
                done.append(row)
                yield row

    written = []
    for line in lines(measured()):
        print(line, flush=True)
        written.append(line)
    seconds = time.perf_counter() - begin
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    print(f"\n{seconds:.0f} s")
    (DIRECTORY / "table.md").write_text("\n".join([*written, ""]), encoding="utf-8")
    (DIRECTORY / "table.json").write_text(as_json(done, seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
