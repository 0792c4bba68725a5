"""Reads as litdata and torchdata do, from local files: a script for an environment that has them.

`python -P peer_loops.py write tars|tokens FOLDER SOURCE` writes our tars or tokens in litdata's format. `… serve` reads
lines of JSON, `{"name", "place", …}` as the functions below take them, and answers each with the seconds that it took.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from orjson import loads
from torch.utils.data import IterableDataset, get_worker_info

_CHUNK = 64 << 20  # bytes
_BATCH_SIZE, _FIRST_BATCHES, _WORKERS = 64, 8, 2


def write_tars(folder: str, source: str) -> None:
    """Write the records of tars, in their order, each a dict of bytes."""
    import webdataset
    from litdata.streaming.writer import BinaryWriter

    urls = [str(path) for path in sorted(Path(source).glob("*.tar"))]
    writer = BinaryWriter(folder, chunk_bytes=_CHUNK)
    for number, sample in enumerate(webdataset.WebDataset(urls, shardshuffle=False)):
        writer[number] = {name: value for name, value in sample.items() if name[:2] != "__"}
    writer.done()
    writer.merge()


def write_tokens(folder: str, source: str) -> None:
    """Write a file of uint16 tokens, in documents of a million."""
    import numpy as np
    from litdata import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    tokens = np.memmap(source, np.uint16, "r")
    writer = BinaryWriter(folder, chunk_bytes=_CHUNK, item_loader=TokensLoader())
    for number, begin in enumerate(range(0, len(tokens), 1_000_000)):
        writer[number] = np.array(tokens[begin : begin + 1_000_000])
    writer.done()
    writer.merge()


def litdata(place: str, shuffle: bool, batches: int = 0, block_size: int = 0) -> float:
    """Time an epoch in this process, or so many batches from two workers."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    loader = {"item_loader": TokensLoader(block_size=block_size)} if block_size else {}
    dataset: Any = StreamingDataset(place, shuffle=shuffle, **loader)
    if not batches:
        return _drained(dataset, len(dataset))
    # Tokens are joined to tensors by the default of torch, as in litdata's examples; records stay lists.
    collate = {} if block_size else {"collate_fn": list}
    return _of_batches(StreamingDataLoader(dataset, batch_size=_BATCH_SIZE, num_workers=_WORKERS, **collate), batches)


def torchdata(place: str, batches: int = 0) -> float:
    """Time the rows of JSONL files from a StatefulDataLoader, whose dataset is a generator of parsed lines."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows: Any = _Rows(sorted(map(str, Path(place).glob("*.jsonl"))), endless=batches > 0)
    if not batches:
        return _drained(StatefulDataLoader(rows, batch_size=_BATCH_SIZE, collate_fn=list), None)
    return _of_batches(StatefulDataLoader(rows, batch_size=_BATCH_SIZE, num_workers=_WORKERS, collate_fn=list), batches)


class _Rows(IterableDataset[Any]):
    def __init__(self, paths: list[str], *, endless: bool) -> None:
        self._paths, self._endless = paths, endless

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = self._paths if info is None else self._paths[info.id :: info.num_workers]
        for path in cycle(mine) if self._endless else mine:
            with open(path, "rb") as file:
                yield from map(loads, file)


def _drained(samples: Iterable[Any], expected: int | None) -> float:
    begin, count = time.perf_counter(), 0
    for count, _ in enumerate(samples, 1):  # noqa: B007
        pass
    took = time.perf_counter() - begin
    if expected is not None and count != expected:
        raise ValueError(f"expected {expected} samples, got {count}")
    return took


def _of_batches(loader: Iterable[Any], batches: int) -> float:
    stream = iter(loader)
    _drained(islice(stream, _FIRST_BATCHES), None)
    return _drained(islice(stream, batches), batches)


def main() -> None:
    """Do what the arguments say."""
    what, *rest = sys.argv[1:]
    if what == "write":
        {"tars": write_tars, "tokens": write_tokens}[rest[0]](*rest[1:])
        return
    readers = {"litdata": litdata, "torchdata": torchdata}
    for line in sys.stdin:
        wanted = json.loads(line)
        took = readers[wanted.pop("name")](**wanted)
        sys.stdout.write(f"\nseconds {took}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
