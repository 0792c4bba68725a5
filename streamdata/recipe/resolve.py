"""A tree with OmegaConf's interpolations → the tree of their values.

Every node is asked for by itself, so that a problem is known by its path and the expansion can be bounded:
interpolations that point at whole nodes multiply a document just as aliases do.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, ListConfig
from omegaconf.errors import (
    GrammarParseError,
    MissingMandatoryValue,
    UnsupportedInterpolationType,
)

from streamdata.recipe.bounded_config import INTERPOLATED, bounded_config, keys_of, plain_value
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS, RecipeLimits
from streamdata.recipe.locations import Key, Locations, Path, Unknown
from streamdata.recipe.variables import References, first_line, quotes_value
from streamdata.recipe.yaml_tree import MAX_DEPTH


def resolve(
    tree: Any, references: References, locations: Locations, limits: RecipeLimits = DEFAULT_RECIPE_LIMITS
) -> Any:
    """Resolves interpolations, and puts the held values back where their markers are.

    Args:
        tree: A dict or list as `References.rewrite` returns it.
        references: Holds the values behind markers.
        locations: Of the nodes. What does not resolve is reported to it and becomes `UNKNOWN`.
        limits: What it may expand to.

    Raises:
        UnreadableError: The interpolations expand without bound.
    """
    config = bounded_config(tree, references, locations.environment, limits.interpolated_chars)
    return _Resolution(references, locations, _count(tree), limits).node(config, ())


def _is_cause(error: BaseException | None, kind: type[Exception]) -> bool:
    """Whether an error is of a kind, or was raised because of one: of an interpolation that the failed one names."""
    return error is not None and (isinstance(error, kind) or _is_cause(error.__cause__ or error.__context__, kind))


def _count(tree: Any) -> int:
    if isinstance(tree, dict):
        return 1 + sum(map(_count, tree.values()))
    return 1 + sum(map(_count, tree)) if isinstance(tree, list) else 1


@dataclass(frozen=True)
class _Known:
    """What a node was resolved to. Holding the node keeps its `id` its own."""

    node: Any
    value: Any
    size: int
    height: int


class _Resolution:
    def __init__(self, references: References, locations: Locations, num_written: int, limits: RecipeLimits) -> None:
        self.references = references
        self.locations = locations
        self.repeated_nodes = limits.repeated_nodes
        self.left = num_written + limits.repeated_nodes
        self.deepest = 0
        self.reported = 0
        self.known: dict[int, _Known] = {}

    def node(self, node: Any, path: Path) -> Any:
        """Returns the value of a node of OmegaConf's, and of what is below it."""
        if isinstance(node, DictConfig | ListConfig):
            known = self.known.get(id(node))
            if known is None:
                return self._resolved(node, path)
            self._bound(path, known.size, known.height)  # counted as often as it is named, but walked only once
            return known.value
        self._bound(path)
        if isinstance(node, dict):  # a plain one comes from a resolver
            return {key: self.node(child, (*path, key)) for key, child in node.items()}
        if isinstance(node, list):
            return [self.node(child, (*path, index)) for index, child in enumerate(node)]
        return self._text(node, path) if isinstance(node, str) else node

    def _resolved(self, config: DictConfig | ListConfig, path: Path) -> Any:
        """A mapping or list, remembered: several interpolations may point to it."""
        # What lies below is measured, so that naming it again costs its size without a second walk: a chain of nodes
        # that each name the next twice would else take time exponential in its length.
        left, deepest, reported = self.left, self.deepest, self.reported
        self.deepest = 0
        self._bound(path)
        children = [(key, self._child(config, key, path)) for key in keys_of(config)]
        value = dict(children) if isinstance(config, DictConfig) else [child for _, child in children]
        if self.reported == reported:  # else the problem is reported wherever the node is used
            self.known[id(config)] = _Known(config, value, left - self.left, self.deepest - len(path))
        self.deepest = max(self.deepest, deepest)
        return value

    def _child(self, config: Any, key: Any, path: Path) -> Any:
        below: tuple[Key, ...] = (*path, key)
        try:
            value = plain_value(config, key)
            is_interpolated = value is INTERPOLATED
            if is_interpolated:
                value = config[key]
        except Exception as error:  # of OmegaConf, and what its own message raises where it cannot quote a resolver's
            refusal = error
        else:
            found = self.node(value, below)
            if is_interpolated and isinstance(found, str):
                self.locations.resolved[below] = found
            return found
        return self._report(below, refusal)  # not above: an error that quotes a text may be the context of no other

    def _text(self, text: str, path: Path) -> Any:
        try:
            return self.references.release(text)
        except ValueError as error:
            return self._report(path, error)

    def _report(self, path: Path, error: Exception) -> Unknown:
        self.reported += 1
        if isinstance(error, UnsupportedInterpolationType):
            message = f"{first_line(error)}\n  Register it with OmegaConf before the recipe is built."
            return self.locations.report(path, message, kind="not checked", cause=error)
        if _is_cause(error, RecursionError):
            return self.locations.report(path, "expected interpolations that end: do they name one another?")
        if _is_cause(error, GrammarParseError):  # its text quotes the recipe's
            return self.locations.report(path, "expected valid interpolations, got one that OmegaConf cannot read")
        is_missing = isinstance(error, MissingMandatoryValue)
        message = "expected a value instead of '???'" if is_missing else first_line(error)
        return self.locations.report(path, message, cause=None if quotes_value(error) else error)

    def _bound(self, path: Path, size: int = 1, height: int = 0) -> None:
        """Counts `size` nodes at and below a path, `height` levels deep."""
        self.left -= size
        self.deepest = max(self.deepest, len(path) + height)
        if self.left < 0:
            message = f"interpolations add more than {self.repeated_nodes} nodes to what is written"
            raise self.locations.unreadable(path, message)
        if len(path) + height > MAX_DEPTH:
            message = f"interpolations nest deeper than {MAX_DEPTH} levels: does one point to a node that holds it?"
            raise self.locations.unreadable(path, message)
