"""A run whose weights have changed goes on as exactly as one whose have not, however often it stops afterwards."""

from itertools import islice

from streamdata import MergedDataset, to_state
from tests.streams import Numbers, loaded, plain, resumed


def mixture(weight):
    """Two sources, of which the first has this weight."""
    return MergedDataset([Numbers("a", 23, weight), Numbers("b", 11)], seed=5)


def taken(dataset, count, states):
    """So many batches of two workers; the states are brought up to date."""
    batches = []
    for batch in islice(loaded(dataset, 2), count):
        states.update(to_state(batch))
        batches.append(plain(batch))
    return batches


def test_the_worker_whose_turn_it_is_comes_first_after_a_change_of_weights():
    """It is the last of the newest generation that decides, whichever worker was last before the change."""
    for before in (5, 6):
        states = {}
        taken(mixture(1), before, states)
        want = taken(resumed(lambda: mixture(4), states), 20, dict(states))
        for leg in (1, 2, 3, 4):
            assert taken(resumed(lambda: mixture(4), states), leg, states) == want[:leg]
            del want[:leg]


def test_a_pass_of_which_the_states_say_nothing_begins_with_the_first_worker():
    """As it would without states."""

    def second_pass():
        dataset = mixture(1)
        dataset.set_epoch(1)
        return dataset

    states = {}
    taken(mixture(1), 5, states)
    assert taken(resumed(second_pass, states), 8, {}) == taken(second_pass(), 8, {})


def finite_within_finite(names):
    """A finite mixture of these sources in another one."""
    inner = MergedDataset([Numbers(name, 6) for name in names], cyclic=False, stop="all_exhausted", seed=2)
    inner.name, inner.percent = "inner", 1
    return MergedDataset([inner], cyclic=False, seed=1)


def test_a_finite_mixture_that_a_source_joined_is_resumed_exactly():
    """The clock of the source is that of a resume from any later step."""
    states = {}
    for sample in islice(finite_within_finite("bc"), 5):
        states.update(to_state(sample))
    whole = [plain(sample) for sample in resumed(lambda: finite_within_finite("abcd"), states)]
    assert len(whole) == 19
    for step, sample in enumerate(islice(resumed(lambda: finite_within_finite("abcd"), dict(states)), 18), 1):
        states.update(to_state(sample))
        again = resumed(lambda: finite_within_finite("abcd"), states)
        assert [plain(sample) for sample in again] == whole[step:]
