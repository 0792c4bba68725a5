"""Batches that cross from a DataLoader worker to the trainer as one buffer.

`list of samples → pack (worker) → one buffer → unpack (trainer, or its pinning thread) → list of samples`

A stock DataLoader sends every tensor of a batch on its own: a file descriptor, a system call and a mapping for each.
Here a batch is one buffer, in memory that the worker lends unless the batch is small (see `segments`):

    [ pickle stream, protocol 5 | tensors and arrays, each aligned to 64 bytes ]

The stream says at which offset of the second part each tensor lies, and holds all else (strings, bytes, numbers).
"""

import math
import operator
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from streamdata.delivery.segments import Loan, can_lend, lend
from streamdata.progress import number_batch

ALIGNMENT: Final = 64
"""Bytes: a cache line, and a multiple of every dtype's size, so that any slice may be viewed as any dtype."""

SMALL_BYTES: Final = 1 << 17
"""A batch up to this size goes through the pipe, which up to here is as fast as memory that is lent."""

_PADDING: Final = memoryview(bytes(ALIGNMENT))
_PINNING_THREAD: Final = "_pin_memory_loop"
"""The function that DataLoader's pinning thread runs; Python names a thread for its function."""


def mixed_collate(batch: Sequence[dict[str, Any]], possible_keys: Iterable[str] | None = None) -> Any:
    """Makes a batch that arrives in the trainer as an ordinary list of ordinary dicts.

    Tensors and arrays keep dtype, shape and values and arrive writable and row-major, as views of one buffer, at any
    depth of dicts, lists, tuples and objects; two that share memory arrive apart, unless they are one object. A leaf
    that requires gradients still does so. Anything else is pickled as usual. `DataLoader(pin_memory=True)` pins the
    one buffer.

    Args:
        batch: the samples, dicts each.
        possible_keys: keys that every sample of the result has; those that a sample lacks are None.

    Returns:
        The list itself in the main process. In a worker, an opaque parcel that unpickles as that list.

    Raises:
        ValueError: `batch` is not a list of dicts.
        Exception: in a worker, whatever pickling a value raised, with sample and key in a note.
    """
    samples = _with_keys(batch, () if possible_keys is None else tuple(possible_keys))
    number_batch(samples)
    return samples if get_worker_info() is None else pack(samples)


def _with_keys(batch: Sequence[dict[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    if isinstance(batch, Mapping):
        raise ValueError(
            "mixed_collate: the batch is one sample, expected a list of them\n"
            "  Give the DataLoader a batch_size; with batch_size=None it collates nothing."
        )
    for index, sample in enumerate(batch):
        if not isinstance(sample, dict):
            raise ValueError(
                f"mixed_collate: sample {index} of the batch is a {type(sample).__name__}, expected a dict\n"
                "  Let the dataset deliver dicts, as MergedDataset does."
            )
    return [sample | {key: None for key in keys if key not in sample} for sample in batch] if keys else list(batch)


class Parcel:
    """A packed batch on its way; what is unpickled from it is the list of samples."""

    __slots__ = ("_buffer", "_stream_bytes")

    def __init__(self, buffer: Loan | bytearray, stream_bytes: int) -> None:
        self._buffer = buffer
        self._stream_bytes = stream_bytes

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Loan | bytearray, int]]:
        return unpack, (self._buffer, self._stream_bytes)


def pack(samples: list[dict[str, Any]]) -> Parcel:
    """Copies a batch into one buffer, at once: a segment of shared memory, or if it is small, one for the pipe.

    The queue's feeder thread would pickle later, and an error there only prints and lets the trainer wait for ever.
    """
    packer = _Packer()
    try:
        packer.dump(samples)
    except Exception as error:
        _note_culprit(error, samples)
        raise
    pieces, stream_bytes = _pieces(packer)
    num_bytes = stream_bytes + packer.area_bytes
    is_lent = num_bytes > SMALL_BYTES and can_lend()
    return Parcel(lend(pieces, num_bytes) if is_lent else bytearray().join(pieces), stream_bytes)


def unpack(buffer: memoryview | bytearray, stream_bytes: int) -> list[dict[str, Any]]:
    """Rebuilds a batch over `buffer`, without copying tensors and arrays.

    The stream is trusted: it was written by `pack` in this run's own worker process, and arrives over the pipe
    that DataLoader itself unpickles from. It is never read from a file or the network.

    Args:
        buffer: uint8, shape (bytes,).
        stream_bytes: where the tensors begin.
    """
    if _PINNING_THREAD in threading.current_thread().name:
        # DataLoader then asks every tensor to pin itself, and finds it pinned.
        buffer = torch.frombuffer(buffer, dtype=torch.uint8).pin_memory().numpy().data
    memory = memoryview(buffer)
    samples: list[dict[str, Any]] = pickle.loads(  # noqa: S301  our own worker's, see above
        memory[:stream_bytes], buffers=[memory[stream_bytes:]]
    )
    return samples


class _Stream:
    """A file that keeps what is written as it is: a large `bytes` value is copied once, into shared memory."""

    def __init__(self) -> None:
        self.chunks: list[memoryview] = []

    def write(self, data: Any) -> int:
        chunk = memoryview(data)
        self.chunks.append(chunk)
        return chunk.nbytes


class _Packer(pickle.Pickler):
    """Pickles all but the contents of tensors and arrays, which it collects in `parts`.

    In the stream stands, per tensor, the offset in an area that follows: the stream's only out-of-band buffer.
    """

    def __init__(self) -> None:
        self.stream = _Stream()
        self.parts: list[tuple[int, npt.NDArray[np.uint8]]] = []
        self.area_bytes = 0
        self._area = _Area()
        self._area_buffer = pickle.PickleBuffer(bytearray(1))
        # True keeps a buffer in the stream. Not a method of self: that cycle would keep the samples until a collection.
        is_in_band = partial(operator.is_not, self._area_buffer)
        super().__init__(self.stream, protocol=5, buffer_callback=is_in_band)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._reduce_tensor(value)
        if kind is np.ndarray:
            return self._reduce_array(value)
        if value is self._area:
            return _same, (self._area_buffer,)
        return NotImplemented

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            return NotImplemented
        if tensor.requires_grad and not tensor.is_leaf:
            raise ValueError(
                "mixed_collate: a tensor was computed under autograd, expected a leaf: no graph crosses processes\n"
                "  Call .detach() on it, or compute it under torch.no_grad()."
            )
        offset = self._add(memory_of(tensor).numpy())
        return _tensor, (self._area, offset, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)

    def _reduce_array(self, array: npt.NDArray[Any]) -> Any:
        if array.dtype.hasobject:
            return NotImplemented
        row_major = np.ascontiguousarray(array).reshape(-1)
        offset = self._add(row_major.view(np.uint8)) if array.nbytes else 0
        return _array, (self._area, offset, array.dtype, array.shape)

    def _add(self, part: npt.NDArray[np.uint8]) -> int:
        offset = self.area_bytes
        self.parts.append((offset, part))
        self.area_bytes = _aligned(offset + part.nbytes)
        return offset


class _Area:
    """Stands in the stream for the memory of all tensors."""


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's values in row-major order, uint8, shape (bytes,); its own memory where that is such."""
    row_major = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Not `reshape(-1)`: one with a single element, or none, counts as contiguous with any stride, and keeps it.
    return row_major.as_strided((row_major.numel(),), (1,)).view(torch.uint8)


def _same(area: memoryview) -> memoryview:
    return area


def _tensor(
    area: memoryview, offset: int, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    count = math.prod(shape)
    # `frombuffer` refuses to make an empty tensor.
    flat = torch.frombuffer(area, dtype=dtype, count=count, offset=offset) if count else torch.empty(0, dtype=dtype)
    tensor = flat if len(shape) == 1 else flat.reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _array(area: memoryview, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.ndarray(shape, dtype, buffer=area, offset=offset) if 0 not in shape else np.empty(shape, dtype)


def _pieces(packer: _Packer) -> tuple[list[memoryview], int]:
    """All that is to be copied, one after another, padding included; and where the tensors begin."""
    end = sum(chunk.nbytes for chunk in packer.stream.chunks)
    stream_bytes = _aligned(end)
    pieces = [*packer.stream.chunks, _PADDING[: stream_bytes - end]]
    end = 0
    for offset, part in packer.parts:
        pieces += [_PADDING[: offset - end], part.data]
        end = offset + part.nbytes
    return [*pieces, _PADDING[: packer.area_bytes - end]], stream_bytes


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _note_culprit(error: Exception, samples: list[dict[str, Any]]) -> None:
    """Adds which value cannot be pickled, found by trying them one by one."""
    for index, sample in enumerate(samples):
        for key, value in sample.items():
            try:
                _Packer().dump(value)
            except Exception:  # it is the one that `error` came from; any kind of it counts
                error.add_note(
                    f"mixed_collate: sample {index}, key {key!r}: a {type(value).__name__} that cannot be pickled "
                    "to the trainer\n  Drop or convert it in the dataset's process function."
                )
                return
