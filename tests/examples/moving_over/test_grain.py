"""What `examples/moving_over` says of Grain, runs, where that is installed."""

from itertools import islice

import pytest

from tests.streams import assert_exact_resume

pytest.importorskip("grain", reason="Grain is not installed")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_both_kinds_of_datasets_resume_exactly(num_workers: int) -> None:
    """Over several epochs, by an index and by the state of an iterator."""
    from examples.moving_over.grain_pipeline import mixture_of

    assert_exact_resume(lambda: mixture_of(9), num_workers=num_workers)
    numbers = [sample["n"] for sample in islice(mixture_of(9), 60)]
    assert set(numbers) == {1, 2, 4, 5, 7, 8, *range(-8, 1)}
