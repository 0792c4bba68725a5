"""torchdata's StatefulDataLoader over a stream: it goes on by seek, and its state becomes ours."""

import copy
import gc
import warnings
import weakref
from collections import Counter
from itertools import islice

import pytest
import torch

from streamdata import MergedDataset, StateError, from_stateful, merge_states, mixed_collate, to_state
from tests.streams import Numbers, identity, in_lane, plain, through_json

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its modules for data pipes
    from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

STEPS = 7


class Counted(Numbers):
    """Numbers that count in shared memory how many of them were read."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args, **attributes)
        self.reads = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> dict:
        self.reads += 1
        return super().__getitem__(index)


def pairs(samples):
    """A stream function that joins samples two by two."""
    held = []
    for sample in samples:
        held.append(sample["value"])
        if len(held) == 2:
            yield {"pair": held}
            held = []


def nested(**options: object) -> MergedDataset:
    """A tree with a mixture in it."""
    inner = MergedDataset([Numbers("c", 9), Numbers("d", 14)], name="inner", percent=2.0)
    return MergedDataset([Numbers("a", 23), Numbers("b", 31, 2.0), inner], seed=3, **options)


def finite(**options: object) -> MergedDataset:
    """A stream that ends, with lanes that end at different times."""
    return MergedDataset([Numbers("a", 5), Numbers("b", 8)], cyclic=False, stop="all_exhausted", seed=1, **options)


def joined(**options: object) -> MergedDataset:
    """Two numbers in one sample."""
    return nested(customized_yield_fn=pairs)


def loader_of(dataset: MergedDataset, num_workers: int, **options: object) -> StatefulDataLoader:
    return StatefulDataLoader(dataset, 2, num_workers=num_workers, collate_fn=mixed_collate, **options)


def epochs(loader: StatefulDataLoader, count: int, limit: int | None = None):
    """The batches of so many iterations, after each of which there is its number."""
    for number in range(count):
        for batch in islice(loader, limit):
            yield plain(batch)
        yield number


@pytest.mark.parametrize(
    ("make", "num_workers", "every"),
    [(nested, 0, 1), (joined, 0, 1), (nested, 2, 3), (joined, 2, 1), (nested, 3, 1), (joined, 3, 3)],
)
def test_a_stateful_loader_goes_on_after_every_batch(make, num_workers, every):
    """At its snapshots and between them: the suffix of the uninterrupted run."""
    options = {"snapshot_every_n_steps": every} if num_workers else {}
    loader = loader_of(make(), num_workers, **options)
    whole, saved = [], []
    for batch in islice(loader, STEPS + 4):
        whole.append(plain(batch))
        saved.append(copy.deepcopy(loader.state_dict()))
    for step in (0, 1, 2, 4, 6):
        again = loader_of(make(), num_workers, **options)
        again.load_state_dict(saved[step])
        rest = whole[step + 1 :]
        assert [plain(batch) for batch in islice(again, len(rest))] == rest, step


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True), (7, True)])
def test_a_stateful_loader_goes_on_through_passes(num_workers, persistent):
    """Also at the end of a pass, before the first batch of one, and where lanes ended or have nothing."""
    options = {"persistent_workers": persistent}
    loader = loader_of(finite(), num_workers, **options)
    saved, whole = [], []
    for number in range(3):
        for batch in loader:
            whole.append(plain(batch))
            saved.append((len(whole), loader.state_dict()))
        whole.append(number)
        saved.append((len(whole), loader.state_dict()))
    assert whole[: whole.index(0)] != whole[whole.index(0) + 1 : whole.index(1)]
    for step, state in [*saved[:: 1 + 2 * num_workers], saved[whole.index(1)]]:
        again = loader_of(finite(), num_workers, **options)
        again.load_state_dict(copy.deepcopy(state))
        done = sum(isinstance(entry, int) for entry in whole[:step])
        rest = [entry for entry in whole[step:] if not isinstance(entry, int)]
        got = [batch for batch in epochs(again, 3 - done) if not isinstance(batch, int)]
        assert got == rest, step


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_saved_before_its_first_batch_begins_in_the_same_pass(num_workers):
    """No lane has begun it then."""
    loader = loader_of(finite(), num_workers)
    list(loader)
    second = iter(loader)
    state = copy.deepcopy(loader.state_dict())
    want = [plain(batch) for batch in second]
    again = loader_of(finite(), num_workers)
    again.load_state_dict(state)
    assert [plain(batch) for batch in again] == want


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_goes_back_in_its_own_process(num_workers):
    """To an earlier pass, with no warning: whoever loads leaves what was under way on purpose."""
    loader = loader_of(finite(), num_workers)
    batches = iter(loader)
    next(batches)
    state = copy.deepcopy(loader.state_dict())
    want = [plain(batch) for batch in batches]
    second = [plain(batch) for batch in loader]
    loader.load_state_dict(state)
    assert [plain(batch) for batch in loader] == want
    assert [plain(batch) for batch in loader] == second


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_seeks(num_workers):
    """It reads no more of the data than what it gives and what is read ahead."""
    make = lambda: MergedDataset([Counted("a", 5000), Counted("b", 5000)], seed=1)  # noqa: E731
    loader = loader_of(make(), num_workers)
    for _ in islice(loader, 200):
        pass
    state = copy.deepcopy(loader.state_dict())
    dataset = make()
    again = loader_of(dataset, num_workers)
    again.load_state_dict(state)
    next(iter(again))
    assert sum(int(source.reads) for source in dataset.datasets) < 40


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [nested, joined, finite])
def test_from_stateful_gives_what_to_state_collects(make, num_workers):
    """After every batch, and after a resume."""
    loader, states = loader_of(make(), num_workers), {}
    for batch in islice(loader, 5):
        states.update(to_state(batch))
        assert from_stateful(through_json(loader.state_dict())) == states
    again = loader_of(make(), num_workers)
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    for batch in islice(again, 2):
        states.update(to_state(batch))
        assert from_stateful(again.state_dict()) == states


def test_from_stateful_is_elastic():
    """Two ranks with two workers, then one rank with none: each record once."""
    states, counts = [], Counter()
    for rank in range(2):
        dataset = finite()
        dataset.set_data_parallel(2, rank)
        loader = loader_of(dataset, 2)
        for batch in islice(loader, 1 + rank):
            counts.update(identity(sample) for sample in batch)
        states.append(from_stateful(loader.state_dict()))
    dataset = finite()
    dataset.set_data_parallel(1, 0)
    dataset.set_dataloader_states(through_json(merge_states(*states)))
    loader = loader_of(dataset, 0)
    for batch in islice(loader, 1):
        counts.update(identity(sample) for sample in batch)
    # What was set is part of its state: it goes on from there by itself, and under a third topology.
    third = finite()
    third.set_dataloader_states(from_stateful(loader.state_dict()))
    again = loader_of(finite(), 0)
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    rest = Counter(identity(sample) for batch in again for sample in batch)
    assert rest == Counter(identity(sample) for batch in loader_of(third, 3) for sample in batch)
    assert Counter(dict.fromkeys(counts + rest, 1)) == counts + rest
    assert len(counts + rest) == 13


def test_weights_may_change_between_saves():
    """Lanes that had not begun number the new weights like those that had."""

    def make(percent: float) -> MergedDataset:
        return MergedDataset([Numbers("a", 50), Numbers("b", 50, percent)], seed=2)

    states, state = {}, None
    for percent in (1.0, 2.0, 3.0):
        loader = loader_of(make(percent), 3)
        if state is not None:
            loader.load_state_dict(state)
        states.update(to_state(next(iter(loader))))
        state = copy.deepcopy(loader.state_dict())
        assert from_stateful(state) == states
    assert {key for key in states if key.startswith("generation/")} == {f"generation/{n}" for n in range(3)}


def test_a_lane_that_could_not_know_the_pass_takes_it_from_one_that_began():
    """Workers that live on are asked for their states while another still reads the pass before to its end."""
    dataset, fresh = finite(), finite()
    ending = [iter(in_lane(dataset, worker, 2)) for worker in range(2)]
    assert list(ending[0])
    assert next(ending[1])
    lanes = [iter(in_lane(dataset, worker, 2)) for worker in range(2)]
    state = lanes[1].state_dict()
    assert list(ending[1])
    first = next(lanes[0])
    again = [iter(in_lane(fresh, worker, 2)) for worker in range(2)]
    for lane, loaded in zip(again, (lanes[0].state_dict(), state), strict=True):
        lane.load_state_dict(loaded)
    want = [[plain(sample) for sample in lane] for lane in lanes]
    assert [[plain(sample) for sample in lane] for lane in again] == want
    assert plain(first) != plain(next(iter(in_lane(finite(), 0, 2))))


def test_from_stateful_refuses_what_lies_between_snapshots():
    """The batches since then were delivered, and the state does not say which they are."""
    loader = loader_of(nested(), 2, snapshot_every_n_steps=3)
    for _ in islice(loader, 4):
        pass
    with pytest.raises(StateError, match="1 batches were delivered since the snapshot"):
        from_stateful(loader.state_dict())


@pytest.mark.parametrize("state", [{}, {"generation/0": {}}, {"fetcher_state": None}, {"_snapshot": {}}, None])
def test_from_stateful_refuses_other_states(state):
    """With what to pass instead."""
    with pytest.raises(StateError, match="from_stateful: expected the state of a StatefulDataLoader"):
        from_stateful(state)


@pytest.mark.parametrize(("dp_size", "dp_rank", "what"), [(2, 1, "rank"), (3, 0, "ranks and workers")])
def test_an_iterator_refuses_the_state_of_another_lane(dp_size, dp_rank, what):
    """It would read records that others have read, and leave out its own."""
    saved, other = nested(), nested()
    saved.set_data_parallel(2, 0)
    other.set_data_parallel(dp_size, dp_rank)
    with pytest.raises(StateError, match=f"of other {what} than this run's"):
        iter(other).load_state_dict(iter(saved).state_dict())


def test_an_iterator_refuses_what_is_no_state():
    """Such as the flat dict of to_state."""
    dataset = nested()
    with pytest.raises(StateError, match="expected what state_dict"):
        iter(dataset).load_state_dict(to_state(next(iter(dataset))))


def test_a_state_of_another_pass_does_not_apply():
    """The rule of set_epoch, for states of iterators too."""
    dataset = finite()
    first = iter(dataset)
    next(first)
    state = first.state_dict()
    other, fresh = finite(), finite()
    for each in (other, fresh):
        each.set_epoch(1)
    resumed = iter(other)
    resumed.load_state_dict(state)
    assert [plain(sample) for sample in resumed] == [plain(sample) for sample in fresh]


def test_the_dataset_has_no_state_of_its_own():
    """A loader of torchdata would call both methods if there were two; one raises, and says what to write."""
    dataset = nested()
    with pytest.raises(StateError, match="Use StreamLoader"):
        dataset.state_dict()
    assert not hasattr(dataset, "load_state_dict")


@pytest.mark.parametrize("taken", [0, 1, 30])
def test_an_iterator_that_is_dropped_lets_go_of_what_it_has_open(taken):
    """At once, not at some collection: files, and the memory that is shared with workers."""
    dataset = MergedDataset([Numbers("a", 10)], cyclic=False)
    iterator = iter(dataset)
    list(islice(iterator, taken))
    left = weakref.ref(dataset)
    gc.disable()
    try:
        del dataset, iterator
        assert left() is None
    finally:
        gc.enable()
