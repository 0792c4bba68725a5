"""How much is read at most: `limits: {line_bytes: …}` of a source, or `limits` of who builds a recipe → numbers.

A recipe sets those of its sources, which bound what its data may be. Those of the recipe itself are its caller's alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from streamdata.errors import did_you_mean, shown


class ShardLimits(NamedTuple):
    """What one record of a shard may be.

    Attributes:
        line_bytes: Of a line of JSON Lines or CSV, or of a sidecar; and of blank lines in a row.
        member_bytes: Of a member of a tar archive.
    """

    line_bytes: int = 64 << 20
    member_bytes: int = 1 << 30


DEFAULT_LIMITS = ShardLimits()


class RecipeLimits(NamedTuple):
    """What a recipe may be. A file counts each time that it is included: files that include others twice multiply.

    Attributes:
        file_bytes: Of each file.
        total_bytes: Of all files.
        num_files: How many there are.
        num_nodes: How many mappings, lists, keys and values all files have, those of aliases included.
        repeated_nodes: How many nodes aliases, and interpolations of whole nodes, may add to what a file has written.
        num_interpolations: How many ``${…}`` all files have.
        expression_chars: How many characters those have that are left to OmegaConf, whose parser is slow: one with
            others in it counts as often as there are, and a quarter of the text around them counts, too.
        interpolated_chars: What those of a file may write into longer texts.
    """

    file_bytes: int = 1 << 20
    total_bytes: int = 1 << 22
    num_files: int = 10_000
    num_nodes: int = 1 << 15
    repeated_nodes: int = 50_000
    num_interpolations: int = 10_000
    expression_chars: int = 24 << 10
    interpolated_chars: int = 1 << 24


DEFAULT_RECIPE_LIMITS = RecipeLimits()


Limits: TypeAlias = Mapping[str, int] | ShardLimits | None
"""As a source is given them."""

_Kind = TypeVar("_Kind", ShardLimits, RecipeLimits)


def read_limits(value: Any, kind: type[_Kind], who: str) -> _Kind:
    """The limits, with the defaults of those that are not given.

    Args:
        value: A mapping of names to positive integers; None for the defaults.
        kind: Which limits.
        who: Whose they are, for errors.

    Raises:
        ValueError: It is not such a mapping.
    """
    if isinstance(value, kind):
        return value
    if refusal := refusal_of_limits(value, kind):
        raise ValueError(f"{who}: limits: {refusal}")
    return kind(**{name: int(limit) for name, limit in (value or {}).items()})


def refusal_of_limits(value: Any, kind: type[ShardLimits | RecipeLimits] = ShardLimits) -> str | None:
    """Returns why a value is not a mapping of these limits, or None."""
    names = kind._fields
    if value is not None and not isinstance(value, Mapping):
        return f"expected a mapping, got {type(value).__name__}\n  Write limits: {{{names[0]}: 1_000_000}}."
    for name, limit in (value or {}).items():
        if name not in names:
            return f"unknown limit {shown(name)}{did_you_mean(str(name), names)}\n  It takes: {', '.join(names)}."
        # 1e9 is how a large number is often written, and YAML reads it as a float.
        is_whole = isinstance(limit, int | float) and not isinstance(limit, bool) and limit % 1 == 0
        if not is_whole or limit < 1:
            return f"{name}: expected a whole number, at least 1, got {shown(limit)}\n  One GiB is 1_073_741_824."
    return None
