"""OmegaConf's containers with bounds: each interpolation is resolved once, and what they write into texts is counted.

OmegaConf itself resolves what an interpolation names again wherever it is named, and knows no bound: eleven lines that
each name the one before ten times would be a text of 10^11 characters.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

from omegaconf import AnyNode, Container, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from streamdata.recipe.environment import EnvironmentValues
from streamdata.recipe.interpolation import split
from streamdata.recipe.variables import References


class ExpansionError(InterpolationResolutionError):
    """Interpolations write more than they may, or what is no text into one."""


@dataclass
class _Expansion:
    """What the interpolations of one file have written.

    Attributes:
        references: Counts what is parsed.
        environment: Notes what is taken from there.
        left: How many characters they may still write into longer texts.
        is_inside: Whether what is resolved now is a part of a longer text.
        known: What was resolved, by its container and name, with that container, which keeps its `id` its own.
        nodes: What nodes with interpolations were resolved to, by their `id`, each with the node.
    """

    references: References
    environment: EnvironmentValues
    left: int
    is_inside: bool = False
    known: dict[tuple[int, str], tuple[Any, Any]] = field(default_factory=dict)
    nodes: dict[int, tuple[Any, Any]] = field(default_factory=dict)

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

    # Not by name alone: `oc.select` and others reach a node without naming it in an interpolation.
    def _maybe_resolve_interpolation(self, parent: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        expansion: _Expansion = self.__dict__["_expansion"]
        known = expansion.nodes.get(id(value))
        if known is None:
            found = super()._maybe_resolve_interpolation(parent, key, value, *args, **kwargs)
            if found is None or found is value:
                return found
            known = expansion.nodes[id(value)] = value, found
        return known[1]

    def _evaluate_custom_resolver(self, *args: Any, **kwargs: Any) -> Any:
        expansion: _Expansion = self.__dict__["_expansion"]
        _check_call(kwargs["inter_type"], kwargs["inter_args"], expansion)
        value = super()._evaluate_custom_resolver(*args, **kwargs)
        is_created = kwargs["inter_type"] == "oc.create" and isinstance(value, Container)
        if is_created and "${" in str(OmegaConf.to_container(value, resolve=False)):
            raise ExpansionError("oc.create: expected values without interpolations, got some")
        if kwargs["inter_type"] == "oc.env" and isinstance(value, str):
            expansion.environment.add(str(kwargs["inter_args"][0]), value)
        if kwargs["inter_type"] == "oc.decode":
            expansion.environment.add_decoded(str(kwargs["inter_args"][0]), value)
        expansion.count(value)
        return value


def _check_call(resolver: str, args: Sequence[Any], expansion: _Expansion) -> None:
    """Bounds what OmegaConf's own resolvers make of texts that an interpolation may have written."""
    text = args[0] if args and isinstance(args[0], str) else None
    if text is None:
        return
    if resolver == "oc.create":  # of a text it reads YAML
        raise ExpansionError("oc.create: expected a mapping or a list, got text")
    if resolver == "oc.coerce" and "." in text and text != "pathlib.Path":  # it would import a module
        raise ExpansionError("oc.coerce: expected bool, bytes, float, int, str or pathlib.Path, got another type")
    if resolver == "oc.decode":
        expansion.references.left_to_parse -= len(text) * max(1, text.count("${"))
        if expansion.references.left_to_parse < 0:
            raise ExpansionError("oc.decode is given more characters than it may be (expression_chars)")


class _BoundedDict(_BoundedContainer, DictConfig):
    """A mapping."""


class _BoundedList(_BoundedContainer, ListConfig):
    """A list."""


def bounded_config(
    tree: Any, references: References, environment: EnvironmentValues, max_chars: int
) -> DictConfig | ListConfig:
    """A tree as OmegaConf's containers, whose interpolations are bounded.

    OmegaConf's own way takes 50 microseconds a node, for conversions and checks that plain values have no need of: here
    each node is a copy of one that it has made.

    Args:
        tree: A dict or list of dicts, lists and scalars.
        references: Counts what is parsed of all files.
        environment: Notes what is taken from there.
        max_chars: How many characters interpolations may write into longer texts, together.
    """
    root: DictConfig | ListConfig = DictConfig({}) if isinstance(tree, dict) else ListConfig([])
    models = {dict: vars(DictConfig({})), list: vars(ListConfig([])), None: vars(AnyNode(None))}
    _fill(root, tree, models, _Expansion(references, environment, max_chars))
    return root


def _fill(config: Container, tree: Any, models: Mapping[Any, dict[str, Any]], expansion: _Expansion) -> None:
    # OmegaConf makes the containers below a root itself, and asks nobody of which class.
    object.__setattr__(config, "__class__", _BoundedDict if isinstance(tree, dict) else _BoundedList)
    children = {key: _node(child, key, config, models) for key, child in _items(tree)}
    own = vars(config)
    own["_content"] = children if isinstance(tree, dict) else list(children.values())
    own["_expansion"] = expansion
    for key, child in _items(tree):
        if isinstance(child, dict | list):
            _fill(children[key], child, models, expansion)


def _items(tree: Any) -> Iterable[tuple[Any, Any]]:
    return tree.items() if isinstance(tree, dict) else enumerate(tree)


_CLASSES: Final[Mapping[Any, type[Any]]] = {dict: DictConfig, list: ListConfig, None: AnyNode}


def _node(value: Any, key: Any, parent: Container, models: Mapping[Any, dict[str, Any]]) -> Any:
    """A node without what is below it, like the model of its kind."""
    kind = dict if isinstance(value, dict) else list if isinstance(value, list) else None
    node: Any = object.__new__(_CLASSES[kind])
    own = vars(node)
    own |= models[kind]
    own["_parent"], own["_metadata"] = parent, copy(own["_metadata"])
    own["_metadata"].key = key
    if kind is None:
        own["_val"] = value
    return node


def keys_of(config: DictConfig | ListConfig) -> list[Any]:
    """The keys of a mapping, or the indexes of a list: one that resolving a child cannot change."""
    content = vars(config)["_content"]
    return list(content) if isinstance(content, dict) else list(range(len(content)))


def plain_value(config: DictConfig | ListConfig, key: Any) -> Any:
    """A child as it is: a container, or a value without interpolations; `INTERPOLATED` where OmegaConf has to say."""
    node = vars(config)["_content"][key]
    if isinstance(node, Container):
        return node
    value = node._value()  # noqa: SLF001
    return INTERPOLATED if isinstance(value, str) and ("${" in value or value == "???") else value


INTERPOLATED: Final = object()
