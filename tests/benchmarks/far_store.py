"""A store for benchmarks, in a process of its own: an S3 API behind a proxy, with a delay and a rate."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import webdataset

from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.benchmarks.data import cached
from tests.io.servers import s3_server, slow_proxy

DELAY, RATE = 0.03, 40e6
"""Seconds for each request, bytes/s of each connection."""
NUM_SHARDS = 16


class Store:
    """A store in another process.

    Args:
        pipe: To that process.
        url: Its endpoint.
    """

    def __init__(self, pipe: Any, url: str) -> None:
        self._pipe, self.url = pipe, url
        self.options = {"endpoint": url, "anonymous": True}

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (None, self.url)  # whoever reads from it does not ask for its log

    def log(self) -> list[tuple[str, str, str]]:
        """What it was asked since it was asked this: method, path, range."""
        self._pipe.send("log")
        found: list[tuple[str, str, str]] = self._pipe.recv()
        return found


@contextmanager
def store(place: Path, delay: float = DELAY, rate: float = RATE) -> Iterator[Store]:
    """The files of a folder in the bucket "data", and without the manifest in "plain"."""
    context = multiprocessing.get_context("fork")  # spawned it would import all that this one has
    ours, others = context.Pipe()
    process = context.Process(target=_serve, args=(others, str(place), delay, rate), daemon=True)
    process.start()
    try:
        yield Store(ours, ours.recv())
    finally:
        ours.send("end")
        process.join()


def _serve(pipe: Any, place: str, delay: float, rate: float) -> None:
    objects = {f"data/{path.name}": path.read_bytes() for path in Path(place).iterdir() if path.is_file()}
    objects |= {path.replace("data/", "plain/"): data for path, data in objects.items() if path.endswith(".tar")}
    with s3_server(objects) as server, slow_proxy(server.url, delay, rate) as url:
        pipe.send(url)
        while pipe.recv() == "log":
            log, server.log[:] = list(server.log), []
            pipe.send([(one.method, one.path, one.headers.get("range", "")) for one in log])


def shards(directory: Path, records: int, record_bytes: int) -> Path:
    """Sixteen tars of records of one member, and their manifest."""
    return cached(directory, f"indexed-{records}-{record_bytes}", partial(_write, records=records, size=record_bytes))


def _write(place: Path, records: int, size: int) -> None:
    for shard in range(NUM_SHARDS):
        with webdataset.TarWriter(str(place / f"{shard:05d}.tar"), encoder=False, mtime=0) as writer:
            for number in range(records // NUM_SHARDS):
                key = shard * (records // NUM_SHARDS) + number
                writer.write({"__key__": f"{key:08d}", "bin": key.to_bytes(8, "little") * (size // 8)})
    make_manifest(take_stock([str(place)]), num_processes=1)
