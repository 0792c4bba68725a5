"""What a checkpoint holds of one lane in one pass."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from streamdata.progress.cursor import Cursor

T = TypeVar("T")


class Standing(NamedTuple):
    """Where one node stood in one lane, at the end of a generation."""

    generation: int
    draws: int
    clock: float
    cursor: Cursor
    cost: float = 0.0
    """What the samples drawn of it cost, where its mixture has a cost."""
    tokens: int = 0
    """How many tokens they had."""


class LaneEntries:
    """The entries of one lane, each by generation; what is asked for comes from the newest generation that has it."""

    def __init__(self) -> None:
        self.cursors: dict[str, dict[int, Mapping[str, Any]]] = {}
        """By the path of the node."""
        self.drawn: dict[str, dict[int, int]] = {}
        """By the path of the mixture: how many samples it had drawn."""
        self.facts: dict[int, Mapping[str, Any]] = {}
        """How many batches it had delivered, and whether it had ended."""

    @property
    def has_ended(self) -> bool:
        """Whether the lane has delivered its last sample of the pass."""
        return bool(self.facts) and bool(_newest(self.facts).get("ended"))

    @property
    def num_batches(self) -> int | None:
        """How many batches the lane has delivered; None where nobody counted."""
        return _newest(self.facts).get("batches") if self.facts else None

    def generations(self) -> Iterator[int]:
        """The generations of the entries."""
        yield from chain(*self.cursors.values(), *self.drawn.values(), self.facts)

    def standing(self, path: str, before: int | None = None) -> Standing | None:
        """Where the node stood last, or at the moment when a generation began."""
        held = self.cursors.get(path)
        if before is not None and held:
            held = {generation: entry for generation, entry in held.items() if generation < before}
        if not held:
            return None
        generation, entry = max(held), _newest(held)
        cursor = Cursor(*map(entry.get, Cursor._fields, Cursor()))  # Cursor(): what to_state leaves out is as there
        cost, tokens = float(entry.get("cost", 0)), entry.get("tokens", 0)
        return Standing(generation, entry["draws"], entry["clock"], cursor, cost, tokens)

    def clocks(self, path: str) -> dict[int, float]:
        """The node's last clock in each generation in which it was drawn."""
        return {generation: entry["clock"] for generation, entry in self.cursors.get(path, {}).items()}

    def draws_below(self, path: str) -> dict[str, int]:
        """The draws of each source that the mixture at the path ever had, by its path."""
        # Those of sources that were removed, too: the mixture has counted them as drawn.
        children = [child for child in self.cursors if child and child.rpartition(".")[0] == path]
        return {child: _newest(self.cursors[child])["draws"] for child in sorted(children)}

    def mixtures(self) -> dict[str, int]:
        """For each mixture that says so, how many samples it had drawn."""
        return {path: _newest(by_generation) for path, by_generation in self.drawn.items()}


def _newest(by_generation: Mapping[int, T]) -> T:
    return by_generation[max(by_generation)]
