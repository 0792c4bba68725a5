"""Rows of parquet files: `parquet → Arrow IPC file in the cache, made once → memory map → rows`.

A row of a parquet file costs the decoding of its row group, by default a million rows. The IPC file holds the same
columns uncompressed, so that any row is read where it lies, and no process's heap grows with the file.
Formats: https://parquet.apache.org/docs/file-format, https://arrow.apache.org/docs/format/Columnar.html.
"""

import hashlib
import os
import shutil
import stat
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import SourceError
from streamdata.shards.recent import Recent
from streamdata.shards.storage import is_remote, local_path
from streamdata.shards.urls import expand
from streamdata.sources.prompts.cache import Cache, Stamp, stamp_of

SUFFIXES = (".parquet",)
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # shared by this user's processes on purpose, see `_own_shared_memory`
_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 1 << 16
_OPEN_BATCHES = 64
_READ_BYTES = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

GONE = "  The cache is made again by the next start, and by resume_dataset_state() of a dataset that was unpickled."

Row = dict[str, Any]
ReadValue = Callable[[int], Any]
"""Gives the value at a place."""


class RowFile(NamedTuple):
    """One parquet file, as rows: where it lies, its content's hash, the IPC file of that content, and its length."""

    path: str
    digest: str
    arrow: Path
    num_rows: int


class Rows:
    """The rows of parquet files, one after another; each is made afresh and belongs to whoever asked for it.

    It pickles as paths. Files are opened by the process that reads them.

    Args:
        data_files: A file, glob, brace expression or directory, or a list of these; the files are sorted, and one that
            is named twice is an error.
        cache_dir: Of the IPC files, see `Cache`.
        use_shm: Copy the IPC files to a directory of this user's own in /dev/shm, and read them there. They stay until
            the machine starts anew or somebody deletes `/dev/shm/streamdata-*`, so that the next run finds them.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        SourceError: A file is no parquet, or the cache cannot be written.
        ImportError: pyarrow is missing.
    """

    def __init__(self, data_files: str | Sequence[str], cache_dir: str | None = None, use_shm: bool = False) -> None:
        cache = Cache(cache_dir)
        paths = [local_path(path) for path in expand(_patterns(data_files), SUFFIXES)]
        self.files = [_row_file(path, cache, use_shm) for path in paths]
        self._ends = list(accumulate(file.num_rows for file in self.files))

    @cached_property
    def _tables(self) -> list["_Table"]:
        return [_Table(file.arrow, file.path) for file in self.files]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        """Row `index`, in [0, len), as a dict of Python's own types.

        Raises:
            IndexError: There is no such row.
            SourceError: It holds what these types cannot.
        """
        file, row = self.locate(index)
        return self._tables[file].row(row)

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file in `files`, and the row's number in it.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"rows: expected an index in [0, {len(self)}), got {index}")
        file = bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)

    def first(self, file: int) -> int:
        """The index of a file's first row."""
        return self._ends[file - 1] if file else 0

    def place(self, index: int) -> str:
        """Say where a row lies, for messages."""
        file, row = self.locate(index)
        return f"'{self.files[file].path}', row {row}"

    def uid(self, index: int) -> str:
        """A name of the row that depends on its file's content and its number there alone: 32 hexadecimal digits."""
        file, row = self.locate(index)
        return hashlib.blake2b(f"{self.files[file].digest} {row}".encode(), digest_size=16).hexdigest()

    @property
    def columns(self) -> list[str]:
        """The names of all columns of all files, sorted."""
        return sorted({name for table in self._tables for name in table.names})

    @property
    def digest(self) -> str:
        """A hash of the content of all files in their order."""
        return hashlib.blake2b("".join(file.digest for file in self.files).encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_tables"}


class _Table:
    """A mapped IPC file: rows by number. The map is shared with all processes that read it.

    Args:
        path: Of the IPC file.
        source: Of the parquet file whose rows these are, for messages.
    """

    def __init__(self, path: Path, source: str) -> None:
        pyarrow = import_pyarrow()
        try:
            self._reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        except pyarrow.ArrowInvalid as error:
            raise SourceError(
                f"'{path}': expected rows as they were written, got a damaged file: {error}\n"
                "  Delete it; the next start makes it again."
            ) from error
        except FileNotFoundError as error:
            error.add_note(GONE)
            raise
        batches = range(self._reader.num_record_batches)
        self._starts = [0, *accumulate(self._reader.get_batch(number).num_rows for number in batches)]
        self._batches: Recent[int, list[ReadValue]] = Recent(_OPEN_BATCHES)
        self.names: list[str] = self._reader.schema.names
        self._source = source

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row(self, number: int) -> Row:
        batch = bisect_right(self._starts, number) - 1
        place = number - self._starts[batch]
        row: Row = {}
        for name, read in zip(self.names, self._batches.get(batch, self._columns), strict=True):
            try:
                row[name] = read(place)
            except (ValueError, OverflowError) as error:  # such as pyarrow's, of nanoseconds
                raise SourceError(
                    f"'{self._source}', row {number}, column {name!r}: expected a value that Python's own types can "
                    f"hold, got: {error}\n  Write the column in another type, such as times in microseconds, or leave "
                    "it out of the file."
                ) from error
        return row

    def _columns(self, batch: int) -> list[ReadValue]:
        # Value by value takes two thirds of what `slice` and `to_pylist` of the batch would.
        return [read_value(column) for column in self._reader.get_batch(batch).columns]


def read_value(array: Any) -> ReadValue:
    """What gives the value at a place of an Arrow array, as `array[place].as_py()` does.

    What has no nulls, of the kinds that prompts are made of, is read here, in half of pyarrow's time.
    """
    read = None if array.null_count or array.offset or not len(array) else _read_bare(array)
    return read or (lambda place: array[place].as_py())


def _read_bare(array: Any) -> ReadValue | None:
    """What reads an array without nulls that is no part of another; None for other kinds."""
    types, kind = import_pyarrow().types, array.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        parts = [(name, read_value(array.field(number))) for number, name in enumerate(names)]
        return None if len(set(names)) < len(names) else lambda place: {name: read(place) for name, read in parts}
    if types.is_list(kind):
        read_item, ends = read_value(array.values), memoryview(array.buffers()[1]).cast("i")
        return lambda place: [read_item(item) for item in range(ends[place], ends[place + 1])]
    if types.is_string(kind):
        _, offsets, content = array.buffers()
        ends, letters = memoryview(offsets).cast("i"), memoryview(content or b"")
        return lambda place: str(letters[ends[place] : ends[place + 1]], "utf-8")
    return memoryview(array.buffers()[1]).cast("q").__getitem__ if types.is_int64(kind) else None


def import_pyarrow() -> Any:
    """Import pyarrow with its parts for IPC and parquet.

    Raises:
        ImportError: It is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        error.add_note("  Prompts in parquet need pyarrow: pip install 'torch-streamdata[parquet]'")
        raise
    return pa


def _patterns(data_files: Any) -> str | list[str]:
    """One text or a list of them; OmegaConf's lists and paths are welcome."""
    is_one = isinstance(data_files, str | os.PathLike)
    if not is_one and not isinstance(data_files, Sequence):
        raise ValueError(f"data_files: expected a path or a list of them, got {data_files!r}\n  Name the files.")
    patterns = [os.fspath(pattern) for pattern in ([data_files] if is_one else data_files)]
    if remote := [pattern for pattern in patterns if is_remote(pattern)]:
        raise ValueError(f"data_files: expected files of this machine, got {remote}\n  Copy them here first.")
    return patterns[0] if is_one else patterns


def _row_file(path: str, cache: Cache, use_shm: bool) -> RowFile:
    stamp = stamp_of(path)
    digest = cache.digest(path)
    arrow = cache.get(f"rows/{digest}.arrow", partial(_convert, path, stamp))
    if use_shm:
        arrow = Cache(_own_shared_memory()).get(f"{digest}.arrow", partial(_copy, arrow))
    return RowFile(path, digest, arrow, len(_Table(arrow, path)))


def _own_shared_memory() -> str:
    """Our directory in shared memory: everybody may make one of its name there, whose rows would be read as ours."""
    path = Path(SHARED_MEMORY, f"streamdata-{os.getuid()}")
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise SourceError(f"use_shm: expected to make '{path}', got {error}\n  Leave use_shm out.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        raise SourceError(
            f"use_shm: expected '{path}' to be a directory that its owner, user {os.getuid()}, alone can write, got "
            f"{stat.filemode(found.st_mode)} of user {found.st_uid}\n  Delete it, or leave use_shm out."
        )
    return str(path)


def _copy(arrow: Path, target: Path) -> None:
    try:
        shutil.copyfile(arrow, target)
    except OSError as error:
        raise SourceError(
            f"use_shm: expected room for {arrow.stat().st_size} bytes in {SHARED_MEMORY}, got: {error}\n"
            f"  Delete what is old there, or leave use_shm out."
        ) from error


def _convert(path: str, stamp: Stamp, target: Path) -> None:
    """Stream a parquet file, with this stamp before its content was hashed, into an IPC file.

    What is in memory is one batch of about `_BATCH_BYTES`.
    """
    pyarrow = import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES) as source:
            schema = pyarrow.schema([_plain_field(field) for field in source.schema_arrow])
            with pyarrow.ipc.new_file(target, schema) as writer:
                for batch in source.iter_batches(batch_size=_batch_rows(source.metadata)):
                    # Only where there is something to cast: pyarrow spoils lists of nulls in structs, even as they are.
                    writer.write_batch(batch if batch.schema.equals(schema) else batch.cast(schema))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError) as error:
        raise SourceError(
            f"'{path}': expected a parquet file that becomes rows in '{target.parent}', got: {error}\n"
            "  Write it again if it cannot be read; make room, or set cache_dir, if the rows cannot be written."
        ) from error
    if stamp_of(path) != stamp:
        raise SourceError(f"'{path}': expected a file at rest, got one that changed while it was read\n  Start again.")


def _plain_field(field: Any) -> Any:
    """A dictionary-encoded column as its values: an IPC file holds one dictionary, parquet one per row group."""
    is_dictionary = import_pyarrow().types.is_dictionary(field.type)
    return field.with_type(field.type.value_type) if is_dictionary else field


def _batch_rows(metadata: Any) -> int:
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    per_row = max(1, size // max(1, metadata.num_rows))
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES // per_row)))
