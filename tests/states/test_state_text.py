"""The states of a batch as one string: what `to_state` gives of the samples themselves."""

import json
from itertools import islice

import pytest
import torch

from streamdata import MergedDataset, StateError, to_state
from streamdata.states.cursor import state_text
from tests.streams import Numbers


def samples(count, *, skip=0):
    """Some of two sources."""
    return list(islice(MergedDataset([Numbers("a", 40, 3), Numbers("b/c d", 9)]), skip, skip + count))


@pytest.mark.parametrize("count", [1, 2, 30])
def test_it_says_what_the_samples_say(count):
    """Whatever else the batch holds; also after it went through JSON."""
    text = state_text(samples(count))
    assert to_state({"ids": torch.ones(2), "__state__": text}) == to_state(samples(count))
    assert to_state({"__state__": json.loads(json.dumps(text))}) == to_state(samples(count))


def test_a_list_of_batches_is_as_one():
    """In the order delivered: the newest entry of each source counts."""
    batches = [{"__state__": state_text(samples(5, skip=start))} for start in (0, 5)]
    assert to_state(batches) == to_state([samples(5), samples(5, skip=5)])
    assert to_state([batches[:1], batches[1:]]) == to_state(batches)


@pytest.mark.parametrize("text", [None, 3, "", "{", "x\ny", "{}\nheader", ["{}", "{}"], "[]", "[[1, 2]]"])
def test_another_value_is_refused(text):
    """With what to do."""
    with pytest.raises(StateError, match=r"under '__state__'(.|\n)*Take the batch as the loader gives it"):
        to_state({"__state__": text})


def test_samples_beside_batches_are_refused():
    """A batch that lacks its string would be lost in silence."""
    with pytest.raises(StateError, match="without its state"):
        to_state([{"__state__": state_text(samples(1))}, {"ids": torch.ones(1)}])
