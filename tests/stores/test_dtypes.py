import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.errors import StoreError
from streamdata.stores.dtypes import fitted, stored_dtype, token_dtype
from streamdata.stores.segments import Column, Even, Segment, StoredArray


@pytest.mark.parametrize(
    ("largest", "storage_type", "name"),
    [
        (0, "bin", "uint16"),
        (65_535, "bin", "uint16"),
        (65_536, "h5", "uint32"),
        (2**32 - 1, "bin", "uint32"),
        (65_535, "megatron", "uint16"),
        (65_536, "megatron", "int32"),
    ],
)
def test_the_token_dtype_is_the_smallest_that_holds_the_largest_id(largest, storage_type, name):
    """Megatron's format has no uint32."""
    assert token_dtype(largest, storage_type) == name


@pytest.mark.parametrize(("largest", "storage_type"), [(-1, "bin"), (2**32, "bin"), (2**31, "megatron"), (5, "tar")])
def test_an_id_that_no_dtype_holds_is_refused(largest, storage_type):
    """So is a format that there is not."""
    with pytest.raises(ValueError, match="token_dtype: expected"):
        token_dtype(largest, storage_type)


@given(
    st.lists(st.integers(-(2**70), 2**70), max_size=6), st.sampled_from(["uint8", "int16", "uint16", "int64", "bool"])
)
def test_values_fit_or_are_an_error(values, name):
    """No value is ever changed on its way in."""
    dtype = np.dtype(name)
    low, high = (0, 1) if name == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if all(low <= value <= high for value in values):
        assert fitted(values, dtype, "key").tolist() == values
    else:
        with pytest.raises(StoreError, match="key: expected values"):
            fitted(values, dtype, "key")


@pytest.mark.parametrize("values", [[1.5], ["a"], [[1]], [1, None], 3])
def test_other_values_are_refused(values):
    """Floats for tokens, text, a second dimension, nothing, a bare number."""
    with pytest.raises(StoreError, match="key: expected"):
        fitted(values, np.dtype("uint16"), "key")


def test_floats_become_the_nearest_and_never_infinite():
    """Rewards are rounded to float32; what is too large for it is an error, an infinity of its own is not."""
    assert fitted([0.1, 2, float("inf")], np.dtype("float32"), "key").tolist() == [np.float32(0.1), 2.0, np.inf]
    with pytest.raises(StoreError, match="too large for float32"):
        fitted([1e39], np.dtype("float32"), "key")


@pytest.mark.parametrize(
    "name", ["uint64", "complex64", "U3", "object", "nonsense", "u2:", "a2", "|a8", "\udcff", ">u2", 5, None]
)
def test_dtypes_that_a_store_does_not_hold_are_refused(name):
    """Among them uint64, half of which does not fit into int64."""
    with pytest.raises(StoreError, match="expected a dtype of bool, int8"):
        stored_dtype(name, "key")


def test_integers_come_out_as_int64():
    """Bool and floats as they are."""

    def delivered(name):
        return Column("a", [Segment(StoredArray("a.bin", np.dtype(name), 3), Even(1, 3))]).dtype.name

    names = ["uint8", "int32", "bool", "float32"]
    assert [delivered(name) for name in names] == ["int64", "int64", "bool", "float32"]
