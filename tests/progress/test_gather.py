"""Real ranks that meet over torch.distributed: gloo, two processes."""

import contextlib
import multiprocessing
import os
import pickle
import traceback
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from streamdata import StateError, gather_states, merge_states
from streamdata.progress import ranks
from tests.progress.test_saving import Rank, make

CONTEXT = multiprocessing.get_context("forkserver")


def taken(rank, batches=3, **settings):
    """What a rank holds after some batches."""
    trainer = Rank(rank, 2, **settings)
    trainer.take(batches)
    return trainer.states


def serve(folder, function, rank, size):
    """One rank's process: what the function returns or raises lies in the folder afterwards."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        result = function(rank)
    except Exception as error:
        result = f"{type(error).__name__}: {error}" if isinstance(error, ValueError) else traceback.format_exc()
    (folder / str(rank)).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture
def on_ranks(tmp_path):
    """Runs a function of the rank in as many processes; what it returns, or its error as text, of each."""

    def run(function, size=2):
        processes = [CONTEXT.Process(target=serve, args=(tmp_path, function, rank, size)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        return [pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in range(size)]

    return run


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


def other_workers(rank):
    return gather_states(taken(rank, num_workers=2 + rank), dst=0)


def not_states(rank):
    return gather_states({"x": 1} if rank else taken(rank), dst=0)


@pytest.mark.parametrize(
    ("function", "message"),
    [(other_workers, "rank 1: generation/0 with num_workers=3"), (not_states, "rank 1: states: they do not come from")],
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
    with ranks._device():
        assert entered == [torch.device("cuda", 3)]
