"""Shards that are read from their start: `url → opener → decompression by suffix → bytes, forward only`."""

import gzip
import io
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol

import fsspec

from streamdata.errors import ShardError
from streamdata.shards.storage import LocalShard, Stamp, check_stamp, is_pipe, is_remote

_RAW_STEP = 1 << 20
_ZSTD_STEP = 1 << 14  # of compressed bytes, so that what one step gives stays bounded
_SKIP_STEP = 1 << 20


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ForwardStream:
    """The uncompressed bytes of a shard, at offsets that only grow.

    Raises:
        ShardError: The compressed data is damaged or ends early.
    """

    size: int | None = None

    def __init__(self, url: str, stream: _Bytes) -> None:
        self._url, self._stream = url, stream
        self._at = 0

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`, fewer only at the end."""
        assert offset >= self._at, f"offset {offset} of '{self._url}' has been passed"
        while self._at < offset and self._some(min(offset - self._at, _SKIP_STEP)):
            pass
        pieces = []
        while size > 0 and self._at >= offset and (piece := self._some(min(size, _SKIP_STEP))):
            pieces.append(piece)
            size -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _some(self, size: int) -> bytes:
        try:
            piece = self._stream.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error, DamagedFrameError) as error:
            raise ShardError(
                f"shard '{self._url}': offset {self._at} of the uncompressed data: expected more of it, got {error}\n"
                "  The compressed file is damaged or incomplete: copy or write it again."
            ) from error
        self._at += len(piece)
        return piece


class _LocalBytes(io.RawIOBase):
    """A local file from its start; whatever is read belongs to the version that was asked for."""

    def __init__(self, url: str, stamp: Stamp) -> None:
        self._file, self._stamp = LocalShard(url), stamp
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(len(buffer), self._at)
        self._file.check(self._stamp)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _PipeBytes:
    """The output of a shell command; that the command fails is noticed at its end."""

    def __init__(self, url: str) -> None:
        self._url = url
        command = url.removeprefix("pipe:")  # expand() lets it pass only where the environment allows pipes
        self._process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)  # noqa: S602

    def read(self, size: int = -1, /) -> bytes:
        assert self._process.stdout is not None, "the process was started with a pipe"
        piece = self._process.stdout.read(size)
        if not piece and self._process.wait() != 0:
            raise ShardError(
                f"shard '{self._url}': expected the command to succeed, got exit status {self._process.returncode}\n"
                "  Run the command in a shell to see what it says."
            )
        return piece

    def close(self) -> None:
        assert self._process.stdout is not None, "the process was started with a pipe"
        self._process.stdout.close()  # what the shell has started ends with its next write
        self._process.kill()
        self._process.wait()


class DamagedFrameError(Exception):
    """A zstd frame is damaged or ends early."""


class _ZstdBytes:
    """Zstandard frames (RFC 8878), one after another, uncompressed.

    The package's own readers take a frame that is cut short for the end of the file, so frames are decompressed one by
    one here, and each must be complete.
    """

    def __init__(self, url: str, stream: _Bytes) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ImportError(
                f"shard '{url}': reading .zst needs the package zstandard\n  pip install torch-streamdata[zstd]"
            ) from error
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._stream = stream
        self._rest, self._ready = b"", memoryview(b"")

    def read(self, size: int, /) -> bytes:
        while not self._ready and self._more():
            pass
        piece = bytes(self._ready[:size])
        self._ready = self._ready[len(piece) :]
        return piece

    def _more(self) -> bool:
        """Decompress some more; False at the end."""
        compressed = self._rest or self._stream.read(_ZSTD_STEP)
        self._rest = b""
        if not compressed:
            if self._frame is not None:
                raise DamagedFrameError("the end of the file within a zstd frame")
            return False
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(compressed))
        except self._error as error:
            raise DamagedFrameError(str(error)) from error
        if self._frame.eof:
            self._rest, self._frame = self._frame.unused_data, None
        return True


@contextmanager
def open_stream(url: str, stamp: Stamp) -> Iterator[ForwardStream]:
    """The uncompressed bytes of a shard: .gz, .tgz and .zst are decompressed, `pipe:` is run.

    Raises:
        ShardError: The shard is not of version `stamp` (a pipe has none).
        ImportError: It is compressed with zstd, and the package zstandard is not there.
    """
    with _open_raw(url, stamp) as raw:
        if url.endswith((".gz", ".tgz")) and not is_pipe(url):
            with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
                yield ForwardStream(url, unzipped)
        elif url.endswith(".zst") and not is_pipe(url):
            yield ForwardStream(url, _ZstdBytes(url, raw))
        else:
            yield ForwardStream(url, raw)


@contextmanager
def _open_raw(url: str, stamp: Stamp) -> Iterator[Any]:
    if is_pipe(url):
        with closing(_PipeBytes(url)) as pipe:
            yield pipe
    elif is_remote(url):
        check_stamp(url, stamp)  # now, since some lanes never come to the end
        with fsspec.open(url, "rb") as remote:
            yield remote
        check_stamp(url, stamp)
    else:
        with io.BufferedReader(_LocalBytes(url, stamp), _RAW_STEP) as local:
            yield local
