"""Windows out of token stores, beside a bare loop over a memory map, and the start of a large store.

The stores have sums, and every read is checked, where a row does not say otherwise; the bare loop checks nothing.
"""

import json
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from streamdata import MergedDataset, TensorCollate, mixed_collate
from streamdata.stores.datasets.base_dataset import BaseDataset
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.stored_values import publish_sums
from streamdata.stores.writer import StoreWriter
from tests.benchmarks.data import cached
from tests.benchmarks.measure import (
    BATCH_SIZE,
    Row,
    Scale,
    by_turns,
    compared,
    drain,
    loading_time,
    per_second,
)
from tests.benchmarks.peers import Peer, optional_peer, write

WINDOW, GATHERED = 2048, 32
SHARDS = 100
LIMIT = "a loop over a memory map"


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """One window at a time, many at once, through a mixture in workers; and how fast a store starts."""
    place = token_store(directory, scale.window_tokens)
    yield from _window_rows(place, scale)
    with optional_peer() as peer:
        litdata = litdata_tokens(directory, place, scale) if peer else place
        yield from _stream_rows(place, litdata, peer, scale)
        yield _worker_row(place, litdata, peer, scale)
    yield from _mixture_rows(place, scale)
    yield _start_row(directory, scale)


def token_store(directory: Path, tokens: int) -> Path:
    """A `seq` store of random tokens in one shard, and in documents of 1,000."""
    return cached(directory, f"summed-tokens-{tokens}", partial(_write_tokens, tokens=tokens))


def litdata_tokens(directory: Path, place: Path, scale: Scale) -> Path:
    """The same tokens in litdata's format."""
    source = place / "shard_0000" / "sequence.bin"
    return cached(directory, f"litdata-tokens-{scale.window_tokens}", lambda made: write("tokens", made, source))


def _write_tokens(place: Path, tokens: int) -> None:
    rng, part = np.random.default_rng(0), min(tokens, 10_000_000)
    with StoreWriter("bin", place, {"sequence": "uint16"}) as writer:
        for _ in range(tokens // part):
            writer.extend({"sequence": rng.integers(0, 60_000, part, np.uint16)}, [1000] * (part // 1000))


def _window_rows(place: Path, scale: Scale) -> Iterator[Row]:
    dataset, memory = DatasetFactory.load("seq", place, WINDOW), _memory_map(place)
    order = np.random.default_rng(1).permutation(len(dataset))[: scale.windows].tolist()
    best = by_turns(
        scale.repetitions,
        loop=lambda: _copy_each(memory, order),
        batches=lambda: read_batches(dataset, order),
        singly=lambda: read_each(dataset, order),
        **_peer(place, order),
    )
    rates = ", ".join(f"{name} {per_second(len(order), seconds)}" for name, seconds in best.items())
    works = (("batches", f"`__getitems__` of {GATHERED}", 0.5), ("singly", "one at a time", 0.35))
    for name, what, least in works:
        share = best["loop"] / best[name]
        yield Row(
            work=f"windows of {WINDOW:,} + 1 from {scale.window_tokens:,} uint16 tokens, shuffled, {what}",
            reach=f"≥ {least} of a loop of memmap slices into a preallocated int64 array",
            got=f"{share:.2f} x",
            ok=share >= least,
            from_=rates,
        )


def _stream_rows(place: Path, litdata: Path, peer: Peer | None, scale: Scale) -> Iterator[Row]:
    """The stream of one store in this process: windows of its first epoch, and of later ones, each checked."""
    count = min(scale.windows, _num_windows(place))
    later, plain = iter(alone(place)), iter(PlainLoop(place))
    drain(islice(later, _num_windows(place)))
    peers: dict[str, Callable[[], object]] = {}
    if peer:
        share, options = count / (scale.window_tokens // (WINDOW + 1)), {"shuffle": True, "block_size": WINDOW + 1}
        peers["litdata"] = lambda: peer.time("litdata", litdata, **options) * share
    best = by_turns(
        scale.repetitions,
        first=lambda: drain(islice(alone(place), count)),
        later=lambda: drain(islice(later, count)),
        bare=lambda: drain(islice(plain, count)),
        **peers,
    )
    for name, what, wanted in (
        ("first", "first epoch", {LIMIT: 0.4, "litdata": 1.3}),
        ("later", "later epochs", {LIMIT: 0.46}),
    ):
        others = [best.beside(name, one, one, is_peer=True) for one in peers]
        yield compared(
            f"the same through MergedDataset, checked, no workers, {what}",
            wanted,
            [best.beside(name, "bare", LIMIT), *others],
            ", ".join(f"{one} {per_second(count, best[one])}" for one in (name, "bare", *peers)),
        )


def _worker_row(place: Path, litdata: Path, peer: Peer | None, scale: Scale) -> Row:
    """README's loop: the store alone, two workers, TensorCollate."""
    batches = scale.loaded_batches
    options = {"shuffle": True, "block_size": WINDOW + 1, "batches": batches}
    peers: dict[str, Callable[[], object]] = {}
    if peer:
        peers["litdata"] = lambda: peer.time("litdata", litdata, **options)
    best = by_turns(
        scale.repetitions,
        ours=lambda: loading_time(alone(place), TensorCollate(), batches),
        bare=lambda: loading_time(PlainLoop(place), default_collate, batches),
        **peers,
    )
    limit = f"{LIMIT}, default_collate"
    others = [best.beside("ours", one, one, is_peer=True) for one in peers]
    return compared(
        f"the same, two workers, batches of {BATCH_SIZE}, TensorCollate",
        {limit: 1.2, "litdata": 1.2},
        [best.beside("ours", "bare", limit), *others],
        ", ".join(f"{one} {per_second(batches * BATCH_SIZE, seconds)}" for one, seconds in best.items()),
    )


def alone(place: Path) -> MergedDataset:
    """One store as a stream."""
    source: Any = DatasetFactory.load("seq", place, WINDOW)
    source.name, source.percent = "store", 1.0
    return MergedDataset([source])


def _num_windows(place: Path) -> int:
    return (len(_memory_map(place)) - 1) // WINDOW


def _memory_map(place: Path) -> npt.NDArray[np.uint16]:
    return np.memmap(place / "shard_0000" / "sequence.bin", np.uint16, "r")


def _copy_each(memory: npt.NDArray[np.uint16], order: list[int]) -> None:
    window = np.empty(WINDOW + 1, np.int64)
    for index in order:
        window[:] = memory[index * WINDOW : index * WINDOW + WINDOW + 1]


def read_batches(dataset: BaseDataset, order: list[int]) -> None:
    """Windows of these numbers, many at a time."""
    for begin in range(0, len(order), GATHERED):
        dataset.__getitems__(order[begin : begin + GATHERED])


def read_each(dataset: BaseDataset, order: list[int]) -> None:
    """Windows of these numbers, one at a time."""
    for index in order:
        dataset[index]


def _peer(place: Path, order: list[int]) -> dict[str, Callable[[], float]]:
    """Megatron-Core's dataset over the same tokens, where it is installed, on fewer windows: the time of all."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = _megatron_dataset(place)
    except ImportError:
        return {}
    some = order[: max(1, len(order) // 20)]

    def read() -> float:
        begin = perf_counter()
        for index in some:
            dataset[index]
        return (perf_counter() - begin) * len(order) / len(some)

    return {"Megatron-Core": read}


def _megatron_dataset(place: Path) -> Any:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    def write(directory: Path) -> None:
        with StoreWriter("megatron", directory, {"sequence": "uint16"}) as writer:
            tokens = _memory_map(place)
            writer.extend({"sequence": tokens}, [len(tokens)])

    directory = cached(place.parent, f"{place.name}-megatron", write)
    prefix = str(directory / "data_0000")
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=WINDOW,
        blend=([prefix], None),
        split="1,0,0",
        tokenizer=SimpleNamespace(eod=0, pad=0, unique_identifiers={}, vocab_size=60_000),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        path_to_cache=str(place.parent / "megatron-cache"),
    )
    indexed = IndexedDataset(prefix)
    return GPTDataset(indexed, prefix, np.arange(len(indexed), dtype=np.int32), None, Split.train, config)


class PlainLoop(IterableDataset[dict[str, torch.Tensor]]):
    """What a bare loop over a memory map delivers: shuffled windows, split over the workers, for ever."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        memory, info = _memory_map(self._place), get_worker_info()
        order = np.random.default_rng(1).permutation((len(memory) - 1) // WINDOW).tolist()
        while True:
            for index in order[info.id :: info.num_workers] if info is not None else order:
                window = memory[index * WINDOW : index * WINDOW + WINDOW + 1].astype(np.int64)
                yield {"input_ids": torch.from_numpy(window[:-1]), "target_ids": torch.from_numpy(window[1:])}


def mixture(place: Path, *, verify: bool = True) -> MergedDataset:
    """Four stores, by weight."""
    sources: list[Any] = [DatasetFactory.load("seq", place, WINDOW, verify=verify) for _ in range(4)]
    for number, source in enumerate(sources):
        source.name, source.percent = f"store-{number}", (0.4, 0.3, 0.2, 0.1)[number]
    return MergedDataset(sources)


def _mixture_rows(place: Path, scale: Scale) -> Iterator[Row]:
    batches = scale.loaded_batches
    best = by_turns(
        scale.repetitions,
        plain=lambda: loading_time(PlainLoop(place), mixed_collate, batches),
        mixed=lambda: loading_time(mixture(place), mixed_collate, batches),
        unchecked=lambda: loading_time(mixture(place, verify=False), mixed_collate, batches),
    )
    rates = ", ".join(f"{name} {per_second(batches * BATCH_SIZE, seconds)}" for name, seconds in best.items())
    ratio, of_sums = best["mixed"] / best["plain"], best["mixed"] / best["unchecked"]
    yield Row(
        work="the same windows through MergedDataset with four stores, two workers, mixed_collate",
        reach="≤ 1.3 x the time of the plain loop in two workers",
        got=f"{ratio:.2f} x",
        ok=ratio <= 1.3,
        from_=rates,
    )
    yield Row(
        work="the sums of blocks in it",
        reach="≤ 1.05 x the time with verify=False",
        got=f"{of_sums:.2f} x",
        ok=of_sums <= 1.05,
        from_=rates,
    )


def _start_row(directory: Path, scale: Scale) -> Row:
    few, many = (sparse_store(directory, tokens) for tokens in (scale.store_tokens // 1000, scale.store_tokens))
    seconds = by_turns(scale.repetitions, few=lambda: _start(few), many=lambda: _start(many))
    heaps = _heap_bytes(few), _heap_bytes(many)
    milliseconds = 1e3 * seconds["many"]
    return Row(
        work=f"start of a store of {scale.store_tokens:,} tokens in {SHARDS} shards, to its first window",
        reach="< 200 ms, memory independent of tokens",
        got=f"{milliseconds:.0f} ms, {heaps[1] / heaps[0]:.2f} x the memory of a thousandth of them",
        ok=milliseconds < 200 and heaps[1] <= 1.1 * heaps[0],
        from_=f"{1e3 * seconds['few']:.0f} ms with a thousandth; heap {heaps[0] / 1e3:.0f} and {heaps[1] / 1e3:.0f} KB",
    )


def _start(place: Path) -> float:
    begin = perf_counter()
    DatasetFactory.load("seq", place, 16)[0]
    return perf_counter() - begin


def _heap_bytes(place: Path) -> int:
    _start(place)  # what is made once has been
    tracemalloc.start()
    dataset = DatasetFactory.load("seq", place, 16)
    list(islice(dataset, 10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def sparse_store(directory: Path, tokens: int) -> Path:
    """A store that says it has so many tokens, all 0, and takes no room on the disk."""
    return cached(directory, f"summed-sparse-{tokens}", partial(_write_sparse, tokens=tokens // SHARDS))


def _write_sparse(place: Path, tokens: int) -> None:
    records = max(1, tokens // 1000)
    offsets = {"count": records, "data": "sequence.records.bin", "checksum": ""}
    key = {"shape": [tokens], "dtype": "uint16", "data": "sequence.bin", "checksum": "", "records": offsets}
    meta = {
        "format": "streamdata", "version": 1, "num_tokens": tokens, "num_records": records, "rows": False,
        "train_types": ["seq"], "keys": {"sequence": key},
    }  # fmt: skip
    for number in range(SHARDS):
        shard = place / f"shard_{number:04d}"
        shard.mkdir()
        for name, size in (("sequence.bin", 2 * tokens), ("sequence.records.bin", 8 * (records + 1))):
            with (shard / name).open("wb") as file:
                file.truncate(size)
            publish_sums(str(shard / name))
        (shard / "meta.json").write_text(json.dumps(meta))
