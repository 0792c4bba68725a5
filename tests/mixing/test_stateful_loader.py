"""torchdata's StatefulDataLoader over a stream: it goes on by seek, and its state becomes ours."""

import copy
import gc
import json
import time
import warnings
import weakref
from collections import Counter
from itertools import islice
from traceback import clear_frames

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from streamdata import MergedDataset, StateError, from_stateful, merge_states, mixed_collate, to_state
from tests.elastic.rests import Lanes
from tests.streams import Numbers, identity, in_lane, plain, raises_in_worker, through_json

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
    [(nested, 0, 1), (joined, 0, 1), (nested, 2, 3), (joined, 3, 1)],
)
def test_a_stateful_loader_goes_on_after_every_batch(make, num_workers, every):
    """At its snapshots and between them: the suffix of the uninterrupted run."""
    options = {"snapshot_every_n_steps": every} if num_workers else {}
    loader = loader_of(make(), num_workers, **options)
    whole, saved = [], []
    for batch in islice(loader, STEPS + 4):
        whole.append(plain(batch))
        saved.append(copy.deepcopy(loader.state_dict()))
    for step in (0, 1, 4) if num_workers else (0, 1, 2, 4, 6):
        again = loader_of(make(), num_workers, **options)
        again.load_state_dict(saved[step])
        rest = whole[step + 1 :]
        assert [plain(batch) for batch in islice(again, len(rest))] == rest, step


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (7, True)])
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
    for step, state in [*saved[:: 1 + 10 * num_workers], saved[whole.index(1)]]:
        again = loader_of(finite(), num_workers, **options)
        again.load_state_dict(copy.deepcopy(state))
        done = sum(isinstance(entry, int) for entry in whole[:step])
        rest = [entry for entry in whole[step:] if not isinstance(entry, int)]
        got = [batch for batch in epochs(again, 3 - done) if not isinstance(batch, int)]
        assert got == rest, step


def test_a_pass_that_is_read_again_and_again_leaves_what_is_known_of_others():
    """Such as one of evaluation: of the first pass the states still say that it has ended."""
    dataset = finite()
    loader = loader_of(dataset, 0)
    for number in [0, *[3] * 20]:
        dataset.set_epoch(number)
        assert sum(len(batch) for batch in loader) == 13
    dataset.set_epoch(4)
    next(iter(loader))
    again = loader_of(finite(), 0)
    again.load_state_dict(through_json(loader.state_dict()))
    next(iter(again))
    for each in (loader, again):
        states = from_stateful(each.state_dict())
        assert [states[f"cursor/0/{number}/0/0/"].get("ended") for number in (0, 3, 4)] == [1, 1, None]


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


@pytest.mark.each_value
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


def short_passes(size: int, rank: int, states: dict | None = None) -> MergedDataset:
    """Passes of 24 records, for one of several ranks."""
    dataset = MergedDataset([Numbers("a", 24)], cyclic=False, seed=1)
    dataset.set_data_parallel(size, rank)
    dataset.set_dataloader_states(states or {})
    return dataset


def take(loader: StatefulDataLoader, records: Counter, limit: int | None = None) -> dict:
    """Count the records of some batches, and collect their states."""
    states = {}
    for batch in islice(loader, limit):
        records.update(sample["value"] for sample in batch)
        states.update(to_state(batch))
    return states


def one_pass_ahead(batches: int, passes: list[Counter]) -> tuple[list[dict], list[dict]]:
    """Two ranks, one of which has delivered some batches of the second pass when the other has just begun the first.

    Returns what to_state collected, and the states of the loaders, of each rank.
    """
    loaders = [loader_of(short_passes(2, rank), 0) for rank in range(2)]
    states = [take(loaders[0], passes[0]) | take(loaders[0], passes[1], batches), take(loaders[1], passes[0], 1)]
    return states, [through_json(loader.state_dict()) for loader in loaders]


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_from_stateful_knows_the_end_of_the_pass_before(batches):
    """Of two ranks in passes apart, each record comes once in each of them after a change of size."""
    passes = [Counter(), Counter()]
    _, saved = one_pass_ahead(batches, passes)
    loader = loader_of(short_passes(1, 0, merge_states(*map(from_stateful, saved))), 0)
    for records in passes:
        take(loader, records)
    assert passes == [Counter(range(24))] * 2


@pytest.mark.each_value
@pytest.mark.parametrize(("num_workers", "batches"), [(0, 1), (2, 3)])
@pytest.mark.parametrize("stop", [0, 1, None])
def test_a_stateful_loader_goes_on_with_what_an_earlier_size_delivered_of_the_next_pass(batches, stop, num_workers):
    """Though its dataset was given nothing: it has that from the state."""
    passes = [Counter(), Counter()]
    states, _ = one_pass_ahead(batches, passes)
    loader = loader_of(short_passes(1, 0, merge_states(*states)), num_workers)
    take(loader, passes[0], stop)
    again = loader_of(short_passes(1, 0), num_workers)
    again.load_state_dict(copy.deepcopy(loader.state_dict()))
    if stop is None and num_workers:  # the workers that were given the state are gone when the next pass begins
        with raises_in_worker(StateError, match="from_stateful"):
            take(again, passes[1])
        return
    for records in passes[stop is None :]:
        take(again, records)
    assert passes == [Counter(range(24))] * 2


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_ranks_that_went_on_by_their_stateful_loaders_join(ahead):
    """After a change of size and a resume from the loaders' states, though one rank is in the next pass by now."""
    passes = [Counter(), Counter()]
    joined, parts = merge_states(*one_pass_ahead(1, passes)[0]), []
    for rank in range(3):
        loader, again = (loader_of(short_passes(3, rank, states), 0) for states in (joined, None))
        take(loader, passes[0], 1)
        again.load_state_dict(copy.deepcopy(loader.state_dict()))
        if rank < ahead:
            take(again, passes[0])
            take(again, passes[1], 1)
        parts.append(from_stateful(again.state_dict()))
    loader = loader_of(short_passes(1, 0, merge_states(*parts)), 0)
    for records in passes:
        take(loader, records)
    assert passes == [Counter(range(24))] * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_from_stateful_says_nothing_of_passes_that_set_epoch_left(num_workers):
    """Of one that was broken off it does not know the place, and of one that was passed over nothing was given."""
    dataset, left = short_passes(1, 0), Counter()
    for epoch_pass in (0, 2):
        dataset.set_epoch(epoch_pass)
        loader = loader_of(dataset, num_workers)
        take(loader, left, 1)
    dataset = short_passes(1, 0, from_stateful(loader.state_dict()))
    for epoch_pass in (0, 1):
        dataset.set_epoch(epoch_pass)
        records = Counter()
        take(loader_of(dataset, num_workers), records)
        assert records == Counter(range(24))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_from_stateful_says_nothing_of_a_pass_of_which_a_lane_gave_nothing(num_workers):
    """As `to_state`: had a source been absent, the rest of the pass would be lost with that."""
    dataset, states = short_passes(1, 0), {}
    for epoch_pass, batches in ((1, None), (0, 1)):
        dataset.set_epoch(epoch_pass)
        states |= take(loader_of(dataset, 0), Counter(), batches)
    dataset, collected = short_passes(2, 0, states), {}
    for batches in (None, None, 1):  # the rest of pass 0, nothing of pass 1, some of pass 2
        loader = loader_of(dataset, num_workers)
        collected |= take(loader, Counter(), batches)
    said = from_stateful(loader.state_dict())
    assert {key for key in collected if key.startswith("worker/")} == {"worker/1/0/0", "worker/1/2/0"}
    assert {key for key in said if key.startswith("worker/1/")} == {"worker/1/0/0", "worker/1/2/0"}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_simulated_lanes_save_what_a_stateful_loader_saves(num_workers):
    """`tests.elastic` has them in place of processes."""
    lanes, loader = Lanes(finite(), num_workers, 2), loader_of(finite(), num_workers)
    for batch, own in zip(loader, map(mixed_collate, lanes), strict=True):
        assert plain(batch) == plain(own)
        assert from_stateful(loader.state_dict()) == from_stateful(lanes.state_dict())


class Collecting(IterableDataset):
    """What one writes at first: a wrapper that has states of its own, and hands them on."""

    def __init__(self, dataset: MergedDataset) -> None:
        self.dataset, self.states = dataset, {}

    def __iter__(self):
        for sample in self.dataset:
            self.states.update(to_state(sample))
            yield sample["value"]

    def state_dict(self) -> dict:
        return dict(self.states)

    def load_state_dict(self, states: dict) -> None:
        self.states = dict(states)
        self.dataset.set_dataloader_states(states)


@pytest.mark.parametrize("batches", [10, 11])
def test_a_wrapper_with_states_of_its_own_is_right_or_refused(batches):
    """In a worker process they are one lane's, and not its rank's."""
    loaders = []
    for _ in range(2):
        dataset = MergedDataset([Numbers("a", 240)], cyclic=False, seed=1)
        loaders.append(StatefulDataLoader(Collecting(dataset), 8, num_workers=2))
    records = Counter(value for batch in islice(loaders[0], batches) for value in batch.tolist())
    loaders[1].load_state_dict(copy.deepcopy(loaders[0].state_dict()))
    try:
        records.update(value for batch in loaders[1] for value in batch.tolist())
    except StateError as error:
        assert "set_dataloader_states" in str(error).partition("\n  ")[2]  # noqa: PT017  (right, too, would be well)
        clear_frames(error.__traceback__)  # see `raises_in_worker`
    else:
        assert records == Counter(range(240))


class Halting(Numbers):
    """Numbers that the first worker reads slowly."""

    def __getitem__(self, index: int) -> dict:
        info = get_worker_info()
        time.sleep(0.2 if info is not None and info.id == 0 else 0)
        return super().__getitem__(index)


@pytest.mark.parametrize("make_loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("num_workers", [2, 0])
def test_states_of_a_loader_out_of_order_are_right_or_refused_with_what_helps(make_loader, num_workers):
    """Before a slow worker has delivered anything."""

    def dataset(states: dict) -> MergedDataset:
        merged = MergedDataset([Halting("a", 16)], cyclic=False, seed=1)
        merged.set_dataloader_states(states)
        return merged

    records = Counter()
    loader = make_loader(dataset({}), 2, num_workers=2, collate_fn=mixed_collate, in_order=False)
    states = take(loader, records, 2)
    try:
        if make_loader is StatefulDataLoader:
            states = from_stateful(loader.state_dict())
        take(DataLoader(dataset(states), 2, num_workers=num_workers, collate_fn=mixed_collate), records)
    except StateError as error:
        assert "in_order" in str(error)  # noqa: PT017  (right, too, would be well)
        clear_frames(error.__traceback__)
    else:
        assert records == Counter(range(16))


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


def test_an_iterator_state_of_another_version_says_so():
    """Whoever loads it did nothing wrong."""
    loader = loader_of(finite(), 0)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()).replace('"version": 4', '"version": 3'))
    with pytest.raises(StateError, match="expected version 4, got 3"):
        from_stateful(state)
