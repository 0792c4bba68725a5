"""What a target can be called with, and how a recipe's ``params`` differ from it."""

import ast
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import NamedTuple

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.locations import Locations, Path
from streamdata.recipe.source_modules import SourceModule


class Annotation(NamedTuple):
    """The type of a parameter, as it is written.

    Attributes:
        expression: The type.
        module: Where it is written, whose names it uses.
        takes_none: Whether the default is None, which many types do not say.
    """

    expression: ast.expr
    module: SourceModule | None
    takes_none: bool = False


@dataclass(frozen=True)
class Parameters:
    """The parameters of a callable, as far as a call by keywords is concerned.

    Attributes:
        required: Those without a default.
        optional: Those with one.
        positional: Those without a default that cannot be given by name.
        accepts_any: Whether there is a ``**kwargs``.
        annotations: The types of those that have one in source text, by name.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    accepts_any: bool = False
    annotations: Mapping[str, Annotation] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, parameters: Iterable[Parameter]) -> "Parameters":
        """Sorts the parameters of a signature."""
        found = list(parameters)
        needed = [parameter for parameter in found if parameter.default is Parameter.empty]
        by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        return cls(
            required=tuple(parameter.name for parameter in needed if parameter.kind in by_name),
            optional=tuple(p.name for p in found if p.kind in by_name and p.default is not Parameter.empty),
            positional=tuple(parameter.name for parameter in needed if parameter.kind is Parameter.POSITIONAL_ONLY),
            accepts_any=any(parameter.kind is Parameter.VAR_KEYWORD for parameter in found),
            annotations={p.name: p.annotation for p in found if isinstance(p.annotation, Annotation)},
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Those that can be given by name."""
        return self.required + self.optional

    def check(self, params: Collection[str], path: Path, locations: Locations, target: str) -> None:
        """Reports how the ``params`` of the target at a path differ from these."""
        for name, message in self.mismatches(params):
            at = path if name is None else (*path, "params", name)
            locations.report(at, message, key=name is not None, target=target)

    def mismatches(self, given: Collection[str]) -> Iterator[tuple[str | None, str]]:
        """Yields (name, message) for each unknown parameter, then (None, message) for the missing ones."""
        known = self.names
        for name in given:
            if name not in known and not self.accepts_any:
                guess = did_you_mean(name, [other for other in known if other not in given])
                yield name, f"unknown parameter {shown(name)}{guess}\n  It takes: {', '.join(known) or 'nothing'}."
        if self.positional:
            yield None, f"the parameters {', '.join(self.positional)} cannot be given by name, as a recipe does"
        missing = [name for name in self.required if name not in given]
        if missing:
            yield None, f"missing parameters: {', '.join(missing)}; given: {', '.join(given) or 'none'}"


def parameters_of(target: object) -> Parameters | None:
    """Returns the parameters of a callable, or None where Python does not know them."""
    try:
        signature = inspect.signature(target)  # type: ignore[arg-type]  # it raises TypeError itself
    except (TypeError, ValueError):
        return None
    if isinstance(target, type) and next(iter(signature.parameters), None) == "self":
        return None  # written by hand in an extension's docstring, where `self` shows that nobody checked it
    return Parameters.of(signature.parameters.values())
