"""Batches that cross from a DataLoader worker to the trainer as one buffer.

`list of samples → pack (worker) → one buffer → unpack (trainer, or its pinning thread) → list of samples`

A stock DataLoader sends every tensor of a batch on its own: a file descriptor, a system call and a mapping for each.
Here a batch is one buffer, in memory that the worker lends unless the batch is small (see `segments`):

    [ pickle stream, protocol 5 | tensors | arrays ]        each tensor and array is aligned to 64 bytes

The stream says at which offset of its part each tensor or array lies, and holds all else (strings, bytes, numbers).
"""

import math
import operator
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from streamdata.delivery.segments import Loan, can_lend, lend
from streamdata.errors import shown
from streamdata.fields import SAMPLES, STATES, samples_of, without_states
from streamdata.run.lane_link import LaneLink
from streamdata.states.cursor import links_of, number_batch, state_text


class StatedSamples(NamedTuple):
    """Samples without the fields that hold states, and the text of their states, as `state_text` makes it."""

    samples: list[dict[str, Any]]
    state: str


Batch: TypeAlias = list[dict[str, Any]] | dict[str, Any] | StatedSamples
"""Samples, or a dict of what was made of them."""

ALIGNMENT: Final = 64
"""Bytes: a cache line, and a multiple of every dtype's size, so that any slice may be viewed as any dtype."""

SMALL_BYTES: Final = 1 << 17
"""A batch up to this size goes through the pipe, which up to here is as fast as memory that is lent."""

_PADDING: Final = memoryview(bytes(ALIGNMENT))
_PINNING_THREAD: Final = "_pin_memory_loop"
"""The function that DataLoader's pinning thread runs; Python names a thread for its function."""


def mixed_collate(batch: Sequence[dict[str, Any]], possible_keys: Iterable[str] | None = None) -> Any:
    """Collates samples into a plain list of dicts, which a worker sends to the trainer in one buffer.

    Tensors and arrays keep dtype, shape and values and arrive writable and row-major, as views of one buffer, at any
    depth of dicts, lists, tuples and objects; two that share memory arrive apart, unless they are one object. A leaf
    that requires gradients still does so. Anything else is pickled as usual.

    `DataLoader(pin_memory=True)` pins the tensors of a batch at once, in one storage that they then share: clone one
    that you save, or keep for long. Arrays are not pinned.

    Args:
        batch: The samples, each a dict.
        possible_keys: Keys that every sample of the result has; those that a sample lacks are None.

    Returns:
        The list itself in the main process. In a worker, an opaque parcel that unpickles as that list.

    Raises:
        ValueError: `batch` is not a list of dicts.
        Exception: In a worker, whatever pickling a value raised, with sample and key in a note.
    """
    samples, keys = samples_of("mixed_collate", batch), tuple(possible_keys or ())
    if keys:
        samples = [sample | {key: None for key in keys if key not in sample} for sample in samples]
    number_batch(samples)
    return samples if get_worker_info() is None else pack(samples)


def stated_collate(batch: Sequence[dict[str, Any]]) -> Any:
    """Collates as `mixed_collate` does, for a reader that takes the states of a batch as a whole.

    A worker makes their text, so that no cursors are sent: to pickle and unpickle these takes longer.

    Returns:
        The list itself in the main process. In a worker, an opaque parcel that unpickles as `StatedSamples`.
    """
    samples = samples_of("mixed_collate", batch)
    number_batch(samples)
    if get_worker_info() is None:
        return samples
    return pack(StatedSamples(without_states(samples), state_text(samples)), links_of(samples))


class Parcel:
    """A packed batch in transit to the trainer; unpickles as the batch: a list of samples, or a dict of tensors."""

    __slots__ = ("_buffer", "_stream_bytes", "_tensor_bytes")

    def __init__(self, buffer: Loan | bytearray, stream_bytes: int, tensor_bytes: int) -> None:
        self._buffer = buffer
        self._stream_bytes, self._tensor_bytes = stream_bytes, tensor_bytes

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Loan | bytearray, int, int]]:
        return unpack, (self._buffer, self._stream_bytes, self._tensor_bytes)


def pack(batch: Batch, links: Sequence[LaneLink] = ()) -> Parcel:
    """Copies a batch into one buffer immediately: a shared-memory segment, or a bytearray for the pipe if it is small.

    The queue's feeder thread would pickle later, and an error there is only printed, and the trainer waits forever.

    Args:
        batch: Samples, which bring their lane's link along; or what was made of them, which does not.
        links: What a batch without cursors leaves out. The trainer hears them, and does not receive them.
    """
    packer = _Packer()
    try:
        packer.dump((links, batch))
    except Exception as error:
        _note_unpicklable(error, batch)
        raise
    stream, tensors, arrays = packer.stream, packer.tensors, packer.arrays
    stream.pad()
    pieces = [*stream.pieces, *tensors.pieces, *arrays.pieces]
    num_bytes = stream.num_bytes + tensors.num_bytes + arrays.num_bytes
    is_lent = num_bytes > SMALL_BYTES and can_lend()
    buffer = lend(pieces, num_bytes) if is_lent else bytearray().join(pieces)
    return Parcel(buffer, stream.num_bytes, tensors.num_bytes)


def unpack(buffer: memoryview | bytearray, stream_bytes: int, tensor_bytes: int) -> Batch:
    """Rebuilds a batch over `buffer`, without copying tensors and arrays, unless the tensors are to be pinned.

    The stream is trusted: it was written by `pack` in this run's own worker process, and arrives over the pipe
    that DataLoader itself unpickles from. It is never read from a file or the network.

    Args:
        buffer: uint8, shape (bytes,).
        stream_bytes: Where the tensors begin.
        tensor_bytes: Of all tensors, which lie before the arrays.
    """
    memory = memoryview(buffer)
    end = stream_bytes + tensor_bytes
    stream, tensors, arrays = memory[:stream_bytes], memory[stream_bytes:end], memory[end:]
    if tensor_bytes and _PINNING_THREAD in threading.current_thread().name:
        # DataLoader then asks every tensor to pin itself, and finds it pinned.
        return rebuild(stream, torch.frombuffer(tensors, dtype=torch.uint8).pin_memory(), arrays)
    return rebuild(stream, tensors, arrays)


def rebuild(stream: memoryview, tensors: memoryview | torch.Tensor, arrays: memoryview) -> Batch:
    """Rebuilds a batch from its three parts.

    torch's allocator of pinned memory knows a block by its storage. A copy to the GPU from any other storage over the
    same memory would not keep the block, which could be overwritten during the copy. So pinned memory is passed as the
    tensor that torch made.

    Args:
        stream: uint8, shape (bytes,).
        tensors: uint8, shape (bytes,). If it is ordinary memory, each tensor of the batch becomes a view with a storage
            of its own; if it is a tensor, a view that shares its storage.
        arrays: uint8, shape (bytes,).
    """
    if isinstance(tensors, torch.Tensor):
        assert tensors.storage_offset() == 0, "offsets count from where the storage begins"
        memories = _Memories(tensors.untyped_storage(), arrays)
    else:
        memories = _Memories(tensors, arrays)
    # What `buffers` holds, pickle passes to `_identity` unchanged, though it is not a buffer.
    batch: Batch
    _, batch = pickle.loads(stream, buffers=[memories])  # noqa: S301  our own worker's, see above
    return batch


class _BufferPart:
    """A part of the buffer. What is written is kept by reference, and copied only once: into shared memory."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.num_bytes = 0

    def write(self, data: Any) -> int:
        piece = memoryview(data)
        self.pieces.append(piece)
        self.num_bytes += piece.nbytes
        return piece.nbytes

    def pad(self) -> None:
        if self.num_bytes % ALIGNMENT:
            self.write(_PADDING[: -self.num_bytes % ALIGNMENT])

    def add(self, values: npt.NDArray[np.uint8]) -> int:
        """Write an aligned piece; return its offset."""
        begin, end = self.num_bytes, self.num_bytes + values.nbytes
        padding = _PADDING[: -end % ALIGNMENT]
        self.pieces += (values.data, padding)
        self.num_bytes = end + len(padding)
        return begin


class _Packer(pickle.Pickler):
    """Pickles all but the contents of tensors and arrays, which it collects in parts of their own.

    For each tensor or array, the stream holds the offset in its part, and refers to its only out-of-band buffer, for
    which `rebuild` substitutes both parts.
    """

    def __init__(self) -> None:
        self.stream, self.tensors, self.arrays = _BufferPart(), _BufferPart(), _BufferPart()
        self._memories = object()  # stands in the stream for those that the batch is rebuilt over
        self._out_of_band = pickle.PickleBuffer(bytearray(1))
        # True keeps a buffer in the stream. Not a method of self: that cycle would keep the samples until a collection.
        is_in_band = partial(operator.is_not, self._out_of_band)
        super().__init__(self.stream, protocol=5, buffer_callback=is_in_band)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._reduce_tensor(value)
        if kind is np.ndarray and not value.dtype.hasobject:
            row_major = np.ascontiguousarray(value).reshape(-1)
            offset = self.arrays.add(row_major.view(np.uint8)) if value.nbytes else 0
            return _array, (self._memories, offset, value.dtype, value.shape)
        if value is self._memories:
            return _identity, (self._out_of_band,)
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        is_plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
        if not is_plain or not tensor.is_cpu:
            return NotImplemented
        if tensor.requires_grad and not tensor.is_leaf:
            raise ValueError(
                "a tensor of the batch was computed under autograd, expected a leaf: no graph crosses processes\n"
                "  Call .detach() on it, or compute it under torch.no_grad()."
            )
        offset = self.tensors.add(memory_of(tensor).numpy())
        return _tensor, (self._memories, offset, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


class _Memories(NamedTuple):
    """The memories of which tensors and arrays become views."""

    tensors: memoryview | torch.UntypedStorage
    arrays: memoryview


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's values in row-major order, uint8, shape (bytes,); a view where possible."""
    is_plain = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    if is_plain and tensor.is_contiguous() and tensor.numel() > 1:  # as most are, of which a batch has hundreds
        return (tensor if tensor.dim() == 1 else tensor.view(-1)).view(torch.uint8)
    row_major = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Not `reshape(-1)`: a tensor of one element, or none, counts as contiguous with any stride, and keeps that stride.
    return row_major.as_strided((row_major.numel(),), (1,)).view(torch.uint8)


def _identity(memories: _Memories) -> _Memories:
    return memories


def _tensor(
    memories: _Memories, offset: int, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    memory = memories.tensors
    if isinstance(memory, torch.UntypedStorage):
        # Not slices of one tensor: they would share one version counter, so that after an in-place change of one of
        # them autograd would refuse what it has saved of another.
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        tensor.set_(memory, offset // dtype.itemsize, shape, strides)
    elif 0 in shape:  # `frombuffer` refuses to make an empty tensor
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
    else:
        flat = torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset)
        tensor = flat if len(shape) == 1 else flat.reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _array(memories: _Memories, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.ndarray(shape, dtype, buffer=memories.arrays, offset=offset) if 0 not in shape else np.empty(shape, dtype)


def _note_unpicklable(error: Exception, batch: Batch) -> None:
    """Adds a note that names the value that cannot be pickled, found by trying one after another."""
    for place, value in _values(batch):
        try:
            _Packer().dump(value)
        except Exception:  # whatever it is, `error` came from this value
            error.add_note(
                f"{place}: a {type(value).__name__} that cannot be pickled to the trainer\n"
                "  Drop or convert it in the dataset's process function."
            )
            return


def _values(batch: Batch) -> Iterator[tuple[str, Any]]:
    """The values of a batch, one of a list of them, each with its place."""
    if isinstance(batch, dict):
        for key, value in batch.items():
            parts = enumerate(value) if isinstance(value, list) else [(None, value)]
            for index, part in parts:
                yield f"TensorCollate: {'' if index is None else f'sample {index}, '}field {shown(key)}", part
    else:
        for index, sample in enumerate(batch.samples if isinstance(batch, StatedSamples) else batch):
            for key, value in sample.items():
                yield f"mixed_collate: sample {index}, key {shown(key)}", value


class GroupCollate:
    """Collates the samples of a group that `GroupByLength` made, and keeps the group's state.

    Args:
        collate: A function that makes a batch of a list of samples, such as `mixed_collate`.

    Raises:
        ValueError: `collate` cannot be called.
    """

    def __init__(self, collate: Callable[[list[dict[str, Any]]], Any] = mixed_collate) -> None:
        if not callable(collate):
            raise ValueError(
                f"GroupCollate: collate is {shown(collate)}, expected a collate function\n"
                "  Give what the loader would be given for batches of samples, such as mixed_collate."
            )
        self.collate = collate

    def __call__(self, groups: Sequence[dict[str, Any]]) -> Any:
        """Collate the samples of all groups, of one where the loader has `batch_size=1`.

        Raises:
            ValueError: `groups` are not groups.
        """
        samples: list[dict[str, Any]] = []
        for group in groups:
            members = group.get(SAMPLES) if isinstance(group, dict) else None
            if not isinstance(members, list) or not members:
                has = sorted(group) if isinstance(group, dict) else type(group).__name__
                raise ValueError(
                    f"GroupCollate: expected groups with a list of samples under {SAMPLES!r}, got {has}\n"
                    "  Let GroupByLength be the dataset's customized_yield_fn or the process_fn of each source."
                )
            own = {name: value for name, value in group.items() if name not in (SAMPLES, STATES)}
            samples += [{**own, **member} for member in members]
            # What was pulled for the group is said once: by its last sample.
            if STATES in group:
                samples[-1][STATES] = group[STATES]
        return self.collate(samples)
