"""Lanes share the endless sequence of blocks: each block of each epoch is read by exactly one lane."""

from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from streamdata.run import Lane
from streamdata.sources import BlockOrder
from streamdata.sources.order.blocks import ALL_EPOCHS, Epochs


def orders(num_blocks, lanes, shuffle=True, epochs=ALL_EPOCHS):
    """The order of each lane."""
    each = (Lane(dp_size=lanes, dp_rank=rank, num_workers=1, worker=0) for rank in range(lanes))
    return [BlockOrder(num_blocks, lane, (1, "a"), shuffle, epochs) for lane in each]


def walk(order, epochs):
    """(epoch, block) of a lane, in the order read, up to epoch `epochs`."""
    epoch = 0
    while epoch is not None and epoch < epochs:
        yield from ((epoch, int(block)) for block in order.blocks(epoch, 0, 10**9))
        epoch = order.next_epoch(epoch)


@given(num_blocks=st.integers(1, 40), lanes=st.integers(1, 17), shuffle=st.booleans())
def test_each_block_of_each_epoch_is_read_exactly_once(num_blocks, lanes, shuffle):
    """Counted as a multiset, also where lanes outnumber blocks or do not divide them."""
    read = Counter(pair for order in orders(num_blocks, lanes, shuffle) for pair in walk(order, 5))
    assert read == Counter((epoch, block) for epoch in range(5) for block in range(num_blocks))


@given(num_blocks=st.integers(1, 40), lanes=st.integers(1, 9), cut=st.integers(0, 20))
def test_any_range_of_a_share_can_be_asked_for(num_blocks, lanes, cut):
    """A seek gives what walking there would give."""
    for order in orders(num_blocks, lanes):
        whole = order.blocks(3, 0, 10**9).tolist()
        assert order.blocks(3, 0, cut).tolist() + order.blocks(3, cut, 10**9).tolist() == whole
        assert len(whole) == order.share(3)


@given(num_blocks=st.integers(1, 20), lanes=st.integers(1, 7), blocks=st.integers(0, 50))
def test_what_lies_ahead_is_where_walking_comes_to(num_blocks, lanes, blocks):
    """The block that is so many further on in a lane, in whichever epoch that is."""
    for order in orders(num_blocks, lanes, shuffle=False):
        epoch = next(epoch for epoch in range(lanes + 1) if order.share(epoch))
        walked = walk(order, 10**9)
        later, index = order.ahead(epoch, 0, blocks)
        assert (later, order.blocks(later, index, index + 1).item()) == next(islice(walked, blocks, None))


@given(num_blocks=st.integers(1, 20), first=st.integers(0, 30), stride=st.integers(1, 7), count=st.integers(0, 9))
def test_a_stretch_knows_which_blocks_are_its_own(num_blocks, first, stride, count):
    """By their numbers in the endless order; and where in their epoch they come."""
    order = orders(num_blocks, 1)[0].stretch(first, stride, count)
    for number in range(first + stride * (count + 2)):
        epoch = number // num_blocks
        index = order.index_of(epoch, number)
        assert (index is not None) == (number in range(first, first + stride * count, stride))
        if index is not None:
            assert index == sum(each // num_blocks == epoch for each in range(first, number, stride))


def test_lanes_read_the_sequence_in_turns():
    """Lane l reads the numbers l, l + L …: the lanes' shares, zipped, are the sequence of a single lane."""
    alone = list(walk(orders(10, 1)[0], 3))
    shares = [list(walk(order, 3)) for order in orders(10, 3)]
    assert [shares[g % 3][g // 3] for g in range(30)] == alone


def test_epochs_differ_and_natural_order_is_natural():
    """A shuffled source has another order in each epoch; an unshuffled one lies as it is."""
    shuffled = orders(50, 1)[0]
    assert shuffled.blocks(0, 0, 50).tolist() != shuffled.blocks(1, 0, 50).tolist()
    assert orders(50, 1, shuffle=False)[0].blocks(1, 0, 50).tolist() == list(range(50))


def test_a_huge_source_starts_at_once():
    """10**12 blocks cost no more than ten: nothing is listed."""
    order = orders(10**12, 7)[3]
    assert order.blocks(5, 10**11, 10**11 + 3).shape == (3,)


def test_a_single_epoch_ends():
    """A finite stream has its one epoch, whichever it is."""
    order = orders(10, 3, epochs=Epochs(4, 5))[1]
    assert (order.share(4), order.share(5), order.next_epoch(4)) == (4, 0, None)
