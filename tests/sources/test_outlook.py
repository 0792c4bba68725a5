"""What the outlook says is what the lanes then read."""

import numpy as np
import pytest

from streamdata.run import Lane
from streamdata.sources.order.blocks import BlockOrder, SourceOutlook

SIZES, BLOCK_ENDS = np.array([4000, 1000, 2500]), np.array([40, 50, 75])
SEEDS = (3, "name", 0)


def order_of(lane, lanes, offset, shuffle):
    return BlockOrder(75, Lane(dp_size=lanes, dp_rank=lane, num_workers=1, worker=0), SEEDS, shuffle, offset=offset)


def outlook(own, lanes=6, offset=0, shuffle=True):
    order = order_of(0, lanes, offset, shuffle)
    return SourceOutlook(SIZES, BLOCK_ENDS, order, own, reads_all=len(own) == lanes)


@pytest.mark.parametrize("offset", [0, 54])
@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_wanted_is_what_the_lanes_of_the_node_read(offset, shuffle):
    """Of each block in each epoch, as the orders of these lanes say; also after a change of size."""
    found = outlook(range(2, 4), offset=offset, shuffle=shuffle)
    for ahead in (0, 1, 4):
        orders = [order_of(lane, 6, offset, shuffle) for lane in (2, 3)]
        read = {int(block) for order in orders for block in order.blocks(ahead, 0, 75)}
        wanted = {block for block in range(40) if found.wanted(0, 100 * block, 100 * block + 100)[ahead]}
        assert wanted == {block for block in read if block < 40}


def test_in_this_epoch_only_what_comes_yet():
    """What lies before the present window was read."""
    found = outlook(range(6))
    left = []
    for found.now in (0, 20, 60, 74):
        left.append(sum(found.wanted(shard, 0, int(SIZES[shard]))[0] for shard in range(3)) / 100)
    assert left == [74, 54, 14, 0]


def test_bytes_are_counted_by_their_share_of_blocks():
    """A page has parts of blocks at its ends; all of it is wanted once in each epoch where the node reads all."""
    found = outlook(range(6))
    assert found.wanted(1, 150, 420)[1:] == [270.0] * 8
    assert found.wanted(2, 2400, 10**6)[1:] == [100.0] * 8
