"""What a checkpoint holds of one lane in one pass."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from streamdata.progress.cursor import Cursor


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

    def standing(self, path: str, before: int | None = None) -> Standing | None:
        """Where the node stood last, or at the moment when a generation began."""
        held = {number for number in self.cursors.get(path, ()) if before is None or number < before}
        if not held:
            return None
        entry = self.cursors[path][max(held)]
        cursor = Cursor(*map(entry.get, Cursor._fields, Cursor()))  # Cursor(): what to_state leaves out is as there
        cost, tokens = float(entry.get("cost", 0)), entry.get("tokens", 0)
        return Standing(max(held), entry["draws"], entry["clock"], cursor, cost, tokens)

    def clocks(self, path: str) -> dict[int, float]:
        """The node's last clock in each generation in which it was drawn."""
        return {generation: entry["clock"] for generation, entry in self.cursors.get(path, {}).items()}

    def draws_below(self, path: str) -> dict[str, int]:
        """The draws of each source that the mixture at the path ever had, by its path."""
        # Those of sources that were removed, too: the mixture has counted them as drawn.
        children = [child for child in self.cursors if child and child.rpartition(".")[0] == path]
        return {child: self.cursors[child][max(self.cursors[child])]["draws"] for child in sorted(children)}
