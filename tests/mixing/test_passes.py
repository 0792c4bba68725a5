"""Passes: which one an iteration is, where it begins, and what is said when one was left."""

import copy
import time
import warnings
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StateError, mixed_collate, to_state
from tests.mixing.test_resume import Packer
from tests.streams import Numbers, in_lane, loaded, plain, resumed, through_json

LEFT = "the iteration before was left before its end"


def flat(stop="all_exhausted"):
    """Sixty records, of two sources."""
    return MergedDataset([Numbers("a", 40, 2), Numbers("b", 20)], cyclic=False, stop=stop, seed=4)


def nested():
    """A finite mixture with a function, in a finite mixture."""
    inner = MergedDataset([Numbers("c", 12, process_fn=Packer()), Numbers("d", 5)], cyclic=False, stop="all_exhausted")
    inner.name, inner.percent = "inner", 1
    return MergedDataset([inner, Numbers("e", 20)], cyclic=False, stop="all_exhausted")


def first_exhausted():
    """A stream that ends with the shorter source."""
    return flat("first_exhausted")


def of_pass(make, number, num_workers=0, batch_size=4):
    """The batches of a pass, as `set_epoch` gives them."""
    dataset = make()
    dataset.set_epoch(number)
    return [plain(batch) for batch in loaded(dataset, num_workers, batch_size)]


def loader(dataset, num_workers=0, method="fork", **options):
    """A stock DataLoader."""
    context = method if num_workers else None
    return DataLoader(
        dataset,
        4,
        num_workers=num_workers,
        collate_fn=mixed_collate,
        multiprocessing_context=context,
        persistent_workers=options.pop("persistent", False),
        **options,
    )


@pytest.mark.each_value
@pytest.mark.parametrize("make", [flat, nested, first_exhausted])
@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("stop", [0, 1, 7, 999])
def test_after_a_resume_come_the_tail_and_then_whole_passes(make, num_workers, stop):
    """A checkpoint of the second epoch of a fresh run too; from the states of an ended pass, the next one at once."""
    passes = [of_pass(make, number, num_workers) for number in range(4)]
    dataset, states, got = make(), {}, []
    for batch in loaded(dataset, num_workers, 4):
        states.update(to_state(batch))
        got.append(plain(batch))
    for batch in islice(loaded(dataset, num_workers, 4), stop):
        states.update(to_state(batch))
        got.append(plain(batch))
    again = resumed(make, states)
    rest = [[plain(batch) for batch in loaded(again, num_workers, 4)] for _ in range(3 if stop < 999 else 2)]
    assert got + [batch for part in rest for batch in part] == [batch for part in passes for batch in part]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize(
    ("num_workers", "persistent", "method"),
    [
        (0, False, None),
        (1, False, "fork"),
        (3, False, "fork"),
        (3, True, "fork"),
        pytest.param(3, True, "forkserver", marks=pytest.mark.long),
    ],
)
def test_an_ended_iteration_is_followed_by_the_next_pass(num_workers, persistent, method):
    """With and without states; workers that live on and workers that are new each time agree."""
    want = [of_pass(flat, number, num_workers) for number in range(3)]
    batches = loader(flat(), num_workers, method, persistent=persistent)
    assert [[plain(batch) for batch in batches] for _ in range(2)] == want[:2]
    states = to_state([sample for batch in want_batches(flat, num_workers, 8) for sample in batch])
    batches = loader(resumed(flat, states), num_workers, method, persistent=persistent)
    assert [[plain(batch) for batch in batches] for _ in range(3)] == [want[0][8:], *want[1:]]


def want_batches(make, num_workers, count):
    """The first batches, with their states."""
    return list(islice(loaded(make(), num_workers, 4), count))


@pytest.mark.each_value
@pytest.mark.parametrize("make", [flat, first_exhausted])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_one_that_was_left_begins_again_where_it_began(make, num_workers):
    """After each of its batches; from the states if these are of its pass; with one warning in the trainer."""
    want = of_pass(make, 0, num_workers)
    for stop in range(1, len(want)):
        dataset = make()
        for batch in islice(loaded(dataset, num_workers, 4), stop):
            states = to_state(batch)
        assert states
        with pytest.warns(UserWarning, match=LEFT):
            assert [plain(batch) for batch in loaded(dataset, num_workers, 4)] == want
        assert [plain(batch) for batch in loaded(dataset, num_workers, 4)] == of_pass(make, 1, num_workers)


def test_who_names_the_pass_again_is_not_warned():
    """It was left on purpose, and begins at its start."""
    dataset, firsts = flat(), []
    for _ in range(3):
        dataset.set_epoch(2)
        firsts.append([plain(sample) for sample in islice(dataset, 9)])
    assert firsts[0] == firsts[1] == firsts[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_trainer_is_told_once_that_an_iteration_was_left(persistent):
    """Though each worker finds it, and it is said in the trainer's process: again for each that was left."""
    batches = loader(MergedDataset([Numbers("a", 900)], cyclic=False), 2, persistent=persistent)
    firsts = []
    for expected in (0, 1, 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            firsts.append([plain(batch) for batch in islice(batches, 4)])
        ours = [str(warning.message) for warning in caught if warning.category is UserWarning]  # not those of a fork
        assert [LEFT in message for message in ours] == [True] * expected
    assert "set_epoch" in ours[0]
    assert "set_dataloader_states" in ours[0]
    assert firsts[0] == firsts[1] == firsts[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iteration_left_while_the_workers_had_read_it_all_is_told_too(persistent):
    """It counts as ended in them: the next pass begins, and what was ready is lost."""
    batches = loader(flat(), 2, prefetch_factor=30, persistent=persistent)
    iterator = iter(batches)
    next(iterator)
    wait_until_ended(batches.dataset, 2)
    del iterator
    with pytest.warns(UserWarning, match=f"{LEFT}; pass 1 begins: the workers had read"):
        assert [plain(batch) for batch in batches] == of_pass(flat, 1, 2)
    assert [plain(batch) for batch in batches] == of_pass(flat, 2, 2)


def wait_until_ended(dataset, num_workers):
    """Until the workers have noted their ends."""
    while not dataset._control.first_unended(dataset._version, num_workers):
        time.sleep(0.01)


def test_drop_last_leaves_no_iteration():
    """The batch that is left out was not waited for."""
    batches = loader(MergedDataset([Numbers("a", 21)], cyclic=False), 2, drop_last=True)
    sizes = [[len(batch) for batch in batches] for _ in range(3)]
    assert sizes == [[4] * 4] * 3


def test_a_pass_that_was_set_holds_until_another_is_set():
    """Also over ended iterations; the states of that pass apply to the first one only."""
    states, dataset = {}, flat()
    dataset.set_epoch(5)
    want = [plain(sample) for sample in dataset]
    assert [plain(sample) for sample in dataset] == want
    for sample in islice(dataset, 10):
        states.update(to_state(sample))
    again = resumed(flat, states)
    again.set_epoch(5)
    assert [plain(sample) for sample in again] == want[10:]
    assert [plain(sample) for sample in again] == want
    again.set_epoch(6)
    assert sorted(sample["value"] for sample in again) == sorted(sample["value"] for sample in flat())


def test_a_loop_over_epochs_from_zero_meets_its_states_where_they_are():
    """Passes that had ended give nothing more, the one under way its rest."""
    states, dataset, values = {}, flat(), []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        for sample in islice(dataset, 60 if epoch == 0 else 25):
            states.update(to_state(sample))
            values.append(sample["value"])
    again = resumed(flat, states)
    for epoch in range(3):
        again.set_epoch(epoch)
        values += [sample["value"] for sample in again]
    assert sorted(values) == sorted([*range(40), *range(20)] * 3)


def test_setting_states_breaks_no_running_iterator():
    """An old one and a resumed one live side by side; one that was made and not begun keeps its own states."""
    dataset = flat()
    whole = [plain(sample) for sample in flat()]
    old, unbegun = iter(dataset), iter(dataset)
    states = to_state([next(old) for _ in range(7)])
    new = dataset.__iter_from__(through_json(states))
    assert [plain(next(old)) for _ in range(20)] == [plain(next(new)) for _ in range(20)] == whole[7:27]
    assert [plain(sample) for sample in unbegun] == whole


def test_after_a_finished_resume_an_iteration_is_whole():
    """The next pass, not the tail again."""
    samples = list(flat())
    dataset = flat()
    assert len(list(dataset.__iter_from__(to_state(samples[:45])))) == 15
    assert [len(list(dataset)) for _ in range(2)] == [60, 60]


def test_ranks_go_on_each_in_its_own_pass():
    """One rank may have begun the next pass where another one has not."""

    def of_rank(rank):
        dataset = flat()
        dataset.set_data_parallel(2, rank)
        return dataset

    states, rests = {}, []
    for rank, count in ((0, 30), (1, 37)):
        dataset = of_rank(rank)
        samples = [*dataset, *islice(dataset, 30)]
        states.update(to_state(samples[:count]))
        rests.append([plain(sample) for sample in samples[count:60]])
    for rank, rest in enumerate(rests):
        dataset = of_rank(rank)
        dataset.set_dataloader_states(through_json(states))
        assert [plain(sample) for _ in range(1 + rank) for sample in dataset][: len(rest)] == rest


def test_each_rank_that_one_dataset_is_in_turn_begins_at_the_first_pass():
    """What another rank has ended does not count for it: together they give each record once."""
    dataset, values = flat(), []
    for rank in range(3):
        dataset.set_data_parallel(3, rank)
        values += [sample["value"] for sample in dataset]
    assert sorted(values) == sorted([*range(40), *range(20)])


@pytest.mark.parametrize("number", [None, 1])
def test_states_of_other_ranks_alone_are_refused_in_a_later_pass_too(number):
    """Of a trainer that begins each pass with a dict of its own: this rank's pass cannot be known from them."""
    dataset = flat()
    dataset.set_data_parallel(2, 0)
    assert list(dataset)
    states = to_state(list(islice(dataset, 5)))
    other = resumed(flat, states)
    other.set_data_parallel(2, 1)
    if number is not None:
        other.set_epoch(number)
    with pytest.raises(StateError, match="they hold nothing of rank 1, only of ranks"):
        next(iter(other))
    other.set_epoch(7)
    assert len(list(other)) == 30


def test_a_lane_without_a_share_does_not_hold_up_the_pass():
    """Three records, five workers: those that give nothing are not waited for."""
    dataset = MergedDataset([Numbers("a", 3)], cyclic=False)
    passes = [[s["value"] for lane in range(5) for s in in_lane(dataset, lane, 5)] for _ in range(2)]
    assert [sorted(values) for values in passes] == [[0, 1, 2]] * 2
    assert to_state(list(in_lane(dataset, 0, 5))).keys() >= {"cursor/0/2/0/0/a"}


@pytest.mark.parametrize("numbers", [(1, 3, 2), (2, 1, 4)])
def test_passes_count_on_with_another_number_of_workers(numbers):
    """What ended has ended, however many read it."""
    dataset = flat()
    for number, num_workers in enumerate(numbers):
        assert [plain(batch) for batch in loaded(dataset, num_workers, 4)] == of_pass(flat, number, num_workers)


def test_the_last_sample_comes_before_an_error_that_follows_it():
    """The end is looked ahead for, and nothing is lost by that."""

    class Fails(Numbers):
        def __getitem__(self, index):
            return super().__getitem__(index) if index < 3 else 1 / 0

    stream = iter(MergedDataset([Fails("a", 4)], cyclic=False, shuffle_unstreaming_subsets=False))
    assert [next(stream)["value"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(stream)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("cyclic", [False, True])
def test_an_iteration_that_an_error_broke_off_has_not_ended(cyclic, num_workers):
    """Though a worker is asked for more after it, and finds nothing: the pass begins again, and that is said."""
    broken = torch.zeros(1).share_memory_()

    class Flaky(Numbers):
        def __getitem__(self, index):
            if index == 30 and broken[0]:
                broken[0] = 0
                raise OSError("for once")
            return super().__getitem__(index)

    batches = loader(MergedDataset([Flaky("a", 40)], cyclic=cyclic), num_workers)
    want = [plain(batch) for batch in islice(batches, 10)]
    batches, broken[0] = loader(MergedDataset([Flaky("a", 40)], cyclic=cyclic), num_workers), 1
    iterator = iter(batches)
    with pytest.raises(OSError, match="for once"):
        list(iterator)
    assert list(iterator) == []
    with pytest.warns(UserWarning, match=LEFT):
        assert [plain(batch) for batch in islice(batches, 10)] == want


def test_a_copy_of_a_dataset_is_told_apart_from_it(recwarn):
    """Each is compared with what came of it alone: both are read to their ends in turn, and nothing is said."""
    first = MergedDataset([Numbers("a", 40)], cyclic=False)
    batches = loader(first, 1)
    fewer = DataLoader(copy.deepcopy(first), 20, num_workers=1, collate_fn=mixed_collate)
    for _ in range(2):
        assert [sum(map(len, part)) for part in (batches, fewer)] == [40, 40]
    assert not [warning for warning in recwarn if LEFT in str(warning.message)]
