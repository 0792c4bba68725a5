"""Zstandard frames, one after another: `compressed bytes → blocks, some at a time → bytes`.

Format: RFC 8878, sections 3.1.1 (frames) and 3.1.2 (skippable frames). Blocks are found here, since the library
decompresses whatever it is given at once, and four bytes may stand for 128 KiB; and its own readers take a frame that
is cut short for the end of the file.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from streamdata.errors import needs

MAX_WINDOW_BYTES: Final = 128 << 20
"""How much of what came before a frame may refer to; `zstd --ultra --long=27` asks for that."""
MAX_EMPTY_STREAMS: Final = 1000
"""How many streams (members, frames) in a row may give no bytes. Tools write one at the end of a file, or none."""
_STEPS_OF_EMPTY: Final = 2  # of a frame: its header, its blocks
_MAGIC, _SKIPPABLE = 0xFD2FB528, range(0x184D2A50, 0x184D2A60)
_MAX_BLOCK_BYTES, _BLOCKS_AT_ONCE = 128 << 10, 8
_STEP = 1 << 17
_RLE, _RESERVED = 1, 3  # types of blocks
_CHECKSUM_BYTES = 4


class DamagedFrameError(Exception):
    """Compressed data is damaged, ends early, or asks for too much memory."""


def too_many_empty() -> DamagedFrameError:
    """The error for streams, or parts of them, that give no bytes."""
    return DamagedFrameError(f"more than {MAX_EMPTY_STREAMS} empty streams in a row, or empty parts of one")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _FrameHeader(NamedTuple):
    size: int
    window_bytes: int
    has_checksum: bool


class ZstdFrames:
    """The uncompressed bytes of a file of frames, each of which must be complete.

    Args:
        who: The file, for errors.
        stream: Its bytes, forward only.
        on_unchecked: Called at each frame that has no checksum.

    Raises:
        ImportError: The package zstandard is not there.
    """

    def __init__(self, who: str, stream: _Readable, on_unchecked: Callable[[], object]) -> None:
        with needs("zstandard", "zstd", f"{who}: reading .zst"):
            import zstandard
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        self._stream, self._on_unchecked = stream, on_unchecked
        self._frame: Any = None
        self._has_checksum = False
        self._packed, self._at = b"", 0
        self._ready = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Some bytes, at most `size`; none at the end.

        Raises:
            DamagedFrameError: A frame is damaged, ends early, or asks for too large a window.
        """
        steps = 0
        while not self._ready and self._more():
            steps += 1
            if steps > _STEPS_OF_EMPTY * (MAX_EMPTY_STREAMS + 1):
                raise too_many_empty()
        piece = bytes(self._ready[:size])
        self._ready = self._ready[len(piece) :]
        return piece

    def _more(self) -> bool:
        """Decompress some blocks; False at the end."""
        if self._frame is None:
            return self._begin_frame()
        end, is_last = 0, False
        for _ in range(_BLOCKS_AT_ONCE):
            size, is_last = self._block(end)
            end += size
            if is_last:
                end += _CHECKSUM_BYTES if self._has_checksum else 0
                break
        self._decompress(self._take(end))
        if is_last:
            if not self._frame.eof:
                raise DamagedFrameError("no end of the frame after its last block")
            self._frame = None
        return True

    def _begin_frame(self) -> bool:
        """Read the header of the next frame, past one that is to be skipped; False at the end."""
        if not self._has(1):
            return False
        magic = int.from_bytes(self._next(4), "little")
        if magic in _SKIPPABLE:
            self._skip(8 + int.from_bytes(self._next(8)[4:], "little"))
            return True
        if magic != _MAGIC:
            raise DamagedFrameError("other data than a zstd frame")
        header = self._header()
        if header.window_bytes > MAX_WINDOW_BYTES:
            raise DamagedFrameError(
                f"a zstd frame with a window of {header.window_bytes} bytes, more than {MAX_WINDOW_BYTES}"
            )
        self._has_checksum = header.has_checksum
        if not header.has_checksum:
            self._on_unchecked()
        self._frame = self._decompressor.decompressobj()
        self._decompress(self._take(header.size))
        return True

    def _header(self) -> _FrameHeader:
        """The header of the frame that begins here."""
        descriptor = self._next(5)[4]
        is_single = bool(descriptor & 0x20)
        dictionary = (0, 1, 2, 4)[descriptor & 3]
        content = (int(is_single), 2, 4, 8)[descriptor >> 6]
        at = 5 if is_single else 6
        size = at + dictionary + content
        header = self._next(size)
        if is_single:  # all of it is its window (and 256 more where two bytes say it)
            window = int.from_bytes(header[size - content : size], "little")
        else:
            base = 1 << (10 + (header[5] >> 3))
            window = base + base // 8 * (header[5] & 7)
        return _FrameHeader(size, window, bool(descriptor & 4))

    def _block(self, offset: int) -> tuple[int, bool]:
        """The size of the block that begins so many bytes from here, with its header, and whether it is the last."""
        self._ensure(offset + 3)
        at = self._at + offset
        header = int.from_bytes(self._packed[at : at + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        if kind == _RESERVED or size > _MAX_BLOCK_BYTES:
            raise DamagedFrameError("a zstd block of unknown type or size")
        return 3 + (1 if kind == _RLE else size), bool(header & 1)

    def _decompress(self, packed: bytes) -> None:
        try:
            self._ready = memoryview(self._frame.decompress(packed))
        except self._error as error:
            raise DamagedFrameError(str(error)) from error

    def _has(self, size: int) -> bool:
        """Whether there are so many bytes from here; they are in memory then."""
        while len(self._packed) - self._at < size:
            piece = self._stream.read(_STEP)
            if not piece:
                return False
            self._packed, self._at = self._packed[self._at :] + piece, 0
        return True

    def _ensure(self, size: int) -> None:
        if not self._has(size):
            raise DamagedFrameError("the end of the file within a zstd frame")

    def _next(self, size: int) -> bytes:
        self._ensure(size)
        return self._packed[self._at : self._at + size]

    def _take(self, size: int) -> bytes:
        found = self._next(size)
        self._at += size
        return found

    def _skip(self, size: int) -> None:
        while size > 0:
            size -= len(self._take(min(size, _STEP)))
