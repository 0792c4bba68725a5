"""The weights of a blend as numbers that can be computed with exactly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown


@dataclass(frozen=True)
class BlendWeights:
    """Weights of one kind: `shares[i] / unit` of the samples come from dataset i.

    Attributes:
        shares: Integers without a common divisor, as Python ints; or float64 that add to about 1.
        unit: The sum of the integers; or 1.0, which says that the float rule applies.
    """

    shares: tuple[int, ...] | tuple[float, ...]
    unit: int | float

    @property
    def exact(self) -> bool:
        """Whether they are integers: the blend is then periodic, and its period is `unit`."""
        return isinstance(self.unit, int)

    def normalised(self) -> npt.NDArray[np.float64]:
        """The share of each dataset, float64 (n,)."""
        return np.array([share / self.unit for share in self.shares])


def blend_weights(weights: Sequence[Any], num_datasets: int, *, exact: bool) -> BlendWeights:
    """Check the weights, and bring them to integers where that is possible.

    Args:
        weights: Positive numbers, or text such as "1/3", which is read as a Fraction: YAML has no other way to write
            one. They are exact if all are int, Fraction or text; with a float among them all become float64. Equal
            weights are exact, whatever their kind.
        num_datasets: How many there must be.
        exact: False takes ints and Fractions for floats too, as Megatron-Core does.

    Raises:
        ValueError: Another number of weights; one is no number, not positive, not finite, or vanishes beside the sum.
    """
    given = list(getattr(weights, "tolist", lambda: weights)())  # arrays and tensors as Python's numbers
    if len(given) != num_datasets:
        raise ValueError(
            f"BlendableDataset: expected a weight for each of {num_datasets} datasets, got {len(given)} weights"
        )
    numbers = [_checked(weight, number) for number, weight in enumerate(given)]
    # Taking turns is exact for any kind of number, and its period is the shortest that there is.
    if numbers and all(number == numbers[0] for number in numbers):
        return BlendWeights((1,) * len(numbers), len(numbers))
    if exact and all(isinstance(number, Fraction) for number in numbers):
        return _integers([number for number in numbers if isinstance(number, Fraction)])
    return _floats(numbers)


def _checked(weight: Any, number: int) -> Fraction | float:
    value = _number(weight)
    if value is None or not 0 < value < math.inf:
        raise ValueError(
            f"BlendableDataset, weight {number}: expected a positive, finite number, got {shown(weight)}\n"
            "  Weights need not add to 1; leave out a dataset that is not wanted."
        )
    return value


def _number(weight: Any) -> Fraction | float | None:
    # To Python a bool is an integer, but as a weight it is a mistake.
    if isinstance(weight, bool | np.bool_):
        return None
    if isinstance(weight, str):
        try:
            return Fraction(weight)
        except (ValueError, ZeroDivisionError):
            return None
    if isinstance(weight, Rational | np.integer):
        return Fraction(int(weight.numerator), int(weight.denominator))
    return float(weight) if isinstance(weight, Real) else None


def _integers(fractions: list[Fraction]) -> BlendWeights:
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * scale) for fraction in fractions]
    # The smallest integers: their sum is the period, of which every sample is stored.
    divisor = math.gcd(*integers)
    shares = tuple(integer // divisor for integer in integers)
    return BlendWeights(shares, sum(shares))


def _floats(numbers: list[Fraction | float]) -> BlendWeights:
    try:
        weights = np.array([float(number) for number in numbers], np.float64)
    except OverflowError:
        weights = np.full(len(numbers), math.inf)
    # What overflows or vanishes is refused below, with the number of the weight, instead of warned of without it.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        total = weights.sum()  # pairwise, as Megatron-Core has it, not that of Python's sum()
        shares = weights / total
    if not (shares > 0).all():
        number = int(np.argmin(shares > 0))
        raise ValueError(
            f"BlendableDataset, weight {number}: {numbers[number]} vanishes beside the sum {total} as float64\n"
            "  Scale the weights to a common range, or give ints or Fractions."
        )
    return BlendWeights(tuple(shares.tolist()), 1.0)
