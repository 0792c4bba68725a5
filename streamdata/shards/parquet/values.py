"""Types of Arrow's columns, and their values as Python's: `a batch of few rows → a list per column`.

Lists of integers become tensors. Of types it tells which are alike, and which hold dictionaries.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from streamdata.errors import shown
from streamdata.io.storage import Int64s
from streamdata.shards.parquet.stored_rows import import_pyarrow, is_list, json_decoder
from streamdata.shards.readers import DamagedRecordError

VALUE_BYTES = 64  # that a value takes as an object of Python's, beside what it holds


def plain_schema(schema: Any, *, keep_dictionaries: bool = False) -> Any:
    """The schema without view types and, unless kept, without dictionaries, at any depth."""
    plain = partial(_plain_type, keep_dictionaries=keep_dictionaries)
    return import_pyarrow().schema([field.with_type(plain(field.type)) for field in schema])


def leaves_of(kind: Any) -> list[bool]:
    """For each stored column of an Arrow type, whether it may be read as a dictionary."""
    if hasattr(kind, "storage_type"):  # a type of somebody's own
        return [False] * len(leaves_of(kind.storage_type))
    if not kind.num_fields:
        return [True]
    leaves = [leaf for number in range(kind.num_fields) for leaf in leaves_of(kind.field(number).type)]
    return [False] * len(leaves) if import_pyarrow().types.is_map(kind) else leaves


@lru_cache(maxsize=256)
def has_dictionary(kind: Any) -> bool:
    """Whether an Arrow type is or contains a dictionary type."""
    within = (kind.field(number).type for number in range(kind.num_fields))
    return bool(import_pyarrow().types.is_dictionary(kind) or any(map(has_dictionary, within)))


def shape_of(kind: Any) -> str:
    """A text equal for Arrow types whose Python values are alike; columns of equal shape can be mixed."""
    types, kind = import_pyarrow().types, _plain_type(kind)
    if types.is_struct(kind):
        # By name: writers order the fields of a struct as they like.
        return "{" + ",".join(sorted(f"{field.name}:{shape_of(field.type)}" for field in kind)) + "}"
    if is_list(kind):
        return f"[{shape_of(kind.value_type)}]"
    kinds = {
        "text": types.is_string(kind) or types.is_large_string(kind),
        "bytes": types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind),
        "int": types.is_integer(kind),
        "float": types.is_floating(kind),
    }
    return next((name for name, is_it in kinds.items() if is_it), str(kind))


@lru_cache(maxsize=256)
def _plain_type(kind: Any, *, keep_dictionaries: bool = False) -> Any:
    # Arrow writes all that a dictionary or view refers to: a row alone would still carry its whole batch.
    pyarrow = import_pyarrow()
    types = pyarrow.types

    def of(inner: Any) -> Any:
        return inner.with_type(_plain_type(inner.type, keep_dictionaries=keep_dictionaries))

    plain = kind
    if types.is_dictionary(kind):
        plain = kind if keep_dictionaries else _plain_type(kind.value_type)
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        plain = pyarrow.large_string() if types.is_string_view(kind) else pyarrow.large_binary()
    elif types.is_struct(kind):
        plain = pyarrow.struct([of(field) for field in kind])
    elif types.is_map(kind):
        plain = pyarrow.map_(of(kind.key_field), of(kind.item_field), kind.keys_sorted)
    elif types.is_fixed_size_list(kind):
        plain = pyarrow.list_(of(kind.value_field), kind.list_size)
    elif types.is_list(kind) or types.is_large_list(kind):
        plain = (pyarrow.list_ if types.is_list(kind) else pyarrow.large_list)(of(kind.value_field))
    return plain


def values_of(column: Any, name: str, url: str, numbers: Int64s) -> Sequence[Any]:
    """Convert a column to Python values.

    Args:
        column: Of few rows; all of them become Python's objects.
        name: Of the column, for messages.
        url: Its file, for messages.
        numbers: Of the rows in it.

    Raises:
        DamagedRecordError: A value has no type of Python's, or a list of integers has one that is missing or too large.
    """
    convert = (
        _tensors if is_list(column.type) and import_pyarrow().types.is_integer(column.type.value_type) else _objects
    )
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
    """Convert as `to_pylist` does, with JSON decoded; a dictionary's value that comes several times is one object."""
    types, kind = import_pyarrow().types, column.type
    if not has_dictionary(kind) or not (types.is_dictionary(kind) or types.is_struct(kind) or is_list(kind)):
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
    """Flatten lists: all that they hold, the size of each, None where it is missing, and where it ends."""
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
