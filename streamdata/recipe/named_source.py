"""What a recipe says of every source, beside what builds it: its name, its weight, which part of it is read."""

from typing import Any, TypeAlias

Percent: TypeAlias = float | list[Any] | dict[str, Any]


class NamedSource:
    """A source as a mixture knows it. Both are given to its constructor or set afterwards, as a recipe does.

    Attributes:
        name: Its name in the mixture, without a ".".
        percent: Its weight there, a number (weights need not add to 1), 0 for a source that is left out, a schedule or
            a size; see `streamdata.recipe.percent`. Between the points of schedules shares are linear, not percents.
        holdout: Which share of its records is held out of training, by a stable hash of each one's shard and number in
            it; None where nothing is.
        part: Which records are read then: `train` (where it is None), or `valid` for what is held out.
        parts: Of a map-style dataset, in place of `holdout`: exact shares of train, valid and test, as "969,30,1".
        parts_by: How they are cut: `seed` (where it is None) spreads each over all records; under `tail` valid and test
            are the last ones.
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
        if name is not None:
            self.name = name
        if percent is not None:
            self.percent = percent
        if holdout is not None:
            self.holdout = holdout
        if part is not None:
            self.part = part
