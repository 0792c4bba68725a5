"""Which records were left out of a burst, in a few characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.progress import left_out_code, read_left_out
from streamdata.progress.left_out import LeftOut


@given(st.sets(st.integers(0, 400)), st.integers(0, 500), st.integers(0, 2**32 - 1))
def test_a_code_tells_all_or_what_the_list_does_not(numbers, listed_from, digest):
    """In at most 50 characters; what comes before the list applies must fit, as it does in a cursor."""
    left_out = sorted(numbers)
    before = tuple(number for number in left_out if number < listed_from)[:14]
    listed_from = before[-1] + 1 if before else 0
    left_out = [*before, *(number for number in left_out if number >= listed_from)]
    code = left_out_code(left_out, listed_from, digest)
    assert len(code) <= 50
    assert read_left_out(code) in (LeftOut(tuple(left_out)), LeftOut(before, listed_from, digest))
    assert len(left_out) > 14 or read_left_out(code).listed_from is None


@given(st.sets(st.integers(0, 300), max_size=14), st.integers(0, 300))
def test_what_is_left_of_a_set_has_no_longer_code(numbers, start):
    """So a part that fitted once fits until it is empty."""
    left = [number - start for number in sorted(numbers) if number >= start]
    assert len(left_out_code(left, 300, 1)) <= len(left_out_code(sorted(numbers), 300, 1))


NO_CODES = [3, None, [[0, 0, 1, 0]], "x", "1", "0:AQ==", "300:AQ==", "2:a", f"1:{'A' * 24}B===", "~1", "~-1~2", "~x~2"]


@pytest.mark.parametrize("code", [*NO_CODES, "1:" + "_" * 24])
def test_what_is_no_code_is_refused(code):
    """Damage must not decide what is left out."""
    with pytest.raises(ValueError, match=r"."):
        read_left_out(code)


def test_the_first_record_alone_is_number_0():
    """Whose place among all sets of one is 0, which has no bytes."""
    assert read_left_out(left_out_code([0], 0, 1)) == LeftOut((0,))
