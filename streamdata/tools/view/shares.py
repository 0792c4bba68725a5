"""Deliveries of a run: samples, bytes and pace, and how much of each source, from the states that its batches carry."""

import time
from collections.abc import Mapping
from typing import Any, Final

from streamdata.fields import is_reserved
from streamdata.run.lane_link import Traffic
from streamdata.states.cursor import States, to_state
from streamdata.tools.view.totals import SourceTotals, totals_of, totals_table
from streamdata.tools.view.tree import bytes_text, functions_of, percent_text, shares_of

_NUMBER_BYTES: Final = 8
_MAX_SHARES: Final = 6
"""Sources that the live line names; the summary names all."""


class Delivery:
    """Accumulates what a run delivers, and how fast.

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
        self._traffic = getattr(dataset, "traffic", Traffic)
        self._start = time.monotonic()
        self._first: tuple[float, int, int] | None = None
        """When the first batch had come, its samples and bytes: workers start before it, at a pace of their own."""

    def add(self, batch: list[dict[str, Any]]) -> None:
        """Count a batch, a list of samples."""
        self.samples += len(batch)
        self.size_bytes += sum(map(estimate_bytes, batch))
        self.states.update(to_state(batch))
        self._first = self._first or (time.monotonic(), self.samples, self.size_bytes)

    def sources(self) -> list[SourceTotals]:
        """Sums of each source over all lanes seen, since the stream began; in the order of the recipe."""
        totals = totals_of(self.states)
        held = {source.name: source for source in totals.sources if totals.drawn}
        return [held.get(path, SourceTotals(name=path, wanted=share)) for path, share in self._wanted.items()]

    def line(self) -> str:
        """How far it is, how fast, and the shares so far, in one line."""
        sources = sorted(self.sources(), key=lambda source: -(source.wanted or 0))
        shares = [f"{source.name} {percent_text(source.achieved)}" for source in sources[:_MAX_SHARES]]
        if len(sources) > _MAX_SHARES:
            shares.append(f"{len(sources) - _MAX_SHARES} more")
        elapsed, traffic = time.monotonic() - self._start, self._traffic()
        waiting = f"{traffic.waiting:.0%} waiting for stores  " if traffic.is_any else ""
        return f"{elapsed:.1f} s  {self.samples:,} samples  {self._rates()}  {waiting}{', '.join(shares)}"

    def summary(self) -> str:
        """All that was delivered, with wanted and achieved shares."""
        if self._first is None:
            return "no batch was delivered"
        elapsed, late = time.monotonic() - self._start, self._first[0] - self._start
        total = f"{self.samples:,} samples, {bytes_text(self.size_bytes)} in {elapsed:.1f} s"
        later = f", then {self._rates()}" if self.samples > self._first[1] else ""
        lines, traffic = [f"{total}; the first batch after {late:.2f} s{later}"], self._traffic()
        if traffic.is_any:
            requests = f"{traffic.requests:,} requests, {traffic.retries:,} of them repeated"
            cached = f"{bytes_text(traffic.cached_bytes)} of the cache by {traffic.cache_hits:,} hits"
            waited = f"readers waited {traffic.waiting:.0%} of their time"
            lines.append(f"from stores: {bytes_text(traffic.num_bytes)} by {requests}; {cached}; {waited}")
        return "\n".join([*lines, self.table()])

    def _rates(self) -> str:
        """Samples and bytes a second, since the first batch."""
        since, samples, size_bytes = self._first or (0.0, 0, 0)
        duration = max(time.monotonic() - since, 1e-9)
        rate = bytes_text((self.size_bytes - size_bytes) / duration)
        return f"{(self.samples - samples) / duration:,.0f} samples/s, {rate}/s"

    def table(self) -> str:
        """A table of wanted and achieved shares, a line for each source; with a note where a cost was weighed."""
        columns = ("wanted", "achieved", "samples", "dropped", "bad")
        costs = (f"wanted are shares of {cost}, achieved are shares of samples" for cost in self._costs)
        return "\n".join([totals_table(self.sources(), columns, totals_of(self.states).uncounted), *costs])


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
