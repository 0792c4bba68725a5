"""What is left of earlier topologies: entries that decide what comes next, and of the others a line in the headers."""

from collections.abc import Mapping
from typing import Any

from streamdata.progress.finals import COUNTS, sums
from streamdata.progress.progress import Progress
from streamdata.progress.to_state import States


def compact(states: Mapping[str, Any]) -> States:
    """Leave out of states what nothing refers to any more.

    That is where the lanes of earlier topologies stood in sources of which what they had begun was read to its end, and
    in passes that all of them have ended. The newest header says in a line what each generation before it had been.

    Args:
        states: Of all ranks, joined; those of one rank may still be joined with the others' afterwards.

    Raises:
        StateError: They are not what `to_state` fills.
    """
    progress = Progress(states)
    needed = _needed(progress)
    kept: States = {}
    for key, value in states.items():
        kind, *numbers = key.split("/", 5)
        if kind == "generation":
            continue
        generation = int(numbers[0])
        deal = progress.deal_of(generation)
        if deal == progress.deal:
            kept[key] = value
        elif kind == "cursor" and (deal, int(numbers[1]), numbers[4]) in needed:
            kept[key] = value
            worker = f"worker/{generation}/{numbers[1]}/{numbers[2]}"
            kept[worker] = states.get(worker, 0)
    generations = {int(key.split("/", 2)[1]) for key in kept} | progress.generations_of(progress.deal)
    headers = {f"generation/{number}": states[f"generation/{number}"] for number in sorted(generations)}
    return headers | kept


def history_of(progress: Progress) -> list[dict[str, Any]]:
    """Describe the generations up to the end of the deal that is shown, oldest first.

    Args:
        progress: The states.
    """
    # When their deal ends, whatever may still refer to it: then all its entries are there, and `compact` may leave out
    # some of them later.
    lines = (_line(progress, number) for number in sorted(progress.generations_of(progress.deal)))
    return [*progress.of_deal.get("history", ()), *lines]


def _needed(progress: Progress) -> set[tuple[int, int, str]]:
    """The deals before this one that a source still refers to, with the pass and the path of the source."""
    return {
        (deal, epoch_pass, path)
        for epoch_pass in progress.passes_with_base()
        for path in progress.paths()
        for deal in progress.earlier_deals(epoch_pass, path)[0]
    }


def _line(progress: Progress, generation: int) -> dict[str, Any]:
    """What a generation was, and what all its lanes together gave of each source."""
    header, deal = progress.header(generation), progress.deal_of(generation)
    sources: dict[str, dict[str, float]] = {}
    for epoch_pass in progress.passes(deal):
        counted = progress.counts_before(deal, epoch_pass)
        for path in progress.paths() - {""}:
            after, before = (progress.finals(deal, epoch_pass, path, before=generation + more) for more in (1, 0))
            first = counted.get(path, (0, 0, 0, 0))
            given: dict[str, float] = {
                "samples": int(after.draws.sum() - before.draws.sum()),
                "cost": float(after.cost.sum() - before.cost.sum()),
                **dict(zip(COUNTS, map(int.__sub__, sums(first, after), sums(first, before)), strict=True)),
            }
            total = sources.setdefault(path, {})
            total |= {name: total.get(name, 0) + value for name, value in given.items() if value}
    batches, step = progress.batches(deal, generation), progress.step(generation)
    samples = sum(given.get("samples", 0) for path, given in sources.items() if "." not in path)
    line = {name: header[name] for name in ("dp_size", "num_workers", "weights") if name in header}
    size = {"batch_size": -(-int(samples) // batches)} if batches else {}
    given_at_all = {path: given for path, given in sources.items() if given}
    return {"generation": generation, "step": step, **line, **size, "sources": given_at_all}
