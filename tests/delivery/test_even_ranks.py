"""As many batches on every rank at the end of a finite stream, and nothing lost or twice but what was asked for."""

import gc
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from streamdata import MergedDataset, StateError, StreamLoader, merge_states, mixed_collate, named
from tests.streams import Numbers, through_json

NUMBERS = range(13)
TOPOLOGIES = [(2, 0, 2, 0), (2, 2, 2, 2), (3, 0, 2, 2)]


def make_loader(rank: int, size: int, uneven: str = "error", num_workers: int = 0, **attributes: Any) -> StreamLoader:
    """A pass of 13 numbers, in batches of two."""
    source = named(list(NUMBERS), name="numbers", percent=1)
    source.__dict__.update(attributes)
    dataset = MergedDataset([source], cyclic=False, seed=4)
    dataset.set_data_parallel(size, rank)
    return StreamLoader(dataset, 2, num_workers, uneven=uneven)


def resumed(states: dict, *args: Any) -> StreamLoader:
    """A new loader that goes on where states say."""
    loader = make_loader(*args)
    loader.load_state_dict(through_json(states))
    return loader


def values(batches: Any) -> list[list[int]]:
    """What the batches hold; what only fills them up is -1."""
    return [
        batch["data"].masked_fill(batch["__padding__"], -1).tolist()
        if "__padding__" in batch
        else batch["data"].tolist()
        for batch in batches
    ]


def real(batches: list[list[int]]) -> Counter:
    """The samples that do not only fill up."""
    return Counter(value for batch in batches for value in batch if value >= 0)


def test_ranks_of_different_numbers_of_batches_are_refused() -> None:
    """On each of them, before the first batch; ranks of as many are not."""
    for rank in range(2):
        with pytest.raises(ValueError, match="rank 1 has 3 batches left and rank 0 has 4"):
            next(iter(make_loader(rank, 2)))
    assert [len(values(make_loader(rank, 2, "error", 2))) for rank in range(2)] == [4, 4]
    assert sum((real(values(make_loader(rank, 1))) for rank in range(1)), Counter()) == Counter(NUMBERS)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_drop_leaves_out_what_not_all_ranks_have(num_workers: int, caplog: pytest.LogCaptureFixture) -> None:
    """It says so, and the states say that the pass has ended: nothing of it comes after a change of topology."""
    with caplog.at_level(logging.WARNING):
        loaders = [make_loader(rank, 3, "drop", num_workers) for rank in range(3)]
        read = [values(loader) for loader in loaders]
    assert [len(batches) for batches in read] == [2] * 3
    found = sum(map(real, read), Counter())
    left_out = Counter(NUMBERS) - found
    assert not found - Counter(NUMBERS)
    assert sum(int(record.args[0]) for record in caplog.records if "leaves out" in record.msg) == left_out.total() > 0
    joined = merge_states(*(loader.state_dict() for loader in loaders))
    (second,) = [values(resumed(joined, 0, 1, "drop"))]
    assert real(second) == Counter(NUMBERS)


@pytest.mark.parametrize(("size", "num_workers"), [(1, 2), (2, 0), (3, 2)])
def test_pad_fills_up(size: int, num_workers: int) -> None:
    """All batches to the same size, all ranks to as many; what is not marked is each record once, in each pass."""
    loaders = [make_loader(rank, size, "pad", num_workers) for rank in range(size)]
    for _ in range(2):
        read = [values(loader) for loader in loaders]
        assert len({len(batches) for batches in read}) == 1
        assert {len(batch) for batches in read for batch in batches} == {2}
        assert sum(map(real, read), Counter()) == Counter(NUMBERS)


def test_what_fills_up_is_the_ranks_last() -> None:
    """Also where the trainer changes what it got; a list of samples is marked, too."""
    batches = []
    for batch in make_loader(1, 2, "pad"):
        batches.append(batch["data"].tolist())
        batch["data"].zero_()
    assert len(batches) == 4
    assert batches[3] == batches[2]
    loader = make_loader(0, 2, "pad")
    as_lists = StreamLoader(loader.dataset, 2, collate=mixed_collate, uneven="pad")
    last = list(as_lists)[-1]
    assert [sample["__padding__"] for sample in last] == [False, True]
    assert last[0]["data"] == last[1]["data"]


@pytest.mark.each_value
@pytest.mark.parametrize("uneven", ["drop", "pad"])
@pytest.mark.parametrize(("size", "num_workers", "new_size", "new_workers"), TOPOLOGIES)
def test_even_after_a_resume(uneven: str, size: int, num_workers: int, new_size: int, new_workers: int) -> None:
    """From each step (with workers, each third), under the same topology and another: all ranks go on with as many."""
    steps = len(values(make_loader(0, size, uneven, num_workers)))
    for step in range(1, steps, 1 + num_workers):
        loaders = [make_loader(rank, size, uneven, num_workers) for rank in range(size)]
        before = [values(islice(loader, step)) for loader in loaders]
        joined = merge_states(*(loader.state_dict() for loader in loaders))
        after = [values(resumed(joined, rank, new_size, uneven, new_workers)) for rank in range(new_size)]
        assert len({len(batches) for batches in after}) == 1, f"step {step}"
        found = sum(map(real, before + after), Counter())
        assert not found - Counter(NUMBERS), f"step {step}"
        if uneven == "pad":
            assert found == Counter(NUMBERS), f"step {step}"
        if (size, num_workers) == (new_size, new_workers):
            assert len(after[0]) == steps - step


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_ranks_that_were_evened_out_are_at_one_step(uneven: str) -> None:
    """What only filled up was delivered, what was left out was not: whoever goes on by steps_per_epoch counts so."""
    loaders = [make_loader(rank, 2, uneven) for rank in range(2)]
    (steps,) = {len(values(loader)) for loader in loaders}
    joined = through_json(merge_states(*(loader.state_dict() for loader in loaders)))
    for rank in range(2):
        by_steps = StreamLoader(make_loader(rank, 2).dataset, 2, steps_per_epoch=10)
        by_steps.load_state_dict(joined)
        assert by_steps.batches_left == 10 - steps


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_even_after_a_resume_in_a_later_pass(uneven: str) -> None:
    """What only filled up a pass before does not count as delivered; set_epoch counts from the pass of all ranks."""
    steps = len(values(make_loader(0, 2, uneven)))
    for step in range(steps - 1, 2 * steps + 1):
        loaders = [make_loader(rank, 2, uneven) for rank in range(2)]
        for loader in loaders:
            values(islice(chain(loader, loader), step))
        joined = merge_states(*(loader.state_dict() for loader in loaders))
        for rank in range(2):
            again, named_again = (resumed(joined, rank, 2, uneven) for _ in range(2))
            whole = make_loader(rank, 2, uneven)
            passes = [values(whole) for _ in range(4)]
            first = values(again)
            assert len(first) == steps - step % steps
            assert real(first) == real(passes[step // steps][step % steps :])
            assert values(again) == passes[step // steps + 1]
            named_again.set_epoch(7)
            assert values(named_again) == first
            named_again.set_epoch(8)
            assert values(named_again) == passes[step // steps + 1]


def test_each_batch_that_fills_up_is_a_copy() -> None:
    """What the trainer does to one is not in the next; here lanes have 4, 4, 3 and 3 numbers."""
    dataset = MergedDataset([named(list(range(1, 15)), name="numbers", percent=1)], cyclic=False)
    dataset.set_data_parallel(2, 1)
    batches = []
    for batch in StreamLoader(dataset, 1, 2, uneven="pad"):
        batches.append(batch["data"].item())
        batch["data"].zero_()
    assert len(batches) == 8
    assert batches[5] == batches[6] == batches[7] > 0


def test_a_batch_is_filled_up_with_its_last_sample() -> None:
    """Whose state is the batch's."""
    dataset = MergedDataset([named(list(range(14)), name="numbers", percent=1)], cyclic=False)
    loader = StreamLoader(dataset, 4, uneven="pad")
    last = [*loader][-1]
    assert last["__padding__"].tolist() == [False, False, True, True]
    assert len(set(last["data"][1:].tolist())) == 1
    assert len(set(last["data"].tolist())) == 2
    loader.load_state_dict(loader.state_dict())
    assert real(values(loader)) == Counter(range(14))


def test_workers_may_live_on_after_padding() -> None:
    """Where a batch was read to be repeated, other states were set meanwhile."""
    loaders = [make_loader(rank, 2, "pad", 1) for rank in range(2)]
    for loader in loaders:
        values(islice(loader, 3))
    joined = merge_states(*(loader.state_dict() for loader in loaders))
    loader = make_loader(1, 2, "pad")
    again = StreamLoader(loader.dataset, 2, 1, uneven="pad", persistent_workers=True)
    again.load_state_dict(joined)
    assert [len(values(again)), len(values(again)), len(values(again))] == [1, 4, 4]


def test_states_of_several_steps_are_refused() -> None:
    """A rank whose states are old would count as having more left than it has."""
    loaders = [make_loader(rank, 2, "pad") for rank in range(2)]
    early = [(values(islice(loader, 1)), loader.state_dict())[1] for loader in loaders]
    values(islice(loaders[0], 1))
    joined = merge_states(loaders[0].state_dict(), early[1])
    with pytest.raises(StateError, match="rank 1 has delivered 1 batches of pass 0 and another 2"):
        next(iter(resumed(joined, 0, 2, "pad")))
    with pytest.raises(StateError, match="rank 1"):
        next(iter(resumed(early[0], 0, 2, "pad")))


def fails_once(path: Path) -> Callable[[int], int]:
    """What reads a number, and fails at one of them the first time."""

    def read(value: int) -> int:
        if value == 6 and not path.exists():
            path.touch()
            raise OSError("the disk was away")
        return value

    return read


class Shaky:
    """A map-style dataset that fails once."""

    def __init__(self, path: Path) -> None:
        self._read = fails_once(path)

    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> dict:
        return {"data": self._read(index)}


def shaky_loaders(path: Path) -> Iterator[StreamLoader]:
    """Both ranks, of which one will fail."""
    for rank in range(2):
        dataset = MergedDataset([named(Shaky(path), name="numbers", percent=1)], cyclic=False, seed=4)
        dataset.set_data_parallel(2, rank)
        yield StreamLoader(dataset, 2, uneven="pad")


def test_even_after_an_error(tmp_path: Path) -> None:
    """The states know nothing of what the others delivered since, but the loader does."""
    numbers = []
    for loader in shaky_loaders(tmp_path / "failed"):
        try:
            list(loader)
        except OSError:
            list(loader)
        numbers.append(loader.num_batches)
    assert numbers == [4, 4]
    assert (tmp_path / "failed").exists()


@pytest.mark.parametrize("uneven", ["drop", "pad"])
@pytest.mark.parametrize("pulled", [2, 3, 4])
def test_even_after_going_back(uneven: str, pulled: int) -> None:
    """A rank knows what the others have without their states, as after an error."""
    for rank in range(3):
        whole = values(make_loader(rank, 3, uneven))
        loader = make_loader(rank, 3, uneven)
        list(islice(loader, min(pulled, len(whole))))
        loader.go_back(1)
        assert values(loader) == whole[1:]
        assert loader.num_batches == len(whole)


@pytest.mark.parametrize("uneven", ["error", "drop", "pad"])
def test_sources_of_unknown_numbers_are_refused(uneven: str) -> None:
    """Where a record may give no sample; the source is named, and what helps."""
    with pytest.raises(ValueError, match=r"source 'numbers'[\s\S]*steps_per_epoch"):
        next(iter(make_loader(0, 2, uneven, single_process_fn=dict)))


def test_uneven_is_for_finite_streams() -> None:
    """Without steps_per_epoch."""
    endless = MergedDataset([named([1, 2], name="numbers", percent=1)])
    with pytest.raises(ValueError, match=r"source 'numbers'[\s\S]*steps_per_epoch"):
        next(iter(StreamLoader(endless, 1, uneven="drop")))
    with pytest.raises(ValueError, match="steps_per_epoch gives every rank as many batches"):
        StreamLoader(endless, 1, uneven="pad", steps_per_epoch=3)


@pytest.mark.parametrize("rank", range(3))
def test_where_a_rank_has_nothing_to_repeat_all_refuse_to_pad(rank: int) -> None:
    """None would wait for it; also where others finish what fewer ranks have begun."""
    message = r"expected that each of 3 ranks has a share of the pass, got none for rank [12]\n  Give the sources more"
    states: dict = {}
    for begun in (False, True):
        dataset = MergedDataset([named([1, 2], name="two", percent=1)], cyclic=False)
        dataset.set_data_parallel(3, rank)
        loader = StreamLoader(dataset, 1, uneven="pad")
        loader.load_state_dict(states)
        with pytest.raises(ValueError, match=message):
            next(iter(loader))
        if not begun:
            alone = MergedDataset([named([1, 2], name="two", percent=1)], cyclic=False)
            alone.set_data_parallel(1, 0)
            first = StreamLoader(alone, 1, uneven="pad")
            next(iter(first))
            states = through_json(first.state_dict())


def test_what_is_left_out_where_a_rank_has_nothing_is_read() -> None:
    """There is no batch to bring its states, which say that the pass has ended all the same."""
    dataset = MergedDataset([named([1], name="one", percent=1)], cyclic=False)
    dataset.set_data_parallel(2, 0)
    loader = StreamLoader(dataset, 1, uneven="drop")
    assert list(loader) == []
    top = loader.state_after(0)["cursor/0/0/0/0/"]
    assert (top["batches"], top["ended"]) == (1, 1)


@pytest.mark.parametrize("uneven", ["error", "drop", "pad"])
def test_a_loader_that_is_dropped_lets_go_of_its_workers(uneven: str) -> None:
    """At once, not at some collection."""
    loader = make_loader(0, 1, uneven, 1)
    next(iter(loader))
    left = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert left() is None
    finally:
        gc.enable()


def test_epochs_go_on_after_a_pass_of_which_nothing_is_left() -> None:
    """What a trainer counts as its first epoch is the next pass then, and its second one the pass after that."""

    def loaders(size: int, states: dict | None = None) -> list[StreamLoader]:
        found = []
        for rank in range(size):
            dataset = MergedDataset([Numbers("a", 10)], seed=1, cyclic=False)
            dataset.set_data_parallel(size, rank)
            found.append(StreamLoader(dataset, 1, uneven="drop"))
            found[-1].load_state_dict(states or {})
        return found

    (alone,) = loaders(1)
    batches = iter(alone)
    for _ in range(9):
        next(batches)
    both, seen = loaders(2, alone.state_dict()), []
    for epoch in range(3):
        for loader in both:
            loader.set_epoch(epoch)
        seen.append([[batch["value"].tolist() for batch in loader] for loader in both])
        assert sorted(value for batches in seen[-1] for (value,) in batches) == list(range(10))
    assert seen[0] != seen[1] != seen[2]
