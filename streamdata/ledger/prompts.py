"""A prompt as it is taken from a ledger, how it is named when it is settled, and what is said of a wrong argument."""

from collections import Counter
from collections.abc import Iterable
from operator import index
from typing import Any, NamedTuple

from streamdata.errors import shown

PromptIds = Iterable[int | tuple[int, int]]
"""Ids of prompts, or pairs of id and attempt."""


class Prompt(NamedTuple):
    """A prompt that was taken from a ledger, to be settled by `id`, or by `(id, attempt)`."""

    id: int
    """Names the prompt since the last load, below 2**63; retries keep it."""
    attempt: int
    """From 1 on: how often the prompt has been taken."""
    sample: dict[str, Any]
    """The stream's sample."""
    source: str
    """The dotted name of its source."""
    record_id: tuple[int, int, int]
    """Epoch, number of the record in its source, number of the sample among those of the record."""
    epoch_pass: int
    """The pass of the stream."""
    score: float | None
    """The newest score of its record, as float32; None if it has none."""


class WrongCall(ValueError):  # noqa: N818  the caller sees a ValueError
    """A wrong argument of a call, of which nothing was done."""

    def __init__(self, who: str, expected: str, got: object, remedy: str) -> None:
        super().__init__(f"{who}: expected {expected}, got {shown(got)}; nothing of the call was done\n  {remedy}")


def check_int(who: str, name: str, value: object, least: int, remedy: str) -> None:
    """Raise ValueError unless a value is an int, of at least so much."""
    if type(value) is not int or value < least:
        raise WrongCall(who, f"{name} to be an int from {least} on", value, remedy)


def read_ids(who: str, ids: object) -> list[tuple[int, int | None]]:
    """Read what names prompts: ids, or pairs of id and attempt.

    Raises:
        ValueError: It is something else, or an id comes twice.
    """
    try:
        found: list[tuple[int, int | None]] = []
        for each in ids:  # type: ignore[attr-defined]
            is_pair = isinstance(each, list | tuple) and len(each) == len(("id", "attempt"))
            found.append((index(each[0]), index(each[1])) if is_pair else (index(each), None))
    except TypeError:
        what = "a list of ids, or of pairs of id and attempt"
        raise WrongCall(who, what, ids, "A Prompt has both: done([prompt.id])") from None
    counts = Counter(prompt_id for prompt_id, _ in found)
    if len(counts) < len(found):
        raise WrongCall(who, "each id once", counts.most_common(1)[0][0], "Name each prompt once.")
    return found
