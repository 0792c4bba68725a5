"""Shards to test with: small archives and JSON lines, and reading all of them."""

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdata.shards.readers import DamagedRecordError, IndexedShards, SequentialShards

Members = Iterable[tuple[str, bytes]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for each test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STREAMDATA_CACHE", str(folder))
    return folder


@pytest.fixture
def write_tar(tmp_path: Path) -> Callable[..., str]:
    """Writes members into an archive by the standard library; returns its path."""

    def write(members: Members, name: str = "00000.tar", tar_format: int = tarfile.USTAR_FORMAT, **fields: Any) -> str:
        path = tmp_path / name
        with tarfile.open(path, "w", format=tar_format) as archive:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                for field, value in fields.items():
                    setattr(info, field, value)
                archive.addfile(info, io.BytesIO(data))
        return str(path)

    return write


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """Writes rows (objects, or bytes as they are) a line each; returns the path."""

    def write(rows: Iterable[Mapping[str, Any] | bytes], name: str = "00000.jsonl", end: bytes = b"\n") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + end for row in rows))
        return str(path)

    return write


@pytest.fixture
def members() -> list[tuple[str, bytes]]:
    """Three records of two and three members, some of sizes around a block."""
    return [
        ("a/0.jpg", b"x" * 700),
        ("a/0.txt", b"zero"),
        ("a/1.jpg", b"y" * 512),
        ("a/1.txt", b""),
        ("a/1.seg.PNG", b"z" * 511),
        ("a/2.jpg", b"w" * 1),
        ("a/2.txt", b"two"),
    ]


def whole(shards: IndexedShards) -> Any:
    """One window over all records."""
    number = np.arange(len(shards.urls))
    return shards.window(number, np.zeros_like(number), shards.num_records)


def read_all(shards: IndexedShards) -> list[dict[str, Any]]:
    """All records in order."""
    window = whole(shards)
    return list(window.take(np.arange(len(window))))


def read_from_start(shards: SequentialShards) -> list[dict[str, Any]]:
    """All records of the first shard in order; an error that stands for one of them is raised."""
    records = []
    for record in shards.stream(0):
        if isinstance(record, DamagedRecordError):
            raise record
        records.append(record)
    return records
