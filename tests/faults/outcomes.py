"""What every fault of data must end in.

Sound samples in the faultless order, none of them twice, and none missing but what was recorded as skipped; or one
error of ours with the place, what was expected, what was found, and what to do.
"""

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from streamdata import StreamdataError, to_state
from tests.streams import MakeDataset, plain

SAYS_ALL = re.compile(r"expected .+, got .+\n  [A-Z].+\.", re.DOTALL)
"""What follows the place in a message."""
_SKIPPED = re.compile(r"skipped \(\d+ of max_bad=\d+\) (.+?): ")


class Outcome(NamedTuple):
    """How a stream ended."""

    delivered: list[object]
    skipped: list[str]  # places
    error: Exception | None

    @property
    def said(self) -> str:
        """The error's message, with its notes."""
        return "\n".join([str(self.error), *getattr(self.error, "__notes__", ())])


def after_damage(
    make: MakeDataset, damage: Callable[[], object], caplog: pytest.LogCaptureFixture, *, after: int | None = None
) -> Outcome:
    """What `make()` delivers around some damage, which was found to be sound, or to end in one error that says all.

    Args:
        make: A finite mixture, over files that are sound yet.
        damage: What happens to them.
        caplog: Where the log says which records were skipped.
        after: How many samples are delivered before; None: the dataset is made after the damage.
    """
    sound: dict[str, object] = {}
    for sample in make():
        assert sound.setdefault(_place(sample), whole := plain(sample)) is whole, "twice without a fault"
    delivered: list[dict] = []
    error = None
    caplog.clear()
    with caplog.at_level(logging.WARNING, "streamdata"):
        try:
            if after is None:
                damage()
            for number, sample in enumerate(make(), 1):
                delivered.append(sample)
                if number == after:
                    damage()
        except Exception as caught:
            error = caught
    outcome = Outcome([plain(sample) for sample in delivered], _SKIPPED.findall(caplog.text), error)
    want = [sample for place, sample in sound.items() if place not in outcome.skipped]
    assert outcome.delivered == (want if error is None else want[: len(delivered)])
    assert _recorded(delivered) == len(set(outcome.skipped)) == len(outcome.skipped)
    if error is not None:
        assert isinstance(error, StreamdataError), repr(error)
        assert SAYS_ALL.search(outcome.said), outcome.said
    return outcome


def _place(sample: dict) -> str:
    """Where a record lies, as the log has it."""
    return f"{sample['__url__']}, key {sample['__key__']!r}" if "__url__" in sample else f"index {sample['__index__']}"


def _recorded(delivered: list[dict]) -> int:
    """How many failures the states tell of."""
    states = to_state(delivered) if delivered else {}
    return sum(entry.get("bad", 0) for key, entry in states.items() if key.startswith("cursor/"))
