"""An iteration that is dropped lets go at once of what its sources hold, such as files or another loader's workers."""

import gc
import weakref
from itertools import islice

import pytest

from streamdata import MergedDataset
from tests.mixing.test_resume import Packer
from tests.streams import Numbers


def in_pairs(samples):
    """A yield function of two samples each."""
    for sample in samples:
        yield {**sample, **next(samples, {})}


def doubled(record):
    return {"value": 2 * record["value"]}


@pytest.mark.parametrize("num_samples", [5, 99])
@pytest.mark.parametrize("functions", [{}, {"single_process_fn": doubled}, {"process_fn": Packer()}], ids=list)
@pytest.mark.parametrize("yield_fn", [None, in_pairs])
def test_it_is_in_no_cycle(yield_fn, functions, num_samples):
    """It would else hold them until a collection of garbage, which may come late and then take long."""
    source = Numbers("a", 20, **functions)
    held = weakref.ref(source)
    inner = MergedDataset([source], cyclic=False)
    inner.name, inner.percent = "inner", 1
    dataset = MergedDataset([inner], cyclic=False, customized_yield_fn=yield_fn)
    del source, inner
    gc.collect()
    gc.disable()
    try:
        samples = iter(dataset)
        assert list(islice(samples, num_samples))
        assert held() is not None
        del dataset, samples
        assert held() is None
    finally:
        gc.enable()
