"""What time it is: how far a lane has come with the top mixture, for mixtures within it that have schedules."""

from collections.abc import Callable
from dataclasses import dataclass

from streamdata.fields import DATASET_NAME
from streamdata.sources.source import Sample


@dataclass
class Present:
    """Set by the top when it draws of a source in which a mixture has a schedule; one for all nodes of a lane."""

    time: float = 0.0
    """What the job has drawn of the top by now."""
    unit: float = 1.0
    """What a sample of the source that is being drawn has cost on average, where the top has a cost."""
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
            fields = sorted(key for key in sample if not key.startswith("__"))
            raise ValueError(
                f"source {sample.get(DATASET_NAME)!r}: expected the field {name!r} in each sample, which cost names, "
                f"got the fields {fields}"
            ) from None
        return value

    return field
