"""How close schedules are kept, in simulation: `python -m tests.benchmarks.schedule_table`.

For each schedule a job of 64 lanes, then of 96, then of 16, over one stretch of time. In a lane: how far what a source
has given ever is from the integral of its share, at worst, in samples (or in largest costs, where samples have costs).
In the job: the same for its total at the end of each size. And the standard deviation of the worst source's share in
global batches of 2 samples per lane, around its share of then, in 64 lanes before and after two changes of size. What
runs is `MergedDataset` itself, lane by lane, with the base that a change of size gives it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from streamdata import MergedDataset
from streamdata.states.headers import Base
from streamdata.states.progress import Progress

Floats = npt.NDArray[np.float64]
Percent = Callable[[Floats], Floats]
"""What a percent is at each of many times: written anew here, and not with the code under test."""

SIZES = (64, 96, 16)


class Items:
    """A source whose items all weigh the same, or as a sequence of weights says."""

    def __init__(self, name: str, percent: object, weights: Sequence[float] = (1,)) -> None:
        self.name, self.percent, self.weights = name, percent, weights

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"weight": self.weights[index % len(self.weights)]}


def linear(*points: tuple[float, float]) -> Percent:
    """Linear between its points."""
    times, values = zip(*points, strict=True)
    return lambda time: np.interp(time, times, values)


def stepped(*points: tuple[float, float]) -> Percent:
    """Each value until the next."""
    times, values = np.array([time for time, _ in points]), np.array([value for _, value in points])
    return lambda time: values[np.maximum(np.searchsorted(times, time, side="right") - 1, 0)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule, and what it should come to."""

    make: Callable[[], MergedDataset]
    shares: Callable[[Floats], Mapping[str, Floats]]
    """Of all that the top draws, by the path of each source."""
    largest: float | None = None
    """Its largest cost, where it has costs."""


def mixture(percents: Mapping[str, Any], weights: Mapping[str, Sequence[float]] | None = None, **options: Any) -> Any:
    """Of sources with these percents."""
    sources = [Items(name, percent, (weights or {}).get(name, (1,))) for name, percent in percents.items()]
    # Shuffled: else a lane would read every so many items, which all weigh the same.
    return MergedDataset(sources, **options)


def within(outer: Mapping[str, Any], inner: Any, percent: Any, **options: Any) -> MergedDataset:
    """A mixture with another one in it."""
    inner.name, inner.percent = "inner", percent
    sources = [Items(name, share, (3,)) for name, share in outer.items()]
    return MergedDataset([*sources, inner], **options)


def normalised(**percents: Percent) -> Callable[[Floats], Mapping[str, Floats]]:
    """Shares of siblings, for percents that add to a constant, so that they are linear as well."""

    def shares(time: Floats) -> Mapping[str, Floats]:
        values = {name: percent(time) for name, percent in percents.items()}
        total = sum(values.values())
        return {name: value / total for name, value in values.items()}

    return shares


def nested(outer: Callable[[Floats], Mapping[str, Floats]], inner: Callable[[Floats], Mapping[str, Floats]]) -> Any:
    """Shares of all leaves, where the outer mixture holds `inner`."""

    def shares(time: Floats) -> Mapping[str, Floats]:
        own = dict(outer(time))
        share = own.pop("inner")
        return own | {f"inner.{name}": share * part for name, part in inner(time).items()}

    return shares


def schedules(end: float) -> dict[str, Case]:
    """The schedules, over so much time."""
    third, half, late = end / 3, end / 2, 0.8 * end
    fade: dict[str, Any] = {"a": [[0, 0.7], [end, 0.1]], "b": [[0, 0.2], [end, 0.8]], "c": 0.1}
    fading = normalised(a=linear((0, 0.7), (end, 0.1)), b=linear((0, 0.2), (end, 0.8)), c=linear((0, 0.1)))
    step: dict[str, Any] = {"a": {"steps": [[0, 0.7], [half, 0.2]]}, "b": {"steps": [[0, 0.2], [half, 0.7]]}, "c": 0.1}
    stepping = normalised(a=stepped((0, 0.7), (half, 0.2)), b=stepped((0, 0.2), (half, 0.7)), c=linear((0, 0.1)))
    zero: dict[str, Any] = {
        "a": [[third, 0.5], [half, 0]],
        "b": [[third, 0], [half, 0.5]],
        "c": {"steps": [[0, 0.5], [third, 0.0], [late, 0.5]]},
        "d": {"steps": [[0, 0.0], [third, 0.5], [late, 0.0]]},
    }
    zeros = normalised(
        a=linear((third, 0.5), (half, 0)),
        b=linear((third, 0), (half, 0.5)),
        c=stepped((0, 0.5), (third, 0), (late, 0.5)),
        d=stepped((0, 0), (third, 0.5), (late, 0)),
    )
    costs = {"a": (1, 5, 9), "b": (2, 20), "c": (7,), "d": (4, 1, 1)}
    constant = normalised(first=linear((0, 0.4)), inner=linear((0, 0.6)))
    moving = normalised(first=linear((0, 0.2), (end, 0.8)), inner=linear((0, 0.8), (end, 0.2)))
    parent: dict[str, Any] = {"first": [[0, 0.2], [end, 0.8]]}
    late_parent: dict[str, Any] = {"first": {"steps": [[0, 1], [third, 0.5]]}}
    late_inner = {"steps": [[0, 0], [third, 0.5]]}
    from_zero = normalised(first=stepped((0, 1), (third, 0.5)), inner=stepped((0, 0), (third, 0.5)))
    falling = [[0, 0.8], [end, 0.2]]
    plain = normalised(a=linear((0, 0.7)), b=linear((0, 0.2)), c=linear((0, 0.1)))
    return {
        "constant": Case(make=lambda: mixture({"a": 0.7, "b": 0.2, "c": 0.1}), shares=plain),
        "linear": Case(make=lambda: mixture(fade), shares=fading),
        "stepped": Case(make=lambda: mixture(step), shares=stepping),
        "to and from zero": Case(make=lambda: mixture(zero), shares=zeros),
        "linear, by cost": Case(make=lambda: mixture(fade, costs, cost="weight"), shares=fading, largest=20),
        "to and from zero, by cost": Case(make=lambda: mixture(zero, costs, cost="weight"), shares=zeros, largest=20),
        "to and from zero, in a constant mixture": Case(
            make=lambda: within({"first": 0.4}, mixture(zero), 0.6), shares=nested(constant, zeros)
        ),
        "linear, in a linear one": Case(
            make=lambda: within(parent, mixture(fade), falling), shares=nested(moving, fading)
        ),
        "to and from zero, in a linear one": Case(
            make=lambda: within(parent, mixture(zero), falling), shares=nested(moving, zeros)
        ),
        "linear, in one from zero": Case(
            make=lambda: within(late_parent, mixture(fade), late_inner), shares=nested(from_zero, fading)
        ),
    }


class Integrals:
    """What a case should have given of each source by a time, in the whole job."""

    def __init__(self, case: Case, end: float) -> None:
        self._times = np.linspace(0, 1.2 * end, 200_001)
        shares = case.shares((self._times[1:] + self._times[:-1]) / 2)
        self.paths = list(shares)
        self._sums = {path: np.append(0.0, np.cumsum(part * np.diff(self._times))) for path, part in shares.items()}

    def at(self, path: str, time: Any) -> Any:
        """At one or many times."""
        return np.interp(time, self._times, self._sums[path])


class Drawn:
    """What the lanes of one size draw from a base on, until they have come so far together.

    Attributes:
        sources: Of each lane, the numbers of the sources that it draws.
        amounts: Of each lane, what each draw counts.
    """

    def __init__(self, case: Case, size: int, base: Base, amount: float, paths: Sequence[str]) -> None:
        numbers = {path: number for number, path in enumerate(paths)}
        lanes = [_lane(case, size, rank, base, amount / size, numbers) for rank in range(size)]
        self.size, self.base = size, base
        self.sources = [np.array(sources) for sources, _ in lanes]
        self.amounts = [np.array(amounts) for _, amounts in lanes]

    @property
    def time(self) -> float:
        """What the job has drawn in the end."""
        return self.base.time + sum(float(amounts.sum()) for amounts in self.amounts)

    def given(self, number: int) -> float:
        """What the job has given of a source."""
        return sum(float(a[s == number].sum()) for s, a in zip(self.sources, self.amounts, strict=True))

    def off_by(self, wanted: Integrals, number: int, path: str) -> float:
        """How far a lane ever is from what it is to give of a source: its share, less what was too much before."""
        worst, excess = 0.0, self.base.excess.get(path, 0.0) / self.size
        for sources, amounts in zip(self.sources, self.amounts, strict=True):
            times = self.base.time + self.size * np.cumsum(amounts)
            due = (wanted.at(path, times) - wanted.at(path, self.base.time)) / self.size
            got = np.cumsum(amounts * (sources == number))
            # That cannot be made good at once: until it is, anything between the two is right.
            over, under = got - due + min(excess, 0.0), due - got - max(excess, 0.0)
            worst = max(worst, float(over.max()), float(under.max()))
        return worst


def _lane(
    case: Case, size: int, rank: int, base: Base, amount: float, numbers: Mapping[str, int]
) -> tuple[list[int], list[float]]:
    dataset = case.make()
    dataset.set_data_parallel(size, rank)
    sources, amounts, total = [], [], 0.0
    with patch.object(Progress, "base", lambda *_: base):
        for sample in dataset:
            amounts.append(float(sample["weight"]) if case.largest else 1.0)
            sources.append(numbers[sample["__datasetname__"]])
            total += amounts[-1]
            if total >= amount:
                return sources, amounts
    raise AssertionError("an endless stream")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one case, over several sizes."""

    in_a_lane: float
    in_the_job: list[float]
    of_batches: list[float]


def simulate(case: Case, end: float, sizes: Sequence[int] = SIZES, until: Sequence[float] = (0.4, 0.85, 1)) -> Figures:
    """Run a job of several sizes, each until a part of the end."""
    wanted, base, unit = Integrals(case, end), Base(), case.largest or 1.0
    worst, job, batches, given = 0.0, [], [], dict.fromkeys(wanted.paths, 0.0)
    for size, part in zip(sizes, until, strict=True):
        drawn = Drawn(case, size, base, part * end - base.time, wanted.paths)
        for number, path in enumerate(wanted.paths):
            worst = max(worst, drawn.off_by(wanted, number, path) / unit)
            given[path] += drawn.given(number)
        if case.largest is None:
            batches.append(deviation_of_batches(case, drawn, wanted.paths))
        excess = {path: amount - float(wanted.at(path, drawn.time)) for path, amount in given.items()}
        base = Base(time=drawn.time, excess=excess)
        job.append(max(map(abs, base.excess.values())) / unit)
    return Figures(in_a_lane=worst, in_the_job=job, of_batches=batches)


def deviation_of_batches(case: Case, drawn: Drawn, paths: Sequence[str]) -> float:
    """The standard deviation of the worst source's share in a global batch, around what it should be."""
    count = min(map(len, drawn.sources)) // 2
    batches = (
        np.array([sources[: 2 * count] for sources in drawn.sources])
        .reshape(drawn.size, count, 2)
        .transpose(1, 0, 2)
        .reshape(count, -1)
    )
    shares = case.shares(drawn.base.time + drawn.size * (2 * np.arange(count) + 1.0))
    got = {path: (batches == number).mean(axis=1) for number, path in enumerate(paths)}
    return max(float(np.sqrt(((got[path] - shares[path]) ** 2).mean())) for path in paths)


def main(draws: int = 1200) -> None:
    """Print the table, for so many draws of each of 64 lanes."""
    end = 64.0 * draws
    print("| schedule | a lane is off by | the job, after 64, 96, 16 lanes | batches of 64 lanes, before and after |")
    print("|---|---|---|---|")
    for name, case in schedules(end).items():
        figures, again = simulate(case, end), simulate(case, end, (64, 96, 64))
        job = ", ".join(f"{amount:.1f}" for amount in figures.in_the_job)
        before_after = ", ".join(f"{sd:.3f}" for sd in again.of_batches[::2]) or "-"
        print(f"| {name} | {max(figures.in_a_lane, again.in_a_lane):.2f} | {job} | {before_after} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
