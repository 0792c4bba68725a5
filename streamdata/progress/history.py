"""What is left of earlier topologies: entries that decide what comes next, and of the others a line in the headers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamdata.progress.base import earlier_deals
from streamdata.progress.columns import Columns
from streamdata.progress.descent import present_generations
from streamdata.progress.entry_keys import cursor_key, owner_of
from streamdata.progress.finals import COUNTS, sums
from streamdata.progress.progress import Progress
from streamdata.progress.states_table import StatesTable
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
    return dict(Columns(compacted(Progress(states).entries.columns.table())))


def compacted(table: StatesTable) -> StatesTable:
    """The same of entries whose headers are all there, and were checked."""
    headers, cursors = table.headers(), table.cursors
    present = present_generations(headers)
    if len(present) == len(headers):
        return table
    needed = _needed(headers, {group.path for group in cursors.groups})
    deals = {generation: header.get("deal", 0) for generation, header in headers.items()}
    kept = {
        group: rows
        for group, rows in cursors.groups.items()
        if group.generation in present or (deals[group.generation], group.epoch_pass, group.path) in needed
    }
    mask, workers = np.zeros(len(cursors), np.bool_), {}
    for group, rows in kept.items():
        mask[rows] = True
        for rank in np.unique(cursors.columns["rank"][rows]).tolist():
            worker = f"worker/{group.generation}/{group.epoch_pass}/{rank}"
            workers[worker] = table.others.get(worker, 0)
    generations = {group.generation for group in kept} | set(present)
    others = {f"generation/{number}": headers[number] for number in sorted(generations)} | workers
    others |= {key: value for key, value in table.others.items() if owner_of(key).generation in present}
    odd = {key: value for key, value in table.odd.items() if (found := cursor_key(key)) and found.group in kept}
    return StatesTable(cursors.select(mask), others, odd)


def history_of(progress: Progress) -> list[dict[str, Any]]:
    """Describe the generations up to the end of the deal that is shown, oldest first.

    Args:
        progress: The states.
    """
    # When their deal ends, whatever may still refer to it: then all its entries are there, and `compact` may leave out
    # some of them later.
    lines = (_line(progress, number) for number in sorted(progress.generations_of(progress.deal)))
    return [*progress.of_deal.get("history", ()), *lines]


def _needed(headers: Mapping[int, Mapping[str, Any]], paths: set[str]) -> set[tuple[int, int, str]]:
    """The deals before the newest one that a source still refers to, with the pass and the path of the source."""
    newest = headers[max(headers)]
    # A mixture begins anew with what the newest header says.
    sources = paths - {path.rpartition(".")[0] for path in paths}
    return {
        (deal, epoch_pass, path)
        for epoch_pass in map(int, newest.get("base", {}))
        for path in sources
        for deal in earlier_deals(headers, newest, epoch_pass, path)[0]
    }


def _line(progress: Progress, generation: int) -> dict[str, Any]:
    """What a generation was, and what all its lanes together gave of each source, and of the top if that joins them."""
    header, deal = progress.header(generation), progress.deal_of(generation)
    sources: dict[str, dict[str, float]] = {}
    for epoch_pass in progress.passes(deal):
        counted = progress.counts_before(deal, epoch_pass)
        for path in progress.paths():
            after, before = (progress.finals(deal, epoch_pass, path, before=generation + more) for more in (1, 0))
            first = counted.get(path, (0, 0, 0, 0))
            given: dict[str, float] = {
                "samples": int(after.draws.sum() - before.draws.sum()),
                "tokens": int(after.tokens.sum() - before.tokens.sum()),
                "cost": float(after.cost.sum() - before.cost.sum()),
                **dict(zip(COUNTS, map(int.__sub__, sums(first, after), sums(first, before)), strict=True)),
            }
            total = sources.setdefault(path, {})
            total |= {name: total.get(name, 0) + value for name, value in given.items() if value}
    batches, step = progress.batches(deal, generation), progress.step(generation)
    # What a yield function over all gave has an entry of its own: its batches are of that.
    tops = [""] if "" in sources else [path for path in sources if "." not in path]
    samples = sum(sources[path].get("samples", 0) for path in tops)
    line = {name: header[name] for name in ("dp_size", "num_workers", "weights") if name in header}
    size = {"batch_size": -(-int(samples) // batches)} if batches else {}
    given_at_all = {path: given for path, given in sources.items() if given}
    return {"generation": generation, "step": step, **line, **size, "sources": given_at_all}
