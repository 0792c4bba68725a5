"""Shards read from their start: `url → file, ranges or a command → decompression by suffix → bytes, forward only`."""

import bz2
import io
import lzma
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

from streamdata.errors import ShardError, needs
from streamdata.io.one_pass import RemoteFile, SourceFile
from streamdata.io.signatures import HEAD_BYTES, check_compressed
from streamdata.io.storage import FileStamp, is_pipe, is_remote, opened_anew, submit_range
from streamdata.recipe.limits import PIPE, refusal_of_command

_RAW_STEP = 1 << 20
_PACKED_STEP = 1 << 16  # what is left of it is copied at each stream's end
_UNPACKED_STEP = 1 << 15
_ZSTD_STEP = 1 << 13  # packed bytes that are unpacked at once: four of them may stand for 128 KiB
_MAX_ZSTD_WINDOW_BYTES = 128 << 20  # how far back a frame may refer; `zstd --ultra --long=27` asks for that
MAX_EMPTY_STREAMS = 1000
"""How many streams (members, frames) in a row may give no bytes. Tools write one at the end of a file, or none."""
_MAX_XZ_BYTES = 192 << 20  # of memory: `xz -9` needs 65 MiB, and a file may ask for 4 GiB
_SKIP_STEP = 1 << 20
_CHUNKS_AHEAD = 2
_ENDS = {".gz": (".gz", ".tgz"), ".zst": (".zst", ".zstd"), ".bz2": (".bz2",), ".xz": (".xz",)}


def check_allowed(url: str) -> None:
    """Raise ValueError unless the environment allows `pipe:` commands."""
    if refusal := refusal_of_command(url):
        raise ValueError(refusal)


class PipeBytes:
    """Reads the output of a shell command; a command that fails is noticed at the end of its output.

    Args:
        url: `pipe:` and the command.

    Raises:
        ValueError: The environment does not allow commands. It is asked here, whoever named the shard and however.
    """

    def __init__(self, url: str) -> None:
        check_allowed(url)
        self._url = url
        command = url.removeprefix(PIPE)
        self._process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)  # noqa: S602
        assert self._process.stdout is not None, "the process was started with a pipe"
        self._output = self._process.stdout

    def read(self, size: int = -1, /) -> bytes:
        """Read some of the output; empty at its end.

        Raises:
            ShardError: The command failed.
        """
        piece = self._output.read(size)
        if not piece and self._process.wait() != 0:
            raise ShardError(
                f"shard '{self._url}': expected the command to succeed, got exit status {self._process.returncode}\n"
                "  Run the command in a shell to see what it says."
            )
        return piece

    def close(self) -> None:
        """End the command's process."""
        self._output.close()  # what the shell has started ends with its next write
        self._process.kill()
        self._process.wait()


class DamagedFrameError(Exception):
    """Compressed data is damaged, ends early, or asks for too much memory."""


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ForwardStream:
    """Reads the uncompressed bytes of a shard at increasing offsets.

    Raises:
        ShardError: The compressed data is damaged or ends early.
    """

    size: int | None = None

    def __init__(self, url: str, stream: _Bytes) -> None:
        self._url, self._stream = url, stream
        self._at = 0

    def read(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from `offset`, fewer only at the end."""
        assert offset >= self._at, f"offset {offset} of '{self._url}' has been passed"
        while self._at < offset and self._some(min(offset - self._at, _SKIP_STEP)):
            pass
        piece = self._some(min(size, _SKIP_STEP)) if size > 0 and self._at >= offset else b""
        if not piece or len(piece) == size:
            return piece
        # A buffer that grows in place and becomes the result: pieces that are joined are there twice.
        whole = io.BytesIO()
        while piece:
            size -= whole.write(piece)
            piece = self._some(min(size, _SKIP_STEP)) if size else b""
        return whole.getvalue()

    def _some(self, size: int) -> bytes:
        try:
            piece = self._stream.read(size)
        except DamagedFrameError as error:
            raise ShardError(
                f"shard '{self._url}': offset {self._at} of the uncompressed data: expected more of it, got {error}\n"
                "  The compressed file is damaged or incomplete: copy or write it again."
            ) from error
        self._at += len(piece)
        return piece


class _LocalBytes(SourceFile):
    """A local file from its start; whatever is read belongs to the version that was asked for."""

    def __init__(self, url: str, stamp: FileStamp) -> None:
        self._file, self._stamp = opened_anew(url), stamp
        super().__init__(self._file)

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        self._file.check(self._stamp)
        return size


@contextmanager
def open_stream(url: str, stamp: FileStamp, raw: io.RawIOBase | None = None) -> Iterator[ForwardStream]:
    """Open a shard as uncompressed bytes: .gz, .tgz, .zst, .zstd, .bz2 and .xz are decompressed, `pipe:` is run.

    Args:
        url: The shard.
        stamp: Its version; a pipe has none.
        raw: Its bytes, where they were asked for before; otherwise it is opened.

    Raises:
        ShardError: The shard is of another version, or not compressed as its suffix says.
        ValueError: The shard is a pipe, and the environment does not allow commands.
        ImportError: The shard is compressed with zstd, and the package zstandard is not installed.
    """
    suffix = next((suffix for suffix, ends in _ENDS.items() if url.endswith(ends) and not is_pipe(url)), "")
    file: Any
    if raw is None and is_remote(url):
        raw = SourceFile(RemoteFile(url, stamp, _CHUNKS_AHEAD, submit_range))
    if raw is None and is_pipe(url):
        file = PipeBytes(url)
    else:
        file = io.BufferedReader(raw or _LocalBytes(url, stamp), _RAW_STEP)
    with closing(file) as opened:
        if not suffix:
            yield ForwardStream(url, opened)
            return
        head = opened.read(HEAD_BYTES)
        check_compressed(url, head, suffix)
        new: Callable[[], Any]
        if suffix == ".zst":
            with needs("zstandard", "zstd", f"shard '{url}': reading .zst"):
                import zstandard
            new, padding = partial(_Unzstd, zstandard), 0
        else:
            new, padding = _DECOMPRESSORS[suffix]
        unpacked = _UnpackedBytes(new, padding, head, opened)
        yield ForwardStream(url, io.BufferedReader(unpacked, _UNPACKED_STEP))


class _UnpackedBytes(io.RawIOBase):
    """Streams of gzip, bzip2, xz or zstd, one after another, uncompressed.

    The library's own files take what is behind the last stream of bzip2 or xz for nothing, and go through headers,
    zeros and empty streams of gzip in Python, a byte or some at a time.

    Args:
        new: Makes what decompresses one stream.
        padding: How many zeros may stand behind a stream: a multiple of that, or none where it is 0.
        head: Bytes of the file that were read already.
        stream: The file from there on.
    """

    def __init__(self, new: Callable[[], Any], padding: int, head: bytes, stream: _Bytes) -> None:
        self._new, self._padding, self._head, self._stream = new, padding, head, stream
        self._unpack = new()
        self._num_empty = 0  # streams in a row

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while (packed := self._packed()) is not None:
            try:
                piece: bytes = self._unpack.decompress(packed, len(buffer))
            except (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error, DamagedFrameError) as error:
                raise DamagedFrameError(str(error)) from error
            if piece:
                self._num_empty = 0
                buffer[: len(piece)] = piece
                return len(piece)
        return 0

    def _read(self) -> bytes:
        packed, self._head = self._head or self._stream.read(_PACKED_STEP), b""
        return packed

    def _packed(self) -> bytes | None:
        """The bytes to be decompressed next; None at the end."""
        if not self._unpack.eof:
            packed = self._read() if self._unpack.needs_input else b""
            if not packed and self._unpack.needs_input:
                raise DamagedFrameError("the end of the file within compressed data")
            return packed
        packed, padding = self._unpack.unused_data or self._read(), 0
        # Behind a stream may stand zeros, of xz by fours (section 2.2 of its format).
        while self._padding and packed.startswith(b"\0"):
            rest = packed.lstrip(b"\0")
            padding += len(packed) - len(rest)
            packed = rest or self._read()
        if padding and padding % self._padding:
            raise DamagedFrameError(f"{padding} zero bytes behind compressed data, which xz pads by fours")
        if not packed:
            return None
        if self._num_empty > MAX_EMPTY_STREAMS:
            raise DamagedFrameError(f"more than {MAX_EMPTY_STREAMS} empty streams in a row")
        self._num_empty += 1
        self._unpack = self._new()
        return packed


class _Gunzip:
    """Decompresses a stream of gzip, with the attributes of what does so for bzip2 and xz."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def needs_input(self) -> bool:
        return not self._unpack.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._unpack.unused_data

    def decompress(self, packed: bytes, size: int) -> bytes:
        return self._unpack.decompress(packed or self._unpack.unconsumed_tail, size)


class _Unzstd:
    """Decompresses a frame of zstd, likewise; one that is to be skipped gives nothing.

    Args:
        zstandard: The package.
    """

    def __init__(self, zstandard: Any) -> None:
        self._unpack = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES).decompressobj()
        self._error = zstandard.ZstdError
        self._packed = self._ready = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._unpack.eof and not self._ready

    @property
    def needs_input(self) -> bool:
        return not (self._packed or self._ready)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._unpack.unused_data) + bytes(self._packed)

    def decompress(self, packed: bytes, size: int) -> bytes:
        if packed:
            self._packed = memoryview(packed)
        if not self._ready:
            piece, self._packed = self._packed[:_ZSTD_STEP], self._packed[_ZSTD_STEP:]
            try:
                self._ready = memoryview(self._unpack.decompress(piece))
            except self._error as error:
                raise DamagedFrameError(f"a damaged zstd frame, or other data ({error})") from error
        found = bytes(self._ready[:size])
        self._ready = self._ready[size:]
        return found


_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (_Gunzip, 1),
    ".bz2": (bz2.BZ2Decompressor, 0),
    ".xz": (partial(lzma.LZMADecompressor, memlimit=_MAX_XZ_BYTES), 4),
}
