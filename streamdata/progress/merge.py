"""One checkpoint out of those of all ranks."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError
from streamdata.progress.progress import ANOMALIES, Progress
from streamdata.progress.to_state import States


def merge_states(*states: Mapping[str, Any]) -> States:
    """Join the states that several ranks collected, in any order.

    Every rank that resumed from a joined dict still carries the other ranks' entries as they were then; a plain
    `update` might bring those back. Cursors only grow (draws are counted), so each rank's entries are taken from the
    dict in which that rank is furthest.

    Args:
        states: What `to_state` filled; joined dicts may be joined again.

    Returns:
        A dict to be passed to `set_dataloader_states` of any of the ranks.

    Raises:
        StateError: One of them was not filled by `to_state`, or they disagree on what determines the order.
    """
    merged: States = {}
    furthest: dict[str, tuple[int, States]] = {}
    for part in states:
        # Checked first: below, keys are taken apart and values summed up without another look.
        Progress(part)
        ranks: defaultdict[str, States] = defaultdict(dict)
        for key, value in part.items():
            if key.startswith("generation/"):
                if _order(merged.setdefault(key, value)) != _order(value):
                    raise StateError(
                        f"merge_states: {key!r} differs between the states, got {str(value)[:100]} "
                        f"and {str(merged[key])[:100]}\n  Join states of one run only."
                    )
            else:
                ranks[_rank(key)][key] = value
        # Rank by rank: a dict may hold several, one of them newer and another older than in the dict beside it.
        for rank, entries in ranks.items():
            draws = sum(value["draws"] for key, value in entries.items() if key.startswith("cursor/"))
            furthest[rank] = max(furthest.get(rank, (-1, {})), (draws, entries), key=lambda pair: pair[0])
    for _, entries in furthest.values():
        merged.update(entries)
    return merged


def _order(header: Mapping[str, Any]) -> dict[str, Any]:
    """What of a generation's header determines the order; a rank may not have delivered since a sidecar was mended."""
    return {name: value for name, value in header.items() if name != ANOMALIES}


def _rank(key: str) -> str:
    """The rank in `cursor/G/P/RANK/…` and `worker/G/P/RANK`."""
    return key.split("/", 4)[3]
