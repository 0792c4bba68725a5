"""Files that change under their readers: `python -m tests.faults.changed_files` prints what comes of each.

Each kind of file, changed in each way: after it was opened, in mid-pass, and between a run and its resume. A record is
never another one than was written, unless the whole run began after the change: it ends with an error where one is.
"""

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet  # brings `pa.parquet`
import webdataset

from streamdata import (
    DatasetFactory,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    StoreWriter,
    StreamdataError,
    named,
    to_state,
)
from streamdata.fields import is_reserved

RECORDS = 40
"""Of each of two files."""
NEW = 5000
"""Added to the values of what takes a file's place: of as many digits."""


def write_tars(folder: Path, add: int, sidecars: bool = False) -> None:
    """Tars, with or without sidecars."""
    for shard in range(2):
        with webdataset.TarWriter(str(folder / f"{shard}.tar"), mtime=0) as writer:
            for n in range(RECORDS):
                writer.write({"__key__": f"{shard}{n:04}", "txt": f"{1000 + add + n:04}".encode()})
        lines = [json.dumps({"key": f"{shard}{n:04}", "score": 1000 + add + n}) for n in range(RECORDS)]
        if sidecars:
            (folder / f"{shard}.meta.jsonl").write_text("\n".join(lines) + "\n")


def rows(add: int) -> list[dict[str, int]]:
    """What a row says."""
    return [{"n": 1000 + add + n} for n in range(RECORDS)]


def write_jsonl(folder: Path, add: int) -> None:
    """Rows as lines."""
    for shard in range(2):
        (folder / f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(add)))


def write_gz(folder: Path, add: int) -> None:
    """Such lines, stored without compression, so that all files have one size."""
    for shard in range(2):
        data = "".join(json.dumps(row) + "\n" for row in rows(add)).encode()
        (folder / f"{shard}.jsonl.gz").write_bytes(gzip.compress(data, 0, mtime=0))


def write_parquet(folder: Path, add: int) -> None:
    """Rows in groups of ten."""
    for shard in range(2):
        table = pa.table({"n": [row["n"] for row in rows(add)]})
        pa.parquet.write_table(table, folder / f"{shard}.parquet", 10, compression="none", use_dictionary=False)


def write_store(storage_type: str, folder: Path, add: int) -> None:
    """A store of windows of four tokens."""
    with StoreWriter(
        storage_type, folder / "store", {"sequence": "uint16"}, max_tokens_per_shard=4 * RECORDS
    ) as writer:
        for n in range(2 * RECORDS):
            writer.append({"sequence": np.full(4, 1000 + add + n)})


def open_store(folder: Path) -> Any:
    """Its windows, as a source."""
    return DatasetFactory.load("seq", str(folder / "store"), 3, 4)


KINDS: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], Any]]] = {
    "tar": (write_tars, lambda folder: MetaDistributedWebDataset(str(folder), shuffle_buffer=8)),
    "tar+sidecar": (
        lambda folder, add: write_tars(folder, add, sidecars=True),
        lambda folder: MetaDistributedWebDataset(str(folder), meta_names=["score"], shuffle_buffer=8),
    ),
    "jsonl": (write_jsonl, lambda folder: JsonlIterableDataset(str(folder), shuffle_buffer=8)),
    "jsonl.gz": (write_gz, lambda folder: JsonlIterableDataset(str(folder), shuffle_buffer=8)),
    "parquet": (write_parquet, lambda folder: ParquetDataset(str(folder), shuffle_buffer=8, max_open_bytes=300)),
    "store bin": (lambda folder, add: write_store("bin", folder, add), open_store),
    "store h5": (lambda folder, add: write_store("h5", folder, add), open_store),
    "store megatron": (lambda folder, add: write_store("megatron", folder, add), open_store),
}


def files(folder: Path) -> list[Path]:
    """The data: neither indexes nor what says where it lies."""
    found = (path for path in folder.rglob("[!.]*") if path.is_file())
    return sorted(path for path in found if path.suffix not in (".json", ".idx", ".sums", ".manifest"))


def remove(path: Path, _: Path) -> None:
    """The file is gone."""
    path.unlink()


def replace(path: Path, new: Path) -> None:
    """Another one is renamed over it."""
    shutil.copyfile(new, path.with_name(f".{path.name}"))
    path.with_name(f".{path.name}").replace(path)


def overwrite(path: Path, new: Path) -> None:
    """It is written anew, in place."""
    with path.open("r+b") as file:
        file.write(new.read_bytes())


def grow(path: Path, _: Path) -> None:
    """Something is appended."""
    with path.open("ab") as file:
        file.write(path.read_bytes()[:1024])


def shrink(path: Path, _: Path) -> None:
    """Half of it is cut off."""
    os.truncate(path, path.stat().st_size // 2)


CHANGES = {"removed": remove, "replaced": replace, "overwritten": overwrite, "grown": grow, "shrunk": shrink}
MOMENTS = ("after opening", "mid-pass", "before resume")


def content(sample: dict[str, Any]) -> str:
    """What a sample holds of its record."""
    return str({name: getattr(value, "tolist", lambda value=value: value)() for name, value in sample.items()
                if not is_reserved(name)})  # fmt: skip


def stream(kind: str, folder: Path) -> MergedDataset:
    """One pass over the files."""
    return MergedDataset([named(KINDS[kind][1](folder), name="a", percent=1)], cyclic=False, seed=3)


def outcome(folder: Path, kind: str, change: str, moment: str) -> str:
    """What a reader gives or raises; `WRONG` where a record is none that was written."""
    write = KINDS[kind][0]
    old, new = folder / "old", folder / "new"
    for at, add in ((old, 0), (new, NEW)):
        at.mkdir()
        write(at, add)
    known = [list(map(content, stream(kind, at))) for at in (old, new)]
    wanted = set(known[0])
    dataset, before = stream(kind, old), []
    iterator = iter(dataset)
    if moment != "after opening":
        before = list(islice(iterator, 10))
    for path in files(old):
        CHANGES[change](path, new / path.relative_to(old))
    try:
        if moment == "before resume":
            states: dict[str, Any] = {}
            states.update(to_state(before))
            dataset = stream(kind, old)
            dataset.set_dataloader_states(states)
            iterator = iter(dataset)
        got = list(map(content, iterator))
    except (StreamdataError, OSError) as error:
        return type(error).__name__
    if moment == "before resume" and set(got) <= set(known[1]) and change in ("replaced", "overwritten"):
        return "the new records"
    texts = [*map(content, before), *got]
    if not set(texts) <= wanted:
        return "the new records" if set(texts) <= set(known[1]) else "WRONG"
    return "all as it was" if sorted(texts) == sorted(known[0]) else f"WRONG: {len(texts)} of {len(known[0])}"


def outcomes(kinds: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Of all changes."""
    for kind in kinds:
        for change in CHANGES:
            for moment in MOMENTS:
                with tempfile.TemporaryDirectory() as folder:
                    os.environ["STREAMDATA_CACHE"] = f"{folder}/cache"
                    yield kind, change, moment, outcome(Path(folder), kind, change, moment)


def main() -> None:
    """A line for each kind and change."""
    line: list[str] = []
    num_wrong = 0
    for kind, change, moment, found in outcomes(sys.argv[1:] or list(KINDS)):
        num_wrong += found.startswith("WRONG")
        line.append(f"{moment}: {found}")
        if len(line) == len(MOMENTS):
            print(f"| {kind} {change} | {'; '.join(line)} |", flush=True)
            line = []
    sys.exit(num_wrong > 0)


if __name__ == "__main__":
    main()
