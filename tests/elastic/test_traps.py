"""Where an elastic resume could go wrong: each trap has its case."""

import json
import logging
import random
import re
from itertools import cycle

import pytest

from streamdata import MergedDataset, StateError, merge_states, mixed_collate, to_state
from tests.elastic.functions import FUNCTIONS, YIELDS
from tests.elastic.job import Job
from tests.elastic.worlds import Config, Leaf, Mix
from tests.streams import Numbers, loaded, plain, resumed


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Each change has a line in the log."""
    caplog.set_level(logging.CRITICAL, "streamdata")


def job(*leaves, config=None, **settings):
    """A job of these sources, by default with four ranks."""
    return Job(Mix(tuple(leaves), **settings), config or Config(dp_size=4))


def delivering(a_job, *batches):
    """Each rank delivers that many batches, and all save."""
    for number, count in enumerate(batches):
        a_job.deliver(number, count)
    a_job.save()
    return a_job


KINDS = {
    "single records": Leaf("a", 50),
    "read ahead": Leaf("a", 50, "ahead"),
    "blocks of copies": Leaf("a", 60, "copies", block_size=3),
    "windows of a JSONL": Leaf("a", 60, "jsonl", block_size=3, shuffle_buffer=12),
    "blocks of a tar": Leaf("a", 60, "tar", block_size=4),
    "read from the start": Leaf("a", 60, "gz", shuffle_buffer=6),
}
PAIRS = [(kind, number % 2 == 0, number % 4 < 2) for number, kind in enumerate(KINDS)]
"""Each kind once, and each pair of settings; random jobs have the others."""


@pytest.mark.parametrize(("kind", "cyclic", "shuffle"), PAIRS)
def test_every_kind_of_source_over_three_changes(kind, cyclic, shuffle):
    """More lanes, fewer, and the first number again; each in the middle of what lanes had begun."""
    a_job = job(KINDS[kind], Leaf("b", 23), cyclic=cyclic, shuffle=shuffle, config=Config(2, 2))
    for topology in ({"dp_size": 5, "num_workers": 1}, {"dp_size": 1, "num_workers": 3}, {"dp_size": 2}):
        delivering(a_job, *range(2, 2 + a_job.config.dp_size))
        a_job.change(**topology)
    a_job.finish()


@pytest.mark.parametrize(("function", "kind"), list(zip(FUNCTIONS, cycle(["map", "jsonl"]), strict=False)))
def test_every_kind_of_function_over_two_changes(function, kind):
    """In the middle of a record's samples and of bursts: no token twice, none lost, few short rows."""
    a_job = job(Leaf("a", 120, kind, function, 3, 12), config=Config(3, 1))
    for dp_size in (2, 3):
        delivering(a_job, 7, 4, 10)
        a_job.change(dp_size=dp_size)
        delivering(a_job, 1)
        a_job.crash()
    a_job.finish()


@pytest.mark.each_value
@pytest.mark.parametrize("inner", YIELDS)
@pytest.mark.parametrize("outer", ["", *YIELDS])
def test_yield_functions_at_two_levels(inner, outer):
    """At most one burst of each old lane and function comes again, and nothing is lost."""
    below = Mix((Leaf("b", 20), Leaf("c", 30, function="packer")), "inner", function=inner, seed=3)
    a_job = job(Leaf("a", 30), below, function=outer, config=Config(2, 2))
    for topology in ({"dp_size": 3}, {"dp_size": 1, "num_workers": 0}):
        delivering(a_job, 9, 8, 7)
        a_job.change(**topology)
    a_job.finish()


def test_there_and_back_is_a_topology_of_its_own():
    """A → B → A: the cursors of the first A say nothing of the second."""
    a_job = delivering(job(Leaf("a", 100), Leaf("b", 40, function="joined")), 5, 6, 7, 8)
    a_job.change(dp_size=2)
    delivering(a_job, 4, 9)
    a_job.change(dp_size=4)
    delivering(a_job, 3, 0, 2, 1)
    a_job.crash()
    a_job.finish()


def test_a_source_that_was_not_drawn_since_a_change_has_no_stale_cursor():
    """Its cursors are of the topology before: they say what was begun there, not where lanes stand."""
    a_job = delivering(job(Leaf("a", 100), Leaf("rare", 30), config=Config(4, weights={"rare": 0.05})), 25, 30, 25, 25)
    for dp_size in (3, 5, 2):
        a_job.change(dp_size=dp_size)
        delivering(a_job, *[1] * dp_size)
        a_job.crash()
    a_job.finish()


def test_a_rank_without_a_step_over_two_changes():
    """Of a rank that delivered nothing all that was dealt to it is dealt again."""
    a_job = delivering(job(Leaf("a", 60), Leaf("b", 11)), 3, 0, 0, 8)
    a_job.change(dp_size=6)
    delivering(a_job, 0, 4, 0, 0, 0, 2)
    a_job.change(dp_size=3)
    a_job.finish()


def test_no_rank_takes_a_step_between_two_changes():
    """The states still say the topology before."""
    a_job = delivering(job(Leaf("a", 60, function="joined")), 3, 1, 0, 8)
    for dp_size in (6, 2, 5):
        a_job.change(dp_size=dp_size)
    a_job.finish()


@pytest.mark.parametrize(("size", "cyclic"), [(1, True), (1, False), (2, False), (5, True)])
def test_fewer_blocks_than_lanes(size, cyclic):
    """First lanes lie beyond the number of blocks, in a later epoch."""
    a_job = job(Leaf("tiny", size), Leaf("a", 40), cyclic=cyclic, config=Config(3, 2))
    for topology in ({"dp_size": 7}, {"dp_size": 1, "num_workers": 1}, {"dp_size": 4, "num_workers": 2}):
        delivering(a_job, *[3, 1, 2, 1, 4, 1, 1][: a_job.config.dp_size])
        a_job.change(**topology)
    a_job.finish()


@pytest.mark.parametrize("seed", [3, 4])
def test_what_earlier_topologies_left_is_told_by_less_once_it_is_read(seed):
    """Of a source of one record, whose epochs end before what is left of it is nothing but shifted."""
    a_job, rng = job(Leaf("a", 20), Leaf("tiny", 1), config=Config()), random.Random(seed)
    for _ in range(12):
        delivering(a_job, *(rng.randint(0, 6) for _ in a_job.ranks))
        a_job.change(dp_size=rng.randint(1, 3), num_workers=rng.randint(1, 2))
    a_job.finish()


def test_windows_are_clipped_at_the_end_of_an_epoch():
    """Lanes stand in epochs apart, each with its last window shorter than the others."""
    leaf = Leaf("a", 60, "jsonl", block_size=3, shuffle_buffer=12)
    a_job = delivering(job(leaf, config=Config(3)), 19, 25, 70)
    a_job.change(dp_size=2)
    delivering(a_job, 31, 2)
    a_job.change(dp_size=4)
    a_job.finish()


def test_a_source_that_was_absent_goes_on_over_changes_of_size():
    """Through two topologies in which it had no part; and at each resume something else changes too."""
    a_job = delivering(job(Leaf("a", 60), Leaf("b", 50, function="packer"), Leaf("c", 31)), 9, 7, 8, 6)
    for changes in (
        {"absent": frozenset("b"), "dp_size": 3},
        {"absent": frozenset("bc"), "dp_size": 2, "num_workers": 2},
        {"absent": frozenset("c"), "weights": {"b": 3}},
        {"absent": frozenset(), "dp_size": 5, "num_workers": 1},
    ):
        a_job.change(**changes)
        delivering(a_job, 4, 2, 3)
        a_job.crash()
    a_job.finish()


def test_stale_copies_do_not_come_back():
    """Joined in any sequence, together with dicts of earlier checkpoints and other topologies."""
    a_job = delivering(job(Leaf("a", 60), Leaf("b", 31)), 5, 6, 7, 8)
    old = [a_job.joined()]
    for dp_size in (2, 4):
        a_job.change(dp_size=dp_size)
        delivering(a_job, 3, 9, 2, 4)
        parts = [json.loads(rank.saved.states) for rank in a_job.ranks]
        want = merge_states(*parts)
        for seed in range(5):
            several = [*parts, *old]
            random.Random(seed).shuffle(several)
            assert merge_states(*several) == want
        old.append(want)


def test_a_later_step_of_an_older_topology_is_older():
    """`merge_states` looks at the generation first: few draws since a change are more than many before it."""
    a_job = delivering(job(Leaf("a", 60)), 50, 50, 50, 50)
    before = a_job.joined()
    a_job.change(dp_size=2)
    delivering(a_job, 1, 1)
    after = a_job.joined()
    assert merge_states(after, before) == merge_states(before, after)
    assert merge_states(before, after).items() >= {k: v for k, v in after.items() if k[0] != "i"}.items()


def test_the_tail_of_a_later_epoch_is_read():
    """The only block that was begun is of an epoch that no other lane has come to."""
    for dp_size in (5, 2, 3):
        a_job = job(Leaf("a", 12, "copies", block_size=3), config=Config(10), shuffle=False)
        delivering(a_job, *[0] * 9, 1)
        a_job.change(dp_size=dp_size)
        a_job.finish()


def test_topology_weights_and_sources_at_one_resume_make_one_generation():
    """Not one for each."""
    a_job = delivering(job(Leaf("a", 60), Leaf("b", 31)), 2, 2, 2, 2)
    a_job.change(dp_size=2, weights={"a": 3}, absent=frozenset("b"))
    delivering(a_job, 2, 2)
    assert [key for key in a_job.joined() if key.startswith("generation/")] == ["generation/1"]


def test_ranks_at_different_passes_go_on_with_the_oldest():
    """What lanes had delivered of later passes counts when those begin."""
    a_job = delivering(job(Leaf("a", 24), Leaf("b", 9, function="joined"), cyclic=False), 40, 3, 0, 12)
    a_job.change(dp_size=3)
    delivering(a_job, 9, 2, 30)
    a_job.change(dp_size=2, num_workers=2)
    a_job.finish()
    assert {number for _, number in a_job.ledger.newest()} >= {0, 1, 2}


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_nothing_comes_twice_in_a_finite_mixture_within_another_one(stop):
    """What `first_exhausted` leaves over is not promised."""
    inner = Mix((Leaf("b", 20), Leaf("c", 12)), "inner", cyclic=False, stop=stop, seed=3)
    a_job = job(Leaf("a", 50), inner, cyclic=False, stop=stop, config=Config(3, 1))
    for dp_size in (2, 5, 3):
        delivering(a_job, 9, 7, 14)
        a_job.change(dp_size=dp_size)
        delivering(a_job, 3, 1)
        a_job.crash()
    delivering(a_job, 30, 30, 30)
    a_job.check()


def test_a_pass_of_an_endless_stream_that_was_left_is_gone_after_a_change_of_size():
    """Of the present one it goes on; of one before nothing is known."""
    a_job = Job(Mix((Leaf("a", 30), Leaf("b", 11))), Config(3), sets_epoch=True)
    for dp_size, number in ((2, 1), (4, 1), (3, 2)):
        delivering(a_job, 8, 5, 9)
        a_job.change(dp_size=dp_size)
        a_job.set_pass(number)
    delivering(a_job, 8, 5, 9)
    a_job.change(dp_size=1)
    a_job.set_pass(1)
    with pytest.raises(StateError, match=r"set_epoch\(1\): the number of ranks or workers has changed in pass 2"):
        delivering(a_job, 1)


def mixture(**attributes):
    """One source of 90 records with those attributes, and another."""
    return MergedDataset([Numbers("a", 90, **attributes), Numbers("b", 40)], cyclic=False, stop="all_exhausted", seed=5)


def rank_of(make, dp_size, dp_rank, states, batches, num_workers=1):
    """What a rank delivers, as plain samples; the states are brought up to date."""
    dataset = resumed(make, states) if states else make()
    dataset.set_data_parallel(dp_size, dp_rank)
    got = []
    for _, batch in zip(range(batches), loaded(dataset, num_workers), strict=False):
        states.update(to_state(mixed_collate(batch)))
        got += [plain(sample) for sample in batch]
    return got


def written_by(make, dp_size, dp_rank):
    """The states of a rank of five batches."""
    states = {}
    rank_of(make, dp_size, dp_rank, states, 5)
    return states


def failing_at_some(record):
    """Fails at ten, drops ten."""
    if record["value"] % 7 == 1 and record["value"] < 70:
        raise KeyError("one")
    return None if record["value"] % 7 == 2 and record["value"] < 70 else record


def sums(states, generation, name):
    """Of a field of the cursors of a source in a generation."""
    keys = [key for key in states if key.startswith(f"cursor/{generation}/") and key.endswith("/a")]
    return sum(states[key].get(name, 0) for key in keys)


def test_what_was_dropped_and_forgiven_is_counted_on():
    """In whole numbers that add up to the same: all ten of each, though lanes end and others begin."""

    def make():
        return mixture(single_process_fn=failing_at_some, max_bad=10)

    parts = [{}, {}, {}]
    for number, part in enumerate(parts):
        rank_of(make, 3, number, part, 17)
    before = merge_states(*parts)
    for name in ("bad", "dropped"):
        assert sums(before, 0, name) > 0
    parts = [dict(before), dict(before)]
    for number, part in enumerate(parts):
        rank_of(make, 2, number, part, 4)
    firsts = merge_states(*parts)
    for name in ("bad", "dropped"):
        assert sums(firsts, 1, name) >= sums(before, 0, name)
    for number, part in enumerate(parts):
        rank_of(make, 2, number, part, 1000)
    ended = merge_states(*parts)
    assert (sums(ended, 1, "bad"), sums(ended, 1, "dropped")) <= (10, 10)


def test_the_budget_of_failures_is_not_renewed():
    """One lane that takes over what two forgave has that much less to forgive."""

    def make(max_bad=9):
        return mixture(single_process_fn=failing_at_some, max_bad=max_bad)

    parts = [{}, {}]
    for number, part in enumerate(parts):
        rank_of(make, 2, number, part, 45)
    before = merge_states(*parts)
    assert 0 < sums(before, 0, "bad") < 9
    with pytest.raises(KeyError):  # the tenth of all, though one lane may forgive nine
        rank_of(make, 1, 0, dict(before), 1000)
    assert rank_of(lambda: make(10), 1, 0, dict(before), 1000)


def test_a_rank_of_which_nothing_is_held_is_refused_at_the_same_topology_alone(caplog):
    """There somebody may have forgotten to save it; under another one it counts as one that delivered nothing."""
    states = {}
    rank_of(mixture, 3, 0, states, 4)
    with pytest.raises(StateError, match="rank 1"):
        rank_of(mixture, 3, 1, dict(states), 1)
    newest = max(int(key.split("/")[1]) for key in states if key.startswith("generation/"))
    assert rank_of(mixture, 3, 1, {**states, f"idle/{newest}/1": True}, 1) == rank_of(mixture, 3, 1, {}, 1)
    with caplog.at_level(logging.WARNING, "streamdata"):
        assert rank_of(mixture, 2, 1, dict(states), 1)
    assert any("1" in record.message and "2" in record.message for record in caplog.records), caplog.messages


def test_a_lane_without_a_share_of_what_was_left_is_not_missing():
    """One worker gets the tail of the only block that was begun, the other nothing: nothing of it was saved, either."""

    def make():
        return MergedDataset([Numbers("a", 12, records_per_block=3)], cyclic=False)

    states = {}
    rank_of(make, 1, 0, states, 10)
    assert len(rank_of(make, 1, 0, states, 9, num_workers=2)) == 2
    assert len(rank_of(make, 1, 0, dict(states), 99, num_workers=2)) == 12


def test_a_lane_without_a_share_while_a_source_was_absent_is_not_missing():
    """In a pass that was read without the source that would have had something for it."""

    def make(*more):
        return MergedDataset([Numbers("a", 9, records_per_block=9), *more], cyclic=False, stop="all_exhausted")

    states = {}
    rank_of(make, 1, 0, states, 4, num_workers=2)
    assert rank_of(lambda: make(Numbers("b", 20)), 1, 0, states, 99, num_workers=2)


def test_after_a_change_each_rank_begins_with_its_first_worker():
    """Whichever was last before."""
    states = {}
    rank_of(mixture, 1, 0, states, 5, num_workers=2)
    assert [sample["__workerid__"] for sample in rank_of(mixture, 1, 0, states, 4, num_workers=3)] == [0, 1, 2, 0]


def test_a_change_has_a_line_in_the_log(caplog):
    """The old and the new number of ranks, the leftovers, what comes again: once for each resume."""
    states = merge_states(*(written_by(mixture, 7, rank) for rank in range(7)))
    for dp_size in (9, 9, 1):
        caplog.clear()
        with caplog.at_level(logging.INFO, "streamdata"):
            rank_of(mixture, dp_size, 0, dict(states), 1)
        line = rf"written under 7 ranks with 1 worker each; {dp_size} ranks? .* is dealt out; nothing comes again"
        assert len([message for message in caplog.messages if re.search(line, message)]) == 1, caplog.messages
    dataset = mixture()
    dataset.set_data_parallel(9, 0)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.INFO, "streamdata"):
            dataset.set_dataloader_states(states)
            assert all(list(dataset) for _ in range(2))  # two passes
        assert sum("7 ranks" in message for message in caplog.messages) == 1, caplog.messages


def test_entries_stay_small():
    """Each with its key at most 300 bytes of JSON, without the path and what a function said."""
    inner = Mix((Leaf("b", 60, "jsonl", "split, packer", 3, 12), Leaf("c", 5)), "inner", function="pairs")
    a_job = job(inner, Leaf("a", 120, "jsonl", "joined", 3, 12), config=Config(3, 2))
    for dp_size in (2, 5, 3):
        delivering(a_job, 9, 7, 14)
        a_job.change(dp_size=dp_size)
    for key, value in delivering(a_job, 2, 5, 3).joined().items():
        if not key.startswith(("generation/", "deal/")):
            *numbers, _ = key.split("/", 5) if key.startswith("cursor") else (key, "")
            without = {k: v for k, v in value.items() if k != "function"} if isinstance(value, dict) else value
            assert len(json.dumps({"/".join(numbers): without})) <= 300
