"""Rows of parquet files: `parquet → StoredRows in the cache, made once → rows`.

A row of a parquet file costs the decoding of its row group, by default a million rows. The file in the cache holds the
same rows one by one, so that any is read where it lies, and no process's heap grows with the file.
Format: https://parquet.apache.org/docs/file-format.
"""

import hashlib
import os
import shutil
import stat
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import SourceError
from streamdata.shards.file_cache import FileCache, FileVersion, version_of
from streamdata.shards.recent import Recent
from streamdata.shards.storage import is_remote, local_path
from streamdata.shards.stored_rows import Row, StoredRows, import_pyarrow, write_rows
from streamdata.shards.urls import expand

SUFFIXES = (".parquet",)
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # shared by this user's processes on purpose, see `_shared_memory_cache`
BATCH_BYTES = 1 << 17  # of Arrow; of more, Python's own values keep its garbage collector busy
_BATCH_ROWS = 1 << 16
_OPEN_FILES = 64
_READ_BYTES = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RowFile(NamedTuple):
    """One parquet file, as rows: its path, its content's hash, the file of rows of that content, how many they are."""

    path: str
    digest: str
    stored: Path
    num_rows: int


class ParquetRows:
    """The rows of parquet files, one after another; each is made afresh and belongs to whoever asked for it.

    It pickles as paths. Files are opened by the process that reads them.

    Args:
        data_files: A file, glob, brace expression or directory, or a list of these; the files are sorted, and one that
            is named twice is an error.
        cache_dir: Of the files of rows, see `FileCache`.
        use_shm: Copy those to a directory of this user's own in /dev/shm, and read them there. They stay until
            the machine starts anew or somebody deletes `/dev/shm/streamdata-*`, so that the next run finds them.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        SourceError: A file is not parquet, or the cache cannot be written.
        ImportError: pyarrow is missing.
    """

    def __init__(self, data_files: str | Sequence[str], cache_dir: str | None = None, use_shm: bool = False) -> None:
        cache = FileCache(cache_dir)
        paths = [local_path(path) for path in expand(_patterns(data_files), SUFFIXES)]
        self.files = [_row_file(path, cache, use_shm) for path in paths]
        self._ends = list(accumulate(file.num_rows for file in self.files))

    @cached_property
    def _opened(self) -> Recent[int, StoredRows]:
        return Recent(_OPEN_FILES)

    def _stored(self, file: int) -> StoredRows:
        return self._opened.get(file, lambda _: StoredRows(self.files[file].stored, self.files[file].path))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        """Row `index`, in [0, len), as a dict of Python's own types.

        Raises:
            IndexError: There is no such row.
            SourceError: It holds what these types cannot, or the cache is damaged.
        """
        file, row = self.locate(index)
        return self._stored(file).row(row)

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file in `files`, and the row's number in it.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"rows: expected an index in [0, {len(self)}), got {index}")
        file = bisect_right(self._ends, index)
        return file, index - self.first(file)

    def first(self, file: int) -> int:
        """The index of a file's first row."""
        return self._ends[file - 1] if file else 0

    def location(self, index: int) -> str:
        """The file and number of a row, for messages."""
        file, row = self.locate(index)
        return f"'{self.files[file].path}', row {row}"

    def uid(self, index: int) -> str:
        """A name of the row that depends on its file's content and its number there alone: 32 hexadecimal digits."""
        file, row = self.locate(index)
        return hashlib.blake2b(f"{self.files[file].digest} {row}".encode(), digest_size=16).hexdigest()

    @property
    def columns(self) -> list[str]:
        """The names of all columns of all files, sorted."""
        return sorted({name for file in range(len(self.files)) for name in self._stored(file).names})

    @property
    def digest(self) -> str:
        """A hash of the content of all files in their order."""
        return hashlib.blake2b("".join(file.digest for file in self.files).encode(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_opened"}


def _patterns(data_files: Any) -> str | list[str]:
    """One text or a list of them; OmegaConf's lists and paths are welcome."""
    is_one = isinstance(data_files, str | os.PathLike)
    if not is_one and not isinstance(data_files, Sequence):
        raise ValueError(f"data_files: expected a path or a list of them, got {data_files!r}\n  Name the files.")
    patterns = [os.fspath(pattern) for pattern in ([data_files] if is_one else data_files)]
    if remote := [pattern for pattern in patterns if is_remote(pattern)]:
        raise ValueError(f"data_files: expected files of this machine, got {remote}\n  Copy them here first.")
    return patterns[0] if is_one else patterns


def _row_file(path: str, cache: FileCache, use_shm: bool) -> RowFile:
    version = version_of(path)  # before it is hashed: rows of another version may not get this digest
    digest = cache.digest(path)
    stored = cache.get(f"rows/{digest}.rows", partial(_convert_version, path, version))
    if use_shm:
        stored = _shared_memory_cache().get(f"{digest}.rows", partial(_copy, stored))
    return RowFile(path, digest, stored, len(StoredRows(stored, path)))


def _shared_memory_cache() -> FileCache:
    """A cache in this user's own directory in shared memory."""
    cache = FileCache(f"{SHARED_MEMORY}/streamdata-{os.getuid()}")
    path = cache.directory
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        # Anybody may make a directory of this name there, or a link, whose rows would be read as ours.
        found = path.lstat()
    except OSError as error:
        raise SourceError(f"use_shm: expected to make '{path}', got {error}\n  Leave use_shm out.") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        raise SourceError(
            f"use_shm: expected '{path}' to be a directory that its owner, user {os.getuid()}, alone can write, got "
            f"{stat.filemode(found.st_mode)} of user {found.st_uid}\n  Delete it, or leave use_shm out."
        )
    return cache


def _copy(stored: Path, target: Path) -> None:
    try:
        shutil.copyfile(stored, target)
    except OSError as error:
        raise SourceError(
            f"use_shm: expected room for {stored.stat().st_size} bytes in {SHARED_MEMORY}, got: {error}\n"
            f"  Delete what is old there, or leave use_shm out."
        ) from error


def _convert_version(path: str, version: FileVersion, target: Path) -> None:
    """Convert a file that was of this version before its content was hashed."""
    convert(path, target)
    if version_of(path) != version:
        raise SourceError(f"'{path}': expected a file at rest, got one that changed while it was read\n  Start again.")


def convert(path: str, target: Path, batch_bytes: int = BATCH_BYTES) -> None:
    """Stream a parquet file into a file of rows; what is in memory is one batch of about `batch_bytes`.

    Raises:
        SourceError: It is not a parquet file of rows, or the rows cannot be written.
    """
    pyarrow = import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES) as source:
            schema = pyarrow.schema([_plain_field(field) for field in source.schema_arrow])
            if twins := [name for name, count in Counter(schema.names).items() if count > 1]:
                raise ValueError(f"several columns of each of the names {twins}, of which a row would keep only one")
            batches = source.iter_batches(batch_size=_batch_rows(source.metadata, batch_bytes))
            write_rows(target, schema.names, source.metadata.num_rows, (_cast(batch, schema) for batch in batches))
    except (ValueError, NotImplementedError, OSError) as error:  # pyarrow's too
        raise SourceError(
            f"'{path}': expected a parquet file that becomes rows in '{target.parent}', got: {error}\n"
            "  Write it again if it cannot be read; make room, or set cache_dir, if the rows cannot be written."
        ) from error


def _plain_field(field: Any) -> Any:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: Any) -> Any:
    """The type without dictionaries and views, at any depth."""
    # Arrow writes all that a dictionary or view refers to: a row alone would still carry its whole batch.
    pyarrow = import_pyarrow()
    types = pyarrow.types
    plain = kind
    if types.is_dictionary(kind):
        plain = _plain_type(kind.value_type)
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        plain = pyarrow.large_string() if types.is_string_view(kind) else pyarrow.large_binary()
    elif types.is_struct(kind):
        plain = pyarrow.struct([_plain_field(field) for field in kind])
    elif types.is_map(kind):
        plain = pyarrow.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    elif types.is_fixed_size_list(kind):
        plain = pyarrow.list_(_plain_field(kind.value_field), kind.list_size)
    elif types.is_list(kind) or types.is_large_list(kind):
        plain = (pyarrow.list_ if types.is_list(kind) else pyarrow.large_list)(_plain_field(kind.value_field))
    return plain


def _cast(batch: Any, schema: Any) -> Any:
    """The batch in this schema."""
    # Only columns of other types: pyarrow fails to cast lists of nulls in structs, even to their own type.
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return import_pyarrow().record_batch(columns, schema=schema)


def _batch_rows(metadata: Any, batch_bytes: int) -> int:
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    per_row = max(1, size // max(1, metadata.num_rows))
    return int(max(1, min(_BATCH_ROWS, batch_bytes // per_row)))
