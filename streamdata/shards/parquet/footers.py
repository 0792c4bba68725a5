"""What parquet files say of themselves: `footers → columns that all have, and facts of each row group`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from streamdata.errors import ShardError, shown
from streamdata.fields import SET_HERE
from streamdata.io.one_pass import byte_source
from streamdata.io.storage import FileStamp, Int64s
from streamdata.shards.parquet.arrow_file import open_file
from streamdata.shards.parquet.file import GroupFacts
from streamdata.shards.parquet.stored_rows import import_pyarrow
from streamdata.shards.parquet.types import are_alike

_AT_ONCE = 16


class RowGroups:
    """The row groups of all files, numbered one after the other.

    Args:
        urls: The files.
        stamps: Their versions.
        columns: Those that are read; None for all.
        at_once: Ask for several footers at the same time, where they are remote.

    Raises:
        ShardError: A footer is damaged, or its file lacks a column, or has one of another type than the first file.
    """

    def __init__(
        self, urls: list[str], stamps: list[FileStamp], columns: Sequence[str] | None, *, at_once: bool
    ) -> None:
        self.urls, self.stamps = urls, stamps
        self.url_texts = list(map(str, urls))
        """The urls without what else belongs to an address."""
        self.names, groups = read_footers(urls, stamps, columns, at_once=at_once)
        self.facts = [facts for _, facts in groups]
        self.file_of: Int64s = np.array([file for file, _ in groups], np.int64)
        self.num_records: Int64s = np.array([facts.num_rows for facts in self.facts], np.int64)
        self.sizes: Int64s = np.array([facts.num_bytes for facts in self.facts], np.int64)
        """Decoded, as far as footers say it."""
        ends = np.cumsum(self.num_records)
        begins = ends - self.num_records
        first_of_file = np.searchsorted(self.file_of, self.file_of, side="left")
        self.first_rows: Int64s = begins - begins[first_of_file]
        """Of each group, the number of its first row in its file."""
        self.rows_of_file: Int64s = np.zeros(len(urls), np.int64)
        np.add.at(self.rows_of_file, self.file_of, self.num_records)
        self.row_bytes: Int64s = np.maximum(1, -(-self.sizes // np.maximum(1, self.num_records)))

    def url_of(self, group: int) -> str:
        """Its file."""
        return self.urls[int(self.file_of[group])]


class Footers(NamedTuple):
    """Of all files."""

    names: list[str]
    """Of the columns."""
    groups: list[tuple[int, GroupFacts]]
    """The number of the file of each row group, and what is said of it."""


def read_footers(
    files: Sequence[str], stamps: Sequence[FileStamp], columns: Sequence[str] | None, *, at_once: bool
) -> Footers:
    """Read the footers of files of one schema.

    Args:
        files: Their urls.
        stamps: Their versions.
        columns: Those that are read; None for all.
        at_once: Ask for several at the same time, where they are remote.

    Raises:
        ShardError: A footer is damaged, or its file lacks a column, or has one of another type than the first file.
    """
    with ThreadPoolExecutor(_AT_ONCE if at_once else 1) as threads:
        found = list(threads.map(lambda file, stamp: _footer_of(file, stamp, columns), files, stamps))
    _check_alike(files, [schema for schema, _ in found])
    groups = [(file, facts) for file, (_, facts_of_file) in enumerate(found) for facts in facts_of_file]
    return Footers(list(found[0][0].names), groups)


def _footer_of(url: str, stamp: FileStamp, columns: Sequence[str] | None) -> tuple[Any, list[GroupFacts]]:
    file = open_file(url, byte_source(url, stamp))
    names = file.check_columns(columns)
    if taken := sorted(SET_HERE.intersection(names)):
        raise ShardError(
            f"shard '{url}': expected columns beside the fields that streamdata sets, got {taken}\n"
            "  Name the others in `columns`, or rename these where the file is written."
        )
    schema = import_pyarrow().schema([file.schema.field(name) for name in names])
    return schema, file.groups(columns)


def _check_alike(files: Sequence[str], schemas: Sequence[Any]) -> None:
    types = dict(zip(schemas[0].names, schemas[0].types, strict=True))
    for url, schema in zip(files, schemas, strict=True):
        if set(schema.names) != set(types):
            differing = sorted(set(schema.names) ^ set(types))
            raise ShardError(
                f"shard '{url}': expected the columns of '{files[0]}', got a file of which these are in one of the two "
                f"alone: {differing}\n  Name those that all files have in `columns`."
            )
        for name, kind in zip(schema.names, schema.types, strict=True):
            if not are_alike(types[name], kind):
                raise ShardError(
                    f"shard '{url}': column {shown(name)}: expected {types[name]}, as in '{files[0]}', got {kind}\n"
                    "  Give files of another schema a source of their own."
                )
            if import_pyarrow().types.is_null(types[name]):
                types[name] = kind
