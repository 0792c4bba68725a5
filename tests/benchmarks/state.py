"""How large a checkpoint is, per source, rank and worker."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    TextJsonlProcessFnBuilder,
    to_state,
)
from tests.benchmarks.data import cached, jsonl_rows, tar_shards
from tests.benchmarks.measure import Row, Scale, anew, json_bytes
from tests.benchmarks.mixing import Ints
from tests.streams import in_lane, through_json
from tests.text.tiny_tokenizer import save_tiny_tokenizer

_RANKS, _WORKERS = 1024, 8
_MAX_BYTES = 300
_LATE = {"epoch": 1000, "clock": 1e12 / 3, "dropped": 10**9, "bad": 10}


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """The last lane of a large run, each kind of source in a nested mixture, after 10^12 draws."""
    dataset = _dataset(directory, scale)
    dataset.set_data_parallel(_RANKS, _RANKS - 1)
    states = _states(dataset)
    draws = {"inner.images": 10**12, "inner.packed": 10**12, "inner": 2 * 10**12, "ints": 10**12, "": 3 * 10**12}
    for key, value in states.items():
        path = key.split("/", 5)[-1]
        if key.startswith("cursor/"):
            value.update(_LATE, draws=draws[path])
    dataset.set_dataloader_states(states)
    late = _states(anew(dataset))
    # Names, and what functions say, are as long as their owners make them.
    sizes = {
        path: json_bytes(key.removesuffix(path), {name: part for name, part in value.items() if name != "function"})
        for key, value in late.items()
        if key.startswith("cursor/") and (path := key.split("/", 5)[5]) is not None
    }
    largest = max(sizes.values())
    yield Row(
        work="state per source, rank and worker, as JSON, without path and function's state",
        reach=f"≤ {_MAX_BYTES} bytes",
        got=f"{largest} bytes ({largest / _MAX_BYTES:.2f} x)",
        ok=largest <= _MAX_BYTES,
        from_=", ".join(f"{path or 'the top'} {size}" for path, size in sizes.items()),
    )


def _states(dataset: MergedDataset) -> dict[str, Any]:
    return through_json(to_state(list(islice(in_lane(dataset, _WORKERS - 1, _WORKERS), 40))))


def _dataset(directory: Path, scale: Scale) -> MergedDataset:
    tokenizer = cached(directory, "tokenizer", save_tiny_tokenizer)
    packer = TextJsonlProcessFnBuilder(512, str(tokenizer))
    tars, lines = tar_shards(directory, scale.tar_records), jsonl_rows(directory, scale.jsonl_rows)
    images: Any = MetaDistributedWebDataset(str(tars), single_process_fn=_twice)
    packed: Any = JsonlIterableDataset(str(lines), packer)
    images.max_bad = packed.max_bad = 1000
    inner: Any = MergedDataset([_named(images, "images"), _named(packed, "packed")])
    return MergedDataset([_named(inner, "inner"), Ints("ints", 10**9)])


def _named(source: Any, name: str) -> Any:
    source.name, source.percent = name, 0.3
    return source


def _twice(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [record, dict(record)]
