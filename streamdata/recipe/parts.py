"""What a source's `parts` and `part` may be: shares in which its records are cut, and the one of them that is read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Real
from typing import Any, Final, NamedTuple

from streamdata.errors import shown

NAMES: Final = ("train", "valid", "test")
SEED, TAIL = "seed", "tail"
_SEPARATED = re.compile(r"\s*[,/]\s*")


class Span(NamedTuple):
    """Positions from the first to the one before the last."""

    first: int
    last: int


@dataclass(frozen=True)
class PartRange:
    """One of several parts, as Megatron's `--split` has them: consecutive, disjoint, and together everything."""

    bounds: tuple[float, ...]
    """The cumulated shares, from 0 on."""
    name: str
    """One of `NAMES`."""
    text: str
    """The shares, as they were given."""
    by: str = TAIL
    """`tail`: valid and test are the last records; `seed`: each part is spread over all of them."""

    def __str__(self) -> str:
        return f"part {self.name} of parts {self.text} by {self.by}"

    @property
    def share(self) -> float:
        """Which share of the records is of it."""
        number = NAMES.index(self.name)
        return self.bounds[number + 1] - self.bounds[number]

    def span(self, count: int) -> Span:
        """Which of so many records are of it; it may be none."""
        number = NAMES.index(self.name)
        first, last = self.bounds[number : number + 2]
        # Python's round, to even, of a product of floats: as Megatron has it, so that parts are the same.
        return Span(round(first * float(count)), round(last * float(count)))


def read_parts(parts: Any, part: Any = None, parts_by: Any = None) -> PartRange:
    """Read what a recipe says as `parts`, `part` and `parts_by`.

    Args:
        parts: Up to three shares, of train, valid and test, as "969,30,1" or a list; they need not add to 1.
        part: Which of them; None for `train`.
        parts_by: See `PartRange.by`; None for `seed`.

    Raises:
        ValueError: They are not valid; the message does not say whose.
    """
    shares = _numbers(parts)
    if shares is None or not 1 <= len(shares) <= len(NAMES) or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise ValueError(
            f"expected up to three shares as parts, got {shown(parts)}\n"
            "  They are those of train, valid and test, such as parts: 969,30,1."
        )
    if part is not None and part not in NAMES:
        raise ValueError(f"expected one of {', '.join(NAMES)} as part, got {shown(part)}")
    if parts_by not in (None, SEED, TAIL):
        raise ValueError(
            f"expected one of {SEED}, {TAIL} as parts_by, got {shown(parts_by)}\n"
            "  tail: valid and test are the last records; seed (the default): they are spread over all."
        )
    shares += [0.0] * (len(NAMES) - len(shares))
    total = sum(shares)
    bounds = tuple(accumulate((share / total for share in shares), initial=0.0))
    return PartRange(bounds, part or NAMES[0], ",".join(f"{share:g}" for share in shares), parts_by or SEED)


def _numbers(parts: Any) -> list[float] | None:
    given = _SEPARATED.split(parts.strip()) if isinstance(parts, str) else parts
    if not isinstance(given, Sequence) or any(isinstance(share, bool) for share in given):
        return None
    try:
        return [float(share) for share in given if isinstance(share, Real | str)] if given else None
    except ValueError:
        return None
