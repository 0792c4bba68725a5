"""States as numbers for a logger: `states → {"samples": …, "samples/NAME": …}`."""

from collections.abc import Mapping
from typing import Any, Final

from streamdata.tools.trace.totals import totals_of

_OF_SOURCE: Final = ("samples", "tokens", "records", "epochs", "wanted", "achieved", "dropped", "bad", "skipped")


def report(states: Mapping[str, Any]) -> dict[str, float]:
    """What was delivered by now, as plain numbers, ready for `wandb.log` or TensorBoard's `add_scalar`.

    Args:
        states: Of one rank, whose own numbers these then are; or of all ranks, joined by `merge_states`.

    Returns:
        `samples`, `tokens` and `steps`; and of each source `samples/NAME`, `tokens/NAME`, `records/NAME`,
        `epochs/NAME` where it is known how many records it has, `wanted/NAME` and `achieved/NAME`, the shares of the
        stream, `dropped/NAME`, `bad/NAME` and `skipped/NAME`; all since the run's beginning.

    Raises:
        StateError: They do not come from `to_state`.
    """
    totals = totals_of(states)
    numbers: dict[str, float] = {"samples": totals.samples, "tokens": totals.tokens, "steps": totals.steps}
    for source in totals.sources:
        for name in _OF_SOURCE:
            if (value := getattr(source, name)) is not None:
                numbers[f"{name}/{source.name}"] = value
    return numbers
