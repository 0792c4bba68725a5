"""What a job had delivered of a pass before its present topology, as far as it decides what comes next."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Base:
    """What all lanes of earlier topologies together had come to in a pass: nothing, in a run that never changed."""

    time: float = 0.0
    """What was drawn of the top mixture, before its yield function: samples, or costs where it has a `cost`."""
    excess: Mapping[str, float] = field(default_factory=dict)
    """By the path of a source: how much more of it was drawn than its share."""
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By the path of a node: the sums of its `COUNTS`, which the lanes go on counting from."""
    shifts: Mapping[str, int] = field(default_factory=dict)
    """By the path of a source: by how much the rest of the topology before was shifted against all blocks, where no
    earlier one counts any more."""

    def as_json(self) -> dict[str, Any]:
        """What a header holds; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value or name == "time"}


def earlier_deals(
    headers: Mapping[int, Mapping[str, Any]], of_deal: Mapping[str, Any], epoch_pass: int, path: str
) -> tuple[list[int], int]:
    """The deals before one, oldest first, in which what was delivered of a source in the pass still counts.

    Args:
        headers: Of the generations, by number.
        of_deal: What the headers of the deal share.
        epoch_pass: The pass.
        path: The source.

    Returns:
        Their numbers, and by how much the rest of the first one was shifted.
    """
    deals: list[int] = []
    while (base := of_deal.get("base", {}).get(str(epoch_pass))) is not None:
        shift = base.get("shifts", {}).get(path)
        # Below it there may be none: `compact` leaves out what no source refers to.
        before = max((number for number in headers if number < of_deal["deal"]), default=None)
        if before is None:
            break
        of_deal = headers[before]
        deals.insert(0, of_deal.get("deal", 0))
        if shift is not None:
            return deals, shift
    return deals, 0
