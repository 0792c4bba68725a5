"""What changed in the mixture since the states were written is said, a line for each source."""

import logging
import re
from itertools import islice

import pytest

from streamdata import MergedDataset, to_state
from tests.streams import Numbers, resumed


def of(**weights):
    """A mixture of sources of as many records as their names have letters, times ten."""
    return MergedDataset([Numbers(name, 10 * len(name), weight) for name, weight in weights.items()])


def states_of(dataset, states=None):
    """The states after some samples."""
    states = dict(states or {})
    dataset.set_dataloader_states(states)
    for sample in islice(dataset, 12):
        states.update(to_state(sample))
    return states


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        ({"a": 1, "bb": 1}, []),
        ({"a": 1}, ["source 'bb' was removed since"]),
        ({"a": 1, "bb": 3}, ["source 'bb' has the weight 3.0 now, had 1.0 in the states"]),
        (
            {"a": 1, "bb": 1, "ccc": 1},
            ["source 'ccc' is new since .* starts at its beginning"],
        ),
        (
            {"a": 2, "xx": 1},
            ["source 'a' has the weight 2.0 now", r"source 'xx' .* \(was 'bb' renamed\?", "source 'bb' was removed"],
        ),
    ],
)
def test_changes_are_said(now, lines, caplog):
    """One line each that names the source, on the logger `streamdata`; nothing where nothing changed."""
    states = states_of(of(a=1, bb=1))
    with caplog.at_level(logging.INFO, "streamdata"):
        resumed(lambda: of(**now), states)
    assert len(caplog.messages) == len(lines)
    for line, message in zip(lines, caplog.messages, strict=True):
        assert re.search(line, message)


def test_a_source_that_returns_does_not_start_over(caplog):
    """It goes on where it stood, and that is said too."""
    states = states_of(of(a=1), states_of(of(a=1, bb=1)))
    caplog.clear()
    with caplog.at_level(logging.INFO, "streamdata"):
        resumed(lambda: of(a=1, bb=1), states)
    assert caplog.messages == ["source 'bb' returns, and goes on where it stood"]
