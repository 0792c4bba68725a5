"""Shards as bytes at offsets: local files by positioned reads, remote ones by ranges (see `remote`).

`url + FileStamp → opened(url).read(size, offset) → bytes`, then `check(stamp)`: what was read is what was indexed.
The versions of many files are asked for at the same time.
"""

import errno
import hashlib
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from streamdata.errors import ShardError, note_place, without_secrets
from streamdata.io.cache.cached import read_cached
from streamdata.io.cache.page_cache import Memory
from streamdata.io.remote.network import network
from streamdata.io.remote.once import stat_once
from streamdata.io.remote.requests import Answer, Listed, then
from streamdata.recipe.limits import PIPE, check_mode, check_regular, refusal_of_url
from streamdata.run.per_process import open_files

Int64s = npt.NDArray[np.int64]
T = TypeVar("T")
_MAX_REQUESTS = 16  # at the same time, of what is read without the network's event loop
_REMOTE = re.compile(rf"(?!file://|{PIPE})[A-Za-z][A-Za-z0-9+.\-]*(://|::)")


class FileStamp(NamedTuple):
    """A file's version: its size in bytes, and its mtime in ns (for remote files a hash of the host's tag, or 0)."""

    size: int
    version: int


class Stamps(Sequence[FileStamp]):
    """The stamps of many files, in arrays; a `FileStamp` object is made only when one is read.

    Args:
        sizes: In bytes.
        versions: As in `FileStamp`.
    """

    def __init__(self, sizes: Int64s, versions: Int64s) -> None:
        self.sizes, self.versions = sizes, versions

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, file: Any) -> Any:
        return FileStamp(int(self.sizes[file]), int(self.versions[file]))


NO_STAMP = FileStamp(0, 0)


def is_pipe(url: str) -> bool:
    """Whether the url is a `pipe:` command, whose output is the shard."""
    return url.startswith(PIPE)


def told_url(url: str) -> str:
    """The url as records carry it: passwords in a pipe's command are removed."""
    return without_secrets(url) if is_pipe(url) else str(url)


def is_remote(url: str) -> bool:
    """Whether the url is of an object store, a web server or another remote file system.

    Raises:
        ValueError: The url is remote, and a recipe that is built under `allow` may not name it.
    """
    # The match first: it fails for a path at once, and this is asked for each shard at each reading.
    found = _REMOTE.match(url) is not None
    if found and (refusal := refusal_of_url(url)):
        raise ValueError(refusal)
    return found


def local_path(url: str) -> str:
    """The path of a url that is not remote."""
    return url.removeprefix("file://")


def base_name(url: str) -> str:
    """The last part of a url's path; a pipe as a whole."""
    return url if url.startswith(PIPE) else url.rpartition("/")[2]  # no call for it: there may be 100,000


def stamp_of(url: str) -> FileStamp:
    """The stamp of a file as it is now.

    Raises:
        FileNotFoundError: The file does not exist.
        ShardError: The path is a directory or a device, or a remote file of unknown size.
    """
    if is_remote(url):
        found = stat_once(url)
        return note_version(url, FileStamp(found.size, _hashed(found.version)), found.version)
    status = os.stat(local_path(url))
    if not stat.S_ISREG(status.st_mode):
        check_mode(url, status.st_mode, ShardError)
    return FileStamp(status.st_size, status.st_mtime_ns)


_versions: dict[str, tuple[FileStamp, str]] = {}
"""The host's name of a version, by url: a stamp, which is stored, has a hash of that."""


def _hashed(version: str) -> int:
    digest = hashlib.blake2b(version.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 if version else 0


def note_version(url: str, stamp: FileStamp, version: str) -> FileStamp:
    """Remember the host's name for a version of a file."""
    _versions[str(url)] = stamp, version
    return stamp


def version_of_stamp(url: str, stamp: FileStamp) -> str:
    """The host's name for the version with this stamp; "" while it is not known."""
    known, version = _versions.get(url, (NO_STAMP, ""))
    return version if stamp == known else ""


def checked_answer(url: str, stamp: FileStamp, answer: Answer) -> bytes:
    """Return the bytes of an answer, which must be of the version that was indexed.

    Raises:
        ShardError: The answer is of another version.
    """
    got = stamp_of_answer(answer)
    if got != stamp:
        raise changed(url, stamp, got)
    note_version(url, got, answer.version)
    return answer.data


def stamp_of_answer(answer: Answer | Listed) -> FileStamp:
    """The stamp of the object that an answer comes from."""
    return FileStamp(answer.size, _hashed(answer.version))


def submit_range(url: str, begin: int, end: int, stamp: FileStamp) -> "Future[bytes]":
    """Request bytes of a remote shard, of the version that was indexed; the future gives all, or a ShardError."""

    def take(memory: Memory) -> bytes:
        return memory if isinstance(memory, bytes) else memory[begin:end]

    found = submit_memory(url, begin, end, stamp)
    if not isinstance(found, Future):
        memory, found = found, Future()
        found.set_result(memory)
    return then(found, take)


def submit_memory(url: str, begin: int, end: int, stamp: FileStamp) -> "Memory | Future[Memory]":
    """Request what `submit_range` does; or return a map of a shard whose bytes are in a cache."""
    if not stamp.version:  # what is kept of another version would not be noticed
        return _submit(url, stamp, begin, end)
    return read_cached(url, *stamp, begin, end, partial(_submit, url, stamp))


def _submit(url: str, stamp: FileStamp, begin: int, end: int) -> "Future[Memory]":
    def take(answer: Answer) -> Memory:
        data = checked_answer(url, stamp, answer)
        if len(data) != end - begin:
            raise cut_short(url, begin, end - begin, len(data))
        return data

    return then(network().submit(url, begin, end, version_of_stamp(url, stamp)), take)


def changed(url: str, expected: FileStamp, got: FileStamp) -> ShardError:
    """Make the error for a file that is not the version that was indexed."""
    return ShardError(
        f"shard '{url}': it was replaced or modified after it was indexed, expected {expected.size} bytes of "
        f"version {expected.version}, got {got.size} bytes of version {got.version}\n"
        "  Leave shards as they are while they are read. To use the new ones, start the run again; where a manifest "
        "lists them, run `streamdata index` first."
    )


def removed(url: str) -> ShardError:
    """Make the error for a file that no longer exists."""
    return ShardError(
        f"shard '{url}': it was removed after it was indexed, expected a file, got none\n"
        "  Leave shards as they are while they are read; where a manifest lists them, run `streamdata index`."
    )


def check_stamp(url: str, expected: FileStamp) -> None:
    """Raise ShardError unless the file is still the version that was indexed."""
    try:
        got = stamp_of(url)
    except FileNotFoundError as error:
        raise removed(url) from error
    if got != expected:
        raise changed(url, expected, got)


class LocalShard:
    """An open local file, read at offsets. It closes itself with its last reference.

    Positioned reads leave no position behind, so processes that fork share the file without harm; and unlike under a
    memory map, a file that shrinks gives fewer bytes, not a dead process.

    Raises:
        ShardError: It is no regular file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = local_path(url)
        self.fd = -1
        try:
            self.fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # who opens a fifo would wait for its writer
            status = os.fstat(self.fd)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                check_regular(self._path, ShardError)
            if error.filename is None:  # of the descriptor: that of a path names it
                note_place(error, url)
            raise
        if not stat.S_ISREG(status.st_mode):
            check_mode(url, status.st_mode, ShardError)
        self.size: int = status.st_size
        self._mtime_ns: int = status.st_mtime_ns
        self._identity = (status.st_dev, status.st_ino)
        self._map: mmap.mmap | None = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of the process there is no `os`
        if self.fd >= 0:
            close(self.fd)

    def read(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end of the file."""
        try:
            data = os.pread(self.fd, size, offset)
            while 0 < len(data) < size:  # one call reads at most 2 GiB
                more = os.pread(self.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            note_place(error, self.url, offset, offset + size)
            raise
        return data

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill the memory from `offset`; return the number of bytes read, fewer only at the end of the file."""
        try:
            size = done = os.preadv(self.fd, (memory,), offset)
            while done < len(memory) and size:  # one call reads at most 2 GiB
                size = os.preadv(self.fd, (memory[done:],), offset + done)
                done += size
        except OSError as error:
            note_place(error, self.url, offset, offset + len(memory))
            raise
        return done

    def mapped(self) -> mmap.mmap:
        """The file as memory. If it is truncated later, a read beyond its new end kills the process.

        The map has a descriptor of its own, so that a mapped file counts twice towards the process's limit.
        """
        if self._map is None:
            try:
                self._map = mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ)
            except OSError as error:
                note_place(error, self.url)
                raise
        return self._map

    def stamp(self) -> FileStamp:
        """The file's stamp when it was opened."""
        return FileStamp(self.size, self._mtime_ns)

    def check(self, expected: FileStamp, *, by_path: bool = False) -> None:
        """Raise ShardError unless this is the version that was indexed, and the file still at its path.

        A file that another was renamed over lives on under its descriptor, but has no links any more. With `by_path`
        the path is asked too, and another file at it is an error however it came there.
        """
        try:
            status = os.fstat(self.fd)
        except OSError as error:  # as of a network file system that has lost the file
            note_place(error, self.url)
            raise
        is_same = (status.st_size, status.st_mtime_ns) == expected and status.st_nlink > 0
        if is_same and by_path:
            try:
                status = os.stat(self._path)  # this is asked often
                is_same = (status.st_dev, status.st_ino) == self._identity
            except FileNotFoundError:
                is_same = False
        if not is_same:
            open_files.forget(self.url)
            check_stamp(self.url, expected)
            raise changed(self.url, expected, expected)


def opened(url: str) -> LocalShard:
    """Open a local file, or reuse one of the bounded number that this thread has open."""
    found: LocalShard = open_files.get(url, LocalShard)
    return found


def opened_shard(url: str) -> LocalShard:
    """Open an indexed shard, or reuse one of the bounded number that this thread has open."""
    try:
        found: LocalShard = open_files.get(url, LocalShard)
    except FileNotFoundError as error:
        raise removed(url) from error
    return found


def opened_anew(url: str) -> LocalShard:
    """Open an indexed shard for the caller alone."""
    try:
        return LocalShard(url)
    except FileNotFoundError as error:
        raise removed(url) from error


def advise(url: str, begin: int, end: int) -> None:
    """Tell the kernel that bytes of a local file will be wanted soon, so that it reads them ahead.

    The call costs 10 µs for a megabyte that is in the page cache already. Errors are left for the reader to find.
    """
    with suppress(OSError, ShardError):
        os.posix_fadvise(opened(url).fd, begin, end - begin, os.POSIX_FADV_WILLNEED)


def close_unused(urls: Iterable[str]) -> None:
    """Close files left open by an earlier run, so that a new run opens what lies at their paths now."""
    for url in set(open_files).intersection(urls):
        open_files.forget(url)


def cut_short(url: str, offset: int, expected: int, got: int) -> ShardError:
    """Make the error for a file that ends before the bytes that its index lists."""
    return ShardError(
        f"shard '{url}': cut short at offset {offset}, expected {expected} bytes, got {got}\n"
        "  Copy the shard again, and start the run again."
    )


def _at_once(function: Callable[[str], T], urls: Sequence[str]) -> list[T]:
    """Call a function with each file; with all at the same time where one is remote."""
    if not any(map(is_remote, urls)):
        return list(map(function, urls))
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        return list(pool.map(function, urls))


def stamps_of(urls: Sequence[str]) -> list[FileStamp]:
    """Find the stamps of many files; remote ones are asked for concurrently."""
    return _at_once(stamp_of, urls)


def stamps_there(urls: Iterable[str]) -> dict[str, FileStamp]:
    """Find the stamps of those files that exist; remote ones are asked for concurrently."""

    def found(url: str) -> FileStamp | None:
        with suppress(FileNotFoundError):
            return stamp_of(url) if is_remote(url) or os.path.isfile(local_path(url)) else None
        return None

    files = list(urls)
    stamps = zip(files, _at_once(found, files), strict=True)
    return {url: stamp for url, stamp in stamps if stamp is not None}
