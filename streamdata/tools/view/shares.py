"""Deliveries of a run: samples and bytes, and how much of each source, from the states that its batches carry."""

from collections.abc import Mapping
from typing import Any

from streamdata.fields import is_reserved
from streamdata.states.cursor import States, to_state
from streamdata.tools.view.totals import SourceTotals, totals_of, totals_table
from streamdata.tools.view.tree import functions_of, shares_of

_NUMBER_BYTES = 8


class Delivery:
    """Accumulates what a run delivers.

    What was drawn, dropped and forgiven comes from the states, so it is what the batches account for: never what
    workers read ahead, and with a `customized_yield_fn` everything up to the burst under way.

    Args:
        dataset: What is iterated: a mixture, or a source alone.
        states: What the run resumed from.

    Attributes:
        samples: Delivered by this run.
        size_bytes: Of their contents, see `estimate_bytes`.
        states: The checkpoint after the last batch.
    """

    def __init__(self, dataset: Any, states: Mapping[str, Any] | None = None) -> None:
        self.samples = self.size_bytes = 0
        self.states: States = dict(states or {})
        shares = shares_of(dataset)
        self._wanted = {path: share.overall for path, share in shares.items() if not share.node.children}
        functions = [functions_of(share.node.dataset) for share in shares.values()]
        self._costs = sorted({names["cost"] for names in functions if "cost" in names})

    def add(self, batch: list[dict[str, Any]]) -> None:
        """Count a batch, a list of samples."""
        self.samples += len(batch)
        self.size_bytes += sum(map(estimate_bytes, batch))
        self.states.update(to_state(batch))

    def sources(self) -> list[SourceTotals]:
        """Sums of each source over all lanes seen, since the stream began; in the order of the recipe."""
        totals = totals_of(self.states)
        held = {source.name: source for source in totals.sources if totals.drawn}
        return [held.get(path, SourceTotals(name=path, wanted=share)) for path, share in self._wanted.items()]

    def summary(self) -> str:
        """A table of wanted and achieved shares, a line for each source; with a note where a cost was weighed."""
        titles = ("source", "wanted", "achieved", "drawn", "dropped", "bad")
        columns = dict(zip(("name", "wanted", "achieved", "samples", "dropped", "bad"), titles, strict=True))
        costs = (f"wanted are shares of {cost}, achieved are shares of samples" for cost in self._costs)
        return "\n".join([totals_table(self.sources(), columns), *costs])


def estimate_bytes(value: Any) -> int:
    """Estimate the size of a value's content, in bytes.

    Tensors, arrays and bytes count as they are, images by their pixels' bands, text by its characters, other things as
    numbers. The fields that streamdata adds to a sample (`__url__` …) count nothing.
    """
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(estimate_bytes(part) for name, part in value.items() if not is_reserved(name))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(estimate_bytes, value))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "getbands") and hasattr(value, "size"):
        return int(value.size[0] * value.size[1] * len(value.getbands()))
    return 0 if value is None else _NUMBER_BYTES
