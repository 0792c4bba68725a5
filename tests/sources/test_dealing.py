"""Over any sequence of sizes, each record of each epoch is dealt out once, evenly, in few stretches."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamdata.errors import StateError
from streamdata.sources.order.deal import Deal, begin_of_window, joined, num_windows, window_of_block
from streamdata.states.headers import STRETCH, UNIT, BlockCut, Leftovers, leftovers_of
from streamdata.states.progress import LastCursors
from streamdata.states.table import POSITION, empty_rows


class Listed:
    """A finite source, and what each lane reads of it, as lists of (position after it, record)."""

    def __init__(self, sizes, window, epochs, divides):
        self.sizes, self.epochs = sizes, epochs
        mean = sum(sizes) * UNIT // len(sizes) if divides or len(set(sizes)) == 1 else 0
        self.cut = BlockCut(len(sizes), window if divides else 1, max(1, mean) if mean else 0, int(divides), epochs)

    def records(self, number):
        """Those of the block with a number of the endless order."""
        epoch, block = divmod(number, len(self.sizes))
        return [(epoch, block, record) for record in range(self.sizes[block])]

    def windows(self, first, stride, blocks):
        """(epoch, number in the epoch, records) of each window of a lane's sequence."""
        numbers = [first + at * stride for at in range(blocks)]
        numbers = [number for number in numbers if number < self.epochs * len(self.sizes)]
        for epoch in range(self.epochs):
            own = [number for number in numbers if number // len(self.sizes) == epoch]
            for window, at in enumerate(range(0, len(own), self.cut.window)):
                some = own[at : at + self.cut.window]
                yield epoch, window, [record for number in some for record in self.records(number)]

    def lane(self, deal, lane):
        """All that a lane reads."""
        epoch = min(deal.left.offset // len(self.sizes), self.epochs - 1)
        read = []
        lanes, numbers, _ = deal.of_stretches
        for row in np.flatnonzero(lanes == lane).tolist():
            first, stride, blocks, start, _, stop = deal.stretches[row].tolist()
            windows = [records for _, _, records in self.windows(first, stride, blocks)]
            number = int(numbers[row])
            for at, records in enumerate(windows):
                end = stop if at == len(windows) - 1 and stop >= 0 else len(records)
                begin = start if at == 0 else 0
                read += [((epoch, number + at, i + 1, 0), records[i]) for i in range(begin, min(end, len(records)))]
        begins = deal.left.offset + lane
        left = max(0, -(-(self.epochs * len(self.sizes) - begins) // deal.lanes))
        for of_epoch, window, records in self.windows(begins, deal.lanes, left):
            read += [((of_epoch, window, i + 1, 0), record) for i, record in enumerate(records)]
        return read


def left_by(deal, positions, **columns):
    """What is left where lanes stand; None of a lane of which nothing is held."""
    lanes = [lane for lane, position in enumerate(positions) if position is not None]
    rows = empty_rows(len(lanes))
    for name, column in zip(POSITION, zip(*(positions[lane] for lane in lanes), strict=True), strict=False):
        rows[name] = column
    for name, column in columns.items():
        rows[name] = column
    row_of = np.full(len(positions), -1)
    row_of[lanes] = np.arange(len(lanes))
    return deal.left_by(LastCursors(rows, row_of), np.zeros(len(positions), bool))


def live(source, left, lanes, counts):
    """Let each lane read so many records; what they read, what is left, and how many records each lane had."""
    deal = Deal("a", source.cut, 0, lanes, left)
    lists = [source.lane(deal, lane) for lane in range(lanes)]
    some = [found[:count] for found, count in zip(lists, counts, strict=True)]
    came = Counter(record for found in some for _, record in found)
    return came, left_by(deal, [found[-1][0] if found else None for found in some]), list(map(len, lists))


sources = st.builds(
    Listed,
    st.one_of(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 40).map(lambda size: [4] * size)),
    st.sampled_from([1, 2, 7, 30]),
    st.integers(1, 4),
    st.booleans(),
)
lives = st.lists(
    st.integers(1, 6).flatmap(lambda n: st.lists(st.integers(0, 30), min_size=n, max_size=n)), min_size=1, max_size=8
)


@given(sources, lives)
def test_each_record_is_dealt_out_once(source, lives):
    """Also of lanes of which nothing is held, and through JSON."""
    came, left = Counter(), Leftovers()
    for counts in lives:
        found, left, _ = live(source, left, len(counts), counts)
        came += found
        left = leftovers_of(left.as_json())
    found, _, _ = live(source, left, 3, [10**9] * 3)
    every = [record for number in range(source.epochs * len(source.sizes)) for record in source.records(number)]
    assert came + found == Counter(every)


@pytest.mark.parametrize("seed", range(2))
def test_windows_that_many_lanes_share_are_dealt_out_once(seed):
    """Windows as large as the source, divided again and again."""
    rng = np.random.default_rng(seed)
    for _ in range(30):
        source, left, came = Listed([int(rng.integers(1, 9))] * 30, 30, 1, divides=True), Leftovers(), Counter()
        for _ in range(8):
            counts = rng.integers(0, 9, rng.integers(2, 7)).tolist()
            found, left, _ = live(source, left, len(counts), counts)
            came += found
        found, _, _ = live(source, left, 3, [10**9] * 3)
        assert came + found == Counter(record for number in range(30) for record in source.records(number))


@given(st.integers(1, 40), st.integers(1, 7), lives, st.integers(1, 6))
@example(16, 1, [[29]], 6)
def test_what_is_left_is_shared_out_evenly(blocks, window, lives, lanes):
    """To an eighth of a lane's share and a block of each epoch's end, where blocks are equal and windows divided."""
    source, left = Listed([4] * blocks, window, 1, divides=True), Leftovers()
    for counts in lives:
        _, left, _ = live(source, left, len(counts), counts)
    _, _, had = live(source, left, lanes, [0] * lanes)
    # Records are whole: one at least.
    assert max(had) - min(had) <= max(1, sum(had) / lanes / 8) + 4


def test_a_list_stays_short_over_many_changes():
    """Whoever is quick and whoever is slow: at most 20 for each lane."""
    lanes, rng = 16, np.random.default_rng(16)
    source, left = Listed([8] * 6000, 15, 1, divides=True), Leftovers()
    for _ in range(30):
        size = int(rng.integers(1, lanes + 1))
        _, left, _ = live(source, left, size, rng.choice([0, 1, 30, 200], size).tolist())
        assert len(left.stretches) <= 20 * size


def test_the_example_of_the_design_page():
    """12 blocks of 10 records, windows of 2 blocks; 2 lanes stop within their windows, and 3 go on."""
    source = Listed([10] * 12, 2, 1, divides=True)
    left = left_by(Deal("a", source.cut, 0, 2, Leftovers()), [(0, 1, 5, 0), (0, 0, 12, 0)])
    assert left.offset == 8
    assert left.stretches.tolist() == [(1, 2, 4, 12, 0, -1), (4, 2, 2, 5, 0, -1)]
    after = Deal("letters", source.cut, 0, 3, left)
    assert after.stretches.tolist() == [(1, 2, 4, 12, 0, 6), (5, 2, 2, 6, 0, -1), (4, 2, 2, 5, 0, -1)]
    assert after.of_stretches[0].tolist() == [0, 1, 2]


def test_windows_of_a_stretch_end_with_its_epochs():
    """Of 7 blocks in an epoch every third number is read: 3, 2, 2 blocks, in windows of 2."""
    cut, stretch = BlockCut(7, 2, UNIT, 1, 0), np.array([(0, 3, 7, 0, 0, -1)], STRETCH)
    assert num_windows(stretch, cut).tolist() == [4]
    begins = [int(begin_of_window(stretch, np.array([number]), cut)[0]) for number in range(4)]
    assert begins == [0, 2, 3, 5]
    places = [window_of_block(stretch, np.array([block]), cut) for block in range(7)]
    assert [int(place.number[0]) for place in places] == [0, 0, 1, 2, 2, 3, 3]


def test_what_does_not_follow_is_not_joined():
    """A window that ended at an offset is short, and the next one begins anew."""
    cut = BlockCut(100, 4, UNIT, 1, 0)
    short = [(0, 2, 3, 0, 0, -1), (6, 2, 4, 0, 0, -1)]
    assert joined(np.array(short, STRETCH), cut).tolist() == short
    whole = [(0, 2, 4, 0, 0, -1), (8, 2, 4, 0, 0, -1)]
    assert joined(np.array(whole, STRETCH), cut).tolist() == [(0, 2, 8, 0, 0, -1)]


def test_an_open_burst_that_has_pulled_nothing_has_no_records():
    """Its function gave something first, where outputs of a record had been delivered before it began."""
    deal = Deal("a", BlockCut(4, 1, 4 * UNIT, 1, 1), 0, 1, Leftovers())
    left = left_by(deal, [(0, 1, 2, 1)], given=3, pulled=(0, 1, 2, 1))
    assert left.bursts.tolist() == [(0, 3, 0)]
    assert left.stretches.tolist() == [(1, 1, 1, 2, 1, -1)]


def test_a_lane_where_it_has_no_window_is_refused():
    """States that were damaged must not decide what comes next."""
    cut = BlockCut(4, 1, UNIT, 0, 1)
    with pytest.raises(StateError, match="lane 1 in window 9 of epoch 0, expected at most 2"):
        left_by(Deal("a", cut, 0, 2, Leftovers()), [(0, 1, 0, 0), (0, 9, 0, 0)])
