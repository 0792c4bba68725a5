"""Prompts: encoding, filtering, starting again, memory, and single rows beside verl's dataset of the same name."""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamdata.chats import lengths
from streamdata.chats.prompts import RLHFDataset
from streamdata.run.processes import Team, processes
from tests.benchmarks.measure import Row, Scale, by_turns, per_second
from tests.sources.tiny_processors import tiny_tokenizer

_CHARS = 1200
_FLAT_MB = 2.0
_LOOKS = 40
_STRIDE = 10  # of the rows that are looked at for their memory: all parts of the file are


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """All figures of prompts."""
    folder = directory / f"prompts_{scale.prompts}_{scale.many_prompts}"
    folder.mkdir(parents=True, exist_ok=True)
    with patch.dict(os.environ, TOKENIZERS_PARALLELISM="false"):
        dataset = _dataset(folder, _prompts(folder, scale.prompts))
        yield _encoding_row(dataset, scale)
        yield _filter_row(dataset, scale)
        yield _item_row(folder, scale)
        yield _start_row(folder, scale)
        yield _memory_row(folder, scale)


def tokenizer() -> Any:
    """Byte-level BPE of the words that the prompts are made of."""
    return tiny_tokenizer()


def _dataset(folder: Path, path: Path, **config: Any) -> RLHFDataset:
    settings = {"cache_dir": str(folder / "cache"), "filter_overlong_prompts": False, "filter_prompts": False}
    return RLHFDataset(str(path), tokenizer(), {"max_prompt_length": 2048, **settings, **config})


def _prompts(folder: Path, count: int) -> Path:
    """Rows as they are usual: a system message, a question of some hundred tokens, the answer and its index."""
    path = folder / "prompts.parquet"
    if path.exists():
        return path
    words = ("what", "is", "the", "sum", "of", "two", "numbers", "look", "at", "each", "image", "and", "say", "how")
    choose = random.Random(0)
    questions = ("".join(f"{choose.choice(words)} " for _ in range(_CHARS // 5)) for _ in range(count))
    pq.write_table(pa.Table.from_pylist([_row(number, text) for number, text in enumerate(questions)]), path)
    return path


def _row(number: int, text: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]
    return {
        "data_source": "sums",
        "prompt": messages,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"index": number, "split": "train"},
    }


def _encoding_row(dataset: RLHFDataset, scale: Scale) -> Row:
    reader = dataset._reader
    some = [reader.rows[number] for number in range(min(500, len(dataset)))]
    encoded = [reader.encode(row, number).encoded for number, row in enumerate(some)]
    tokens = sum(len(one.input_ids) for one in encoded) // len(some)

    def bare() -> None:
        for one in encoded:
            _ = reader.encoder.tokenizer(one.text, add_special_tokens=False)["input_ids"]

    def ours() -> None:
        for number, row in enumerate(some):
            reader.encode(row, number)

    best = by_turns(scale.repetitions, bare=bare, ours=ours)
    ratio = best["bare"] / best["ours"]
    return Row(
        work=f"encoding prompts of {tokens} tokens, one at a time: messages to ids, template included",
        reach="≥ 0.9 x the bare tokenizer on the rendered texts",
        got=f"{ratio:.2f} x",
        ok=ratio >= 0.9,
        from_=f"{per_second(len(some), best['ours'])}, bare tokenizer {per_second(len(some), best['bare'])}",
    )


def _filter_row(dataset: RLHFDataset, scale: Scale) -> Row:
    reader = RLHFDataset(
        dataset.original_data_files,
        tokenizer(),
        {"cache_dir": dataset.config.cache_dir, "max_prompt_length": 4096, "max_samples": 1},
    )._reader
    indices = np.arange(len(dataset))

    def measure(team: Team) -> None:
        values = np.zeros(len(indices), np.int32)
        assert sum(lengths.share_out(team, reader, indices, values)) == len(indices)

    def apart(team: Team) -> None:
        """A half in each process, with one message there and back: what two processes can do on this machine."""
        halves = [(0, half.tolist()) for half in np.array_split(indices, 2)]
        found = [part for _, part in team.run(halves, here=lambda half: list(map(reader.measure, half[1])))]
        assert all(map(all, found))

    begin = perf_counter()
    with processes(partial(lengths.lengths_of, reader), 1) as team:
        list(team.run([(0, [0])]))
        start = perf_counter() - begin
        works = {"one": partial(measure, Team([])), "two": partial(measure, team), "apart": partial(apart, team)}
        best = by_turns(min(scale.repetitions, 4), **works)
    ratio, limit = best["one"] / best["two"], best["one"] / best["apart"]
    return Row(
        work=f"measuring {len(indices):,} prompts for the filter, two processes under way",
        reach="≥ 1.7 x one",
        got=f"{ratio:.2f} x",
        ok=ratio >= 1.7,
        from_=f"{per_second(len(indices), best['two'])}, one {per_second(len(indices), best['one'])}; "
        f"halves measured apart, nothing shared: {limit:.2f} x, this machine's limit; "
        f"left out: the other process begins {start:.1f} s after it was started, and the first does not wait for it",
    )


def _item_row(folder: Path, scale: Scale) -> Row:
    path = folder / "prompts.parquet"
    ours = _dataset(folder, path, mode="raw")
    numbers = random.Random(1).choices(range(len(ours)), k=min(1000, len(ours)))
    works = {"ours": lambda: [ours[number] for number in numbers]}
    peer = _peer(folder, path)
    if peer is not None:
        works["verl"] = lambda: [peer[number] for number in numbers]
    best = by_turns(scale.repetitions, **works)
    ratio = best["verl"] / best["ours"] if peer is not None else None
    theirs = per_second(len(numbers), best["verl"]) if peer is not None else "not installed"
    return Row(
        work="single rows at random, messages and columns (`mode: raw`)",
        reach="≥ 2 x verl's RLHFDataset",
        got=f"{ratio:.2f} x" if ratio is not None else f"peer not installed; {per_second(len(numbers), best['ours'])}",
        ok=ratio is None or ratio >= 2,
        from_=f"{per_second(len(numbers), best['ours'])}, verl {theirs}",
    )


def _peer(folder: Path, path: Path) -> Any:
    """Verl's dataset over the same rows with the same tokenizer; it does not tokenize in `__getitem__` either."""
    try:
        from omegaconf import OmegaConf
        from verl.utils.dataset.rl_dataset import RLHFDataset as Peer
    except ImportError:
        return None
    config = OmegaConf.create({"cache_dir": str(folder / "verl"), "filter_overlong_prompts": False})
    return Peer(str(path), tokenizer(), config)


def _many(folder: Path, count: int) -> Path:
    """Short prompts in one row group, as parquet is written by default."""
    path = folder / "many.parquet"
    if not path.exists():
        few = pa.Table.from_pylist([_row(number, "What is the sum?" * (1 + number % 4)) for number in range(1000)])
        index = pa.array(np.arange(count))
        table = pa.concat_tables([few] * (count // 1000)).append_column("number", index)
        pq.write_table(table, path, row_group_size=count)
    return path


def _start_row(folder: Path, scale: Scale) -> Row:
    path = _many(folder, scale.many_prompts)
    start = partial(_dataset, folder, path, filter_overlong_prompts=True, filter_prompts=True, max_prompt_length=40)
    begin = perf_counter()
    with patch.object(lengths, "measure_rows", _lengths_at_random):  # the tokenizer would take minutes
        first = start()
    took = perf_counter() - begin
    best = by_turns(scale.repetitions, again=start)
    assert len(first) == len(start()) < scale.many_prompts
    return Row(
        work=f"second start on a filtered file of {scale.many_prompts:,} rows",
        reach="< 1 s",
        got=f"{best['again']:.3f} s",
        ok=best["again"] < 1,
        from_=f"{len(first):,} rows stay; the first start took {took:.1f} s with lengths that the benchmark invents",
    )


def _lengths_at_random(reader: Any, indices: Any, values: Any, workers: int) -> None:
    del reader, workers
    values[:] = np.random.default_rng(0).integers(10, 60, len(indices))


def _memory_row(folder: Path, scale: Scale) -> Row:
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as fresh_process:
        looks = fresh_process.submit(_heap_mb, folder, scale.many_prompts).result()
    quarter = len(looks) // 4
    first, last = max(looks[:quarter]), max(looks[-quarter:])
    return Row(
        work=f"memory along {scale.many_prompts:,} rows, every tenth made (`mode: raw`)",
        reach="flat",
        got=f"{last - first:+.1f} MB ({last / first:.3f} x)",
        ok=last - first <= _FLAT_MB,
        from_=f"the most anonymous memory in its first quarter {first:.0f} MB, in its last {last:.0f} MB",
    )


def _heap_mb(folder: Path, count: int) -> list[float]:
    """The process's anonymous memory along the file, in MB."""
    dataset = _dataset(folder, _many(folder, count), mode="raw")
    found = []
    for place, number in enumerate(range(0, len(dataset), _STRIDE)):
        _ = dataset[number]
        if place % max(1, count // _STRIDE // _LOOKS) == 0:
            with open("/proc/self/status", encoding="ascii") as file:
                found.append(next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1e3)
    return found
