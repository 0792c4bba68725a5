"""Weights → which dataset comes next in a blend: compiled by numba where that is installed, else by NumPy, alike.

The rule: sample j (from 0) comes from the dataset with the largest `weight · (j + 1) - count`, the first of these at a
tie, where `count` is how many it has given. For float64 weights (which add to about 1) each product and each difference
is rounded as IEEE 754 has it, for integers all is multiplied by their sum and exact. Megatron-Core takes `max(j, 1)`
where this rule has `j + 1` (`build_blending_indices` in megatron/core/datasets/helpers.cpp).
"""

import logging
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from numbers import Rational, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown

logger = logging.getLogger("streamdata")

Numbers = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Rule = Callable[..., None]
WORTH_COMPILING = 1 << 19
"""Samples from which on the seconds that numba takes to compile are won back: NumPy takes some µs for each."""
NEARLY_EQUAL = 1e-5
"""Under `compat="megatron"` weights whose shares differ by less are equal: 0.333333, 0.333333, 0.333334 are thirds."""
SCANNED = 64
"""Up to this many datasets `scan` is used: it takes 0.15 of the time of `pursue` with 4, and 4.8 times it with 256."""


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


def blend_weights(weights: Sequence[Any], num_datasets: int, *, exact: bool, tolerance: float = 0) -> BlendWeights:
    """Check the weights, and bring them to integers where that is possible.

    Args:
        weights: Positive numbers, or text such as "1/3", which is read as a Fraction: YAML has no other way to write
            one. They are exact if all are int, Fraction or text; with a float among them all become float64. Equal
            weights are exact, whatever their kind.
        num_datasets: How many there must be.
        exact: False takes ints and Fractions for floats too, as Megatron-Core does.
        tolerance: Floats whose largest and smallest share differ by less than that are taken for equal.

    Raises:
        ValueError: Another number of weights; one is no number, not positive, not finite, or vanishes beside the sum.
    """
    given = list(getattr(weights, "tolist", lambda: weights)())  # arrays and tensors as Python's numbers
    if len(given) != num_datasets:
        raise ValueError(
            f"BlendableDataset: expected a weight for each of {num_datasets} datasets, got {len(given)} weights"
        )
    numbers = [_number(weight, position) for position, weight in enumerate(given)]
    # Taking turns is exact for any kind of number, and its period is the shortest that there is.
    taking_turns = BlendWeights((1,) * num_datasets, num_datasets)
    if numbers and all(number == numbers[0] for number in numbers):
        return taking_turns
    if exact and all(isinstance(number, Fraction) for number in numbers):
        fractions = [Fraction(number) for number in numbers]
        scale = math.lcm(*(fraction.denominator for fraction in fractions))
        integers = [int(fraction * scale) for fraction in fractions]
        divisor = math.gcd(*integers)  # the smallest integers: their sum is the period, all of which is stored
        shares = tuple(integer // divisor for integer in integers)
        return BlendWeights(shares, sum(shares))
    floats = np.array([float(number) if number <= sys.float_info.max else math.inf for number in numbers])
    # What overflows or vanishes is refused below, with the number of the weight, instead of warned of without it.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        total = floats.sum()  # pairwise, as Megatron-Core has it, not that of Python's sum()
        of_sum = floats / total
    if not (of_sum > 0).all():
        number = int(np.argmin(of_sum > 0))
        raise ValueError(
            f"BlendableDataset, weight {number}: {numbers[number]} vanishes beside the sum {total} as float64\n"
            "  Scale the weights to a common range, or give ints or Fractions."
        )
    return taking_turns if np.ptp(of_sum) < tolerance else BlendWeights(tuple(of_sum.tolist()), 1.0)


def _number(weight: Any, position: int) -> Fraction | float:
    value: Fraction | float = math.nan
    if isinstance(weight, str):
        with suppress(ValueError, ZeroDivisionError):
            value = Fraction(weight)
    elif isinstance(weight, Rational | np.integer):
        value = Fraction(int(weight.numerator), int(weight.denominator))
    elif isinstance(weight, Real):
        value = float(weight)
    if isinstance(weight, bool) or not 0 < value < math.inf:  # True is a number to Python, but a mistake here
        raise ValueError(
            f"BlendableDataset, weight {position}: expected a positive, finite number, got {shown(weight)}\n"
            "  Weights need not add to 1; leave out a dataset that is not wanted."
        )
    return value


def blend(weights: BlendWeights, ids: Numbers, counts: Int64s, distance: int, *, megatron: bool) -> None:
    """Find the dataset of each sample.

    Args:
        weights: Of the datasets.
        ids: Receives the dataset of sample j at index j: uint8, uint16 or uint32 (size,); one period is enough.
        counts: Receives in row b how many samples of each dataset come before sample `b · distance`: int64
            (⌈size / distance⌉, n).
        distance: The samples between two rows of `counts`.
        megatron: Whether the rule is Megatron-Core's.
    """
    if weights.unit == len(weights.shares):  # all are 1: the datasets take turns
        ids[:] = np.arange(len(ids))
        counts[:] = np.arange(len(weights.shares)) < np.arange(len(counts))[:, None] * distance
        return
    # The largest product, and the largest error that is subtracted from it. Half of int64 stays free; what could leave
    # it is computed with Python's own integers.
    largest = max(weights.shares) * (len(ids) + 1) + weights.unit * (len(weights.shares) + 2)
    integers = np.int64 if largest < 1 << 62 else object
    shares: Numbers = np.array(weights.shares, integers if weights.exact else np.float64)
    compiled = compiled_rules() if len(ids) >= WORTH_COMPILING and shares.dtype != object else None
    rule = by_numpy if compiled is None else compiled[len(shares) > SCANNED]
    rule(ids, counts, distance, shares, weights.unit, int(megatron))


@cache
def compiled_rules() -> tuple[Rule, Rule] | None:
    """`scan` and `pursue` as machine code that releases the GIL; without numba None, and one warning."""
    try:
        import numba
    except ImportError:
        logger.warning(
            "BlendableDataset: numba is not installed, so a long blend takes minutes where it could take seconds\n"
            "  pip install torch-streamdata[fast]"
        )
        return None
    # Exact as it is: there are no NaNs, and a zero is equal to a negative one. Nothing is reordered or fused.
    return numba.njit(nogil=True, fastmath={"nnan", "nsz"})(scan), numba.njit(nogil=True)(pursue)


def by_numpy(ids: Numbers, counts: Int64s, distance: int, shares: Numbers, unit: float, late: int) -> None:
    """The rule as it reads, in float64, int64 or Python's ints; the arguments are those of `scan` and `pursue`."""
    # Zeros of the same kind: in an array of Python's integers these must be such, too.
    taken, given = shares * 0, np.zeros(len(shares), np.int64)
    for sample in range(len(ids)):
        if sample % distance == 0:
            counts[sample // distance] = given
        step = max(sample + 1 - late, late)
        ids[sample] = number = np.argmax(shares * step - taken)
        taken[number] += unit
        given[number] += 1


def scan(ids: Numbers, counts: Int64s, distance: int, shares: Numbers, unit: float, late: int) -> None:
    """For few datasets: their errors are computed first, then compared, which needs no branches.

    Args:
        ids: See `blend`.
        counts: See `blend`.
        distance: See `blend`.
        shares: float64 or int64 (n,).
        unit: What each sample subtracts from its dataset's error.
        late: 1 for Megatron-Core's rule, else 0.
    """
    taken, errors, given = np.zeros_like(shares), np.empty_like(shares), np.zeros(len(shares), np.int64)
    for row in range(len(counts)):
        for number in range(len(given)):  # `counts[row] = given` takes numba two seconds to compile
            counts[row, number] = given[number]
        for sample in range(row * distance, min((row + 1) * distance, len(ids))):
            step = max(sample + 1 - late, late)
            best = shares[0] * step - taken[0]
            for number in range(len(shares)):
                error = shares[number] * step - taken[number]
                errors[number] = error
                best = max(best, error)
            # Found again by equality: the first of a tie, as the rule has it, whatever order `max` took them in.
            first = 0
            while errors[first] != best:
                first += 1
            ids[sample] = first
            taken[first] += unit
            given[first] += 1


def pursue(ids: Numbers, counts: Int64s, distance: int, shares: Numbers, unit: float, late: int) -> None:
    """For many datasets: in a burst of samples only those are looked at whose error can reach a floor within it.

    An error grows until its dataset is chosen (rounding is monotonic, so the computed one never shrinks either). Hence
    all others stay below the floor, and a best error that is not below it is the best of all, its ties included. When
    the best falls below, the burst ends there, and the next begins with a lower floor. The floor decides the cost
    alone. The arguments are those of `scan`.
    """
    size, num_datasets = len(ids), len(shares)
    taken, given = np.zeros_like(shares), np.zeros(num_datasets, np.int64)
    burst, margin, lowest = max(8, num_datasets // 8), 8 * unit / num_datasets, -(num_datasets + 2) * unit
    sample, floor = 0, lowest - margin
    while sample < size:
        row, best = sample // distance, lowest
        if sample == row * distance:
            for number in range(num_datasets):
                counts[row, number] = given[number]
        end = min(sample + burst, (row + 1) * distance, size)
        near = np.flatnonzero(shares * max(end - late, late) - taken >= floor)
        near_shares, near_taken = shares[near], taken[near]
        while sample < end:
            step = max(sample + 1 - late, late)
            first, most = 0, lowest
            for number in range(len(near)):
                error = near_shares[number] * step - near_taken[number]
                if error > most:
                    first, most = number, error
            if most < floor:
                break
            ids[sample], best = near[first], most
            near_taken[first] += unit
            given[near[first]] += 1
            sample += 1
        for number in range(len(near)):
            taken[near[number]] = near_taken[number]
        floor = best - margin  # the lowest, after a burst without a sample
