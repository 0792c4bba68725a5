"""A file as pyarrow reads it: `ranges → bytes, of what is in memory already or of the source`."""

import io

from streamdata.shards.one_pass import ByteSource


class RangedFile(io.RawIOBase):
    """Reads from pieces that are held, and where none has the bytes, from its source."""

    def __init__(self, source: ByteSource) -> None:
        assert source.size is not None, "a file of row groups has a size"
        self.held: list[tuple[int, memoryview]] = []
        """Where each piece begins in the file, and its bytes."""
        self._source, self._size, self._at = source, source.size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self.bytes_at(self._at, wanted)
        self._at += len(data)
        return data

    def bytes_at(self, begin: int, size: int) -> bytes:
        """So many bytes from there on, fewer at the end of the file."""
        for first, piece in self.held:
            if first <= begin and begin + size <= first + len(piece):
                return bytes(piece[begin - first : begin - first + size])
        return self._source.read(size, begin) if size > 0 else b""
