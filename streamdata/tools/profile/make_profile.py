"""Where the time goes, and how fast workers are: `dataset, seconds → Profile`; only what was measured."""

import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch.utils.data import DataLoader

from streamdata.delivery import mixed_collate
from streamdata.errors import SourceError, counted
from streamdata.mixing import MergedDataset
from streamdata.mixing.tree import tree_of
from streamdata.tools.profile.stage_times import MIXING, PACK, PROCESS, READ, WAIT, Doing, StageTimes
from streamdata.tools.view.tree import functions_of, paragraph, percent_text, table

_ENOUGH: Final = 0.9
"""Part of the highest rate: beyond the fewest workers that have so much, more add little."""
_MOST_RUNS: Final = 6


@dataclass(kw_only=True)
class Rate:
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
    """Part of the time in which samples are made."""

    source: str
    """Empty where it is of no one source."""
    stage: str
    function: str
    """The name of the function of `process`; empty of other stages."""
    seconds: float
    share: float


@dataclass(kw_only=True)
class Profile:
    """A measurement of where the time goes, and of how fast workers are."""

    batch_size: int
    cores: int
    busy_s: float
    """Time of the process whose stages these are."""
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
    counts = [0, *(1 << number for number in range((cores - 1).bit_length())), cores]
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
    """Stream a recipe with more and more workers, and once in this process, where its stages are timed.

    Args:
        dataset: The mixture.
        seconds: How long in all, or as long as the least that can be measured takes: a batch of each worker after its
            first.
        workers: Numbers of DataLoader workers; None for 0, 1, 2, 4 … up to the cores.
        batch_size: Samples in a batch.
        step_time_s: What a step of the trainer takes, for one batch.
        collate: Makes batches.
        progressed: Told how far it is.

    Raises:
        SourceError: The stream ends before that.
    """
    cores = len(os.sched_getaffinity(0))
    counts = sorted(set(counts_up_to(cores) if workers is None else workers))
    each_s, rates = seconds / (len(counts) + 1), []
    for number, count in enumerate(counts):
        progressed("numbers of workers measured", number, len(counts) + 1)
        dataset.set_epoch(number)  # each in another order: what the one before has read is in memory
        loader: DataLoader[Any] = DataLoader(dataset, batch_size, num_workers=count, collate_fn=collate)
        rates.append(_rate(loader, each_s))
    best = max(rate.samples_per_s for rate in rates)
    if not best:
        raise SourceError(
            f"profile: expected more batches than the first of each worker, got none by {', '.join(map(str, counts))} "
            "workers\n  The stream ends: give it more records, or a smaller --batch."
        )
    dataset.set_epoch(len(counts))
    progressed("numbers of workers measured", len(counts), len(counts) + 1)
    with StageTimes() as times:
        timed = times.timed(collate, Doing("", PACK))
        loader = DataLoader(dataset, batch_size, collate_fn=timed)
        _rate(loader, each_s, at_first=times.seconds.clear)
    stages = _stages(dataset, times.seconds)
    wanted = None if step_time_s is None else batch_size / step_time_s
    enough = [rate.workers for rate in rates if wanted is not None and rate.samples_per_s >= wanted]
    return Profile(
        batch_size=batch_size,
        cores=cores,
        busy_s=sum(times.seconds.values()),
        stages=stages,
        rates=rates,
        knee=next(rate.workers for rate in rates if rate.samples_per_s >= _ENOUGH * best),
        step_time_s=step_time_s,
        wanted_samples_per_s=wanted,
        enough_workers=min(enough, default=None),
        advice=_advice(stages[0]),
    )


def _rate(loader: DataLoader[Any], seconds: float, at_first: Callable[[], None] = lambda: None) -> Rate:
    """Stream for so many seconds; `at_first` is called once there is a first batch."""
    start = begun = time.perf_counter()
    first, samples, least = 0.0, 0, max(1, loader.num_workers)
    with warnings.catch_warnings(action="ignore"):  # passes are left before their end, on purpose
        for number, batch in enumerate(loader):
            now = time.perf_counter()
            first = first or now - start
            if number >= least:  # workers start at a pace of their own
                samples += len(batch) if isinstance(batch, list) else loader.batch_size or 1
            if number < least:
                begun = now
            elif now > start + seconds:
                break
            if not number:
                at_first()
    rate = samples / (time.perf_counter() - begun)
    return Rate(workers=loader.num_workers, samples_per_s=rate, first_batch_s=first, samples=samples)


def _stages(dataset: MergedDataset, seconds: Mapping[Doing, float]) -> list[StageShare]:
    """The shares of the stages, the largest first."""
    names = {node.path or "the top": functions_of(node.dataset) for node in tree_of(dataset).walk()}
    busy, stages = sum(seconds.values()), []
    for doing, passed in seconds.items():
        source, function = doing.source, names.get(doing.source, {}).get(doing.function, "")
        source = "" if source == "the top" else source
        stages.append(
            StageShare(source=source, stage=doing.stage, function=function, seconds=passed, share=passed / busy)
        )
    return sorted(stages, key=lambda stage: -stage.seconds)


_REMEDIES: Final = {
    READ: "larger blocks, faster disks, records of fewer bytes, or a store of what is read (`streamdata prepare`)",
    PROCESS: "a cheaper function, or its result written beforehand",
    WAIT: "more `read_ahead_bytes` or `connections`, a `cache` on a disk of the node, or larger blocks",
    PACK: "a collate function that copies less",
    MIXING: "samples that are larger each, or fewer sources",
}


def _advice(first: StageShare) -> str:
    """Say which stage takes most time, and what helps there."""
    of = f" of {first.source}" if first.source else ""
    what = f"{first.function} ({first.stage}{of})" if first.function else f"{first.stage}{of}"
    return f"{what} takes {100 * first.share:.0f} % of the time. What helps: {_REMEDIES[first.stage]}"


def profile_json(profile: Profile) -> dict[str, Any]:
    """The profile as plain JSON."""
    sources: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for stage in profile.stages:
        sources[stage.source][stage.stage] += stage.seconds
    return {**asdict(profile), "sources": [{"name": name, **stages} for name, stages in sources.items()]}


def profile_text(profile: Profile) -> str:
    """The profile for a person to read."""
    rows = [[each.source or "all", each.stage, each.function, percent_text(each.share), ""] for each in profile.stages]
    stage_table = table([["source", "stage", "function", "of the time", ""], *rows], (0, 2))
    stages = f"where {profile.busy_s:.1f} s of one process went, without workers\n{stage_table}"
    rows = [["workers", "samples/s", "first batch", ""]]
    for rate in profile.rates:
        is_knee = rate.workers == profile.knee and rate is not profile.rates[-1]
        shown = f"{rate.samples_per_s:,.0f}" if rate.samples_per_s else "none in this time"
        rows.append([str(rate.workers), shown, f"{rate.first_batch_s:.2f} s", "more added little" * is_knee])
    rates = f"{table(rows)}\nthis machine has {counted(profile.cores, 'core')}"
    parts = [stages, paragraph(f"most of all: {profile.advice}"), rates]
    if profile.step_time_s is not None:
        wanted = f"{profile.batch_size} samples needs {profile.wanted_samples_per_s:,.0f} samples/s"
        best = max(profile.rates, key=lambda rate: rate.samples_per_s)
        workers = best.workers if profile.enough_workers is None else profile.enough_workers
        who = counted(workers, "worker") if workers else "the trainer's own process (num_workers=0)"
        given = f"more than was measured, at most {best.samples_per_s:,.0f} by {who}"
        given = given if profile.enough_workers is None else f"{who} gave it"
        parts.append(paragraph(f"a step of {profile.step_time_s:g} s with {wanted}: {given}"))
    return "\n\n".join(parts)
