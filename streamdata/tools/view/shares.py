"""Deliveries of a run: samples and bytes, and how much of each source, from the states that its batches carry."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamdata.fields import is_reserved
from streamdata.mixing.merged import top_of
from streamdata.mixing.tree import mean_node_shares, tree_of
from streamdata.states.cursor import States, to_state
from streamdata.states.progress import Progress
from streamdata.tools.view.totals import SourceTotals, totals_of
from streamdata.tools.view.tree import fitted, functions_of, percent_text, shares_of

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
        self._dataset = top_of(dataset, "Delivery")
        shares = shares_of(self._dataset)
        self._is_scheduled = shares[""].node.has_schedule
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
        sources = [held.get(path, SourceTotals(name=path, wanted=share)) for path, share in self._wanted.items()]
        if not self._is_scheduled:
            return sources
        # Schedules begin anew in each pass, of which totals know only the sum.
        wanted = self._mean_wanted(Progress(self.states))
        return [replace(source, wanted=wanted[source.name]) for source in sources]

    def _mean_wanted(self, progress: Progress) -> Mapping[str, float]:
        """The mean share that each source should have had of all passes so far."""
        unit = "draws" if self._dataset.cost is None else "cost"
        drawn = [path for path in progress.paths() if path and "." not in path]  # by the top: that is its time
        times = {each: sum(progress.last(each, path)[unit].sum() for path in drawn) for each in progress.passes}
        total = sum(times.values())
        if not total:
            return self._wanted
        top = tree_of(self._dataset)
        means = [(mean_node_shares(top, time), time) for time in times.values() if time]
        return {path: sum(mean[path] * time for mean, time in means) / total for path in self._wanted}

    def summary(self) -> str:
        """A table of wanted and achieved shares, a line for each source; with a note where a cost was weighed."""
        rows = [
            [source.name, percent_text(source.wanted), percent_text(source.achieved)]
            + [f"{number:,}" for number in (source.samples, source.dropped, source.bad)]
            for source in self.sources()
        ]
        text = fitted([[*row, ""] for row in [["source", "wanted", "achieved", "drawn", "dropped", "bad"], *rows]])
        return "\n".join(
            [text, *(f"wanted are shares of {cost}, achieved are shares of samples" for cost in self._costs)]
        )


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
