"""Real files to read, written once."""

import json
import os
import random
import shutil
import string
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset

FIELDS = ("cls", "jpg", "json", "txt")  # in the order in which they are written
META_FIELDS = ("url", "width", "height", "score", "caption", "is_clean")
_SIZES = (10, 29_000, 700, 290)  # bytes: 30 KB per record
_WORDS = ["the", "of", "and", "to", "in", "is", "you", "that", "for", "on", "are", "with", "his", "they", "at", "from"]


def cached(directory: Path, name: str, write: Callable[[Path], object]) -> Path:
    """The directory `name`, which `write` fills unless that was done before; its files are in memory as read from disk.

    How fast a file is read from memory depends on how it came there: one that was just written in small pieces lies in
    small pages, and is read up to 1.9 times as slowly as one that was read in its own order. Training finds files on a
    disk, and peers' files are written by other programs than ours.
    """
    place, partial = directory / name, directory / f"{name}.partial"
    if not place.exists():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        partial.rename(place)
    for path in filter(Path.is_file, place.rglob("*")):
        if path.stat().st_blocks * 512 < path.stat().st_size:  # of holes, which would only fill the memory
            continue
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 20):
                pass
    return place


def tar_shards(directory: Path, records: int) -> Path:
    """Twenty tar shards of records of four members, and `spans.npy`.

    Those are int64, (shards, records per shard, members, 2): where the bytes of each member begin and end.
    """
    return cached(directory, f"tar-{records}", lambda place: _write_tars(place, records))


def _write_tars(place: Path, records: int, shards: int = 20) -> None:
    noise = random.Random(0).randbytes(1 << 20)
    spans = []
    for shard in range(shards):
        path = place / f"{shard:05d}.tar"
        with webdataset.TarWriter(str(path), encoder=False, mtime=0) as writer:  # an integer: no pax headers
            for number in range(records // shards):
                at = (shard * 7919 + number * 104_729) % (len(noise) - sum(_SIZES))
                parts = {field: noise[at : at + size] for field, size in zip(FIELDS, _SIZES, strict=True)}
                writer.write({"__key__": f"{shard * (records // shards) + number:08d}", **parts})
        spans.append(_spans(path, records // shards))
    np.save(place / "spans.npy", np.array(spans))


def tars_with_sidecars(directory: Path, records: int) -> Path:
    """The same tars, each with a sidecar: a line of a key and 6 fields, 200 bytes, for each record."""
    tars = tar_shards(directory, records)
    return cached(directory, f"sidecar-{records}", lambda place: _write_sidecars(place, tars, records))


def _write_sidecars(place: Path, tars: Path, records: int) -> None:
    rng, paths = random.Random(0), sorted(tars.glob("*.tar"))
    for shard, path in enumerate(paths):
        (place / path.name).hardlink_to(path)
        each = records // len(paths)
        keys = [f"{shard * each + number:08d}" for number in range(each)]
        lines = [json.dumps({"key": key, **_metadata(rng)}, separators=(",", ":")) for key in keys]
        (place / f"{path.stem}.jsonl").write_text("\n".join(lines) + "\n")


def _metadata(rng: random.Random) -> dict[str, object]:
    return {
        "url": f"https://example.org/{rng.randrange(1 << 30)}.jpg",
        "width": rng.randrange(256, 4096),
        "height": rng.randrange(256, 4096),
        "score": rng.random(),
        "caption": " ".join(rng.choices(_WORDS, k=14)),
        "is_clean": True,
    }


def _spans(path: Path, records: int) -> np.ndarray:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    found = [(member.offset_data, member.offset_data + member.size) for member in members]
    order = [member.name.rpartition(".")[2] for member in members]
    assert order == list(FIELDS) * records, "members come in another order than they were written"
    return np.array(found, np.int64).reshape(records, len(FIELDS), 2)


def jsonl_rows(directory: Path, rows: int) -> Path:
    """Four JSONL shards of rows of several fields, about 1 KB each."""
    return cached(directory, f"jsonl-{rows}", lambda place: _write_rows(place, rows))


def _write_rows(place: Path, rows: int, shards: int = 4) -> None:
    rng = random.Random(0)
    for shard in range(shards):
        lines = [json.dumps(_row(rng, number)) for number in range(rows // shards)]
        (place / f"{shard:05d}.jsonl").write_text("\n".join(lines) + "\n")


def _row(rng: random.Random, number: int) -> dict[str, object]:
    return {
        "id": rng.randrange(1 << 40),
        "url": f"https://example.org/{rng.randrange(1 << 30)}/{number}.html",
        "title": " ".join(rng.choices(_WORDS, k=8)),
        "text": " ".join(rng.choices(_WORDS, k=190)),
        "score": rng.random(),
        "tags": rng.choices(_WORDS, k=4),
        "meta": {"lang": "en", "length": rng.randrange(10_000), "is_clean": True},
    }


def many_lines(directory: Path, records: int) -> Path:
    """One JSONL shard of many tiny rows."""
    return cached(directory, f"lines-{records}", lambda place: _write_lines(place, records))


def _write_lines(place: Path, records: int) -> None:
    with (place / "rows.jsonl").open("w") as file:
        file.writelines(f'{{"i":{number}}}\n' for number in range(records))


def many_members(directory: Path, records: int) -> Path:
    """One tar shard of many tiny records, with its sidecar."""
    return cached(directory, f"members-{records}", lambda place: _write_members(place, records))


def _write_members(place: Path, records: int) -> None:
    with webdataset.TarWriter(str(place / "shard.tar"), encoder=False, mtime=0) as writer:
        for number in range(records):
            writer.write({"__key__": f"{number:08d}", "cls": b"%d" % number})
    with (place / "shard.meta.jsonl").open("w") as file:
        file.writelines(f'{{"key":"{number:08d}","aspect":1.5}}\n' for number in range(records))


def index_bytes(place: Path) -> int:
    """The size of all indexes in a directory of shards."""
    return sum(entry.stat().st_size for entry in os.scandir(place) if entry.name.endswith(".index"))


PARQUET_KINDS = {"documents of 2.7 KB": 3, "images of 20 KB": 12, "lists of 512 tokens": 8, "rows of 600 bytes": 1}
"""What rows of parquet hold; of how many times fewer rows a file is, so that each has 100 to 400 MB, as shards do."""


def parquet_rows(directory: Path, kind: str, rows: int, group: int) -> Path:
    """A parquet file of such rows, so many in each row group."""
    name = f"parquet-{kind}-{rows}-{group}".replace(" ", "-")
    place = cached(directory, name, lambda place: _write_parquet(place, kind, rows // PARQUET_KINDS[kind], group))
    return place / "rows.parquet"


def _write_parquet(place: Path, kind: str, rows: int, group: int) -> None:
    rng, numbers = random.Random(0), np.random.default_rng(0)
    noise = rng.randbytes(1 << 22)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(5000)]

    def image(number: int) -> dict[str, object]:
        begin = rng.randrange(len(noise) - 30_000)
        return {"bytes": noise[begin : begin + rng.randint(15_000, 25_000)], "path": f"{number}.jpg"}

    columns: dict[str, Any] = {
        "documents of 2.7 KB": lambda: {"text": [" ".join(rng.choices(words, k=420)) for _ in range(rows)]},
        "images of 20 KB": lambda: {"image": list(map(image, range(rows))), "label": numbers.integers(0, 10, rows)},
        "lists of 512 tokens": lambda: {"input_ids": list(numbers.integers(0, 50_000, (rows, 512)))},
        "rows of 600 bytes": lambda: {
            "id": numbers.integers(0, 1 << 40, rows),
            "url": [f"https://example.org/{rng.randrange(1 << 30)}/{number}.html" for number in range(rows)],
            "text": [" ".join(rng.choices(words, k=80)) for _ in range(rows)],
            "score": numbers.random(rows),
            "lang": rng.choices(("en", "de", "fr"), k=rows),
        },
    }[kind]()
    pq.write_table(pa.table(columns), place / "rows.parquet", row_group_size=group)
