"""Groups of samples, each of which is to be a batch.

`[group] → its samples, with the group's state → collate → a batch`
"""

from collections.abc import Callable, Sequence
from typing import Any

from streamdata.delivery.collate import mixed_collate
from streamdata.errors import shown
from streamdata.fields import SAMPLES, STATES


class GroupCollate:
    """Makes a batch of the samples of a group, as `GroupByLength` gives it, and passes its state on.

    Args:
        collate: What makes a batch of a list of samples, such as `mixed_collate`.

    Raises:
        ValueError: `collate` cannot be called.
    """

    def __init__(self, collate: Callable[[list[dict[str, Any]]], Any] = mixed_collate) -> None:
        if not callable(collate):
            raise ValueError(
                f"GroupCollate: collate is {shown(collate)}, expected a collate function\n"
                "  Give what the loader would be given for batches of samples, such as mixed_collate."
            )
        self.collate = collate

    def __call__(self, groups: Sequence[dict[str, Any]]) -> Any:
        """Collate the samples of all groups, of one where the loader has `batch_size=1`.

        Raises:
            ValueError: `groups` are not groups.
        """
        samples: list[dict[str, Any]] = []
        for group in groups:
            members = group.get(SAMPLES) if isinstance(group, dict) else None
            if not isinstance(members, list) or not members:
                has = sorted(group) if isinstance(group, dict) else type(group).__name__
                raise ValueError(
                    f"GroupCollate: expected groups with a list of samples under {SAMPLES!r}, got {has}\n"
                    "  Let GroupByLength be the dataset's customized_yield_fn or the process_fn of each source."
                )
            own = {name: value for name, value in group.items() if name not in (SAMPLES, STATES)}
            samples += [{**own, **member} for member in members]
            # What was pulled for the group is said once: by its last sample.
            if STATES in group:
                samples[-1][STATES] = group[STATES]
        return self.collate(samples)
