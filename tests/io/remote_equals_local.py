"""Random streams over a server, bit for bit the local ones: samples and states, whole and resumed, under faults.

`python -m tests.io.remote_equals_local --cases 100 --seed 0` prints a line for each case that differs and how many
there were; `--only N` reads one of them, with its traceback. The suite has a few.
"""

import argparse
import csv
import gzip
import io
import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
import zstandard
from torch.utils.data import DataLoader

from streamdata import (
    CsvDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    mixed_collate,
    record_rng,
    to_state,
)
from streamdata.io.remote import requests
from streamdata.io.remote.addresses import StorageOptions
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.io.servers import ObjectServer, Request, http_server, s3_server
from tests.streams import plain, resumed

KINDS = ("tar", "tar with sidecar", "tar.gz", "jsonl", "jsonl.zst", "csv", "csv.gz", "parquet")
"""Of shards. Stores of tokens are read from disks alone."""
INDEXED = ("tar", "tar with sidecar", "jsonl")
FAULTS = ("503", "429", "reset", "cut", "cut_chunked", "cut_unsized", "slow")
METHODS = ("fork", "fork", "fork", "forkserver", "spawn")
"""A process that is spawned takes seconds to import torch."""
BATCH = 4
Batches = list[tuple[object, object]]


class SourceCase(NamedTuple):
    """A source: the kind of its shards, how many records each has, how large, shuffled within how many."""

    kind: str
    sizes: tuple[int, ...]
    record_bytes: int
    shuffle_buffer: int
    manifest: str
    """Where there is one: "" for none, "here" for one that was made of the local files, "there" of those served."""


class Case(NamedTuple):
    """A mixture, and how it is read."""

    sources: tuple[SourceCase, ...]
    server: str
    folder: str
    cache: bool
    num_workers: int
    method: str
    faults: tuple[str, ...]
    share: float
    """Of the answers that are faults."""
    stop: float
    """The share of the batches after which it is resumed."""


def drawn(seed: int, number: int, *, methods: tuple[str, ...] = METHODS) -> Case:
    """The case of that number."""
    rng = Random(f"{seed}/{number}")
    server = rng.choice(("http", "s3"))
    sources = []
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.choice(KINDS)
        manifest = rng.choice(("", "here", "there" if server == "s3" else "here")) if kind in INDEXED else ""
        # A lane that has only shards of no records, and learns it as it reads them, says so as an error.
        least = 0 if kind in INDEXED else 1
        sizes = (7, *(rng.choice((least, 1, 5, 20, 60)) for _ in range(rng.randint(0, 3))))
        record_bytes = rng.choice((10, 300, 5000, 100_000 if kind != "parquet" else 5000))
        sources.append(SourceCase(kind, sizes, record_bytes, rng.choice((0, 8, 1000)), manifest))
    return Case(
        tuple(sources),
        server,
        rng.choice(("data", "da ta+1")),
        rng.random() < 0.5,
        num_workers := rng.choice((0, 1, 2)),
        rng.choice(methods) if num_workers else "",
        tuple(rng.sample(FAULTS, rng.randint(0, 4))),
        rng.choice((0.05, 0.2)),
        rng.random(),
    )


def _rows(source: SourceCase, rng: Random) -> list[list[dict[str, Any]]]:
    """The records of each shard."""
    shards, number = [], 0
    for size in source.sizes:
        rows = []
        for _ in range(size):
            text = rng.randbytes(rng.randint(0, source.record_bytes // 2)).hex()
            rows.append({"key": f"k{number:05}", "n": number, "text": text})
            number += 1
        shards.append(rows)
    return shards


def _write(source: SourceCase, folder: Path, rng: Random) -> None:
    """Write its shards, with what lies beside them."""
    folder.mkdir(parents=True)
    for shard, rows in enumerate(_rows(source, rng)):
        name = folder / f"{shard:03}"
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if source.kind.startswith("tar"):
            tar = io.BytesIO()
            with webdataset.TarWriter(tar, mtime=0) as writer:
                for row in rows:
                    writer.write({"__key__": row["key"], "txt": row["text"].encode(), "bin": b"\0" * row["n"]})
            is_packed = source.kind == "tar.gz"
            name.with_suffix(".tar.gz" if is_packed else ".tar").write_bytes(
                gzip.compress(tar.getvalue(), 1) if is_packed else tar.getvalue()
            )
            if source.kind == "tar with sidecar":
                name.with_suffix(".meta.jsonl").write_bytes(lines.replace(b'"text"', b'"caption"'))
        elif source.kind == "parquet":
            ids = pa.list_(pa.int32())
            schema = pa.schema([("key", pa.string()), ("n", pa.int64()), ("text", pa.string()), ("ids", ids)])
            lists = [row | {"ids": [row["n"]] * (row["n"] % 4) if row["n"] % 7 else None} for row in rows]
            pq.write_table(pa.Table.from_pylist(lists, schema), f"{name}.parquet", row_group_size=rng.choice((3, 50)))
        elif source.kind.startswith("csv"):
            text = io.StringIO()
            writer = csv.DictWriter(text, ["key", "n", "text"])
            writer.writeheader()
            writer.writerows(rows)
            packed = gzip.compress(text.getvalue().encode(), 1) if source.kind == "csv.gz" else text.getvalue().encode()
            Path(f"{name}.{source.kind}").write_bytes(packed)
        else:
            packed = zstandard.ZstdCompressor(1, write_checksum=True).compress(lines)
            Path(f"{name}.{source.kind}").write_bytes(lines if source.kind == "jsonl" else packed)


def _drawing(record: dict[str, Any]) -> dict[str, Any]:
    """A process function with numbers of its own."""
    return {**record, "drawn": record_rng(record).random()}


def _dataset(case: Case, roots: list[Any], cache: Path | None, options: dict[str, Any] | None) -> MergedDataset:
    """The mixture, of sources at these paths."""
    sources = []
    for number, (source, root) in enumerate(zip(case.sources, roots, strict=True)):
        settings: dict[str, Any] = {"shuffle_buffer": source.shuffle_buffer, "single_process_fn": _drawing}
        if options is not None:
            settings["storage_options"] = options
        if cache is not None:
            settings["cache"] = {"path": str(cache), "max_bytes": 10**9}
        made: Any
        if source.kind.startswith("tar"):
            names = ["caption"] if source.kind == "tar with sidecar" else []
            made = MetaDistributedWebDataset(root, meta_names=names, **settings)
        elif source.kind == "parquet":
            made = ParquetDataset(root, **settings)
        else:
            made = (CsvDataset if source.kind.startswith("csv") else JsonlIterableDataset)(root, **settings)
        made.name, made.percent = f"s{number}", 1.0 + number
        sources.append(made)
    return MergedDataset(sources, cyclic=False, stop="all_exhausted", seed=5)


def _shards(folder: Path) -> list[Path]:
    """The shards of a source's folder."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name[0] != "." and not path.name.endswith((".meta.jsonl", ".manifest"))
    ]


def _sample(sample: object) -> object:
    """What is compared of a sample: of its url the file's name alone."""
    found: Any = plain(sample)
    return found | {"__url__": found["__url__"].rpartition("/")[2]}


def _recorded(case: Case, dataset: MergedDataset, method: str = "fork") -> Batches:
    """The batches of a stock DataLoader: their samples, and their states as a text."""
    settings: dict[str, Any] = {"multiprocessing_context": method, "timeout": 200} if case.num_workers else {}
    batches = DataLoader(dataset, BATCH, num_workers=case.num_workers, collate_fn=mixed_collate, **settings)
    return [([_sample(sample) for sample in batch], json.dumps(to_state(batch), sort_keys=True)) for batch in batches]


class _Faults:
    """The faults of some answers, drawn by a seed."""

    def __init__(self, case: Case, server: ObjectServer, rng: Random) -> None:
        self._case, self._server, self._rng = case, server, rng
        self.counts: Counter[str] = Counter()

    def __call__(self, request: Request) -> str | None:
        self._server.delay_s = 0.0
        if not self._case.faults or self._rng.random() > self._case.share:
            return None
        fault = self._rng.choice(self._case.faults)
        self.counts[fault] += 1
        if fault == "slow":
            self._server.delay_s = 0.05  # of the answers that come next
            return None
        return fault


@contextmanager
def _served(case: Case, folder: Path) -> Iterator[tuple[ObjectServer, list[Any], dict[str, Any] | None]]:
    """A server of the files; the paths of the sources there, and settings."""
    files = {f"bucket/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    roots = [folder / case.folder / f"{number}" for number in range(len(case.sources))]
    if case.server == "s3":
        with s3_server(files) as server:
            yield server, [f"s3://bucket/{root.relative_to(folder)}/" for root in roots], {
                "endpoint": server.url, "anonymous": True,
            }  # fmt: skip
        return
    with http_server(files) as server:
        base = f"{server.url}/bucket/"
        urls = [[base + quote(str(path.relative_to(folder))) for path in _shards(root)] for root in roots]
        yield server, urls, None


def compared(case: Case, folder: Path, seed: int = 0) -> Counter[str]:
    """Read a case locally and from a server; return the faults that there were.

    Raises:
        AssertionError: The streams differ.
    """
    rng, files = Random(seed), folder / "files"
    roots = [files / case.folder / f"{number}" for number in range(len(case.sources))]
    for source, root in zip(case.sources, roots, strict=True):
        _write(source, root, rng)
    local = partial(_dataset, case, [[str(path) for path in _shards(root)] for root in roots], None, None)
    expected = _recorded(case, local())
    assert sum(len(samples) for samples, _ in expected) == sum(sum(source.sizes) for source in case.sources)
    for source, root in zip(case.sources, roots, strict=True):
        if source.manifest == "here":
            make_manifest(take_stock([str(root)]), num_processes=1)
    with _served(case, files) as (server, there, options):
        for source, root in zip(case.sources, there, strict=True):
            if source.manifest == "there":
                make_manifest(take_stock([root], options=StorageOptions(**(options or {}))), num_processes=1)
        server.fault = faults = _Faults(case, server, rng)
        remote = partial(_dataset, case, there, folder / "pages" if case.cache else None, options)
        got = _recorded(case, remote(), case.method)
        _assert_equal(got, expected, "the whole stream")
        stop = int(case.stop * len(expected))
        states: dict[str, Any] = {}
        for _, state in islice(got, stop):
            states.update(json.loads(str(state)))
        rest = _recorded(case, resumed(remote, states), case.method)
        want = _recorded(case, resumed(local, states))
        _assert_equal(rest, want, f"what follows batch {stop}")
        assert [samples for samples, _ in want] == [samples for samples, _ in expected[stop:]]
    return faults.counts


def _assert_equal(got: Batches, expected: Batches, what: str) -> None:
    for number, (one, other) in enumerate(zip(got, expected, strict=False)):
        assert one[0] == other[0], f"{what}: the samples of batch {number} are others"
        assert one[1] == other[1], f"{what}: the states of batch {number}: {one[1]}, local {other[1]}"
    assert len(got) == len(expected), f"{what}: {len(got)} batches, local {len(expected)}"


def run(case: Case, number: int, folder: Path) -> Counter[str]:
    """As `compared`, with short waits between attempts and an index cache of its own."""
    waits = {"_FIRST_WAIT_S": 0.002, "_LONGEST_WAIT_S": 0.05, "_LOOK_S": 0.005}
    with patch.multiple(requests, **waits), patch.dict(os.environ, {"STREAMDATA_CACHE": str(folder / "indexes")}):
        return compared(case, folder, number)


def main() -> int:
    """Run the cases that the command line names; 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.io.remote_equals_local", description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="CASE")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.streams", "tests.io.servers"])
    numbers = range(arguments.cases) if arguments.only is None else [arguments.only]
    wrong, faults, began, seen = 0, Counter[str](), time.monotonic(), Counter[str]()
    for number in numbers:
        case = drawn(arguments.seed, number)
        seen.update([case.server, case.method or "no workers", *(source.kind for source in case.sources)])
        try:
            with TemporaryDirectory() as folder:
                faults.update(run(case, number, Path(folder)))
        except Exception:
            wrong += 1
            sys.stdout.write(f"case {number}: {case}\n{traceback.format_exc()}\n")
    sys.stdout.write(
        f"seed {arguments.seed}: {len(numbers)} cases, {wrong} differ from the local stream, "
        f"{sum(faults.values())} faults, {time.monotonic() - began:.0f} s\n{dict(seen)}\n{dict(faults)}\n"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
