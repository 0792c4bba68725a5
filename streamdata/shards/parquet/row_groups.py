"""Row groups of files: `footers → columns that all have, and facts of each row group`.

The files are parquet, or Arrow streams as `save_to_disk` of Hugging Face datasets writes them: a record batch of such a
stream is a row group. Format: https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from streamdata.errors import ShardError, did_you_mean, listing, shown
from streamdata.fields import SET_HERE
from streamdata.io.one_pass import ByteSource, byte_source
from streamdata.io.storage import FileStamp, Int64s, is_remote, local_path
from streamdata.shards.parquet.file import MAX_BATCH_BYTES, MAX_BATCH_ROWS, PARQUET_SUFFIXES, GroupFacts, OpenParquet
from streamdata.shards.parquet.stored_rows import import_pyarrow
from streamdata.shards.parquet.values import shape_of

ARROW_SUFFIX = ".arrow"
"""Folders also hold such files that are no shards, such as caches: only those are taken that their notes name."""
ROW_SUFFIXES = (*PARQUET_SUFFIXES, ARROW_SUFFIX)
_AT_ONCE = 16


def open_file(url: str, source: ByteSource, data: Any = None) -> OpenParquet:
    """Open a file as an Arrow stream or parquet, by its name; `data` as in `OpenParquet`."""
    return (OpenArrow if url.endswith(ARROW_SUFFIX) else OpenParquet)(url, source, data)


def saved_files(folder: str) -> list[str]:
    """The files that `save_to_disk` wrote to a local folder; empty for other folders.

    Raises:
        ValueError: The folder has several splits, or rows that are chosen by a file of indices, or no files.
    """
    if splits := _notes(folder, "dataset_dict.json").get("splits"):
        named = ", ".join(os.path.join(folder, str(split)) for split in splits)
        raise ValueError(f"shards: '{folder}': expected one split, got a folder of several\n  Name one: {named}.")
    state = _notes(folder, "state.json")
    if state.get("_indices_data_files"):
        raise ValueError(
            f"shards: '{folder}': expected all rows, got indices of some\n  Save it after flatten_indices()."
        )
    if state.get("_data_files") == []:
        raise ValueError(
            f"shards: '{folder}': expected rows, got an empty dataset that save_to_disk wrote\n"
            "  Leave it out, or save one that has rows."
        )
    # By the last part of their names: nothing that lies elsewhere.
    return [os.path.join(folder, Path(file["filename"]).name) for file in state.get("_data_files") or ()]


def _notes(folder: str, name: str) -> dict[str, Any]:
    with suppress(FileNotFoundError, orjson.JSONDecodeError):  # of something else
        notes = None if is_remote(folder) else orjson.loads(Path(local_path(folder), name).read_bytes())
        return notes if isinstance(notes, dict) else {}
    return {}


_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of an Arrow stream (format \"IPC streaming format\": a continuation, and a message of no bytes)."""


class OpenArrow(OpenParquet):
    """An open local Arrow stream. Arguments and errors as in `OpenParquet`."""

    _what, _where = "an Arrow stream", "its schema"

    def _open(self) -> Any:
        if is_remote(self._url):
            raise ShardError(
                f"shard '{self._url}': expected a file of this machine\n  Copy it, or write it as parquet."
            )
        self._own_schema = import_pyarrow().ipc.open_stream(self.file).schema
        return self._own_schema

    def groups(self, columns: Sequence[str] | None = None) -> list[GroupFacts]:
        """The record batches that have rows."""
        pyarrow, found = import_pyarrow(), list[GroupFacts]()
        # Of the map only headers are read, and here alone: a file cut short would end the process.
        with self._damage("its batches"), pyarrow.memory_map(local_path(self._url)) as stream:
            reader = pyarrow.ipc.MessageReader.open_stream(stream)
            reader.read_next_message()
            begin = stream.tell()
            for message in reader:
                num_rows, end = pyarrow.ipc.read_record_batch(message, self._own_schema).num_rows, stream.tell()
                if num_rows:
                    found.append(GroupFacts(len(found), num_rows, end - begin, [(begin, end)]))
                begin = end
            # HF writes it always; without it batches may be missing, and the reader takes the file's end for theirs.
            stream.seek(begin)
            if stream.read(len(_END)) != _END:
                raise ShardError(
                    f"shard '{self._url}': expected the mark of its end after {len(found)} record batches, got none\n"
                    "  The file is incomplete: copy or write it again."
                )
        return found

    def batches(
        self,
        groups: Sequence[GroupFacts],
        columns: Sequence[str] | None = None,
        most: int = MAX_BATCH_ROWS,
        most_bytes: int = MAX_BATCH_BYTES,
        *,
        keep_dictionaries: bool = False,
    ) -> Iterator[Any]:
        """Yield the rows of groups, as `OpenParquet.batches` does; each record batch is read whole.

        Args:
            groups: Their facts, in the order in which they are read.
            columns: Of the table; None for all.
            most: Rows of a batch, at most.
            most_bytes: Bounds what is decoded at once: nothing is.
            keep_dictionaries: They stay where they are in the schema, and there alone.
        """
        schema = import_pyarrow().schema([self.schema.field(name) for name in columns or self.schema.names])
        where = f"batch {', '.join(str(facts.group) for facts in groups)}"
        return self._checked(self._read(groups, schema.names, most), sum(one.num_rows for one in groups), where, schema)

    def _read(self, groups: Sequence[GroupFacts], names: Sequence[str], most: int) -> Iterator[Any]:
        read = import_pyarrow().ipc.read_record_batch
        for facts in groups:
            begin, end = facts.spans[0]
            whole = read(import_pyarrow().py_buffer(self.file.bytes_at(begin, end - begin)), self._own_schema)
            whole.validate(full=True)  # pyarrow follows offsets wherever they lead
            for first in range(0, whole.num_rows, most):
                part = whole.slice(first, most).select(names)
                # Copied, since what is kept of a batch would hold all of it.
                yield part if part.nbytes == whole.nbytes else read(part.serialize(), part.schema)


class RowGroups:
    """The row groups of several files, numbered consecutively.

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
        with ThreadPoolExecutor(_AT_ONCE if at_once else 1) as threads:
            found = list(threads.map(lambda url, stamp: _footer_of(url, stamp, columns), urls, stamps))
        _check_alike(urls, [schema for schema, _ in found])
        self.names: list[str] = list(found[0][0].names)
        groups = [(file, facts) for file, (_, facts_of_file) in enumerate(found) for facts in facts_of_file]
        self.facts = [facts for _, facts in groups]
        self.file_of: Int64s = np.array([file for file, _ in groups], np.int64)
        self.num_records: Int64s = np.array([facts.num_rows for facts in self.facts], np.int64)
        self.sizes: Int64s = np.array([facts.num_bytes for facts in self.facts], np.int64)
        """Decoded, as far as footers say it."""
        ends = np.cumsum(self.num_records)
        begins = ends - self.num_records
        first_of_file = np.searchsorted(self.file_of, self.file_of, side="left")
        self.first_rows: Int64s = begins - begins[first_of_file]
        """The number of each group's first row in its file."""
        self.rows_of_file: Int64s = np.zeros(len(urls), np.int64)
        np.add.at(self.rows_of_file, self.file_of, self.num_records)
        self.row_bytes: Int64s = np.maximum(1, -(-self.sizes // np.maximum(1, self.num_records)))

    def url_of(self, group: int) -> str:
        """The url of the file that holds a row group."""
        return self.urls[int(self.file_of[group])]


def _footer_of(url: str, stamp: FileStamp, columns: Sequence[str] | None) -> tuple[Any, list[GroupFacts]]:
    file = open_file(url, byte_source(url, stamp))
    for name in columns or ():
        if name not in file.schema.names:
            guess = did_you_mean(name, file.schema.names)
            raise ShardError(
                f"shard '{url}': expected the column {shown(name)}, got none of this name{guess}\n"
                f"  It has: {listing(file.schema.names)}."
            )
    names = list(columns or file.schema.names)
    if taken := sorted(SET_HERE.intersection(names)):
        raise ShardError(
            f"shard '{url}': expected columns beside the fields that streamdata sets, got {taken}\n"
            "  Name the others in `columns`, or rename these where the file is written."
        )
    schema = import_pyarrow().schema([file.schema.field(name) for name in names])
    return schema, file.groups(columns)


def _check_alike(files: Sequence[str], schemas: Sequence[Any]) -> None:
    is_null = import_pyarrow().types.is_null
    types = dict(zip(schemas[0].names, schemas[0].types, strict=True))
    for url, schema in zip(files, schemas, strict=True):
        if set(schema.names) != set(types):
            differing = sorted(set(schema.names) ^ set(types))
            raise ShardError(
                f"shard '{url}': expected the columns of '{files[0]}', got a file of which these are in one of the two "
                f"alone: {differing}\n  Name those that all files have in `columns`."
            )
        for name, kind in zip(schema.names, schema.types, strict=True):
            # A column of nulls alone has no type of its own in many writers: it goes with any.
            if not is_null(types[name]) and not is_null(kind) and shape_of(types[name]) != shape_of(kind):
                raise ShardError(
                    f"shard '{url}': column {shown(name)}: expected {types[name]}, as in '{files[0]}', got {kind}\n"
                    "  Give files of another schema a source of their own."
                )
            if is_null(types[name]):
                types[name] = kind
