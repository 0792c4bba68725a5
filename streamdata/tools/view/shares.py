"""What a run delivered: samples and bytes, and how much of each source, from the states that its batches carry."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamdata.fields import is_reserved
from streamdata.mixing.merged import top_of
from streamdata.states.cursor import States, to_state
from streamdata.tools.view.tree import functions_of, mean_shares, percent_text, shares_of, table

_NUMBER_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class SourceCount:
    """What was drawn of one source, by all lanes seen, since the stream began.

    Attributes:
        path: The source's path of names.
        wanted: Its share of the whole stream by the recipe's weights; by schedules, its mean share so far.
        achieved: Its share of all samples drawn; 0 before the first.
        drawn: Samples that the mixture took from it.
        dropped: Records for which `single_process_fn` returned no sample.
        bad: Failures forgiven under `max_bad`.
    """

    path: str
    wanted: float
    achieved: float
    drawn: int
    dropped: int
    bad: int


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
        self._wanted = {path: share.overall for path, share in shares.items() if not share.node.children}
        self._is_scheduled = any(share.node.children and share.node.shares is not None for share in shares.values())
        functions = [functions_of(share.node.dataset) for share in shares.values()]
        self._costs = sorted({names["cost"] for names in functions if "cost" in names})

    def add(self, batch: list[dict[str, Any]]) -> None:
        """Count a batch, a list of samples."""
        self.samples += len(batch)
        self.size_bytes += sum(map(estimate_bytes, batch))
        self.states.update(to_state(batch))

    def sources(self) -> list[SourceCount]:
        """The count of each source, in the order of the recipe."""
        known = _counts(self.states)
        counts = [known.get(path, [0, 0, 0]) for path in self._wanted]
        total = sum(drawn for drawn, _, _ in counts) or 1
        wanted_by = self._mean_wanted() if self._is_scheduled else self._wanted
        return [
            SourceCount(path=path, wanted=wanted, achieved=count / total, drawn=count, dropped=dropped, bad=bad)
            for (path, wanted), (count, dropped, bad) in zip(wanted_by.items(), counts, strict=True)
        ]

    def _mean_wanted(self) -> Mapping[str, float]:
        """What each source should have had of all passes so far."""
        times: Counter[str] = Counter()
        unit = "draws" if self._dataset.cost is None else "cost"
        for lane_and_path, value in _newest_entries(self.states).items():
            epoch_pass, _, _, path = lane_and_path.split("/", 3)
            if path and "." not in path:  # what the top draws is its time
                times[epoch_pass] += value.get(unit, 0)
        if not times.total():
            return self._wanted
        means = {epoch_pass: mean_shares(self._dataset, time) for epoch_pass, time in times.items() if time}
        return {
            path: sum(mean[path] * times[epoch_pass] for epoch_pass, mean in means.items()) / times.total()
            for path in self._wanted
        }

    def summary(self) -> str:
        """A table of wanted and achieved shares, a line for each source; with a note where a cost was weighed."""
        rows = [
            [source.path, percent_text(source.wanted), percent_text(source.achieved)]
            + [f"{number:,}" for number in (source.drawn, source.dropped, source.bad)]
            for source in self.sources()
        ]
        text = table([[*row, ""] for row in [["source", "wanted", "achieved", "drawn", "dropped", "bad"], *rows]])
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


def _counts(states: Mapping[str, Any]) -> dict[str, list[int]]:
    """Draws, drops and failures of each node, over all lanes and passes."""
    counts: dict[str, list[int]] = {}
    for lane_and_path, value in _newest_entries(states).items():
        count = counts.setdefault(lane_and_path.split("/", 3)[3], [0, 0, 0])
        for number, name in enumerate(("draws", "dropped", "bad")):
            count[number] += value.get(name, 0)
    return counts


def _newest_entries(states: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The newest entry of each node in each lane, by `P/RANK/WORKER/PATH`."""
    newest: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for key, value in states.items():
        if key.startswith("cursor/"):
            _, generation, lane_and_path = key.split("/", 2)
            # A lane's counts continue from one generation to the next: adding up its entries would count twice.
            if int(generation) >= newest.get(lane_and_path, (0, {}))[0]:
                newest[lane_and_path] = int(generation), value
    return {lane_and_path: value for lane_and_path, (_, value) in newest.items()}
