"""What all benchmarks share: their size, a row of the table, and timing by turns."""

import gc
import json
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from resource import getpagesize
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from torch.utils.data import DataLoader, Dataset

from streamdata import MergedDataset
from tests.ranks import fork_workers

Result = TypeVar("Result")
BATCH_SIZE, NUM_WORKERS = 64, 2
FIRST_BATCHES = 8  # not timed: the workers start, and have batches ready


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of everything."""

    tar_records: int = 20_000
    jsonl_rows: int = 400_000
    parquet_rows: int = 240_000
    remote_records: int = 8000
    cached_records: int = 16_000
    small_remote_records: int = 131_072
    many_records: tuple[int, int] = (100_000, 1_000_000)
    """Records of the two sources whose heap is compared."""
    images: int = 2000
    collated_batches: int = 60
    draws: int = 200_000
    sources: tuple[int, int] = (10, 1000)
    warm_up: int = 1500
    """Samples drawn from each source before the draws are steady."""
    blended: dict[int, int] = field(default_factory=lambda: {4: 10**8, 32: 10**8, 256: 2 * 10**7})
    """Samples of a blend, by its number of datasets."""
    planned_documents: int = 1_000_000
    packed_documents: int = 20_000
    balanced_ranks: int = 64
    balanced_steps: int = 150
    prompts: int = 4000
    many_prompts: int = 1_000_000
    ledger_prompts: int = 100_000
    ledger_open: int = 10_000
    ledger_scores: int = 1_000_000
    prepare_kilobytes: int = 4000
    packed_copies: int = 50
    """Of the text, for one task that is larger than the memory of a worker may be."""
    window_tokens: int = 200_000_000
    windows: int = 40_000
    loaded_batches: int = 400
    store_tokens: int = 10**9
    repetitions: int = 7


QUICK = Scale(
    parquet_rows=120_000,
    remote_records=4000,
    images=1000,
    sources=(10, 200),
    blended={4: 10**7, 32: 10**7, 256: 10**6},
    many_prompts=200_000,
    packed_copies=20,
    repetitions=2,
)
"""Every row in some ten minutes, with two turns, which spread more."""

TINY = Scale(
    tar_records=640,
    jsonl_rows=400,
    parquet_rows=400,
    remote_records=160,
    cached_records=160,
    small_remote_records=160,
    many_records=(200, 2000),
    images=64,
    collated_batches=4,
    draws=500,
    sources=(2, 20),
    warm_up=10,
    prepare_kilobytes=200,
    packed_copies=1,
    planned_documents=2000,
    packed_documents=2000,
    balanced_ranks=2,
    balanced_steps=3,
    blended={4: 1000, 32: 1000, 256: 1000},
    prompts=40,
    many_prompts=2000,
    ledger_prompts=160,
    ledger_open=100,
    ledger_scores=10_000,
    window_tokens=2_000_000,
    windows=64,
    loaded_batches=4,
    store_tokens=10**6,
    repetitions=1,
)


class Beside(NamedTuple):
    """How many times as fast as another ours is: by the best time of each, and the least and the most of all turns."""

    name: str
    ratio: float
    least: float
    most: float
    is_peer: bool
    """Whether the other is a package that people use, not a bare loop that says what the machine can do."""

    def __str__(self) -> str:
        return f"{self.name} {self.ratio:.2f} ({self.least:.2f} to {self.most:.2f})"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: what was to be reached, what was, and the absolute numbers that it comes from.

    `ok` is None where it could not be measured here; `from_` then says why.
    """

    work: str
    reach: str
    got: str
    ok: bool | None
    from_: str
    beside: tuple[Beside, ...] = ()


def compared(work: str, wanted: dict[str, float], beside: list[Beside], from_: str) -> Row:
    """Make the row of a work that is to be so many times as fast as others, by their names.

    What of them was not measured, since a peer is not installed, is said and counts as no miss.
    """
    ratios = {one.name: one.ratio for one in beside}
    return Row(
        work=work,
        reach=", ".join(f"≥ {least} x {name}" for name, least in wanted.items()),
        got=", ".join(f"{ratios[name]:.2f} x" if name in ratios else f"{name} not measured" for name in wanted),
        ok=all(ratios[name] >= least for name, least in wanted.items() if name in ratios),
        from_=from_,
        beside=tuple(beside),
    )


class Times(dict[str, float]):
    """The best time of each work in s, by its name."""

    def __init__(self, turns: dict[str, list[float]]) -> None:
        super().__init__({name: min(times) for name, times in turns.items()})
        self._turns = turns

    def beside(self, ours: str, other: str, name: str, *, is_peer: bool = False) -> Beside:
        """Compare two works of the same run."""
        ratios = [theirs / own for own, theirs in zip(self._turns[ours], self._turns[other], strict=True)]
        return Beside(name, self[other] / self[ours], min(ratios), max(ratios), is_peer)


def by_turns(repetitions: int, **works: Callable[[], object]) -> Times:
    """Run all works by turns, so that a busy moment meets all of them. A work may return its time itself, a float."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            gc.collect()
            begin = perf_counter()
            took = work()
            times[name].append(took if isinstance(took, float) else perf_counter() - begin)
    return Times(times)


def anew(dataset: MergedDataset) -> MergedDataset:
    """The same stream, to be iterated from its start once more."""
    dataset.set_epoch(0)
    return dataset


def drain(samples: Iterable[object]) -> None:
    """Take all samples, and keep none."""
    for _ in samples:
        pass


def loading_time(dataset: Dataset[Any], collate: Callable[[list[Any]], object], batches: int) -> float:
    """How long a DataLoader takes for so many batches, in s, once its workers are under way."""
    # Else each process that `apart` forks from a server would start a server of its own, which imports torch anew.
    options: Any = {"num_workers": NUM_WORKERS, "multiprocessing_context": "fork"}
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=collate, **options)
    with closing(_batches(loader)) as stream:
        drain(islice(stream, min(FIRST_BATCHES, batches)))
        begin = perf_counter()
        drain(islice(stream, batches))
        return perf_counter() - begin


def apart(work: Callable[..., Result], *arguments: object) -> Result:
    """What a function returns in a process of its own: what one work did to heap and caches, others do not meet."""
    server = get_context("forkserver")
    server.set_forkserver_preload([__name__])  # torch too: each process would import it for a second
    with ProcessPoolExecutor(1, mp_context=server, initializer=fork_workers) as pool:
        return pool.submit(work, *arguments).result()


def _batches(loader: DataLoader[Any]) -> Generator[object, None, None]:
    yield from loader  # closed, it lets go of the loader's iterator, which ends the workers


def identity(batch: list[Any]) -> list[Any]:
    """The collate function that leaves all to the DataLoader."""
    return batch


def resident_mb() -> float:
    """The resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * getpagesize() / 1e6


def per_second(count: int, seconds: float) -> str:
    """A rate, for the notes of a row."""
    return f"{count / seconds:,.0f}/s"


def json_bytes(key: str, value: object) -> int:
    """How many bytes an entry of a checkpoint takes."""
    return len(json.dumps({key: value})) - 2
