"""Exactly once over all changes, and the suffix where nothing changed: random jobs, and what hypothesis thinks of."""

import logging

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.elastic.driver import Walk, run_walk
from tests.elastic.functions import FUNCTIONS, YIELDS
from tests.elastic.job import Job
from tests.elastic.worlds import Config, Leaf, Mix
from tests.seeds import seeds


@pytest.fixture(autouse=True)
def _quiet():
    """Each source that leaves or returns, and each change of topology, has a line in the log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_random_jobs(seed):
    """Trees, functions, topologies, weights and crashes out of a seed; `tests.elastic.soak` runs more of them."""
    run_walk(seed, 40)


TOPOLOGIES = st.builds(dict, dp_size=st.integers(1, 4), num_workers=st.integers(0, 2))
WEIGHTS = st.fixed_dictionaries({path: st.sampled_from([0.3, 1, 3]) for path in ("a", "b", "inner", "inner.c")})
ABSENT = st.sets(st.sampled_from(["b", "inner"])).map(frozenset)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(
    ("seed", "varies"),
    [
        pytest.param(11000029, False, marks=pytest.mark.long),
        pytest.param(13000239, False, marks=pytest.mark.long),
        pytest.param(15000225, False, marks=pytest.mark.long),
        pytest.param(21000442, False, marks=pytest.mark.long),
        (24000058, False),
        pytest.param(25000282, False, marks=pytest.mark.long),
        (44000007, True),
    ],
)
def test_random_jobs_that_once_failed(seed, varies):
    """What each was found by: a fault of the package, mended since."""
    run_walk(seed, 80, varies=varies)


class Jobs(RuleBasedStateMachine):
    """One job of four sources, one of them below a mixture, with everything that may happen to it."""

    @initialize(
        function=st.sampled_from(["plain", "joined", "packer", "rows", "irregular", "echo", "split"]),
        over=st.sampled_from(["", "", *YIELDS]),
        cyclic=st.booleans(),
        shuffle=st.booleans(),
        topology=TOPOLOGIES,
        batch_size=st.integers(1, 3),
        sets_epoch=st.booleans(),
    )
    def begin(self, function, over, cyclic, shuffle, topology, batch_size, sets_epoch):
        """A tree and a topology."""
        inner = Mix((Leaf("c", 60, "copies", "plain", 3), Leaf("d", 5)), "inner", cyclic, function=over, seed=3)
        children = (Leaf("a", 100, function=function), Leaf("b", 9), inner)
        self.mix = Mix(children, cyclic=cyclic, shuffle=shuffle)
        self.job = Job(self.mix, Config(**topology, batch_size=batch_size), sets_epoch=sets_epoch)

    @rule(rank=st.integers(0, 3), batches=st.integers(1, 9))
    def deliver(self, rank, batches):
        """One rank delivers."""
        self.job.deliver(rank, batches)

    @rule(rank=st.integers(0, 3))
    def save(self, rank):
        """One rank saves."""
        self.job.save(rank)

    @rule()
    def save_all(self):
        """All do."""
        self.job.save()

    @rule(join=st.booleans())
    def crash(self, join):
        """The same job goes on."""
        self.job.crash(join=join)

    @rule(topology=TOPOLOGIES)
    def resize(self, topology):
        """Another topology."""
        self.job.change(**topology)

    @rule(topology=TOPOLOGIES, weights=WEIGHTS, absent=ABSENT)
    def change_all(self, topology, weights, absent):
        """Topology, weights and sources at one resume."""
        self.job.change(**topology, weights=weights, absent=absent)

    @rule(weights=WEIGHTS, absent=ABSENT)
    def change_mixture(self, weights, absent):
        """Weights and sources."""
        self.job.change(weights=weights, absent=absent)

    @precondition(lambda self: hasattr(self, "job"))
    @invariant()
    def nothing_is_unknown(self):
        """What came is in the sources; that none of it came again was seen as it came."""
        self.job.check()

    def teardown(self):
        """All sources return, and all that was begun comes to its end."""
        if hasattr(self, "job"):
            self.job.change(absent=frozenset(), dp_size=2, num_workers=2)
            if not self.job.ended_without:
                self.job.finish()


Jobs.TestCase.settings = settings(
    max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestJobs = pytest.mark.usefixtures("_quiet")(Jobs.TestCase)


def test_functions_are_all_among_the_random_jobs():
    """Each kind of function and each yield function is drawn by some seed."""
    mixes = [Walk(seed).mix for seed in range(200)]
    assert {leaf.function for mix in mixes for _, leaf in mix.leaves()} == set(FUNCTIONS)
    assert {part.function for mix in mixes for part in mix.mixtures()} == {"", *YIELDS}
