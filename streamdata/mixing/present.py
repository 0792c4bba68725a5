"""What time it is: how far a lane has come with the top mixture, for mixtures within it that have schedules."""

from collections.abc import Callable
from dataclasses import dataclass

from streamdata.errors import names_text, shown
from streamdata.fields import DATASET_NAME
from streamdata.sources.source import Sample

LEAST_SHARE = 2.0**-20
"""Of a mixture in the whole: one that is drawn at the edge of a share of 0 must not make time run without bound."""


@dataclass
class Present:
    """What mixtures with schedules are told; one for all nodes of a lane.

    The top sets it when it draws of a source that such a mixture is in.
    """

    time: float = 0.0
    """What the job has drawn of the top by now."""
    unit: float = 1.0
    """What the top counts for a sample of the source that is being drawn, on average: what it has cost, if there is a
    cost."""
    weigh: Callable[[Sample], float] | None = None
    """The top's cost."""


def cost_function(cost: Callable[[Sample], float] | str) -> Callable[[Sample], float]:
    """The function that weighs a sample: what was given, or what reads the field of that name."""
    if not isinstance(cost, str):
        return cost
    name = cost

    def field(sample: Sample) -> float:
        try:
            value: float = sample[name]
        except KeyError:
            fields = names_text(key for key in sample if not key.startswith("__"))
            raise ValueError(
                f"source {shown(sample.get(DATASET_NAME))}: expected the field {shown(name)} in each sample, "
                "which cost names, "
                f"got the fields {fields}"
            ) from None
        return value

    return field
