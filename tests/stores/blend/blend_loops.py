"""The rules of a blend as plain loops, one sample after the other."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st


def float_loop(weights, size, *, megatron=False):
    """Python's floats are float64: each product and each difference is rounded once."""
    array = np.array([float(weight) for weight in weights], np.float64)
    return _loop((array / array.sum()).tolist(), size, megatron)


def exact_loop(weights, size):
    """The same rule in rational numbers."""
    fractions = [Fraction(weight) for weight in weights]
    return _loop([fraction / sum(fractions) for fraction in fractions], size, megatron=False)


def _loop(weights, size, megatron):
    counts = [0] * len(weights)
    datasets, ranks = [], []
    for sample in range(size):
        step = max(sample, 1) if megatron else sample + 1
        best, chosen = None, None
        for number, weight in enumerate(weights):
            error = weight * step - counts[number]
            if best is None or error > best:
                best, chosen = error, number
        datasets.append(chosen)
        ranks.append(counts[chosen])
        counts[chosen] += 1
    return datasets, ranks


nasty_floats = st.one_of(
    st.sampled_from([0.1, 0.2, 0.3, 1 / 3, 2 / 3, 0.5, 1.0, 3.0, 1e-9, 1e-300, 1e9, 1 - 2**-53, 1 + 2**-52]),
    st.floats(1e-3, 1.0),
    st.floats(1e-12, 1e12),
)
exact_weights = st.one_of(
    st.integers(1, 12), st.integers(1, 10**30), st.fractions(Fraction(1, 1000), 100, max_denominator=1000)
)
