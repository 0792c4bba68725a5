"""OmegaConf's containers with bounds: each interpolation is resolved once, and what they write into texts is counted.

OmegaConf itself resolves what an interpolation names again wherever it is named, and knows no bound: eleven lines that
each name the one before ten times would be a text of 10^11 characters.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, Node
from omegaconf.errors import InterpolationResolutionError

from streamdata.recipe.interpolation import split


class ExpansionError(InterpolationResolutionError):
    """Interpolations write more than they may, or what is no text into one."""


@dataclass
class _Expansion:
    """What the interpolations of one file have written.

    Attributes:
        left: How many characters they may still write into longer texts.
        is_inside: Whether what is resolved now is a part of a longer text.
        known: What was resolved, by its container and name, with that container, which keeps its `id` its own.
    """

    left: int
    is_inside: bool = False
    known: dict[tuple[int, str], tuple[Any, Any]] = field(default_factory=dict)

    def count(self, value: Any) -> None:
        """Takes in what stands in place of an interpolation."""
        if not self.is_inside:
            return
        if isinstance(value, Container | dict | list):
            raise ExpansionError("expected text or a number inside a longer text, got a mapping or a list")
        content = value._value() if isinstance(value, Node) else value  # noqa: SLF001  (OmegaConf asks so, too)
        self.left -= len(content) if isinstance(content, str | bytes) else 1
        if self.left < 0:
            raise ExpansionError("interpolations write more characters into texts than may be (interpolated_chars)")


class _BoundedContainer(Container):
    """What both kinds of containers do in another way."""

    # OmegaConf 2.4 passes more arguments than 2.3 does.
    def resolve_parse_tree(self, parse_tree: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        expansion: _Expansion = self.__dict__["_expansion"]
        outer, text = expansion.is_inside, node._value()  # noqa: SLF001
        expansion.is_inside = isinstance(text, str) and len(split(text)) > 1
        try:
            return super().resolve_parse_tree(parse_tree, node, *args, **kwargs)
        finally:
            expansion.is_inside = outer

    def _resolve_node_interpolation(self, inter_key: Any, *args: Any, **kwargs: Any) -> Any:
        expansion: _Expansion = self.__dict__["_expansion"]
        name = id(self), repr(inter_key)
        if name not in expansion.known:
            expansion.known[name] = self, super()._resolve_node_interpolation(inter_key, *args, **kwargs)
        value = expansion.known[name][1]
        expansion.count(value)
        return value

    def _evaluate_custom_resolver(self, *args: Any, **kwargs: Any) -> Any:
        value = super()._evaluate_custom_resolver(*args, **kwargs)
        expansion: _Expansion = self.__dict__["_expansion"]
        expansion.count(value)
        return value


class _BoundedDict(_BoundedContainer, DictConfig):
    """A mapping."""


class _BoundedList(_BoundedContainer, ListConfig):
    """A list."""


def bound_interpolations(config: DictConfig | ListConfig, max_chars: int) -> None:
    """Bounds the interpolations in a tree of OmegaConf's containers, from now on.

    Args:
        config: The root.
        max_chars: How many characters they may write into longer texts, together.
    """
    _bound(config, _Expansion(max_chars))


def _bound(node: Any, expansion: _Expansion) -> None:
    if not isinstance(node, DictConfig | ListConfig):
        return
    content = node.__dict__["_content"]
    # OmegaConf makes the containers below a root itself, and asks nobody of which class.
    object.__setattr__(node, "__class__", _BoundedDict if isinstance(node, DictConfig) else _BoundedList)
    node.__dict__["_expansion"] = expansion
    for child in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        _bound(child, expansion)
