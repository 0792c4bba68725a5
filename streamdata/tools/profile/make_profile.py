"""Where a worker's time goes, and how fast workers are: `dataset, seconds → Profile`; only what was measured."""

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader

from streamdata.delivery import mixed_collate
from streamdata.errors import SourceError, one_line
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.tools.profile.stage_times import (
    IDLE,
    MIXING,
    PACK,
    PROCESS,
    SEND,
    Seconds,
    StageTimes,
    observe_worker,
    read_times,
)
from streamdata.tools.view.tree import counted, functions_of, percent_text, table

_ENOUGH: Final = 0.9
"""Part of the highest rate: beyond the fewest workers that have so much, more add little."""
_MOST_RUNS: Final = 6


class Rate(NamedTuple):
    """Samples that so many workers deliver in a second."""

    workers: int
    samples_per_s: float
    """After the first batch of each."""
    first_batch_s: float
    """Until the first batch, the start of the workers included."""
    samples: int
    """Samples by which the rate was measured."""


@dataclass(kw_only=True)
class StageShare:
    """Part of a worker's time."""

    source: str
    """Empty where it is of no one source."""
    stage: str
    function: str
    """The name of the function of `process`; empty of other stages."""
    seconds: float
    share: float
    """Share of the worker's time, waiting for the trainer left out."""


@dataclass(kw_only=True)
class Profile:
    """A measurement of where a worker's time goes, and of how fast workers are."""

    batch_size: int
    cores: int
    busy_s: float
    """The time of the worker whose stages these are, waiting for the trainer left out."""
    idle_s: float
    stages: list[StageShare]
    rates: list[Rate]
    knee: int
    """The fewest workers that have nearly the highest rate."""
    step_time_s: float | None
    wanted_samples_per_s: float | None
    """Samples that each rank needs in a second, by the step time."""
    enough_workers: int | None
    """The fewest that were measured to give that; None where none was."""
    advice: str


def counts_up_to(cores: int) -> list[int]:
    """How many workers are measured: 0, 1, 2, and doubled up to the cores."""
    counts, count = [0], 1
    while count < cores:
        counts.append(count)
        count *= 2
    counts.append(cores)
    return counts if len(counts) <= _MOST_RUNS else [*counts[: _MOST_RUNS - 1], cores]


def make_profile(
    dataset: MergedDataset,
    *,
    seconds: float,
    workers: Sequence[int] | None = None,
    batch_size: int = 16,
    step_time_s: float | None = None,
    collate: Callable[[list[Any]], Any] = mixed_collate,
    progressed: Callable[[str, int, int], None] = lambda *_: None,
) -> Profile:
    """Stream a recipe with more and more workers, and observe one of them.

    Args:
        dataset: The mixture.
        seconds: How long in all.
        workers: Numbers of DataLoader workers; None for 0, 1, 2, 4 … up to the cores.
        batch_size: Samples in a batch.
        step_time_s: What a step of the trainer takes, for one batch.
        collate: Makes batches.
        progressed: Told how far it is.

    Raises:
        SourceError: Nothing was delivered in that time.
    """
    cores = len(os.sched_getaffinity(0))
    counts = sorted(set(counts_up_to(cores) if workers is None else workers))
    observed = min((count for count in counts if count), default=0)
    rates: list[Rate] = []
    times: Seconds = {}
    for number, count in enumerate(counts):
        progressed("numbers of workers measured", number, len(counts))
        dataset.set_epoch(number)  # each in another order: what the one before has read is in memory
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stages.json" if count == observed else None
            rate, here = _measured(dataset, count, batch_size, seconds / len(counts), collate, path)
            times = here if path is not None else times
        rates.append(rate)
    if not any(rate.samples_per_s for rate in rates):
        raise SourceError(
            f"profile: expected batches in {seconds:g} s, got none by {', '.join(map(str, counts))} workers\n"
            "  Give it more --seconds, or a smaller --batch-size."
        )
    return _profile(dataset, times, rates, batch_size=batch_size, cores=cores, step_time_s=step_time_s)


def _measured(
    dataset: MergedDataset,
    count: int,
    batch_size: int,
    seconds: float,
    collate: Callable[[list[Any]], Any],
    path: Path | None,
) -> tuple[Rate, Seconds]:
    """The rate of so many workers, and the stages of the first, where a path is given for them."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=count,
        collate_fn=collate,
        worker_init_fn=partial(observe_worker, path) if path is not None and count else None,
    )
    here = StageTimes()
    with warnings.catch_warnings(action="ignore"):  # passes are left before their end, on purpose
        if path is None or count:
            return _rate(loader, count, batch_size, seconds), {} if path is None else read_times(path)
        with here:
            return _rate(loader, count, batch_size, seconds), here.seconds


def _rate(loader: Iterable[Any], count: int, batch_size: int, seconds: float) -> Rate:
    start = time.perf_counter()
    batches, first = iter(loader), None
    begun, samples = start, 0
    for number, batch in enumerate(batches):
        now = time.perf_counter()
        first = now - start if first is None else first
        if number < max(1, count):  # workers start at a pace of their own
            begun = now
        else:
            samples += len(batch) if isinstance(batch, list) else batch_size
        if now > start + seconds:
            break
    passed = time.perf_counter() - begun
    return Rate(count, samples / passed if samples else 0.0, first or 0.0, samples)


def _profile(
    dataset: MergedDataset, times: Seconds, rates: list[Rate], *, batch_size: int, cores: int, step_time_s: float | None
) -> Profile:
    names = {node.path or "the top": functions_of(node.dataset) for node in tree_of(dataset).walk()}
    busy = sum(seconds for doing, seconds in times.items() if doing.stage != IDLE)
    stages = [
        StageShare(
            source="" if doing.source == "the top" else doing.source,
            stage=doing.stage,
            function=names.get(doing.source, {}).get(doing.function, "") if doing.stage == PROCESS else "",
            seconds=seconds,
            share=seconds / busy if busy else 0.0,
        )
        for doing, seconds in times.items()
        if doing.stage != IDLE
    ]
    stages.sort(key=lambda stage: -stage.seconds)
    best = max(rate.samples_per_s for rate in rates)
    wanted = None if step_time_s is None else batch_size / step_time_s
    enough = None if wanted is None else next((rate.workers for rate in rates if rate.samples_per_s >= wanted), None)
    return Profile(
        batch_size=batch_size,
        cores=cores,
        busy_s=busy,
        idle_s=sum(times.values()) - busy,
        stages=stages,
        rates=rates,
        knee=next(rate.workers for rate in rates if rate.samples_per_s >= _ENOUGH * best),
        step_time_s=step_time_s,
        wanted_samples_per_s=wanted,
        enough_workers=enough,
        advice=_advice(stages),
    )


_REMEDIES: Final = {
    "read": "larger blocks, faster disks, or a store of what is read",
    "decode": "records of fewer bytes, or what is decoded written as a store (`streamdata prepare`)",
    "process": "a cheaper function, or its result written beforehand",
    "wait": "more `read_ahead_bytes` or `connections`, a `cache` on a disk of the node, or larger blocks",
    PACK: "a collate function that copies less",
    SEND: "batches of fewer bytes: uint8 images, shorter rows, fields that nobody needs dropped",
    MIXING: "fewer sources, or samples that are larger each",
}


def _advice(stages: Sequence[StageShare]) -> str:
    """Say which stage takes most time, and what would help there."""
    if not stages:
        return ""
    first = stages[0]
    of = f" of {first.source}" if first.source else ""
    what = f"{first.function} ({first.stage}{of})" if first.function else f"{first.stage}{of}"
    times = f"; without it a worker would do {1 / (1 - first.share):.2g} times as much" if first.share < 0.95 else ""  # noqa: PLR2004
    return f"{what} takes {100 * first.share:.0f} % of a worker's time{times}. What helps: {_REMEDIES[first.stage]}"


def profile_json(profile: Profile) -> dict[str, Any]:
    """The profile as plain JSON."""
    sources: dict[str, dict[str, float]] = {}
    for stage in profile.stages:
        of_source = sources.setdefault(stage.source, {})
        of_source[stage.stage] = of_source.get(stage.stage, 0.0) + stage.seconds
    whole = asdict(profile)
    whole["rates"] = [rate._asdict() for rate in profile.rates]
    whole["sources"] = [{"name": name, **stages} for name, stages in sources.items()]
    return whole


def profile_text(profile: Profile) -> str:
    """The profile for a person to read."""
    parts = [_stages(profile), f"most of all: {one_line(profile.advice)}" if profile.advice else "", _rates(profile)]
    return "\n\n".join(part for part in [*parts, _step(profile)] if part)


def _stages(profile: Profile) -> str:
    rows = [[each.source or "all", each.stage, each.function, percent_text(each.share), ""] for each in profile.stages]
    header = ["source", "stage", "function", "of its time", ""]
    return f"where a worker's {profile.busy_s:.1f} s went\n{table([header, *rows])}"


def _rates(profile: Profile) -> str:
    rows = [["workers", "samples/s", "first batch", ""]]
    for rate in profile.rates:
        knee = "more than this add little" if rate.workers == profile.knee else ""
        shown = f"{rate.samples_per_s:,.0f}" if rate.samples_per_s else "none in this time"
        rows.append([str(rate.workers), shown, f"{rate.first_batch_s:.2f} s", knee])
    return f"{table(rows)}\nthis machine has {counted(profile.cores, 'core')}; of more workers nothing is said"


def _step(profile: Profile) -> str:
    if profile.step_time_s is None or profile.wanted_samples_per_s is None:
        return ""
    wants = (
        f"a step of {profile.step_time_s:g} s with {profile.batch_size} samples needs "
        f"{profile.wanted_samples_per_s:,.0f} samples/s"
    )
    if profile.enough_workers is not None:
        who = counted(profile.enough_workers, "worker") if profile.enough_workers else "the trainer's own process"
        return f"{wants}: {who} can give it"
    best = max(profile.rates, key=lambda rate: rate.samples_per_s)
    most = f"at most {best.samples_per_s:,.0f} by {counted(best.workers, 'worker')}"
    return f"{wants}: more than was measured, {most}; what more cores would give is not said here"
