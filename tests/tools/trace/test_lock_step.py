"""What is said of a run is what its loops logged, step by step."""

import logging

import pytest

from tests.tools.trace.lock_step import check


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_jobs_are_told_exactly_or_refused(first):
    """Over resumes, sizes, weights, batches, uneven ranks and states that were given up; a thousand by the script."""
    logging.disable(logging.WARNING)
    try:
        compared = [check(seed) for seed in range(first, first + 20)]
    finally:
        logging.disable(logging.NOTSET)
    assert sum(steps - refused for steps, refused in compared) > 200
