"""Types of parquet's columns: those that are alike, and those of which a row is small by itself."""

from functools import lru_cache, partial
from typing import Any

from streamdata.shards.parquet.stored_rows import import_pyarrow


def plain_schema(schema: Any, *, keep_dictionaries: bool = False) -> Any:
    """The schema without views, and without dictionaries if these are not kept, at any depth."""
    plain = partial(_plain_type, keep_dictionaries=keep_dictionaries)
    return import_pyarrow().schema([field.with_type(plain(field.type)) for field in schema])


def leaves_of(kind: Any) -> list[bool]:
    """Of each column in storage that a type takes, whether what it is read as may hold it as a dictionary."""
    if hasattr(kind, "storage_type"):  # a type of somebody's own
        return [False] * len(leaves_of(kind.storage_type))
    if not kind.num_fields:
        return [True]
    leaves = [leaf for number in range(kind.num_fields) for leaf in leaves_of(kind.field(number).type)]
    return [False] * len(leaves) if import_pyarrow().types.is_map(kind) else leaves


@lru_cache(maxsize=256)
def has_dictionary(kind: Any) -> bool:
    """Whether its values are in dictionaries, at any depth."""
    within = (kind.field(number).type for number in range(kind.num_fields))
    return bool(import_pyarrow().types.is_dictionary(kind) or any(map(has_dictionary, within)))


def cast_batch(batch: Any, schema: Any) -> Any:
    """The batch in this schema."""
    # Only columns of other types: pyarrow fails to cast lists of nulls in structs, even to their own type.
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return import_pyarrow().record_batch(columns, schema=schema)


@lru_cache(maxsize=256)
def is_integer_list(kind: Any) -> bool:
    """Whether its values are lists of integers."""
    types = import_pyarrow().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and types.is_integer(kind.value_type))


def are_alike(one: Any, other: Any) -> bool:
    """Whether rows of two files can be mixed in this column: their Python values are of the same types.

    A column of nulls alone has no type of its own in many writers: it goes with any.
    """
    pyarrow = import_pyarrow()
    return bool(pyarrow.types.is_null(one) or pyarrow.types.is_null(other) or _shape(one) == _shape(other))


def _shape(kind: Any) -> str:
    """A text that types of the same Python values share."""
    types, kind = import_pyarrow().types, _plain_type(kind)
    if types.is_struct(kind):
        # By name: writers order the fields of a struct as they like.
        return "{" + ",".join(sorted(f"{field.name}:{_shape(field.type)}" for field in kind)) + "}"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"[{_shape(kind.value_type)}]"
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
