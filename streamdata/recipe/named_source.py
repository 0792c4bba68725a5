"""The attributes of every source in a recipe, beside its target: its name, its weight, which part of it is read.

`percent` → a number, a schedule over time, or a size; `holdout`, `parts` and `part` → which records are read; what a
mixture's parameters say for all sources below it → in force while these are built.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from numbers import Real
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from streamdata.errors import shown

Percent: TypeAlias = float | list[Any] | dict[str, Any]


class NamedSource:
    """Base of sources, with `name`, `percent` and what else a recipe sets on them.

    Attributes:
        name: Its name in the mixture, without a ".".
        percent: Its weight there, a number (weights need not add to 1), 0 for a source that is left out, a schedule or
            a size; see `read_percent`. Between the points of schedules shares are linear, not percents.
        holdout: Which share of its records is held out of training, by a stable hash of each one's shard and number in
            it; None where nothing is.
        part: Which records are read then: `train` (where it is None), or `valid` for what is held out.
        parts: Of a map-style dataset, in place of `holdout`: exact shares of train, valid and test, as "969,30,1".
        parts_by: How they are cut: `seed` (where it is None) spreads each over all records; under `tail` valid and test
            are the last ones.
        process_fn: A stream function, or a list of several, see `docs/guides/sources.md`.
        single_process_fn: A function of one record, called first.
        max_bad: How many failures and damaged records are skipped and counted, per lane; 0 where it is not set.
        max_epochs: How often it is read at most; where it is not set, without end.
        weight_field: The field of a record that says how much its tokens count in the loss, a number from 0 on; 1 where
            a record lacks it. It becomes `document_weights` beside `source_ids`, see `PackTokens` and `TensorCollate`.
        length: How many of its units there are, for `print_dataset_length_stats`, such as samples or tokens.
        length_multiplier: What `length` is multiplied by there; 1 where it is not set.
        length_divisor: What it is divided by, such as the tokens of a sample; 1 where it is not set.
        records_per_block: Of a map-style dataset, how many items are dealt to a lane at once; 1 where it is not set.
    """

    name: str
    percent: Percent
    holdout: float | None = None
    part: str | None = None
    parts: str | list[float] | None = None
    parts_by: str | None = None

    def __init__(
        self,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
    ) -> None:
        # What is not given stays unset: a mixture tells "no name" from a wrong one, and a subclass may have its own.
        for key, value in (("name", name), ("percent", percent), ("holdout", holdout), ("part", part)):
            if value is not None:
                setattr(self, key, value)


def check_name(name: Any, places: Mapping[str, str]) -> None:
    """Checks a source's name.

    Args:
        name: Whatever is given as one.
        places: The names of the sources before it in the mixture, and where these are.

    Raises:
        ValueError: It is not a name, or is taken; the message does not say whose.
    """
    if not isinstance(name, str) or not name or "." in name:
        got = f"expected a unique name without '.', got {shown(name)}"
        raise ValueError(f"{got}\n  Set its attribute `name`, in a recipe beside its target.")
    if name in places:
        got = f"expected a unique name, got {shown(name)} again, first {places[name]}"
        raise ValueError(f"{got}\n  Give each source its own name.")


Points: TypeAlias = list[list[float]]
"""The points of a schedule: [time, percent] of each, by time."""

Weight: TypeAlias = float | Points | dict[str, Points]
"""A number, or a schedule: its points where it is linear between them, `{"steps": points}` where it is not. Plain JSON,
and one text for one schedule, since headers are compared.

Linear is the share in the mixture, between the points of any of its sources, and not the percent: beside a source of
0.6, `[[0, 10], [2000, 0]]` gives 944 of the first 2,000 samples, where a linear percent would give 1,655."""

STEPS: Final = "steps"
SIZES: Final = ("tokens", "records")
LEAST, MOST = 1e-100, 1e100
"""Positive percents, times and costs lie between them, so that no clock of any number of samples is without end."""


@dataclass(frozen=True)
class SizeWeight:
    """A weight computed from the source's size: `size ** exponent`."""

    by: str
    """One of `SIZES`."""
    exponent: float


def read_percent(percent: Any) -> Weight | SizeWeight:
    """Reads the value of `percent` in a recipe.

    Raises:
        ValueError: The value is not a valid weight; the message does not name the source.
    """
    number = plain_number(percent)
    if number is not None:  # first, since most are: what else it could be takes longer to find
        return number
    if isinstance(percent, Mapping):
        return _read_mapping(percent)
    if isinstance(percent, Sequence) and not isinstance(percent, str | bytes):
        return _read_points(percent)
    raise ValueError(
        f"expected a positive number as percent, got {shown(percent)}\n"
        f"  Set its attribute `percent`, from {LEAST:g} to {MOST:g}; they need not add to 1. 0 leaves a source out; a "
        "list of [time, percent] is a schedule."
    )


def _read_mapping(percent: Mapping[Any, Any]) -> Weight | SizeWeight:
    if set(percent) == {STEPS}:
        return {STEPS: _read_points(percent[STEPS])}
    if not {"by"} <= set(percent) <= {"by", "exponent"}:
        raise ValueError(
            f"expected 'steps', or 'by' and if need be 'exponent' in percent, got {shown(percent)}\n"
            "  Such as {steps: [[0, 0.7], [1000000, 0.3]]} or {by: tokens, exponent: 0.7}."
        )
    if percent["by"] not in SIZES:
        raise ValueError(f"expected one of {', '.join(SIZES)} as by in percent, got {shown(percent['by'])}")
    exponent = percent.get("exponent", 1)
    # Not `plain_number`: an exponent below 0 is odd, but it says what it does.
    if type(exponent) not in (int, float) or not math.isfinite(exponent):
        raise ValueError(f"expected a number as exponent in percent, got {shown(exponent)}")
    return SizeWeight(percent["by"], float(exponent))


def _read_points(points: Any) -> Points:
    if not isinstance(points, Sequence) or isinstance(points, str | bytes) or not points:
        raise ValueError(f"expected a list of [time, percent] as percent, got {shown(points)}")
    read: Points = []
    for point in points:
        is_pair = isinstance(point, Sequence) and not isinstance(point, str | bytes) and len(point) == 2  # noqa: PLR2004
        numbers = [plain_number(number) for number in point] if is_pair else [None]
        if None in numbers:
            raise ValueError(
                f"expected [time, percent], two numbers >= 0, in the schedule of percent, got {shown(point)}\n"
                f"  Those that are not 0 are from {LEAST:g} to {MOST:g}."
            )
        read.append([number for number in numbers if number is not None])
        if len(read) > 1 and read[-1][0] <= read[-2][0]:
            raise ValueError(
                f"expected times that increase in the schedule of percent, got {read[-1][0]:g} after {read[-2][0]:g}"
            )
    return read


def plain_number(value: Any) -> float | None:
    """Returns a percent or a time as a float, if it is 0 or from `LEAST` to `MOST`; None for all else."""
    # Python's bool is a Real, NumPy's is not: `percent: yes` in a recipe is a slip, not the weight 1.
    # By type first: to ask an abstract class takes ten times as long, and a mixture may have thousands of sources.
    if type(value) not in (int, float) and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    with suppress(OverflowError):
        if (number := float(value)) == 0 or LEAST <= number <= MOST:
            return number
    return None


PART_NAMES: Final = ("train", "valid", "test")
SEED, TAIL = "seed", "tail"
_SEPARATED = re.compile(r"\s*[,/]\s*")


class Span(NamedTuple):
    """A range of positions [first, last)."""

    first: int
    last: int


@dataclass(frozen=True)
class PartRange:
    """One of several parts of a source, as in Megatron's `--split`: consecutive, disjoint, together everything."""

    bounds: tuple[float, ...]
    """The cumulated shares, from 0 on."""
    name: str
    """One of `PART_NAMES`."""
    text: str
    """The shares, as they were given."""
    by: str = TAIL
    """`tail`: valid and test are the last records; `seed`: each part is spread over all of them."""

    def __str__(self) -> str:
        return f"part {self.name} of parts {self.text} by {self.by}"

    @property
    def share(self) -> float:
        """The fraction of the records in this part."""
        number = PART_NAMES.index(self.name)
        return self.bounds[number + 1] - self.bounds[number]

    def span(self, count: int) -> Span:
        """The range of this part's positions among `count` records; it may be empty."""
        number = PART_NAMES.index(self.name)
        first, last = self.bounds[number : number + 2]
        # Python's round, to even, of a product of floats: as Megatron has it, so that parts are the same.
        return Span(round(first * float(count)), round(last * float(count)))


def read_parts(parts: Any, part: Any = None, parts_by: Any = None) -> PartRange:
    """Reads `parts`, `part` and `parts_by` of a recipe.

    Args:
        parts: Up to three shares, of train, valid and test, as "969,30,1" or a list; they need not add to 1.
        part: Which of them; None for `train`.
        parts_by: See `PartRange.by`; None for `seed`.

    Raises:
        ValueError: The values are not valid; the message does not name the source.
    """
    given = _SEPARATED.split(parts.strip()) if isinstance(parts, str) else parts
    shares: list[float] = []
    with suppress(TypeError, ValueError):  # of what is no number
        shares = [math.nan if isinstance(share, bool) else float(share) for share in given]
    is_valid = isinstance(given, Sequence) and 1 <= len(shares) <= len(PART_NAMES) and min(shares) >= 0
    if not is_valid or not 0 < sum(shares) < math.inf:
        raise ValueError(
            f"expected up to three shares as parts, got {shown(parts)}\n"
            "  They are those of train, valid and test, such as parts: 969,30,1."
        )
    if part is not None and part not in PART_NAMES:
        raise ValueError(f"expected one of {', '.join(PART_NAMES)} as part, got {shown(part)}")
    if parts_by not in (None, SEED, TAIL):
        raise ValueError(
            f"expected one of {SEED}, {TAIL} as parts_by, got {shown(parts_by)}\n"
            "  tail: valid and test are the last records; seed (the default): they are spread over all."
        )
    shares += [0.0] * (len(PART_NAMES) - len(shares))
    total = sum(shares)
    bounds = tuple(accumulate((share / total for share in shares), initial=0.0))
    return PartRange(bounds, part or PART_NAMES[0], ",".join(f"{share:g}" for share in shares), parts_by or SEED)


VALID: Final = "valid"
HOLDOUT_KEYS: Final = ("holdout", "parts", "parts_by", "part")


def read_selection(
    holdout: Any = None, parts: Any = None, parts_by: Any = None, part: Any = None
) -> tuple[float, str] | PartRange | None:
    """Reads which records of a source a recipe selects; None for all.

    Returns:
        The share that is held out, and which part is read; or the part of several.

    Raises:
        ValueError: The values are not valid, or `holdout` and `parts` are both given; the message does not name the
            source.
    """
    if parts is not None or parts_by is not None:
        if holdout is not None:
            raise ValueError(
                f"expected holdout or parts, got holdout={shown(holdout)} and parts={shown(parts)}\n"
                "  holdout is a share by a hash of each record, parts are exact ranges: choose one."
            )
        return read_parts(parts, part, parts_by)
    if holdout is None:
        if part is not None:
            raise ValueError(
                f"expected a holdout where there is a part, got none, and {shown(part)} as part\n"
                "  Say how much is held out, such as holdout: 0.01; both parts of a source need the same one."
            )
        return None
    if isinstance(holdout, bool) or not isinstance(holdout, Real) or not 0 < float(holdout) < 1:
        raise ValueError(
            f"expected a number above 0 and below 1 as holdout, got {shown(holdout)}\n"
            "  It is the share of the records that is held out of training, such as 0.01."
        )
    if part not in (None, "train", VALID):
        raise ValueError(
            f"expected one of train, {VALID} as part, got {shown(part)}\n"
            "  valid is what is held out, train (the default) is the rest."
        )
    return float(holdout), part or "train"


FOR_ALL: Final = ("storage_options",)
"""Parameters of a mixture that are those of its sources, where these have none of their own."""

_in_force: ContextVar[Mapping[str, Any]] = ContextVar("what mixtures say for all", default=MappingProxyType({}))


@contextmanager
def for_all(params: Mapping[str, Any]) -> Iterator[None]:
    """Makes a mixture's parameters defaults for all sources below it, while they are built."""
    said = {name: params[name] for name in FOR_ALL if params.get(name) is not None}
    token = _in_force.set({**_in_force.get(), **said})
    try:
        yield
    finally:
        _in_force.reset(token)


def default_of(name: str) -> Any:
    """Returns the value that the nearest mixture above sets for all; None if none does."""
    assert name in FOR_ALL, name
    return _in_force.get().get(name)
