import copy
import json
import os
import warnings
from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from streamdata.delivery.sampler import ResumableDistributedSampler
from streamdata.errors import StateError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its modules for data pipes
    from torchdata.stateful_dataloader import StatefulDataLoader

IN_TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
SHUFFLES = [True, False, "lazy"]


def replicas(size, num_replicas, state=None, **options):
    """The samplers of all replicas, gone on from a state."""
    samplers = [
        ResumableDistributedSampler(range(size), num_replicas=num_replicas, rank=rank, **options)
        for rank in range(num_replicas)
    ]
    for sampler in samplers if state is not None else ():
        sampler.load_state_dict(json.loads(json.dumps(state)))
    return samplers


def in_turn(samplers):
    """What the job delivers: one sample of each replica, and again."""
    return [index for together in zip(*samplers, strict=True) for index in together]


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_order_is_the_permutation_of_seed_plus_epoch(num_replicas, drop_last):
    """Replica r takes [r::num_replicas] of torch's permutation, padded from its beginning."""
    whole = torch.randperm(20, generator=torch.Generator().manual_seed(42 + 3)).tolist()
    length = 20 // num_replicas * num_replicas if drop_last else -(-20 // num_replicas) * num_replicas
    padded = (whole + whole)[:length]
    for rank, sampler in enumerate(replicas(20, num_replicas, start_epoch=3, drop_last=drop_last)):
        assert list(sampler) == padded[rank::num_replicas]
        assert len(sampler) == len(list(sampler))


def test_names_of_astrai_are_taken(monkeypatch):
    """`data_source` for the dataset, `process_group` for the replicas; not beside ours."""
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group[0])
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group[1])
    sampler = ResumableDistributedSampler(data_source=range(20), process_group=(3, 2))
    assert list(sampler) == list(replicas(20, 3)[2])
    with pytest.raises(TypeError, match="expected dataset or data_source, got both"):
        ResumableDistributedSampler(range(3), data_source=range(3))
    with pytest.raises(ValueError, match="expected process_group alone"):
        ResumableDistributedSampler(range(3), rank=1, process_group=(3, 2))


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_each_epoch_is_a_permutation(shuffle):
    """Every index once per epoch, and another order in the next one where it is shuffled."""
    (sampler,) = replicas(100, 1, shuffle=shuffle)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == sorted(sampler) == list(range(100))
    assert (first != list(sampler)) == bool(shuffle)


class Copies(list):
    """Three copies of each record, side by side."""

    records_per_block = 3


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_records_that_belong_together_stay_so(shuffle):
    """In the sequence that replicas go through together; a resume within them too."""
    for num_replicas in (1, 3):
        samplers = [
            ResumableDistributedSampler(Copies(range(30)), shuffle=shuffle, num_replicas=num_replicas, rank=rank)
            for rank in range(num_replicas)
        ]
        order = in_turn(samplers)
        blocks = [order[at] // 3 for at in range(0, 30, 3)]
        assert order == [3 * block + copy for block in blocks for copy in range(3)]
        assert (blocks != sorted(blocks)) == bool(shuffle)
        assert sorted(blocks) == list(range(10))
    again = ResumableDistributedSampler(Copies(range(30)), shuffle=shuffle, num_replicas=1, rank=0)
    again.load_state_dict(samplers[0].state_dict(delivered=4))
    assert list(again) == order[12:]


def test_copies_belong_to_their_dataset():
    """Neither a length that they do not divide, nor a state of another number of them."""
    with pytest.raises(ValueError, match="records_per_block 3 divides, got 10"):
        ResumableDistributedSampler(Copies(range(10)), num_replicas=1, rank=0)
    (alone,) = replicas(30, 1)
    with pytest.raises(StateError, match="expected records_per_block 1, got 3"):
        alone.load_state_dict(ResumableDistributedSampler(Copies(range(30)), num_replicas=1, rank=0).state_dict(1))


@pytest.mark.parametrize("num_replicas", [1, 2, 3])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_resume_at_every_step_is_the_suffix(num_replicas, shuffle):
    """By start_iter or by a state through JSON, on every replica, the last step included."""
    whole = [list(sampler) for sampler in replicas(17, num_replicas, start_epoch=2, shuffle=shuffle)]
    for step in range(len(whole[0]) + 1):
        state = replicas(17, num_replicas, start_epoch=2, shuffle=shuffle)[0].state_dict(step)
        by_state = replicas(17, num_replicas, state, shuffle=shuffle)
        by_count = replicas(17, num_replicas, start_epoch=2, start_iter=step, shuffle=shuffle)
        for rank in range(num_replicas):
            assert list(by_state[rank]) == list(by_count[rank]) == whole[rank][step:]
            assert len(by_state[rank]) == len(whole[rank]) - step
            assert (by_state[rank].epoch, by_state[rank].delivered) == (2, step)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_changed_number_of_replicas_delivers_the_rest(before, after, drop_last):
    """At every step: what was delivered before, and then after, is the epoch in its order."""
    order = list(replicas(17, 1)[0])
    for step in range(len(replicas(17, before, drop_last=drop_last)[0]) + 1):
        first = replicas(17, before, drop_last=drop_last)
        delivered = in_turn([list(sampler)[:step] for sampler in first])
        rest = in_turn(replicas(17, after, first[-1].state_dict(step), drop_last=drop_last))
        both = delivered + rest
        assert both[:17] == order[: len(both)]
        assert 17 - after < len(both) <= 17 if drop_last else both[17:] == order[: len(both) - 17]


@given(st.data(), st.integers(1, 60), st.booleans(), st.sampled_from(SHUFFLES))
def test_any_chain_of_changes_delivers_the_epoch_once(data, size, drop_last, shuffle):
    """Resume after resume, with any replicas: every sample once, repeats only to fill the last round."""
    options = {"shuffle": shuffle, "drop_last": drop_last, "start_epoch": 5}
    state, delivered, num_replicas = None, [], 1
    for num_replicas in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
        samplers = replicas(size, num_replicas, state, **options)
        steps = data.draw(st.integers(0, len(samplers[0])))
        delivered += in_turn([list(islice(sampler, steps)) for sampler in samplers])
        states = [sampler.state_dict(sampler.delivered + steps) for sampler in samplers]
        assert all(other == states[0] for other in states)
        state = states[0]
    delivered += in_turn(replicas(size, num_replicas, state, **options))
    counts = Counter(delivered[:size])
    assert max(counts.values(), default=1) == 1
    assert len(counts) > size - num_replicas if drop_last else len(counts) == size


def test_a_finished_epoch_stays_finished_under_fewer_replicas():
    """Its repeats for five replicas are more than one replica could have given."""
    state = replicas(1, 5)[0].state_dict(1)
    for num_replicas in (1, 1, 3, 2):
        samplers = replicas(1, num_replicas, state)
        assert in_turn(samplers) == []
        state = samplers[0].state_dict(samplers[0].delivered)


def test_next_epoch_starts_at_its_beginning():
    """The start counts in its own epoch, until that has ended."""
    (sampler,) = replicas(10, 1, start_epoch=1, start_iter=4)
    sampler.set_epoch(2)
    assert len(sampler) == len(list(sampler)) == 10
    sampler.set_epoch(1)
    assert len(list(sampler)) == 6
    sampler.set_epoch(1)
    assert len(sampler) == len(list(sampler)) == 10


def test_an_iteration_that_ended_is_followed_by_the_next_epoch():
    """From its beginning, without set_epoch; one that was left begins again where it began."""
    (sampler,) = replicas(10, 1, start_epoch=3, start_iter=4)
    assert [next(iter(sampler)) for _ in range(2)] == list(sampler)[:1] * 2
    passes = [list(sampler) for _ in range(2)]
    for epoch, got in enumerate(passes, 4):
        (alone,) = replicas(10, 1, start_epoch=epoch)
        assert got == list(alone)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_until_the_next_epoch_begins_its_state_is_of_the_one_that_ended(num_workers):
    """A DataLoader exhausts the sampler a prefetch before the trainer has the last batches."""
    (sampler,) = replicas(30, 1, start_epoch=2, start_iter=6)
    loader = DataLoader(range(30), 4, sampler=sampler, num_workers=num_workers)
    got, delivered = [], sampler.delivered
    for number, batch in enumerate(loader):
        got += batch.tolist()
        delivered += len(batch)
        state = sampler.state_dict(delivered)
        assert (state["epoch"], sampler.epoch, state["delivered_by_all"]) == (2, 2, delivered)
        if number == 4:
            (again,) = replicas(30, 1, state)
    assert got[20:] == list(again)
    assert [len(batch) for batch in loader] == [4] * 7 + [2]
    assert (sampler.epoch, sampler.delivered) == (3, 0)


def test_after_loading_a_state_its_epoch_is_next():
    """Whatever had ended before."""
    (sampler,) = replicas(10, 1)
    list(sampler)
    state = sampler.state_dict(7)
    sampler.load_state_dict(state)
    assert len(list(sampler)) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_state_by_the_trainers_count_under_a_dataloader(num_workers):
    """Workers are ahead of the trainer; its own count says where to go on, with persistent workers too."""
    sampler = replicas(40, 2, start_epoch=1)[1]
    options = {"num_workers": num_workers, "persistent_workers": bool(num_workers)}
    loader = DataLoader(range(40), batch_size=3, sampler=sampler, **options)
    batches = [batch.tolist() for batch in loader]
    state = sampler.state_dict(3 * 2)
    sampler.set_epoch(2)
    another = [index for batch in loader for index in batch.tolist()]
    sampler.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == batches[2:]
    assert another == list(replicas(40, 2, start_epoch=2)[1])


def test_lazy_order_holds_no_list_of_numbers():
    """10**9 samples start at once, wherever, in bounded memory."""
    dataset = range(10**9)
    sampler = ResumableDistributedSampler(dataset, shuffle="lazy", start_iter=10**8, num_replicas=8, rank=7)
    assert len(sampler) == 10**9 // 8 - 10**8
    some = list(islice(sampler, 10_000))
    assert len(set(some)) == 10_000
    assert max(some) > 9e8


def test_replicas_are_found_where_they_are_not_given(monkeypatch):
    """From the environment that torchrun sets; one alone may be given."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert list(ResumableDistributedSampler(range(8), shuffle=False)) == [3, 7]
    assert list(ResumableDistributedSampler(range(8), shuffle=False, rank=1)) == [1, 5]
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="RANK is not set"):
        ResumableDistributedSampler(range(8))


def in_the_environment_of_three(rank):
    """What a sampler of three samples gives."""
    os.environ |= {"WORLD_SIZE": "3", "RANK": "1"}
    return list(ResumableDistributedSampler(range(3), shuffle=False))


def test_replicas_are_found_from_torch_distributed(on_ranks):
    """An initialised process group comes before the environment."""
    assert on_ranks(in_the_environment_of_three, size=1) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"start_epoch": -1}, "as start_epoch, got -1"),
        ({"start_iter": 1.5}, r"as start_iter, got 1\.5"),
        ({"start_iter": 5}, r"at most 4 as start_iter, got 5\n.*one of 3 replicas, of 10 samples"),
        ({"seed": "x"}, "as seed, got 'x'"),
        ({"shuffle": "laxy"}, "'lazy' as shuffle, got 'laxy'"),
        ({"num_replicas": 0}, "got dp_rank=2, dp_size=0"),
        ({"rank": 3}, "got dp_rank=3, dp_size=3"),
        ({"rank": True}, "as rank, got True"),
        ({"dataset": []}, "expected a dataset with samples, got an empty one"),
    ],
)
def test_useless_arguments_are_errors(options, found):
    """The message says which, and what was expected."""
    with pytest.raises(ValueError, match=found):
        ResumableDistributedSampler(**{"dataset": range(10), "num_replicas": 3, "rank": 2, **options})


@pytest.mark.parametrize(("start", "count"), [(0, 11), (0, -1), (0, 1.5), (4, 3)])
def test_impossible_counts_are_errors(start, count):
    """Fewer than this sampler began with, more than the epoch has, or no number."""
    with pytest.raises(ValueError, match=r"delivered.*, got"):
        replicas(10, 1, start_iter=start)[0].state_dict(count)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"num_samples": 11}, "expected num_samples 10, got 11"),
        ({"seed": 43}, "expected seed 42, got 43"),
        ({"shuffle": "lazy"}, "expected shuffle True, got 'lazy'"),
        ({"shuffle": 1}, "expected shuffle True, got 1"),
        ({"version": 2}, "expected version 1, got 2"),
        ({"epoch": -1}, "as epoch, got -1"),
        ({"delivered_by_all": None}, "as delivered_by_all, got None"),
        ({"delivered_by_all": 12}, "less than 12 as delivered_by_all, got 12"),
    ],
)
def test_states_that_do_not_belong_are_errors(change, found):
    """Another dataset, seed or order, or damage; the sampler stays where it was."""
    (sampler,) = replicas(10, 1, start_iter=3)
    with pytest.raises(StateError, match=found):
        sampler.load_state_dict({**replicas(10, 2)[0].state_dict(2), **change})
    assert sampler.delivered == 3
    with pytest.raises(StateError, match="got None"):
        sampler.load_state_dict({})


def test_a_state_is_written_with_its_keys_in_one_order():
    """Checkpoints of one position are the same bytes, whichever version wrote them."""
    state = ResumableDistributedSampler(range(6), num_replicas=1, rank=0).state_dict(0)
    where = ["version", "epoch", "delivered_by_all", "num_replicas"]
    assert list(state) == [*where, "num_samples", "records_per_block", "seed", "shuffle"]


def stateful(sampler, num_workers, **options):
    """What verl's trainer builds."""
    return StatefulDataLoader(
        range(30), 2, sampler=sampler, num_workers=num_workers, drop_last=True, collate_fn=list, **options
    )


@IN_TORCHDATA
@pytest.mark.parametrize(("num_workers", "every"), [(0, 1), (2, 2)])
def test_a_stateful_loader_saves_and_loads_the_sampler(num_workers, every):
    """After every batch of two epochs, the last ones too: the rest of the uninterrupted run."""
    options = {"snapshot_every_n_steps": every}
    loader, whole, saved = stateful(replicas(30, 3)[1], num_workers, **options), [], []
    for epoch in range(2):
        for batch in loader:
            whole.append(batch)
            saved.append((epoch, copy.deepcopy(loader.state_dict())))
        saved[-1] = (epoch + 1, copy.deepcopy(loader.state_dict()))
    assert len(whole) == 10
    for step in (0, 1, 3, 4, 5, 8):
        done, state = saved[step]
        again = stateful(replicas(30, 3)[1], num_workers, **options)
        again.load_state_dict(state)
        assert [batch for _ in range(done, 2) for batch in again] == whole[step + 1 :], step


@IN_TORCHDATA
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_goes_on_with_other_replicas(num_workers):
    """Three replicas deliver two batches each, two deliver the rest: each index once."""
    given = []
    for sampler in replicas(30, 3):
        loader = stateful(sampler, num_workers)
        given += [index for batch in islice(loader, 2) for index in batch]
        state = copy.deepcopy(loader.state_dict())
    for sampler in replicas(30, 2):
        loader = stateful(sampler, num_workers)
        loader.load_state_dict(copy.deepcopy(state))
        given += [index for batch in loader for index in batch]
    # 18 are left, 9 for each replica: drop_last drops the last one of each.
    assert len(given) == len(set(given)) == 28


def test_only_torchdata_leaves_out_the_count():
    """A stock DataLoader has taken indices that nobody has received."""
    (sampler,) = replicas(30, 1)
    next(iter(DataLoader(range(30), sampler=sampler)))
    with pytest.raises(ValueError, match=r"Call state_dict\(delivered\)"):
        sampler.state_dict()
