"""One checkpoint out of those of all ranks."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.deal_header import DEAL
from streamdata.progress.header import ANOMALIES
from streamdata.progress.progress import Progress
from streamdata.progress.to_state import States

_HEADERS = ("generation/", DEAL)


def merge_states(*states: Mapping[str, Any]) -> States:
    """Join the states that several ranks collected, in any order.

    Every rank that resumed from a joined dict still carries the other ranks' entries as they were then; a plain
    `update` might bring those back. Cursors only grow (draws are counted), so each rank's entries are taken from the
    dict in which that rank is furthest, among those that the newest topology has written.

    Args:
        states: What `to_state` filled; joined dicts may be joined again.

    Returns:
        A dict to be passed to `set_dataloader_states` of any of the ranks.

    Raises:
        StateError: One of them was not filled by `to_state`, or they disagree on what determines the order.
    """
    # Checked first: below, keys are taken apart and values summed up without another look.
    parts = [progress.entries for progress in map(Progress, states) if progress]
    newest = max((part.deal.number for part in parts), default=0)
    merged: States = {}
    furthest: dict[str, tuple[tuple[int, ...], States]] = {}
    # A rank that has delivered nothing since the size changed has entries of the size before: of these the newest
    # header says all.
    for part in (dict(part.columns) for part in parts if part.deal.number == newest):
        merged.update(_headers(merged, part))
        ranks: defaultdict[str, States] = defaultdict(dict)
        for key, value in part.items():
            if not key.startswith(_HEADERS):
                ranks[_rank(key)][key] = value
        # Rank by rank: a dict may hold several, one of them newer and another older than in the dict beside it.
        for rank, entries in ranks.items():
            reach = _reach(entries)
            if rank not in furthest or reach > furthest[rank][0]:
                furthest[rank] = reach, entries
    for _, entries in furthest.values():
        merged.update(entries)
    return merged


def _headers(merged: States, part: Mapping[str, Any]) -> States:
    """The headers of a dict, which must be those of the others."""
    headers = {key: value for key, value in part.items() if key.startswith(_HEADERS)}
    for key, value in headers.items():
        if _order(merged.get(key, value)) != _order(value):
            raise StateError(
                f"merge_states: {shown(key)} differs between the states, got {str(value)[:100]} "
                f"and {str(merged[key])[:100]}\n  Join states of one run only, all of which resumed from the same."
            )
    return {**headers, **{key: value for key, value in merged.items() if key in headers}}


def _reach(entries: Mapping[str, Any]) -> tuple[int, int, int]:
    """How far a rank had come: its newest generation, how many lanes had ended passes, and its draws in all."""
    generations = (int(key.split("/", 2)[1]) for key in entries if not key.startswith("idle/"))
    # Over all passes: with `set_epoch` the newest one need not be the last. And a lane that has ended one may be held
    # without its cursors: see `from_stateful`.
    ended = sum(entry.get("ended", False) for key, entry in entries.items() if key.startswith("lane/"))
    draws = sum(entry["draws"] for key, entry in entries.items() if key.startswith("cursor/"))
    return max(generations, default=-1), ended, draws


def _order(header: Mapping[str, Any]) -> dict[str, Any]:
    """What of a generation's header determines the order; a rank may not have delivered since a sidecar was mended."""
    return {name: value for name, value in header.items() if name != ANOMALIES}


def _rank(key: str) -> str:
    """The rank in `cursor/G/P/RANK/…`, `worker/G/P/RANK` and `idle/G/RANK`."""
    kind, *numbers = key.split("/", 4)
    return numbers[1 if kind == "idle" else 2]
