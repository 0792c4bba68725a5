import re

from hypothesis import example, given
from hypothesis import strategies as st

from streamdata.shards.jsonl.rows import doubtful_integers

PIECES = st.lists(
    st.text(st.sampled_from("0123456789"), min_size=1, max_size=24) | st.sampled_from(["-", ".", ",", "x", " ", "e"]),
    max_size=30,
)


@given(PIECES)
@example(["0" * 20, ","])
def test_every_integer_too_long_is_found(pieces):
    """Each run of 20 digits, or 19 after a minus sign, that is no fraction has an offset within it."""
    text = "".join(pieces).encode()
    found = doubtful_integers(text).tolist()
    for run in re.finditer(rb"(?<![0-9.])([0-9]{20,}|(?<=-)[0-9]{19})(?![0-9])", text):
        assert any(run.start() <= offset < run.end() for offset in found)


@given(st.lists(st.floats(0, 1) | st.integers(0, 10**18)))
def test_common_numbers_are_not_looked_at_closely(numbers):
    """Fractions and integers of up to 18 digits are not taken for doubtful, so that such rows stay fast."""
    text = " ".join(repr(number) for number in numbers if "e" not in repr(number))
    assert doubtful_integers(f"[{text}]".encode()).tolist() == []
