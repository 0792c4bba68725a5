"""What a yield function pulled is drawn again at the moments at which it was drawn."""

import random

import pytest

from streamdata.mixing.present import Present
from streamdata.mixing.told import Told


class Puller:
    """Pulls records for bursts, each at the present time unless they are told another one."""

    def __init__(self, recorded=(), segment=0):
        self.present = Present()
        self.told = Told(self.present, recorded, int, segment)
        self.moments = []

    def pull(self, count):
        """Pull so many more of the burst; what was seen while they were drawn joins `moments`."""
        for _ in range(count):
            with self.told.draw():
                assert self.present.weigh is None
                self.moments.append((self.present.time, self.present.unit))

    def begin(self, time, num_held):
        """A burst begins at a time, with so many records of those before."""
        self.present.time = time
        self.told.begin(num_held, unit=time / 2 + 1)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_is_drawn_again_when_it_was(seed):
    """However many bursts ago; and the segment is that of the record before."""
    rng = random.Random(seed)
    first, held, time, stands_still = Puller(), 0, 0.0, 0
    for _ in range(60):
        time += rng.random()
        before = first.told.recorded if len(first.moments) else None
        time = round(time, 6)
        first.begin(time, held)
        stands_still += before is not None and first.told.recorded[:2] == before[:2]
        pulled = rng.choice((0, 1, 1, 2, 5)) if held else 1
        start = len(first.moments) - held
        first.pull(pulled)
        again = Puller(first.told.recorded, first.told.segment)
        again.pull(held + pulled)
        assert again.moments == first.moments[start:]
        assert first.told.segment == (int(first.moments[start - 1][0]) if start else 0)
        # What follows a resume is as if there had been none.
        if rng.random() < 0.3:
            again.moments = first.moments
            again.present.time, first = time, again
        held = rng.randint(0, min(4, held + pulled))
    assert stands_still < 40
    assert first.moments[-1][0] > 0.5 * time


def test_time_is_told_at_each_burst_where_nothing_is_held():
    """And the present is as before when it has been drawn."""
    puller = Puller()
    for time in (1.0, 2.0, 5.0):
        puller.begin(time, 0)
        puller.pull(2)
        assert puller.told.recorded == (time, time / 2 + 1)
        assert puller.present.time == time
        assert puller.present.unit == 1
    assert [time for time, _ in puller.moments] == [1, 1, 2, 2, 5, 5]


def test_a_function_that_failed_begins_a_burst():
    """Of what comes after all that it had pulled."""
    puller = Puller()
    assert puller.told.is_new(0)
    puller.begin(1.0, 0)
    puller.pull(3)
    assert not puller.told.is_new(3)
    assert puller.told.is_new(0)
    assert not Puller((1.0, 1.0)).told.is_new(0)
