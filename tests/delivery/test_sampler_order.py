"""The sampler's orders must not change: who resumes with a newer version goes on in the order of the epoch."""

import json
from hashlib import blake2b

import pytest

from streamdata import ResumableDistributedSampler
from tests.streams import Numbers

PINS = {
    (True, 1): ("ed7d9144ba28", "646c8cad3ca5"),
    ("lazy", 1): ("2e4a5ef46335", "0042f7ba9d4d"),
    (True, 4): ("4aa964817314", "3998a3e6b369"),
    ("lazy", 4): ("705de50c9a52", "f56174994ddc"),
    (False, 1): ("b763f75493f4", "9041b18111b3"),
}
"""By `shuffle` and the dataset's `records_per_block`: the pins of two replicas."""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("shuffle", "block"), PINS)
def test_the_order_of_two_epochs_is_as_it_was(shuffle, block, rank):
    """The first from its middle, the second whole."""
    dataset = Numbers("a", 996, records_per_block=block)
    sampler = ResumableDistributedSampler(dataset, 0, 99, shuffle=shuffle, num_replicas=2, rank=rank)
    drawn = list(sampler)
    sampler.set_epoch(1)
    drawn += sampler
    found = blake2b(json.dumps(drawn).encode(), digest_size=6).hexdigest()
    assert found == PINS[shuffle, block][rank], f"another order than before, which begins {drawn[:6]} …"
