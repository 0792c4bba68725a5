"""A checkpoint does not grow with the number of times that a run was stopped."""

from itertools import islice

from streamdata import MergedDataset, to_state
from tests.streams import Numbers, loaded, resumed


def test_resumes_of_one_recipe_add_nothing_to_the_states():
    """Only another blend begins a generation, with entries of its own."""

    def mixture(weight=2):
        return MergedDataset([Numbers("a", 40, weight), Numbers("b", 30)], seed=5)

    states = {}
    for leg in range(4):
        for batch in islice(loaded(resumed(mixture, states), 2), 12):
            states.update(to_state(batch))
        if leg == 0:
            keys = set(states)
    assert set(states) == keys
    states.update(to_state(next(iter(loaded(resumed(lambda: mixture(3), states), 2)))))
    assert {"generation/0", "generation/1"} < set(states)
