"""Types of Arrow's columns, and values of some rows as Python's: `batches → columns of few rows → a list per column`.

Lists of integers become tensors, and columns of JSON what it says. Of types it tells which are alike.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import numpy as np

from streamdata.errors import needs, shown
from streamdata.io.storage import Int64s
from streamdata.shards.readers import DamagedRecordError


@cache
def import_pyarrow() -> Any:
    """Import pyarrow with its parts for IPC, parquet and compute.

    Raises:
        ImportError: It is missing; the message says how to install it.
    """
    with needs("pyarrow", "parquet", "reading parquet"):
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    return pa


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list type of any kind."""
    types = import_pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


class JsonObject(dict[str, Any]):
    """A dict from a JSON column: its None values were written as null, not filled in by Arrow."""


Decoder = Callable[[Any], Any]


@lru_cache(maxsize=256)
def json_decoder(kind: Any) -> Decoder | None:
    """Make a function that decodes JSON (`arrow.json`, HF's `Json()`) in values of an Arrow type, also nested."""
    types = import_pyarrow().types
    if getattr(kind, "extension_name", None) == "arrow.json":
        return _decoded
    if types.is_struct(kind):
        fields = {field.name: decode for field in kind if (decode := json_decoder(field.type))}
        of_row = lambda row: row and row | {name: decode(row[name]) for name, decode in fields.items()}  # noqa: E731
        return of_row if fields else None
    of_item = json_decoder(kind.value_type) if is_list(kind) else None
    return of_item and (lambda items: items and [of_item(item) for item in items])


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text, object_hook=JsonObject)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(text)} in a column of JSON: {error}") from error


def plain_schema(schema: Any) -> Any:
    """The schema without view types and dictionaries, at any depth."""
    return import_pyarrow().schema([field.with_type(_plain_type(field.type)) for field in schema])


@lru_cache(maxsize=256)
def _plain_type(kind: Any) -> Any:
    # Arrow writes all that a dictionary or view refers to: a row alone would still carry its whole batch.
    pyarrow = import_pyarrow()
    types = pyarrow.types

    def of(inner: Any) -> Any:
        return inner.with_type(_plain_type(inner.type))

    plain = kind
    if types.is_dictionary(kind):
        plain = _plain_type(kind.value_type)
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


def as_schema(batch: Any, schema: Any) -> Any:
    """The record batch with the columns of a schema, in their order, of their types."""
    if batch.schema.equals(schema):
        return batch
    # Only columns of other types: pyarrow fails to cast lists of nulls in structs, even to their own.
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.select(schema.names).columns, schema, strict=True)
    ]
    return import_pyarrow().record_batch(columns, schema=schema)


def named_bytes(column: Any) -> int:
    """The bytes that a column of a dictionary stands for, each value as often as it is named; 0 for other columns."""
    pyarrow = import_pyarrow()
    if not pyarrow.types.is_dictionary(column.type):
        return 0
    lengths = pyarrow.compute.binary_length(column.dictionary).cast(pyarrow.int64())
    return pyarrow.compute.sum(lengths.take(column.indices)).as_py() or 0


class IntegerLists:
    """A column of lists of integers, of any number of rows, as one array and where each list lies in it."""

    def __init__(self, column: Any) -> None:
        pyarrow = import_pyarrow()
        if pyarrow.types.is_fixed_size_list(column.type):
            column = column.cast(pyarrow.list_(column.type.value_type))
        self.num_bytes: int = column.nbytes
        offsets, self._numbers = column.offsets.to_numpy(), column.values
        self._begins, self._ends = offsets[:-1], offsets[1:]
        if column.null_count:
            self._ends = np.where(column.is_null(), -1, self._ends)
        with suppress(ValueError):  # one is missing or too large, which is an error of its list alone
            if self._numbers.type == "uint64":  # they stay where they are: the cast is to look at all of them
                self._numbers = self._numbers.view(self._numbers.cast("int64").type)
            self._numbers = self._numbers.to_numpy()

    def views(self, rows: Int64s) -> list[Any]:
        """The lists of some rows in this memory, as arrays (of Arrow's, where one is wrong); None for a missing one."""
        where = zip(self._begins[rows].tolist(), self._ends[rows].tolist(), strict=True)
        return [None if end < 0 else self._numbers[begin:end] for begin, end in where]


class Rows:
    """Decoded rows, some of which are taken. Of lists of integers that is views: Arrow would copy number by number.

    Args:
        batch: A record batch.
        named_bytes: What the dictionaries of its columns stand for, see `named_bytes`.
    """

    def __init__(self, batch: Any, named_bytes: int = 0) -> None:
        is_integer = import_pyarrow().types.is_integer
        lists = [field.name for field in batch.schema if is_list(field.type) and is_integer(field.type.value_type)]
        self.lists = {name: IntegerLists(batch[name]) for name in lists}
        self.others = batch.drop_columns(lists)
        self.num_bytes: int = self.others.nbytes + sum(column.num_bytes for column in self.lists.values())
        self.row_bytes = max(self.num_bytes, named_bytes) // batch.num_rows + 1
        """How large a row is on average, as it comes out."""


def gathered(runs: Sequence[Rows], run_of: Int64s, rows: Int64s, schema: Any) -> dict[str, Any]:
    """Columns of rows of several batches, in the order asked for: arrays of Arrow's, and views of lists of integers.

    Args:
        runs: The batches.
        run_of: The number of the batch of each row, (n,).
        rows: The number of each row in it, (n,).
        schema: Of the result.
    """
    order = np.lexsort((rows, run_of)) if len(runs) > 1 else np.arange(len(rows))
    own = np.split(rows[order], np.searchsorted(run_of[order], np.arange(1, len(runs))))
    places = np.argsort(order)
    columns = dict[str, Any]()
    for name in runs[0].lists:
        views = [view for run, some in zip(runs, own, strict=True) for view in run.lists[name].views(some)]
        columns[name] = [views[place] for place in places.tolist()]
    others = import_pyarrow().schema([field for field in schema if field.name not in columns])
    pieces = [as_schema(_taken(run.others, some), others) for run, some in zip(runs, own, strict=True)]
    joined = _taken(pieces[0] if len(pieces) == 1 else import_pyarrow().concat_batches(pieces), places)
    return columns | dict(zip(others.names, joined.columns, strict=True))


def _taken(batch: Any, rows: Int64s) -> Any:
    """Some rows of a record batch; those that follow each other are not copied."""
    is_slice = len(rows) > 0 and bool((np.diff(rows) == 1).all())
    return batch.slice(rows[0], len(rows)) if is_slice else batch.take(import_pyarrow().array(rows))


def values_of(column: Any, name: str, url: str, number: int) -> Sequence[Any]:
    """Convert a column to Python values.

    Args:
        column: Of few rows, all of which become Python's objects: an array of Arrow's, or views of `IntegerLists`.
        name: Of the column, for messages.
        url: The file of its first row, for messages.
        number: Of that row in the file.

    Raises:
        DamagedRecordError: A value has no type of Python's, or a list of integers has one that is missing or too large.
            It names the first row: of several, each has to be tried.
    """
    try:
        if isinstance(column, list):
            return _tensors(column)
        values: list[Any] = column.to_pylist()
        return [decode(value) for value in values] if (decode := json_decoder(column.type)) else values
    except (ValueError, OverflowError, NotImplementedError) as error:  # of nanoseconds, say
        raise DamagedRecordError(
            f"shard '{url}', row {number}, column {shown(name)}: expected a value that Python's "
            f"types or an int64 tensor can hold, got: {error}\n  Write the column in another type, such as "
            "times in microseconds, or leave it out of `columns`."
        ).of(url, str(number)) from error


def _tensors(views: Sequence[Any]) -> Sequence[Any]:
    """Each list as an int64 tensor of its own memory, None where the list is missing."""
    from torch import from_numpy

    return [None if view is None else from_numpy(np.array(_sound(view), np.int64)) for view in views]


def _sound(view: Any) -> Any:
    if isinstance(view, np.ndarray):
        return view
    if view.null_count:
        raise ValueError("a list of integers of which one is missing")
    return view.cast("int64")
