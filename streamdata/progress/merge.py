"""One checkpoint out of those of all ranks."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.header import ANOMALIES
from streamdata.progress.progress import Progress
from streamdata.progress.to_state import States


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
    merged: States = {}
    furthest: dict[tuple[int, str], tuple[tuple[int, ...], States]] = {}
    # Checked first: below, keys are taken apart and values summed up without another look.
    deals = [Progress(part).deal for part in states]
    for part, deal in zip(states, deals, strict=True):
        merged |= _headers(merged, part)
        # How lanes ended under earlier topologies, those say that went on from it: of what they were not given nothing
        # was dealt out, and what was left out of them by `compact` must not come from an older checkpoint.
        if deal < max(deals):
            continue
        groups: defaultdict[tuple[int, str], States] = defaultdict(dict)
        for key, value in part.items():
            if not key.startswith("generation/"):
                groups[_deal(merged, key), _rank(key)][key] = value
        # Rank by rank: a dict may hold several, one of them newer and another older than in the dict beside it.
        for group, entries in groups.items():
            reach = _reach(entries)
            if group not in furthest or reach > furthest[group][0]:
                furthest[group] = reach, entries
    for _, entries in furthest.values():
        merged.update(entries)
    return merged


def _headers(merged: States, part: Mapping[str, Any]) -> States:
    """The headers of a dict, which must be those of the others."""
    headers = {key: value for key, value in part.items() if key.startswith("generation/")}
    for key, value in headers.items():
        if _order(merged.get(key, value)) != _order(value):
            raise StateError(
                f"merge_states: {shown(key)} differs between the states, got {str(value)[:100]} "
                f"and {str(merged[key])[:100]}\n  Join states of one run only, all of which resumed from the same."
            )
    return {**headers, **{key: value for key, value in merged.items() if key in headers}}


def _reach(entries: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """How far a rank had come: its newest generation, the newest pass in that, and its draws there; then its size."""
    cursors = {key: value["draws"] for key, value in entries.items() if key.startswith("cursor/")}
    numbers = {
        key: (int(generation), int(number)) for key in cursors for _, generation, number, _ in [key.split("/", 3)]
    }
    newest = max(numbers.values(), default=(-1, -1))
    # Its size last: of what one dict holds in full and the other compacted, the sequence of the dicts must not decide.
    return *newest, sum(draws for key, draws in cursors.items() if numbers[key] == newest), len(entries)


def _order(header: Mapping[str, Any]) -> dict[str, Any]:
    """What of a generation's header determines the order; a rank may not have delivered since a sidecar was mended."""
    return {name: value for name, value in header.items() if name != ANOMALIES}


def _deal(headers: States, key: str) -> int:
    """The deal of the generation in `cursor/G/…`."""
    deal: int = headers["generation/" + key.split("/", 2)[1]].get("deal", 0)
    return deal


def _rank(key: str) -> str:
    """The rank in `cursor/G/P/RANK/…`, `worker/G/P/RANK` and `idle/G/RANK`."""
    kind, *numbers = key.split("/", 4)
    return numbers[1 if kind == "idle" else 2]
