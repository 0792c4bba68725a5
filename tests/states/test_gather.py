"""Real ranks that meet over torch.distributed: gloo, two processes."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from streamdata import StateError, gather_states, merge_states
from streamdata.states import joining
from tests.states.test_saving import Rank, make


def taken(rank, batches=3, **settings):
    """What a rank holds after some batches."""
    trainer = Rank(rank, 2, **settings)
    trainer.take(batches)
    return trainer.states


def gathers(rank):
    """All that can be gathered in one meeting."""
    states = taken(rank, 3 + rank, num_workers=2)
    nothing = {} if rank else states
    found = [gather_states(states), gather_states(states, dst=1), gather_states(nothing)]
    return states, [None if gathered is None else dict(gathered) for gathered in found]


def test_all_ranks_get_the_same_or_one_gets_it(on_ranks):
    """As merge_states joins it; a rank that delivered nothing is recorded."""
    (first, of_first), (second, of_second) = on_ranks(gathers)
    joined = merge_states(first, second)
    assert of_first == [joined, None, first | {"idle/0/1": True}]
    assert of_second == [joined, joined, first | {"idle/0/1": True}]


def gathers_after_a_change(rank):
    """What one rank had delivered alone goes on as two, of which the first delivers nothing."""
    alone = Rank(0, 1)
    alone.take(3)
    trainer = Rank(rank, 2, dict(alone.states))
    trainer.take(3 * rank)
    return trainer.states, [dict(gather_states(trainer.states)), gather_states(trainer.states, dst=0)]


def test_what_was_before_a_change_of_size_is_gathered(on_ranks):
    """From the rank that has it; also where it is not the one that gets it."""
    (_, (every, of_first)), (second, (again, of_second)) = on_ranks(gathers_after_a_change)
    want = merge_states(second) | {"idle/1/0": True}
    assert "deal/1" in want
    assert every == again == dict(of_first) == want
    assert of_second is None


def other_workers(rank):
    return gather_states(taken(rank, num_workers=2 + rank), dst=0)


def not_states(rank):
    return gather_states({"x": 1} if rank else taken(rank), dst=0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (other_workers, "rank 1 and rank 0 are not of one run: they differ in generation/0.num_workers: 3, not 2"),
        (not_states, "rank 1: states: 'x': 1 does not come from to_state"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(on_ranks, function, message):
    """Also where it would not have been returned, and whichever rank it is that has it."""
    for result in on_ranks(function):
        assert result.startswith("StateError: ")
        assert message in result


def verified(rank, states=None, dp_size=2, replica=None, **changes):
    """What verify_agreement raises, as text."""
    dataset = make(**changes)
    dataset.set_data_parallel(dp_size, rank if replica is None else replica)
    dataset.set_dataloader_states(states or {})
    try:
        dataset.verify_agreement()
    except StateError as error:
        return str(error)
    return None


def agreements(rank):
    """Each time both ranks meet with something else."""
    own = taken(rank)
    joined = merge_states(taken(0), taken(1))
    older = merge_states(taken(0), taken(1, 2))
    return {
        "nothing": verified(rank),
        "own states": verified(rank, own),
        "joined states": verified(rank, joined),
        "seed": verified(rank, seed=4 + rank),
        "recipe": verified(rank, weight=2 + rank),
        "skip": verified(rank, skip=[{"source": "mix.b", "index": rank}]),
        "topology": verified(rank, dp_size=2 + rank),
        "the same replica": verified(rank, replica=0),
        "replicas of two processes": verified(rank, dp_size=1, replica=0),
        "number of workers": verified(rank, taken(rank, num_workers=2 + rank)),
        "states": verified(rank, older if rank else joined),
        "states' header": verified(rank, own if rank else {}),
    }


def test_ranks_that_do_not_agree_are_named_on_every_rank(on_ranks):
    """With what differs, and nothing else; ranks that agree go on."""
    for found in on_ranks(agreements):
        for agreed in ("nothing", "own states", "joined states", "replicas of two processes"):
            assert found.pop(agreed) is None
        same = found.pop("the same replica")
        assert "rank 1 has another topology: it is replica 0, and so is rank 0" in same
        workers = found.pop("number of workers")
        assert "topology in its states than rank 0: 2 ranks with 3 workers each, not 2 ranks with 2 workers" in workers
        for what, message in found.items():
            assert f"rank 1 has another {what} than rank 0: " in message
            assert message.count("rank 1 has another") == 1


def test_alone_a_rank_agrees_with_itself_and_gathers_its_own():
    """Without a process group there is one replica; where there are more, they cannot meet."""
    trainer = Rank(0, 1)
    trainer.take(3)
    assert dict(gather_states(trainer.states)) == trainer.states
    assert verified(0, trainer.states, dp_size=1) is None
    assert "no process group" in verified(0, dp_size=2)


def test_several_ranks_without_a_group_cannot_gather(monkeypatch):
    """It would look like all states, and be one rank's."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StateError, match="there are 2 ranks, and no process group"):
        gather_states(taken(1))


def test_under_nccl_objects_travel_by_the_device_that_the_group_is_bound_to(monkeypatch):
    """The current one is device 0 where nobody has set it, on every rank of a machine."""
    entered = []
    monkeypatch.setattr(dist.group.__class__, "WORLD", SimpleNamespace(bound_device_id=torch.device("cuda", 3)))
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or contextlib.nullcontext())
    for name, found in {"is_initialized": True, "get_rank": 0, "get_world_size": 1, "all_gather_object": None}.items():
        monkeypatch.setattr(dist, name, lambda *_, found=found: found)
    joining.gather("an object")
    assert entered == [torch.device("cuda", 3)]


def replicas(rank):
    """Two processes that are one replica, as under tensor parallelism; the second may read nothing, or stand apart."""
    states = [taken(0, batches) for batches in (3, 3 + rank)]
    found = []
    for mine in (states[0], {} if rank == 0 else states[0], states[1]):
        try:
            found.append(dict(gather_states(mine, rank=0, size=2)) and None)
        except StateError as error:
            found.append(str(error).splitlines()[0])
    both = Rank(0, 1)
    both.take(3)
    found.append(dict(gather_states(both.states, rank=0, size=1)) == both.states)
    found.append(dict(gather_states(both.states if rank else {}, rank=0, size=1)) == both.states)
    apart = Rank(0, 1)
    apart.take(3 + rank)
    try:
        gather_states(apart.states, rank=0, size=1)
    except StateError as error:
        found.append(str(error).splitlines()[0])
    return found


def test_processes_of_one_replica_count_once(on_ranks):
    """One that reads nothing is passed over; two that stand apart are an error, and so is a replica without any."""
    lacks = "gather_states: no process is replica 1 of 2"
    apart = "gather_states: processes 0 and 1 are both replica 0, and stand apart"
    for found in on_ranks(replicas):
        assert found == [lacks, lacks, apart, True, True, apart]


def test_both_of_rank_and_size_are_given():
    """Or neither."""
    with pytest.raises(ValueError, match="gather_states: expected both rank and size"):
        gather_states({}, rank=0)
