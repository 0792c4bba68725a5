import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.stores.datasets import blend_rule
from streamdata.stores.datasets.blend_rule import blend_weights, by_numpy, compiled_rules, pursue, scan
from tests.stores.blend.blend_loops import exact_loop, float_loop, nasty_floats

SIZE, DISTANCE = 200, 64


def told(rule, weights, *, megatron=False, size=SIZE):
    """The datasets by a rule, whose counts are those that the datasets say."""
    ids = np.full(size, 99, np.uint16)
    counts = np.full((-(-size // DISTANCE), len(weights.shares)), -1)
    shares = np.array(weights.shares, np.int64 if weights.exact else np.float64)
    rule(ids, counts, DISTANCE, shares, weights.unit, int(megatron))
    for row, found in enumerate(counts):
        assert found.tolist() == np.bincount(ids[: row * DISTANCE], minlength=len(found)).tolist()
    return ids.tolist()


@pytest.mark.parametrize("rule", [by_numpy, scan, pursue])
@given(st.lists(nasty_floats, min_size=1, max_size=9), st.booleans())
def test_float_rule_is_the_plain_loop(rule, weights, megatron):
    """Tiny, huge, nearly equal weights and thirds: the same datasets, ties included."""
    try:
        checked = blend_weights(weights, len(weights), exact=True)
    except ValueError:  # one vanishes
        return
    assert told(rule, checked, megatron=megatron) == float_loop(weights, SIZE, megatron=megatron)[0]


@pytest.mark.parametrize("rule", [by_numpy, scan, pursue])
@given(st.lists(st.integers(1, 10**6) | st.integers(1, 9), min_size=1, max_size=9))
def test_integer_rule_is_the_exact_loop(rule, weights):
    """In int64, with the ties of rational numbers."""
    assert told(rule, blend_weights(weights, len(weights), exact=True)) == exact_loop(weights, SIZE)[0]


@pytest.mark.each_value
@pytest.mark.parametrize("num_datasets", [17, 300])
@pytest.mark.parametrize("kind", ["any", "few", "integers", "one large", "pairs"])
@pytest.mark.parametrize("megatron", [False, True])
def test_many_datasets_are_pursued_as_they_are_scanned(num_datasets, kind, megatron):
    """Looking only at those near a floor changes nothing."""
    random = np.random.default_rng(num_datasets)
    weights = {
        "any": random.random(num_datasets),
        "few": random.choice([0.1, 0.2, 0.3], num_datasets),
        "integers": random.integers(1, 1000, num_datasets),
        "one large": np.append(random.random(num_datasets - 1), num_datasets),
        "pairs": np.repeat(random.random(num_datasets), 2)[:num_datasets],
    }[kind]
    checked = blend_weights(weights, num_datasets, exact=not megatron)
    wanted = told(by_numpy, checked, megatron=megatron, size=3000)
    assert told(pursue, checked, megatron=megatron, size=3000) == wanted


@pytest.mark.parametrize("num_datasets", [3, 31, 200])
@pytest.mark.parametrize("exact", [False, True])
def test_machine_code_gives_the_same(num_datasets, exact):
    """Over many samples, where rounding shows: nothing is fused or reordered."""
    pytest.importorskip("numba")
    random = np.random.default_rng(5)
    weights = blend_weights(random.integers(1, 10**6, num_datasets), num_datasets, exact=exact)
    wanted = told(by_numpy, weights, megatron=not exact, size=4000)
    for rule in compiled_rules():
        assert told(rule, weights, megatron=not exact, size=4000) == wanted


def test_rules_differ_in_ties():
    """So neither may stand in for the other."""
    decimal = [0.1, 0.3, 0.6]
    rules = exact_loop([1, 3, 6], 60), float_loop(decimal, 60), float_loop(decimal, 60, megatron=True)
    assert all(rules[one] != rules[other] for one, other in ((0, 1), (0, 2), (1, 2)))


def test_without_numba_a_long_blend_is_warned_of(monkeypatch, caplog):
    """It is built by NumPy, and a warning names the extra."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(blend_rule, "WORTH_COMPILING", 10)
    compiled_rules.cache_clear()
    ids, counts = np.zeros(50, np.uint8), np.zeros((1, 2), np.int64)
    blend_rule.blend(blend_weights([0.3, 0.7], 2, exact=True), ids, counts, 64, megatron=False)
    compiled_rules.cache_clear()
    assert ids.tolist() == float_loop([0.3, 0.7], 50)[0]
    assert "pip install torch-streamdata[fast]" in caplog.text
