"""Batches that come on a device: the same ones, with the states of those that came."""

import hashlib
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from streamdata import MergedDataset, StateError, StreamLoader, StreamState, to_device
from streamdata.delivery.to_device import _mapped
from tests.streams import Numbers

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch.cuda is not available")


class Pair(NamedTuple):
    left: Any
    right: Any


def tensors(samples):
    """A batch with its states, as a tensor and what is none."""
    return [{**sample, "value": torch.tensor(sample["value"])} for sample in samples]


def loader(**settings):
    """Batches of four."""
    return StreamLoader(MergedDataset([Numbers("a", 40, 3), Numbers("b", 9)]), 4, collate=tensors, **settings)


def values(batches):
    """What is in them."""
    return [[int(sample["value"]) for sample in batch] for batch in batches]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_the_batches_are_the_loaders(ahead):
    """In its stretches."""
    moved, plain = to_device(loader(steps_per_epoch=7), "cpu", ahead), loader(steps_per_epoch=7)
    assert len(moved) == 7
    for _ in range(3):
        assert values(moved) == values(plain)


@pytest.mark.parametrize("ahead", [1, 3])
def test_states_are_of_what_came(ahead):
    """Not of what is on its way; a loop that was left goes on with it."""
    want = values(islice(loader(), 20))
    moved = to_device(loader(), "cpu", ahead)
    assert values(islice(moved, 5)) + values(islice(moved, 4)) == want[:9]
    assert (moved.num_batches, moved.state_dict()) == (9, moved.state_after(9))
    for count in (0, 4, 9):
        again = to_device(loader(), "cpu", ahead)
        again.load_state_dict(moved.state_after(count))
        assert values(islice(again, 6)) == want[count : count + 6]
    moved.load_state_dict(moved.state_after(2))
    assert values(islice(moved, 3)) == want[2:5]


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_loop_that_knows_the_length_has_ended_the_stretch(ahead):
    """It asks for no more than the last batch, and the next stretch is whole."""
    moved, plain = to_device(loader(steps_per_epoch=7), "cpu", ahead), loader(steps_per_epoch=7)
    for _ in range(3):
        assert values(islice(moved, 7)) == values(plain)


def test_a_pass_that_is_named_begins_at_once():
    """What is on its way of the one before does not come."""
    moved, plain = (StreamLoader(MergedDataset([Numbers("a", 40)], cyclic=False), 4, collate=tensors) for _ in range(2))
    moved = to_device(moved, "cpu")
    for each in (moved, plain):
        list(islice(each, 2))
        each.set_epoch(2)
    assert values(moved) == values(plain)
    assert moved.num_batches == plain.num_batches == 12


def test_a_batch_on_its_way_has_no_state_yet():
    """It was not received, though the loader has given it; a checkpoint has the state of what was."""
    moved = to_device(loader(), "cpu")
    list(islice(moved, 2))
    with pytest.raises(StateError, match="up to 2, got 3"):
        moved.state_after(3)
    again = loader()
    StreamState(again).load_state_dict(StreamState(moved).state_dict())
    assert values(islice(again, 3)) == values(islice(moved, 3))


def test_an_older_iteration_of_a_device_loader_is_refused():
    """It would take batches from the one that is read."""
    moved = to_device(loader(), "cpu")
    older = iter(moved)
    next(older)
    next(iter(moved))
    with pytest.raises(RuntimeError, match="another iteration began"):
        next(older)


class BrokenOnce(Numbers):
    """Fails once."""

    is_broken = True

    def __getitem__(self, index):
        if index == 20 and self.is_broken:
            self.is_broken = False
            raise OSError("a read failed")
        return super().__getitem__(index)


def test_after_an_error_the_iteration_goes_on():
    """With what was on its way, and then with what the loader gives again."""
    whole = values(StreamLoader(MergedDataset([Numbers("a", 40)], cyclic=False), 4, collate=tensors))
    moved = to_device(StreamLoader(MergedDataset([BrokenOnce("a", 40)], cyclic=False), 4, collate=tensors), "cpu")
    found = []
    with pytest.raises(OSError, match="a read failed"):
        found += (values([batch])[0] for batch in moved)
    assert found + values(moved) == whole


def halves(batch):
    """Of each batch every second sample."""
    return batch[::2]


def test_a_transform_makes_what_is_moved_of_each_batch():
    """States are those of whole batches."""
    moved, plain = to_device(loader(), "cpu", transform=halves), loader()
    assert values(islice(moved, 5)) == [each[::2] for each in values(islice(plain, 5))]
    assert moved.state_dict() == plain.state_dict()


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_batch_whose_transform_failed_comes_again(ahead):
    """It was not received, and states do not say so; what was on its way comes first."""
    want, failing = values(islice(loader(), 12)), iter([False] * 6 + [True] + [False] * 20)

    def fails_once(batch):
        if next(failing):
            raise OSError("the transform failed")
        return batch

    moved, found = to_device(loader(), "cpu", ahead, fails_once), []
    with pytest.raises(OSError, match="the transform failed"):
        found += (values([batch])[0] for batch in moved)
    again = loader()
    again.load_state_dict(moved.state_dict())
    assert values(islice(again, 3)) == want[len(found) : len(found) + 3]
    assert found + values(islice(moved, 12 - len(found))) == want


def test_only_tensors_move_at_any_depth():
    """All else stays as it is, and so do the kinds of containers."""
    array, flag = np.arange(3), object()
    batch = {
        "x": [torch.ones(2), ("text", torch.zeros(1))],
        "pair": Pair(torch.ones(1), 3),
        "array": array,
        "flag": flag,
    }
    moved = _mapped(lambda tensor: tensor + 1, batch)
    assert (moved["x"][0].tolist(), moved["x"][1][0], moved["x"][1][1].tolist()) == ([2, 2], "text", [1])
    assert (type(moved["pair"]), moved["pair"].left.tolist(), moved["pair"].right) == (Pair, [2], 3)
    assert moved["array"] is array
    assert moved["flag"] is flag


@pytest.mark.parametrize("ahead", [0, -1, 1.5, True, None])
def test_a_number_that_is_not_one_is_refused(ahead):
    """With what was expected."""
    with pytest.raises(ValueError, match="to_device: expected ahead to be an int from 1 on, got"):
        to_device(loader(), "cpu", ahead)


@GPU
@pytest.mark.parametrize("pin_memory", [False, True])
def test_copies_behind_a_busy_stream_arrive_whole(pin_memory):
    """8 MB a batch, more of them than fit into what is pinned at once, while the device works on other things."""
    expected = MergedDataset([Numbers("a", 40, 3), Numbers("b", 9)])
    moved = to_device(loader(pin_memory=pin_memory), "cuda")
    busy, seen = torch.randn(4096, 4096, device="cuda"), []
    for batch in islice(moved, 200):
        busy = busy @ busy / busy.norm()
        seen += [sample["value"] * torch.ones(1 << 18, device="cuda") for sample in batch]
    digests = [hashlib.sha256(each.cpu().numpy().tobytes()).digest() for each in seen[:800]]
    want = [np.full(1 << 18, sample["value"], np.float32) for sample in islice(expected, 800)]
    assert digests == [hashlib.sha256(each.tobytes()).digest() for each in want]
