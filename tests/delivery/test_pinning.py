"""Batches that DataLoader pins: one block of pinned memory, which torch must know each tensor to lie in."""

import hashlib
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streamdata.delivery import collate, mixed_collate
from tests.delivery.test_collate import DTYPES, Samples, plain_sample, through_pinning_loop


def rebuilt(*values: Any) -> tuple[torch.Tensor, memoryview, list[Any]]:
    """What arrives where the pinned tensor is an ordinary one; that tensor; and the ordinary memory of the rest."""
    parcel = collate.pack([{"values": list(values)}])
    memory = memoryview(parcel._buffer)
    begin, end = parcel._stream_bytes, parcel._stream_bytes + parcel._tensor_bytes
    pinned = torch.frombuffer(memory[begin:end], dtype=torch.uint8).clone()
    (sample,) = collate.rebuild(memory[:begin], pinned, memory[end:])
    return pinned, memory[end:], sample["values"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (2, 3), (2, 1, 3)], ids=str)
def test_a_tensor_lies_in_the_pinned_tensors_own_storage(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Of any dtype and shape, aligned; torch finds the block that a copy must keep by this storage."""
    tensor = torch.randint(0, 2, shape).to(dtype)
    pinned, _, (_, arrived) = rebuilt(torch.ones(3), tensor)
    assert arrived.untyped_storage()._cdata == pinned.untyped_storage()._cdata
    assert (arrived.dtype, arrived.shape, arrived.is_contiguous()) == (dtype, shape, True)
    assert arrived.storage_offset() * dtype.itemsize == 64
    assert torch.equal(arrived.to(torch.complex64), tensor.to(torch.complex64))


def test_pinned_tensors_are_writable_each_for_itself() -> None:
    """Changing one does not change its neighbours."""
    pinned, _, (first, second) = rebuilt(torch.zeros(16), torch.zeros(16))
    first += 1
    assert pinned[:64].view(torch.float32).tolist() == [1] * 16
    assert (first.tolist(), second.tolist()) == ([1] * 16, [0] * 16)


def test_a_pinned_tensor_may_change_while_autograd_has_saved_its_neighbour() -> None:
    """They share memory that was pinned, not the count of changes by which autograd finds a stale value."""
    _, _, (saved, changed) = rebuilt(torch.full((3,), 2.0), torch.zeros(3))
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * saved).sum()
    changed += 1
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]


def test_a_pinned_leaf_still_requires_gradients() -> None:
    """And others do not."""
    _, _, (leaf, other) = rebuilt(torch.ones(2, requires_grad=True), torch.ones(2))
    assert (leaf.requires_grad, leaf.is_leaf, other.requires_grad) == (True, True, False)


def test_arrays_stay_in_ordinary_memory() -> None:
    """Pinned memory is for what can be copied to a GPU; arrays are writable views of what arrived."""
    pinned, ordinary, (array, tensor, bare) = rebuilt(np.arange(5), torch.arange(5), np.arange(3))
    assert pinned.nbytes == 64
    assert all(np.shares_memory(each, np.frombuffer(ordinary, np.uint8)) for each in (array, bare))
    array += 1
    assert (array.tolist(), tensor.tolist(), bare.tolist()) == ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [0, 1, 2])


@pytest.mark.parametrize("small_bytes", [0, 1 << 17], ids=["lent", "through the pipe"])
def test_dataloaders_pinning_thread_pins_the_tensors_at_once(monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    """In torch's own loop one tensor is pinned, without the arrays; all others are in its storage by then."""
    monkeypatch.setattr(collate, "SMALL_BYTES", small_bytes)
    pinned: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor, *_: object) -> torch.Tensor:
        if not any(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata for other in pinned):
            pinned.append(tensor.clone())
            return pinned[-1]
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    samples = [plain_sample(k) | {"array": np.full(9, k), "none": torch.empty(0)} for k in range(2)]
    batch = through_pinning_loop(monkeypatch, collate.pack(samples))
    assert [tensor.nbytes for tensor in pinned] == [2 * 3 * 64 * 8]
    assert (batch[1]["c"].tolist(), batch[1]["array"].tolist()) == ([1] * 64, [1] * 9)
    pinned[0].zero_()
    assert (batch[1]["c"].any().item(), batch[1]["array"].tolist()) == (False, [1] * 9)


def test_a_batch_without_tensors_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its arrays nor its text."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda *_: pytest.fail("pinned"))
    batch = through_pinning_loop(monkeypatch, collate.pack([{"array": np.ones(9), "text": "x" * 999}]))
    assert batch[0]["array"].tolist() == [1] * 9


def test_memory_whose_tensors_were_pinned_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a worker may fill it again while the trainer still holds the batch."""
    monkeypatch.setattr(threading.current_thread(), "name", "Thread-1 (_pin_memory_loop)")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor.clone())
    parcel = collate.pack([{"x": torch.ones(9), "text": "of its own"}])
    batch = collate.unpack(parcel._buffer, parcel._stream_bytes, parcel._tensor_bytes)
    parcel._buffer.append(0)  # a bytearray that is viewed cannot grow
    assert batch[0]["x"].tolist() == [1] * 9


def large_sample(index: int) -> dict[str, Any]:
    """A megabyte, and a little."""
    return {"large": torch.arange(1 << 17) * index, "small": torch.arange(index + 1), "index": index}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch.cuda is not available")
def test_pinned_memory_is_kept_until_its_copies_to_the_gpu_are_done() -> None:
    """Copied behind a busy stream and deleted at once, a batch arrives whole, not as the next one in its place."""
    loader = DataLoader(Samples(large_sample, 256), 8, num_workers=2, collate_fn=mixed_collate, pin_memory=True)
    arrived: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for batch in loader:
            assert all(sample["large"].is_pinned() and sample["small"].is_pinned() for sample in batch)
            torch.cuda._sleep(50_000_000)  # cycles: longer than the next batch takes to come
            moved = [{key: sample[key].to("cuda", non_blocking=True) for key in ("large", "small")} for sample in batch]
            del batch
            arrived += moved
    torch.cuda.synchronize()
    assert len(arrived) == 256
    for index, sample in enumerate(arrived):
        for key, tensor in sample.items():
            assert digest(tensor.cpu()) == digest(large_sample(index)[key]), (index, key)


def digest(tensor: torch.Tensor) -> str:
    """Of its values."""
    return hashlib.blake2b(tensor.numpy().tobytes()).hexdigest()
