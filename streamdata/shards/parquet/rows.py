"""Rows of parquet files and JSON Lines: `file → StoredRows in the cache, made once → rows`.

A row of a parquet file costs the decoding of its row group, by default a million rows. The file in the cache holds the
same rows in batches of 8 KiB, so that any is read where it lies, and no process's heap grows with the file.
Format: https://parquet.apache.org/docs/file-format.
"""

import hashlib
import os
import shutil
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import ShardError, SourceError, shown
from streamdata.io.file_cache import FileCache, FileVersion, version_of
from streamdata.io.one_pass import SourceFile, byte_source
from streamdata.io.remote.addresses import NO_OPTIONS, StorageOptions
from streamdata.io.storage import FileStamp, LocalShard, is_remote, local_path, stamp_of
from streamdata.io.streams import open_stream
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.per_process import open_files
from streamdata.shards.jsonl.lines import MAX_LINE_BYTES, lines_of, place_of
from streamdata.shards.jsonl.rows import parse_row
from streamdata.shards.listing import JSON_SUFFIXES, JSONL_SUFFIXES
from streamdata.shards.parquet.file import PARQUET_SUFFIXES, OpenParquet
from streamdata.shards.parquet.stored_rows import Row, StoredRows, write_lines, write_rows
from streamdata.shards.urls import expand

SUFFIXES = (*PARQUET_SUFFIXES, *JSONL_SUFFIXES)
_FETCH_BYTES = 8 << 20
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # shared by this user's processes on purpose, see `_shared_memory_cache`
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RowFile(NamedTuple):
    """One data file converted to rows: its path, content hash, file of rows, and number of rows."""

    path: str
    digest: str
    stored: Path
    num_rows: int


class ParquetRows:
    """The rows of several files as one sequence; each access makes a fresh dict.

    The sequence pickles as paths. Files are opened by the process that reads them.

    Args:
        data_files: A file, glob, brace expression or directory, or a list of these, here or in an object store. A
            list keeps its order, and the files that one of these finds are sorted. One that a list names twice is there
            twice; one that two patterns find is an error.
        cache_dir: Of the files of rows, see `FileCache`.
        use_shm: Make those in a directory of this user's own in /dev/shm, in place of `cache_dir`. They stay until
            the machine starts anew or somebody deletes `/dev/shm/streamdata-*`, so that the next run finds them.
        options: Of the hosts that hold the files.
        limits: What a line of JSON Lines may have: of a file that is in the cache, too.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        SourceError: A file is not one of rows, or the cache cannot be written.
        ImportError: pyarrow is missing.
    """

    def __init__(
        self,
        data_files: str | Sequence[str],
        cache_dir: str | None = None,
        use_shm: bool = False,
        options: StorageOptions = NO_OPTIONS,
        limits: ShardLimits = DEFAULT_LIMITS,
    ) -> None:
        cache = _shared_memory_cache() if use_shm else FileCache(cache_dir)
        paths = _files(data_files, options)
        found = {path: _row_file(path, cache, limits.line_bytes) for path in dict.fromkeys(paths)}
        self.files = [found[path] for path in paths]
        self._ends = list(accumulate(file.num_rows for file in self.files))

    def _stored(self, file: int) -> StoredRows:
        path, _, stored, _ = self.files[file]
        found: StoredRows = open_files.get(("rows", stored), lambda _: StoredRows(stored, path))
        return found

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
        """Find a row: the number of its file in `files`, and its number in that file.

        Raises:
            IndexError: The row does not exist.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"rows: expected an index in [0, {len(self)}), got {index}")
        file = bisect_right(self._ends, index)
        return file, index - self.first(file)

    def first(self, file: int) -> int:
        """The index of a file's first row."""
        return self._ends[file - 1] if file else 0

    def location(self, index: int) -> str:
        """Describe the file and number of a row, for messages."""
        file, row = self.locate(index)
        return f"'{self.files[file].path}', row {row}"

    def uid(self, index: int) -> str:
        """An identifier of a row, 32 hexadecimal digits, from its file's content and its number there.

        A file that is there several times is different rows each time.
        """
        file, row = self.locate(index)
        digest = self.files[file].digest
        copy = sum(other.path == self.files[file].path for other in self.files[:file])
        again = f" {copy}" if copy else ""
        return hashlib.blake2b(f"{digest} {row}{again}".encode(), digest_size=16).hexdigest()

    @property
    def columns(self) -> list[str]:
        """The names of all columns of all files, sorted."""
        return sorted({name for file in range(len(self.files)) for name in self._stored(file).names})

    @property
    def digest(self) -> str:
        """A hash of the content of all files in their order."""
        return hashlib.blake2b("".join(file.digest for file in self.files).encode(), digest_size=16).hexdigest()


def _files(data_files: Any, options: StorageOptions) -> list[str]:
    """The files that are meant, in the order of a list; what is named twice by the same words is there twice.

    Of a folder its parquet files, or, where it has none, its JSON Lines.
    """
    is_one = isinstance(data_files, str | os.PathLike)  # OmegaConf's lists and paths are welcome
    if not is_one and not isinstance(data_files, Sequence):
        raise ValueError(f"data_files: expected a path or a list of them, got {shown(data_files)}\n  Name the files.")
    patterns = [os.fspath(pattern) for pattern in ([data_files] if is_one else data_files)]
    found: dict[str, list[str]] = {}
    for pattern in dict.fromkeys(patterns):
        try:
            found[pattern] = expand(pattern, PARQUET_SUFFIXES, None, options)
        except FileNotFoundError:
            found[pattern] = expand(pattern, SUFFIXES, None, options)
    expand([url for urls in found.values() for url in urls], SUFFIXES)  # by different words twice is an error
    # Where rows are chosen by number, they are those of whoever else reads the same list one file after another.
    return [url if is_remote(url) else local_path(url) for pattern in patterns for url in found[pattern]]


def _row_file(path: str, cache: FileCache, line_bytes: int) -> RowFile:
    if is_remote(path):
        stamp = stamp_of(path)
        name = hashlib.blake2b(repr((str(path), *stamp)).encode(), digest_size=16).hexdigest()
        make = partial(_convert_remote, path, stamp, cache, line_bytes)
    else:
        version = version_of(path)  # before it is hashed: rows of another version may not get this digest
        name = cache.digest(path)
        make = partial(_convert_version, path, version, name, line_bytes)
    # Under another limit, lines are looked at anew.
    stored = cache.get(f"rows/{name}-{line_bytes}.arrows", make)
    rows = StoredRows(stored, path)
    return RowFile(path, rows.digest, stored, len(rows))


def _convert_remote(url: str, stamp: FileStamp, cache: FileCache, line_bytes: int, target: Path) -> None:
    """Fetch a file, and convert it; its copy does not stay."""
    suffix = next((suffix for suffix in (*SUFFIXES, *JSON_SUFFIXES) if url.endswith(suffix)), ".jsonl")
    copy = target.with_name(f"{target.name}.copy{suffix}")
    try:
        with copy.open("wb") as file, SourceFile(byte_source(url, stamp)) as source:
            shutil.copyfileobj(source, file, _FETCH_BYTES)
        convert(str(copy), target, cache.digest(str(copy)), name=url, line_bytes=line_bytes)
    finally:
        copy.unlink(missing_ok=True)


def _shared_memory_cache() -> FileCache:
    """A cache in this user's own directory in shared memory."""
    cache = FileCache(f"{SHARED_MEMORY}/streamdata-{os.getuid()}")
    path = cache.directory
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        # Anybody may make a directory of this name there, or a link, whose rows would be read as ours.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
            raise PermissionError(f"{stat.filemode(found.st_mode)} of user {found.st_uid}")
    except OSError as error:
        raise SourceError(
            f"use_shm: expected '{path}' to be a directory that its owner, user {os.getuid()}, alone can write, got "
            f"{error}\n  Mount shared memory there, delete what lies there, or leave use_shm out."
        ) from error
    return cache


def _convert_version(path: str, version: FileVersion, digest: str, line_bytes: int, target: Path) -> None:
    """Convert a file that was of this version before its content was hashed."""
    convert(path, target, digest, line_bytes=line_bytes)
    if version_of(path) != version:
        raise SourceError(f"'{path}': expected a file at rest, got one that changed while it was read\n  Start again.")


def convert(path: str, target: Path, digest: str, name: str | None = None, line_bytes: int = MAX_LINE_BYTES) -> None:
    """Convert a file to a file of rows, holding one batch in memory.

    Args:
        path: A parquet file, or JSON Lines.
        target: The file of rows.
        digest: Of the content, to be kept with the rows.
        name: What the file is called in messages.
        line_bytes: What a line of JSON Lines may have.

    Raises:
        SourceError: The input is not a file of rows, or the rows cannot be written.
    """
    try:
        if path.endswith(PARQUET_SUFFIXES):
            file = OpenParquet(path, LocalShard(path))
            write_rows(target, digest, file.schema, (batch for facts in file.groups() for batch in file.batches(facts)))
        else:  # the columns are the fields of all rows: so it is read twice
            names = dict.fromkeys(name for rows in _lines(path, line_bytes) for _, row in rows for name in row)
            lines = ([line for line, _ in rows] for rows in _lines(path, line_bytes))
            write_lines(target, digest, list(names), lines)
    except (ValueError, NotImplementedError, OSError) as error:
        got = str(error).replace(path, str(name or path))
        if isinstance(error, ShardError):
            raise SourceError(got) from error
        raise SourceError(
            f"'{name or path}': expected a file that becomes rows in '{target.parent}', got: {got}\n"
            "  Write it again if it cannot be read; make room, or set cache_dir, if the rows cannot be written."
        ) from error


def _lines(path: str, line_bytes: int) -> Iterator[list[tuple[bytes, Row]]]:
    """Some lines at a time, each with what it is."""
    with open_stream(path, stamp_of(path)) as stream:
        for lines in lines_of(stream, path, max_bytes=line_bytes):
            yield [
                (line, parse_row(line, path, place_of(number, lines.are_elements), takes_nan=True))
                for number, _, line in lines.listed()
            ]
