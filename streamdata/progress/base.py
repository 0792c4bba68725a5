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
    rounds: Mapping[str, int] = field(default_factory=dict)
    """By the path of a finite mixture that begins again and again: the round to begin with."""
    shifts: Mapping[str, int] = field(default_factory=dict)
    """By the path of a source: by how much the rest of the topology before was shifted against all blocks, where no
    earlier one counts any more."""

    def as_json(self) -> dict[str, Any]:
        """What a header holds; what is empty is left out."""
        return {name: value for name, value in asdict(self).items() if value or name == "time"}
