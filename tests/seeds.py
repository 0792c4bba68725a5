"""Seeds of random cases: the first few for `make test`, those after them for `make test-long`."""

import pytest


def seeds(short: int, long: int) -> list:
    """The seeds 0 to `long` - 1, of which those from `short` on are `long`."""
    return [*range(short), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(short, long))]
