"""What a checkpoint holds of one lane in one pass."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

T = TypeVar("T")


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

    def cursor(self, path: str, before: int | None = None) -> tuple[int, Mapping[str, Any]] | None:
        """The node's newest entry, or the newest before generation `before`; with its generation."""
        held = self.cursors.get(path, {})
        generations = [generation for generation in held if before is None or generation < before]
        return (max(generations), held[max(generations)]) if generations else None

    def draws_below(self, path: str) -> dict[str, int]:
        """The draws of each source that the mixture at the path ever had, by its path."""
        children = [child for child in self.cursors if child and child.rpartition(".")[0] == path]
        return {child: _newest(self.cursors[child])["draws"] for child in sorted(children)}

    def mixtures(self) -> dict[str, int]:
        """For each mixture that says so, how many samples it had drawn."""
        return {path: _newest(by_generation) for path, by_generation in self.drawn.items()}


def _newest(by_generation: Mapping[int, T]) -> T:
    return by_generation[max(by_generation)]
