"""Values of Arrow's columns as Python's: `a batch of few rows → a list per column`; lists of integers are tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamdata.errors import ShardError, shown
from streamdata.shards.parquet_types import is_integer_list
from streamdata.shards.readers import Int64s
from streamdata.shards.stored_rows import import_pyarrow

# Each beside what it holds.
VALUE_BYTES, _LIST_BYTES, _DICT_BYTES, _TENSOR_BYTES = 64, 160, 240, 400
_WIDEST = 8  # bytes of an int64, which a narrower integer becomes


def values_of(batch: Any, url: str, numbers: Int64s) -> list[Sequence[Any]]:
    """The values of each column.

    Args:
        batch: Few rows; all of them become Python's objects.
        url: Their file, for messages.
        numbers: Of the rows in it.

    Raises:
        ShardError: A value has no type of Python's, or a list of integers has one that is missing or too large.
    """
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return [_values(name, column, url, numbers) for name, column in columns]


def objects_beside(batch: Any) -> int:
    """How many bytes the values of a batch take as Python's objects, about, beside their bytes in the batch."""
    return sum(map(_beside, batch.columns))


def _beside(column: Any) -> int:
    types, kind, size = import_pyarrow().types, column.type, len(column)
    if not size:
        return 0
    if is_integer_list(kind):
        return size * _TENSOR_BYTES + _WIDEST * len(column.flatten())
    if types.is_struct(kind):
        return size * _DICT_BYTES + sum(_beside(column.field(number)) for number in range(kind.num_fields))
    if types.is_map(kind):
        first, count = column.offsets[0].as_py(), column.offsets[size].as_py() - column.offsets[0].as_py()
        return size * _LIST_BYTES + sum(_beside(one.slice(first, count)) for one in (column.keys, column.items))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return size * _LIST_BYTES + _beside(column.flatten())
    return size * VALUE_BYTES


def _values(name: str, column: Any, url: str, numbers: Int64s) -> Sequence[Any]:
    convert = _tensors if is_integer_list(column.type) else _to_pylist
    try:
        return convert(column)
    except (ValueError, OverflowError, NotImplementedError):  # of nanoseconds, say; which row it is shows one by one
        for row in range(len(column)):
            try:
                convert(column.slice(row, 1))
            except (ValueError, OverflowError, NotImplementedError) as error:
                raise ShardError(
                    f"shard '{url}', row {int(numbers[row])}, column {shown(name)}: expected a value that Python's "
                    f"types or an int64 tensor can hold, got: {error}\n  Write the column in another type, such as times "
                    "in microseconds, or leave it out of `columns`."
                ) from error
        raise


def _to_pylist(column: Any) -> Sequence[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _tensors(column: Any) -> Sequence[Any]:
    """Each list as an int64 tensor of its own memory, None where the list is missing."""
    import torch

    pyarrow = import_pyarrow()
    # `flatten` leaves out what lists that are missing hide.
    flat = column.flatten()
    if flat.null_count:
        raise ValueError("a list of integers of which one is missing")
    numbers = flat.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)
    sizes = pyarrow.compute.list_value_length(column).to_pylist()
    ends = np.cumsum([size or 0 for size in sizes]).tolist()
    return [
        None if size is None else torch.from_numpy(np.array(numbers[end - size : end], np.int64))
        for size, end in zip(sizes, ends, strict=True)
    ]
