"""Shards as bytes at offsets: local files by positioned reads, remote ones by range reads through fsspec.

`url + FileStamp → opened(url).read(size, offset) → bytes`, then `check(stamp)`: what was read is what was indexed.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import fsspec
import numpy as np

from streamdata.errors import ShardError
from streamdata.recipe.permission import PIPE, refusal_of_url
from streamdata.shards.readers import Int64s
from streamdata.shards.recent import Recent

MAX_OPEN_SHARDS = 128
_MAX_REQUESTS = 16  # at the same time
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(://|::)")
# Where the file systems of fsspec say which version of a file this is, the most exact first.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "crc32c", "mtime", "LastModified", "last_modified", "updated",
             "created")  # fmt: skip


class FileStamp(NamedTuple):
    """Which version of a file this is: its size in bytes and its mtime in ns (remote: a hash of its tag, or 0)."""

    size: int
    version: int


NO_STAMP = FileStamp(0, 0)


class ByteSource(Protocol):
    """Bytes at offsets. `read` gives fewer than asked only at the end; `size` is None where it is not known."""

    @property
    def size(self) -> int | None:
        """How many bytes there are."""
        ...

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`."""
        ...


def is_pipe(url: str) -> bool:
    """Whether the url is a command whose output is the shard."""
    return url.startswith(PIPE)


def is_remote(url: str) -> bool:
    """Whether the url is read through fsspec.

    Raises:
        ValueError: It is, and a recipe that is built under `allow` may not name it.
    """
    # The match first: it fails for a path at once, and this is asked for each shard at each reading.
    found = _REMOTE.match(url) is not None and not is_pipe(url) and not url.startswith("file://")
    if found and (refusal := refusal_of_url(url)):
        raise ValueError(refusal)
    return found


def local_path(url: str) -> str:
    """The path of a url that is not remote."""
    return url.removeprefix("file://")


def base_name(url: str) -> str:
    """The last part of a url; the whole of a pipe."""
    return url if is_pipe(url) else url.rpartition("/")[2]


def stamp_of(url: str) -> FileStamp:
    """The stamp of the file as it is now.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: It is a directory or a device, or a remote file of unknown size.
    """
    if is_remote(url):
        return _remote_stamp(url)
    status = Path(local_path(url)).stat()
    if not stat.S_ISREG(status.st_mode):
        raise ShardError(
            f"shard '{url}': expected a regular file, got mode {status.st_mode:o}\n  Name a file of records."
        )
    return FileStamp(status.st_size, status.st_mtime_ns)


def _remote_stamp(url: str) -> FileStamp:
    filesystem, path = fsspec.core.url_to_fs(url)
    # What a listing said of the file, for a glob say, may be as old as the process: the file itself is asked.
    filesystem.invalidate_cache(path)
    filesystem.invalidate_cache(path.rpartition("/")[0])  # some forget the folder of a path by themselves, not all
    details = filesystem.info(path)
    if not isinstance(details.get("size"), int):
        raise ShardError(f"shard '{url}': its server tells no size, got {details.get('size')!r}\n  Copy it to a disk.")
    version = next((str(details[name]) for name in _VERSIONS if details.get(name)), "")
    digest = hashlib.blake2b(version.encode(), digest_size=8).digest()
    return FileStamp(details["size"], int.from_bytes(digest, "big") >> 1 if version else 0)


def stamps_of(urls: Sequence[str]) -> list[FileStamp]:
    """The stamps of many files; remote ones are asked for at the same time."""
    if not any(map(is_remote, urls)):
        return [stamp_of(url) for url in urls]
    with ThreadPoolExecutor(_MAX_REQUESTS) as pool:
        return list(pool.map(stamp_of, urls))


def changed(url: str, expected: FileStamp, got: FileStamp) -> ShardError:
    """The error for a file that is not the one that was indexed."""
    return ShardError(
        f"shard '{url}': it was replaced or modified after the run began, "
        f"expected {expected.size} bytes of version {expected.version}, got {got.size} bytes of version {got.version}\n"
        "  Leave shards as they are while they are read; to use the new ones, start the run again."
    )


def check_stamp(url: str, expected: FileStamp) -> None:
    """Raise ShardError unless the file is still the one that was indexed."""
    try:
        got = stamp_of(url)
    except FileNotFoundError as error:
        raise ShardError(
            f"shard '{url}': it was removed after the run began, expected {expected.size} bytes, got no file\n"
            "  Leave shards as they are while they are read."
        ) from error
    if got != expected:
        raise changed(url, expected, got)


class LocalShard:
    """An open local file, read at offsets. It closes itself with its last reference.

    Positioned reads leave no position behind, so processes that fork share the file without harm; and unlike under a
    memory map, a file that shrinks gives fewer bytes, not a dead process.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = local_path(url)
        self.fd = -1
        self.fd = os.open(self._path, os.O_RDONLY)
        status = os.fstat(self.fd)
        self.size: int = status.st_size
        self._identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`, fewer only at the end of the file."""
        data = os.pread(self.fd, size, offset)
        while 0 < len(data) < size:  # one call reads at most 2 GiB
            more = os.pread(self.fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill the memory from `offset`; return how many bytes there were, fewer only at the end of the file."""
        size = done = os.preadv(self.fd, (memory,), offset)
        while done < len(memory) and size:  # one call reads at most 2 GiB
            size = os.preadv(self.fd, (memory[done:],), offset + done)
            done += size
        return done

    def check(self, expected: FileStamp, *, by_path: bool = False) -> None:
        """Raise ShardError unless this is the version that was indexed, and the file at its path.

        A file that another was renamed over lives on under its descriptor, but has no links any more. With `by_path`
        the path is asked too, and another file at it is an error however it came there.
        """
        status = os.fstat(self.fd)
        if status.st_size != expected[0] or status.st_mtime_ns != expected[1] or not status.st_nlink:
            self._fail(expected)
        if by_path:
            try:
                status = os.stat(self._path)  # this is asked often
            except FileNotFoundError:
                self._fail(expected)
            if (status.st_dev, status.st_ino) != self._identity:
                self._fail(expected)

    def _fail(self, expected: FileStamp) -> NoReturn:
        _open_shards.forget(self.url)
        check_stamp(self.url, expected)
        raise changed(self.url, expected, expected)


_open_shards: Recent[str, LocalShard] = Recent(MAX_OPEN_SHARDS)


def opened(url: str) -> LocalShard:
    """The open local shard, one of a bounded number per thread."""
    return _open_shards.get(url, LocalShard)


def advise(url: str, begin: int, end: int) -> None:
    """Tell the kernel that these bytes of a local file are wanted soon, so that it reads them meanwhile.

    It costs 10 µs for a megabyte that is in the page cache already. An error is the reader's to find.
    """
    with suppress(OSError):
        os.posix_fadvise(opened(url).fd, begin, end - begin, os.POSIX_FADV_WILLNEED)


def close_unused(urls: Iterable[str]) -> None:
    """Let go of files that stayed open after an earlier run: a new run reads what lies at their paths now."""
    for url in urls:
        _open_shards.forget(url)


class RemoteFile:
    """A remote file read mostly forward, through the read-ahead of fsspec."""

    def __init__(self, url: str) -> None:
        filesystem, path = fsspec.core.url_to_fs(url)
        self.size: int = stamp_of(url).size
        self._file: Any = filesystem.open(path, "rb")

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`, fewer only at the end of the file."""
        self._file.seek(offset)
        return bytes(self._file.read(size))


def byte_source(url: str) -> ByteSource:
    """The file as bytes at offsets, for one pass over it."""
    return RemoteFile(url) if is_remote(url) else LocalShard(url)


def check_shards(urls: Sequence[str], stamps: Sequence[FileStamp], shards: Iterable[int]) -> None:
    """Raise ShardError unless each of the shards is still the one that was indexed."""
    remote: list[int] = []
    for shard in shards:
        if is_remote(urls[shard]):
            remote.append(shard)
        else:
            opened(urls[shard]).check(stamps[shard])
    if remote:  # each is a request
        with ThreadPoolExecutor(min(_MAX_REQUESTS, len(remote))) as pool:
            list(pool.map(lambda shard: check_stamp(urls[shard], stamps[shard]), remote))


_Piece = tuple[int, int, int, int]
"""Consecutive bytes of a shard, and where they go: shard, begin, end, begin in memory. Plain, since one is made for
nearly every record of a shuffled window."""


def read_spans(
    urls: Sequence[str],
    stamps: Sequence[FileStamp],
    spans: Int64s,
    lend: Callable[[int], memoryview] | None = None,
    at_their_paths: set[int] | None = None,
) -> tuple[memoryview, Int64s]:
    """The bytes of some spans, in one piece of memory; spans that touch are read together.

    Args:
        urls: All shards.
        stamps: Their versions.
        spans: Shard, begin and end of each span, (n, 3).
        lend: Returns memory of at least the bytes asked for; by default it is new.
        at_their_paths: Shards whose paths need not be looked at again; those that are found there join the set.

    Returns:
        The memory, and where each span begins in it, (n,).

    Raises:
        ShardError: A shard has changed, or ends before a span does.
    """
    pieces, size, offsets = _pieces(spans)
    memory = memoryview(bytearray(size)) if lend is None else lend(size)
    known = set() if at_their_paths is None else at_their_paths
    remote: list[_Piece] = []
    for shard, group in groupby(pieces, itemgetter(0)):  # one after the other, so that few files are open at once
        if is_remote(urls[shard]):
            remote += group
        else:
            _read_local(opened(urls[shard]), stamps[shard], list(group), memory, by_path=shard not in known)
            known.add(shard)
    if remote:
        _read_remote(urls, stamps, remote, memory)
    return memory, offsets


def _pieces(spans: Int64s) -> tuple[list[_Piece], int, Int64s]:
    """What is read at once, sorted; how many bytes that is; and where each span begins in it.

    A loop: there are some hundred spans, for which it takes less time than the twenty calls of NumPy that it would be.
    """
    pieces, size = [], 0
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    begins = [0] * len(order)
    shard, first, last = -1, 0, 0  # of the piece under way
    for number, (next_shard, begin, end) in zip(order.tolist(), spans[order].tolist(), strict=True):
        if next_shard != shard or begin > last:
            if shard >= 0:
                pieces.append((shard, first, last, size))
            size += last - first
            shard, first, last = next_shard, begin, end
        last = max(last, end)
        begins[number] = size + begin - first
    if shard >= 0:
        pieces.append((shard, first, last, size))
    return pieces, size + last - first, np.array(begins, np.int64)


def _read_local(file: LocalShard, stamp: FileStamp, pieces: list[_Piece], memory: memoryview, *, by_path: bool) -> None:
    short = [
        (begin, end - begin, got)
        for _, begin, end, at in pieces
        if (got := file.read_into(memory[at : at + end - begin], begin)) < end - begin
    ]
    file.check(stamp, by_path=by_path)
    if short:
        raise cut_short(file.url, *short[0])


def _read_remote(urls: Sequence[str], stamps: Sequence[FileStamp], pieces: list[_Piece], memory: memoryview) -> None:
    """Pieces of remote shards; one request to each file system, which may serve them at the same time."""
    groups: dict[int, tuple[Any, dict[_Piece, str]]] = {}
    for piece in pieces:
        filesystem, path = fsspec.core.url_to_fs(urls[piece[0]])
        groups.setdefault(id(filesystem), (filesystem, {}))[1][piece] = path
    found: dict[_Piece, bytes] = {}
    for filesystem, paths in groups.values():
        _, begins, ends, _ = zip(*paths, strict=True)
        answers = filesystem.cat_ranges(list(paths.values()), list(begins), list(ends), on_error="raise")
        for piece, answer in zip(paths, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            found[piece] = answer
    check_shards(urls, stamps, {shard for shard, *_ in pieces})
    for (shard, begin, end, at), answer in found.items():
        if len(answer) != end - begin:
            raise cut_short(urls[shard], begin, end - begin, len(answer))
        memory[at : at + end - begin] = answer


def cut_short(url: str, offset: int, expected: int, got: int) -> ShardError:
    """The error for a file that ends within what its index says is there."""
    return ShardError(
        f"shard '{url}': cut short at offset {offset}, expected {expected} bytes, got {got}\n"
        "  Copy the shard again, and start the run again."
    )
