"""Values of Arrow's columns as Python's: `a batch of few rows → a list per column`; lists of integers are tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamdata.errors import shown
from streamdata.io.storage import Int64s
from streamdata.shards.parquet.stored_rows import import_pyarrow, json_decoder
from streamdata.shards.parquet.types import has_dictionary, is_integer_list
from streamdata.shards.readers import DamagedRecordError

VALUE_BYTES = 64  # that a value takes as an object of Python's, beside what it holds


def values_of(batch: Any, url: str, numbers: Int64s) -> list[Sequence[Any]]:
    """The values of each column.

    Args:
        batch: Few rows; all of them become Python's objects.
        url: Their file, for messages.
        numbers: Of the rows in it.

    Raises:
        DamagedRecordError: A value has no type of Python's, or a list of integers has one that is missing or too large.
    """
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return [_values(name, column, url, numbers) for name, column in columns]


def _values(name: str, column: Any, url: str, numbers: Int64s) -> Sequence[Any]:
    convert = _tensors if is_integer_list(column.type) else _objects
    try:
        return convert(column)
    except (ValueError, OverflowError, NotImplementedError):  # of nanoseconds, say; which row it is shows one by one
        for row in range(len(column)):
            try:
                convert(column.slice(row, 1))
            except (ValueError, OverflowError, NotImplementedError) as error:
                row_number = str(int(numbers[row]))
                raise DamagedRecordError(
                    f"shard '{url}', row {row_number}, column {shown(name)}: expected a value that Python's "
                    f"types or an int64 tensor can hold, got: {error}\n  Write the column in another type, such as "
                    "times in microseconds, or leave it out of `columns`."
                ).of(url, row_number) from error
        raise


def _objects(column: Any) -> list[Any]:
    """The same as `to_pylist`, JSON decoded; a value of a dictionary that is there several times is one object."""
    types, kind = import_pyarrow().types, column.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not has_dictionary(kind) or not (types.is_dictionary(kind) or types.is_struct(kind) or is_list):
        values: list[Any] = column.to_pylist()
        return [decode(value) for value in values] if (decode := json_decoder(kind)) else values
    if types.is_dictionary(kind):
        # Of a dictionary as large as the row group, only what these rows name.
        named = column.indices.dictionary_encode()
        found = [*column.dictionary.take(named.dictionary).to_pylist(), None]
        return [found[place] for place in named.indices.fill_null(len(found) - 1).to_pylist()]
    if types.is_struct(kind):
        names, are_there = [field.name for field in kind], column.is_valid().to_pylist()
        rows = zip(are_there, *map(_objects, column.flatten()), strict=True)
        return [dict(zip(names, row, strict=True)) if is_there else None for is_there, *row in rows]
    flat, sizes, ends = _flattened(column)
    found = _objects(flat)
    return [None if size is None else found[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _flattened(column: Any) -> tuple[Any, list[int | None], list[int]]:
    """What all lists hold; of each its size, None where it is missing, and where it ends."""
    sizes = import_pyarrow().compute.list_value_length(column).to_pylist()
    # `flatten` leaves out what lists that are missing hide.
    return column.flatten(), sizes, np.cumsum([size or 0 for size in sizes], dtype=np.int64).tolist()


def _tensors(column: Any) -> Sequence[Any]:
    """Each list as an int64 tensor of its own memory, None where the list is missing."""
    import torch

    flat, sizes, ends = _flattened(column)
    if flat.null_count:
        raise ValueError("a list of integers of which one is missing")
    numbers = flat.cast(import_pyarrow().int64()).to_numpy(zero_copy_only=False)
    return [
        None if size is None else torch.from_numpy(np.array(numbers[end - size : end], np.int64))
        for size, end in zip(sizes, ends, strict=True)
    ]
