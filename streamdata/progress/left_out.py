"""Which records were left out of an open burst: `their numbers → a few characters of a cursor → their numbers`.

Numbers count the records since the burst began, from 0. The code of a set is its place among all sets of as many
numbers (the combinatorial number system: the sum of the binomials of p_i over i, for the i-th number p_i), which takes
as few bits as can be: 16 records of 1000 fit into 15 bytes. Where a set does not fit, the code says only what is not
known from the list of the records to be skipped, and which list that is.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from math import comb
from typing import Any, Final, NamedTuple

from streamdata.errors import shown

_MAX_BYTES: Final = 15
_MAX_NUMBERS: Final = 255
"""A code of nearly nothing may stand for any number of records that begin a burst: so many are told one by one."""
_MAX_COUNT: Final = 2**53


class LeftOut(NamedTuple):
    """What a code says."""

    numbers: tuple[int, ...] = ()
    """Those that were left out, ascending."""
    listed_from: int | None = None
    """From this number on, those were left out that are in the list; None: no others than `numbers`."""
    digest: int = 0
    """Of that list."""


def left_out_code(left_out: Sequence[int], listed_from: int, digest: int) -> str:
    """At most 50 characters for all that were left out; none if these are none.

    Args:
        left_out: Their numbers, ascending.
        listed_from: From this number on, records were left out if and only if they are in the list.
        digest: Of the list.
    """
    everything = _code(left_out)
    if everything is not None:
        return everything
    before = _code([number for number in left_out if number < listed_from])
    # They came from such a code, or all of them fitted once; and what is left of a set while a burst's start moves on
    # has a code that is no longer.
    assert before is not None, "what is not in the list fits"
    return f"{before}~{listed_from}~{digest}"


def read_left_out(code: Any) -> LeftOut:
    """Read a code.

    Raises:
        ValueError: It is not one.
    """
    if type(code) is not str:
        raise ValueError(f"expected a text, got {type(code).__name__}")
    numbers, *listed = code.split("~")
    if not listed:
        return LeftOut(_numbers(numbers))
    listed_from, digest = map(int, listed)
    if not 0 <= listed_from < _MAX_COUNT:
        raise ValueError(f"expected a number of records, got {listed_from}")
    return LeftOut(_numbers(numbers), listed_from, digest)


def _code(numbers: Sequence[int]) -> str | None:
    """How many there are, and their place; nothing where there are none, None where they do not fit."""
    if not numbers:
        return ""
    if len(numbers) > _MAX_NUMBERS:
        return None
    place = 0
    for count, number in enumerate(numbers, 1):
        place += comb(number, count)
        if place >> (8 * _MAX_BYTES):
            return None
    return f"{len(numbers)}:{urlsafe_b64encode(place.to_bytes(_MAX_BYTES, 'big').lstrip(bytes(1))).decode()}"


def _numbers(code: str) -> tuple[int, ...]:
    if not code:
        return ()
    length, text = code.split(":")
    count, place = int(length), int.from_bytes(urlsafe_b64decode(text), "big")
    if not 0 < count <= _MAX_NUMBERS or place >> (8 * _MAX_BYTES):
        raise ValueError(f"expected up to {_MAX_NUMBERS} records in {_MAX_BYTES} bytes, got {shown(code)}")
    numbers = []
    while count:
        number = _highest(place, count)
        numbers.append(number)
        place -= comb(number, count)
        count -= 1
    return tuple(reversed(numbers))


def _highest(place: int, count: int) -> int:
    """The highest number of which the binomial over `count` is at most `place`."""
    end = count
    while comb(end, count) <= place:
        end *= 2
    begin = count - 1  # its binomial is 0
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (middle, end) if comb(middle, count) <= place else (begin, middle)
    return begin
