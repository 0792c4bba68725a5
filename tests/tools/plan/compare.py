"""Plans of random recipes beside what their jobs report and log: `python -m tests.tools.plan.compare --recipes 30`.

What a plan does not mark as estimated must be what the job does, first repeats within 2 draws; the rest within 2 %, of
packers 5 %. Each seed is a recipe, with a topology and a length of its own.
"""

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from streamdata import JsonlIterableDataset, MergedDataset, PackTokens, named, report, to_state
from streamdata.tools.plan.make_plan import Amount, Planner, RunPlan
from tests.shard_files import write_jsonl
from tests.streams import Numbers
from tests.tools.plan.jobs import delivered_by_job, second_epoch_of

KINDS = ("plain", "finite", "schedules", "functions", "costs", "packers", "packed top")


def tokens_of(record: dict) -> dict:
    """As many token ids as its number says, and which documents these are."""
    number = record.get("value", record.get("n", 0))
    return {"input_ids": np.arange(20 + number * 7 % 50), "documents": number, "cost": 1 + number % 3}


def thrice(record: dict) -> list[dict]:
    """Three samples of each record."""
    return [record, dict(record), dict(record)]


def most(record: dict) -> dict | None:
    """Nine of ten records."""
    return None if record["value"] % 10 == 3 else record


@dataclass
class RandomRecipe:
    """A recipe, with the size and the length of its run; the same for each seed."""

    seed: int
    folder: Path
    kind: str = ""
    packed: set[str] = field(default_factory=set)
    """Sources whose samples are rows of documents."""

    def __post_init__(self) -> None:
        rng = Random(self.seed)
        self.kind = self.kind or KINDS[self.seed % len(KINDS)]
        dp_size, workers, batch = rng.randint(1, 3), rng.randint(0, 3), rng.randint(1, 7)
        samples = rng.randint(1000, 4000)
        if self.kind == "costs":  # what a source's samples cost is an average over many
            samples *= 3
        if self.is_packed:  # several bursts of each lane
            dp_size, workers, samples = 1, rng.randint(0, 2), rng.randint(2000, 3000)
        self.amount = Amount(samples, None, dp_size, workers, batch)
        self.finite = self.kind == "finite"

    @property
    def is_packed(self) -> bool:
        """Whether documents are packed."""
        return self.kind in ("packers", "packed top")

    def make(self) -> MergedDataset:
        """What the recipe builds."""
        rng = Random(self.seed + 1)
        sources = [self._source(rng, f"s{number}") for number in range(rng.randint(2, 5))]
        if rng.random() < 0.5 and self.kind != "packed top":
            inner = MergedDataset([self._source(rng, name, "inner.") for name in "xy"], seed=rng.randint(0, 9))
            inner = inner.finite() if self.finite else inner
            sources.append(named(inner, name="inner", percent=rng.uniform(0.5, 3)))
        options: dict[str, Any] = {"seed": self.seed}
        if self.finite:
            options |= {"cyclic": False, "stop": rng.choice(["first_exhausted", "all_exhausted"])}
        if self.kind == "costs":
            options["cost"] = "cost"
        if self.kind == "packed top":
            options["customized_yield_fn"] = PackTokens(200, lookahead=rng.choice([1, 50, 300]))
        return MergedDataset(sources, **options)

    def _source(self, rng: Random, name: str, above: str = "") -> Any:
        size, percent = rng.randint(60, 900), rng.uniform(0.3, 3)
        if self.kind == "packers":
            size = 30 + size // 10
        options: dict[str, Any] = {}
        if self.kind == "schedules":
            until = rng.randint(300, 3000)
            options["percent"] = [[0, rng.uniform(0.1, 3)], [until, rng.uniform(0.1, 3)]]
        if self.kind == "functions":
            options["single_process_fn"] = rng.choice([None, thrice, most])
        if self.kind in ("costs", "packed top"):
            options["single_process_fn"] = tokens_of
        if self.kind == "packers":
            options["single_process_fn"] = tokens_of
            if rng.random() < 0.6:
                self.packed.add(above + name)
                options["process_fn"] = PackTokens(90, lookahead=rng.choice([1, 40, 3 * size]))
        if self.kind in ("plain", "finite"):
            options |= rng.choice([{}, {"holdout": 0.3}, {"records_per_block": 1 + (size % 2 == 0)}])
            if rng.random() < 0.4:
                path = self.folder / f"{self.seed}-{name}"
                if not path.exists():
                    write_jsonl(path, [size // 2, size // 3, 9])
                return JsonlIterableDataset(str(path), name=name, percent=percent, shuffle_buffer=rng.choice([0, 32]))
        options = {name: value for name, value in options.items() if value is not None}
        return Numbers(name, size, options.pop("percent", percent), **options)

    def planned(self) -> RunPlan:
        """Its plan, by a look at all records."""
        return Planner(self.make(), self.amount, 1000).plan(0)


@dataclass
class Found:
    """A plan beside what its job did."""

    recipe: RandomRecipe
    worst: float = 0.0
    """The largest deviation of samples, epochs and tokens beyond the slack, as a part of what the job reports."""
    faults: list[str] = field(default_factory=list)

    def check(self, what: str, told: float, real: float, most: float, slack: float = 2.0) -> None:
        """Compare a number, within a part of it, or within `slack`."""
        off = max(0.0, abs(told - real) - slack) / max(real, 1.0)
        self.worst = max(self.worst, off)
        if off > most:
            self.faults.append(f"{what}: planned {told:.6g}, was {real:.6g}")


def compared(recipe: RandomRecipe) -> Found:
    """Plan a recipe, run it, and compare."""
    plan, found = recipe.planned(), Found(recipe)
    samples = list(islice(delivered_by_job(recipe.make, recipe.amount), recipe.amount.samples))
    states: dict = {}
    for sample in samples:
        states.update(to_state([sample]))
    reported = report(states)
    ends = len(samples) if plan.ends_after is None else plan.ends_after
    found.check("samples in all", ends, len(samples), 0.02 if plan.end_is_estimated else 0.0)
    if plan.tokens is not None:
        found.check("tokens", plan.tokens, reported["tokens"], 0.05 if recipe.is_packed else 0.02)
    logged = Counter(sample["__datasetname__"] for sample in samples)
    documents = logged_documents(samples)
    for source in plan.sources:
        name, real = source.name, float(logged[source.name])
        epochs = reported.get(f"epochs/{name}", 0.0)
        if recipe.kind == "packed top":  # a row has documents of several sources
            real = epochs = 0.0
        within = 0.05 if recipe.is_packed else 0.02
        if name in recipe.packed and source.records:
            epochs = documents[name] / source.records
        if recipe.kind != "packed top":
            found.check(f"samples of {name}", source.samples, real, within if source.samples_are_estimated else 0.0)
            lanes = recipe.amount.lane.count  # each of which has begun a record
            found.check(f"records of {name}", source.records_read, epochs * source.records, within, 2 + lanes)
        _check_repeat(found, source, samples)
    if recipe.kind == "packed top":
        found.check("documents", sum(source.samples for source in plan.sources), sum(documents.values()), 0.05)
    return found


def logged_documents(samples: list[dict]) -> Counter:
    """How many documents were delivered in rows, by the source of the row."""
    documents: Counter = Counter()
    for sample in samples:
        documents[sample["__datasetname__"]] += np.size(sample.get("documents", ()))
    return documents


def _check_repeat(found: Found, source: Any, samples: list[dict]) -> None:
    if source.first_repeat_is in ("exact", "within"):
        real = second_epoch_of(samples, source.name)
        found.check(f"first repeat of {source.name}", source.first_repeat, real, 0.0)
    elif source.first_repeat is None and not source.samples_are_estimated and not source.epochs_are_estimated:
        try:
            real = second_epoch_of(samples, source.name)
        except StopIteration:
            return
        found.faults.append(f"first repeat of {source.name}: planned none, was {real}")


def main() -> int:
    """Compare so many recipes, and say which plans were wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    wrong, worst = 0, {False: 0.0, True: 0.0}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.recipes):
            found = compared(RandomRecipe(seed, Path(folder)))
            wrong, is_packed = wrong + bool(found.faults), found.recipe.is_packed
            worst[is_packed] = max(worst[is_packed], found.worst)
            print(f"{seed:4} {found.recipe.kind:10} off by {100 * found.worst:.2f} %", *found.faults, sep="\n     ")
    off = f"{100 * worst[False]:.2f} %, of packers {100 * worst[True]:.2f} %"
    print(f"{options.recipes} recipes, {wrong} wrong, the largest deviation {off}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
