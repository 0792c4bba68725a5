import functools
import multiprocessing
import pickle
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from streamdata.delivery import collate, mixed_collate, segments
from tests.streams import raises_in_worker

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]


class Samples(Dataset[dict[str, Any]]):
    """Map-style dataset whose sample i is `make(i)`."""

    def __init__(self, make: Callable[[int], dict[str, Any]], length: int = 8) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._make(index)


def mixed_sample(index: int) -> dict[str, Any]:
    """Something of every kind, nested."""
    return {
        "tokens": torch.arange(5) + index,
        "jpg": bytes([index]) * 100_000,
        "nested": {"list": [np.full((2, 3), index, dtype=np.float32), (torch.tensor(index), "text")]},
        "__key__": str(index),
    }


def plain_sample(index: int) -> dict[str, Any]:
    """Three tensors."""
    return {name: torch.full((64,), index) for name in "abc"}


def unpicklable_sample(index: int) -> dict[str, Any]:
    """The third cannot be pickled."""
    return {"fine": index, "callback": (lambda: index) if index == 2 else None}


def cross(value: Any) -> Any:
    """Sends one value as a worker would, and returns what the trainer receives."""
    return arrive(collate.pack([{"value": value}]))[0]["value"]


def arrive(parcel: collate.Parcel) -> list[dict[str, Any]]:
    """Sends a parcel as DataLoader's queue does."""
    return pickle.loads(ForkingPickler.dumps(parcel))


def open_files() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_collate_delivers_an_ordinary_list_of_what_workers_send(start_method: str) -> None:
    """Tensors, arrays, bytes and nested values arrive equal, in a plain list of plain dicts."""
    context = multiprocessing.get_context(start_method)
    options = {"num_workers": 1, "collate_fn": mixed_collate, "multiprocessing_context": context}
    batches = list(DataLoader(Samples(mixed_sample), 4, **options))
    assert [type(batch) for batch in batches] == [list, list]
    for index, sample in enumerate(batches[0] + batches[1]):
        expected = mixed_sample(index)
        assert type(sample) is dict
        assert list(sample) == list(expected)
        assert torch.equal(sample["tokens"], expected["tokens"])
        assert sample["jpg"] == expected["jpg"]
        array, (scalar, text) = sample["nested"]["list"]
        assert np.array_equal(array, expected["nested"]["list"][0])
        assert (scalar, text) == (torch.tensor(index), "text")


def test_collate_returns_the_list_at_once_without_workers() -> None:
    """In the main process nothing is packed: the very values are returned."""
    samples = [plain_sample(0), plain_sample(1)]
    batch = mixed_collate(samples)
    assert type(batch) is list
    assert all(got[key] is sample[key] for got, sample in zip(batch, samples, strict=True) for key in sample)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_collate_fills_missing_possible_keys_with_none(num_workers: int) -> None:
    """Every possible key is there, None where the sample lacks it; other keys stay."""
    fill = functools.partial(mixed_collate, possible_keys=["a", "caption"])
    (batch,) = DataLoader(Samples(plain_sample, 2), 2, num_workers=num_workers, collate_fn=fill)
    assert [list(sample) for sample in batch] == [["a", "b", "c", "caption"]] * 2
    assert [sample["caption"] for sample in batch] == [None, None]


def test_collate_leaves_the_datasets_own_dict_alone() -> None:
    """Filling a key is done on a copy."""
    sample = {"a": 1}
    assert mixed_collate([sample], ["b"]) == [{"a": 1, "b": None}]
    assert sample == {"a": 1}


@pytest.mark.parametrize(("batch", "found"), [({"a": 1}, "one sample"), ([{"a": 1}, 5], "sample 1 of the batch is a")])
def test_collate_rejects_what_is_no_list_of_dicts(batch: Any, found: str) -> None:
    """The error says which sample is not a dict."""
    with pytest.raises(ValueError, match=found):
        mixed_collate(batch)


@pytest.fixture
def all_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches go through shared memory too."""
    monkeypatch.setattr(collate, "SMALL_BYTES", 0)


@pytest.mark.parametrize("small_bytes", [0, 1 << 30])
def test_both_ways_bring_the_same(monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    """Through the pipe or through shared memory, from a real worker: the same batches, writable."""
    monkeypatch.setattr(collate, "SMALL_BYTES", small_bytes)
    loader = DataLoader(Samples(plain_sample, 6), 3, num_workers=1, collate_fn=mixed_collate)
    batches = list(loader)
    assert [sample["c"].tolist() for batch in batches for sample in batch] == [[k] * 64 for k in range(6)]
    batches[1][2]["c"] += 1
    assert batches[1][2]["c"].tolist() == [6] * 64


def test_small_batches_go_through_the_pipe() -> None:
    """They cost no file; large ones lie in shared memory."""
    small, large = (collate.pack([{"x": torch.zeros(size)}]) for size in (10, 1 << 16))
    assert isinstance(small._buffer, bytearray)
    assert isinstance(large._buffer, segments.Loan)


@pytest.mark.usefixtures("all_shared")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_batches_that_are_kept_cost_no_file_descriptor() -> None:
    """However many batches and tensors the trainer holds."""
    loader = DataLoader(Samples(plain_sample, 64), 8, num_workers=1, collate_fn=mixed_collate, prefetch_factor=8)
    batches: Iterator[Any] = iter(loader)
    held = [next(batches)]
    before = open_files()
    held += [next(batches) for _ in range(5)]
    assert open_files() <= before  # fewer where the garbage of other tests went


def test_unpicklable_value_is_an_error_that_names_sample_and_key() -> None:
    """It is raised in the main thread of the worker and reaches the trainer, which does not wait forever."""
    loader = DataLoader(Samples(unpicklable_sample, 4), 4, num_workers=1, collate_fn=mixed_collate, timeout=60)
    with raises_in_worker(Exception, r"sample 2, key 'callback': a function that cannot be pickled") as caught:
        list(loader)
    assert isinstance(caught.value, pickle.PicklingError | AttributeError)  # the pickler's own kind, by Python version


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (2, 3)], ids=str)
def test_tensor_arrives_as_it_was(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Any dtype and shape, scalars and empty tensors too."""
    tensor = torch.randint(0, 2, shape).to(dtype)
    arrived = cross(tensor)
    assert (arrived.dtype, arrived.shape) == (dtype, shape)
    assert torch.equal(arrived.to(torch.complex64), tensor.to(torch.complex64))


def test_an_empty_tensor_arrives_on_the_cpu_as_it_was() -> None:
    """Whatever the trainer's default device is."""
    with torch.device("meta"):
        assert cross(torch.empty(0, 3, device="cpu")).device.type == "cpu"


@given(
    st.sampled_from(["?", "u1", "<i2", ">i4", "<i8", "<f2", "<f8", "c8", "S3", "U2", "S0", "datetime64[s]", "i4,f8"]),
    st.lists(st.integers(0, 4), max_size=3),
)
def test_array_arrives_as_it_was(dtype: str, shape: list[int]) -> None:
    """Any dtype and shape, text, times and structures too."""
    array = np.frombuffer(bytes(range(1, 4)) * 1000, np.uint8)[: np.dtype(dtype).itemsize * int(np.prod(shape))] % 2
    array = array.view(dtype).reshape(shape) if array.nbytes else np.empty(shape, dtype)
    arrived = cross(array)
    assert (arrived.dtype, arrived.shape, arrived.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_views_arrive_with_their_own_values_alone() -> None:
    """A transposed, conjugated or small view crosses as its values; the memory around it stays behind."""
    big = torch.arange(1_000_000, dtype=torch.float32)
    assert torch.equal(cross(big[:12].reshape(3, 4).T), big[:12].reshape(3, 4).T)
    assert torch.equal(cross(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))
    assert np.array_equal(cross(np.arange(12).reshape(3, 4)[::2, ::-1]), np.arange(12).reshape(3, 4)[::2, ::-1])
    assert len(collate.pack([{"view": big[:10]}])._buffer) < 1000


@pytest.mark.parametrize("view", [torch.ones(1, 4)[:, 0], torch.arange(3)[::4], torch.ones(0, 4)[:, 0]], ids=str)
def test_one_value_or_none_arrives_whatever_its_stride(view: torch.Tensor) -> None:
    """Such a view counts as contiguous: the boxes' first column, of an image with one box."""
    assert view.stride() != (1,)
    assert torch.equal(cross(view), view)


def test_what_arrives_is_writable() -> None:
    """Also what was read-only; writing to one tensor changes no other."""
    frozen = np.frombuffer(b"1234", np.uint8)
    array, first, second = cross([frozen, torch.zeros(3), torch.zeros(3)])
    array[0] = 7
    first += 1
    assert array.tolist() == [7, 50, 51, 52]
    assert (first.tolist(), second.tolist()) == ([1, 1, 1], [0, 0, 0])


def test_one_object_twice_arrives_as_one_object() -> None:
    """Identity within a batch is kept for tensors and arrays."""
    tensor, array = torch.zeros(2), np.zeros(2)
    arrived = cross([tensor, tensor, array, array])
    assert arrived[0] is arrived[1]
    assert arrived[2] is arrived[3]


def test_gradients_cross_for_leaves_only() -> None:
    """A leaf still requires gradients; a computed tensor is refused, with the remedy."""
    leaf = torch.ones(2, requires_grad=True)
    assert cross(leaf).requires_grad
    with pytest.raises(ValueError, match=r"under autograd.*\n.*detach") as caught:
        collate.pack([{"value": leaf * 2}])
    assert any("key 'value'" in note for note in caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_take_their_usual_way() -> None:
    """Those with rows of their own length call their layout strided, and are not."""
    nested = torch.nested.nested_tensor([torch.ones(1), torch.zeros(2)])
    assert [row.tolist() for row in cross(nested).unbind()] == [[1], [0, 0]]


def test_other_kinds_take_their_usual_way() -> None:
    """Sparse tensors, parameters, object arrays and plain objects are pickled as they define."""
    assert torch.equal(cross(torch.eye(2).to_sparse()).to_dense(), torch.eye(2))
    assert isinstance(cross(torch.nn.Parameter(torch.ones(2))), torch.nn.Parameter)
    assert cross(np.array([None, "x"], dtype=object)).tolist() == [None, "x"]
    assert np.array_equal(cross(np.ma.masked_equal([1, 2], 2)).mask, [False, True])
    assert cross({"path": Path("x"), "number": 2**70}) == {"path": Path("x"), "number": 2**70}


@pytest.mark.usefixtures("all_shared")
def test_packing_keeps_nothing_alive() -> None:
    """The samples are freed with their last reference, not at some later garbage collection."""
    tensor = torch.zeros(1000)
    alive = weakref.ref(tensor)
    parcel = collate.pack([{"value": tensor}])
    del tensor
    assert alive() is None
    assert arrive(parcel)[0]["value"].count_nonzero() == 0


@pytest.mark.usefixtures("all_shared")
def test_tensors_are_aligned() -> None:
    """Each begins at a multiple of 64 bytes, so that any dtype can be viewed and copied fast."""
    arrived = cross([torch.zeros(1, dtype=torch.uint8), torch.zeros(3), np.zeros(1, np.int8), torch.zeros(5)])
    starts = [arrived[0].data_ptr(), arrived[1].data_ptr(), arrived[2].ctypes.data, arrived[3].data_ptr()]
    assert [start % 64 for start in starts] == [0, 0, 0, 0]
    assert [start - starts[0] for start in starts] == [0, 64, 192, 128]  # the array lies after all tensors


def through_pinning_loop(monkeypatch: pytest.MonkeyPatch, parcel: collate.Parcel) -> Any:
    """Runs torch's pinning loop, in a thread made as DataLoader makes it, over one parcel."""
    if hasattr(torch, "accelerator"):  # torch >= 2.6
        monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    done, results = threading.Event(), queue.Queue[Any]()
    waiting = [parcel]

    class Incoming:
        def get(self, timeout: float) -> Any:
            del timeout
            if not waiting:
                raise queue.Empty
            return 0, arrive(waiting.pop())

    loop = torch.utils.data._utils.pin_memory._pin_memory_loop
    thread = threading.Thread(target=loop, args=(Incoming(), results, 0, done, None))
    threads = torch.get_num_threads()
    thread.start()
    _, batch = results.get(timeout=60)
    done.set()
    thread.join()
    torch.set_num_threads(threads)
    return batch


def test_pinning_is_left_to_dataloader_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the pinning thread nothing is pinned."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda *_: pytest.fail("pinned"))
    assert torch.equal(cross(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize("can_lend", [True, False])
def test_large_batches_arrive_whole(monkeypatch: pytest.MonkeyPatch, can_lend: bool) -> None:
    """More pieces than one system call takes, of many sizes, also where the system has no files in memory."""
    monkeypatch.setattr(collate, "can_lend", lambda: can_lend)
    samples = [{"bytes": bytes([k % 256]) * (k % 91), "x": torch.full((k % 7, 3), k)} for k in range(3000)]
    arrived = arrive(collate.pack(samples))
    assert all(a["bytes"] == b["bytes"] and torch.equal(a["x"], b["x"]) for a, b in zip(arrived, samples, strict=True))
