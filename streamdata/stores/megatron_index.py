r"""Megatron's `.idx`: where the sequences of the `.bin` beside it lie.

Little-endian, as Megatron-Core's `indexed_dataset.py` has it: the magic `MMIDIDX\x00\x00`, version uint64 1, dtype
code uint8 (`CODES`), number of sequences uint64, number of entries of the document index uint64; then int32 the length
of each sequence in tokens, int64 the byte in the `.bin` at which it begins, and int64 the document index: the sequence
with which each document begins, and the number of sequences. A multimodal one has an int8 more for each sequence, its
mode: what kind of tokens these are.
"""

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.stores.bounds import Open, StoredArray, damaged, rising
from streamdata.stores.dtypes import Int64s

MAGIC: Final = b"MMIDIDX\x00\x00"
CODES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16",
}  # fmt: skip
_HEADER = struct.Struct("<9sQBQQ")
_MAX_LENGTH = np.iinfo(np.int32).max


class IndexLayout(NamedTuple):
    """What the header of an `.idx` says, and the bytes at which its arrays begin."""

    dtype: np.dtype[Any]
    num_sequences: int
    num_entries: int  # of the document index
    has_modes: bool = False

    @property
    def lengths_at(self) -> int:
        """int32 (num_sequences,)."""
        return _HEADER.size

    @property
    def pointers_at(self) -> int:
        """int64 (num_sequences,)."""
        return self.lengths_at + 4 * self.num_sequences

    @property
    def documents_at(self) -> int:
        """int64 (num_entries,)."""
        return self.pointers_at + 8 * self.num_sequences

    @property
    def modes_at(self) -> int:
        """int8 (num_sequences,), where they are there."""
        return self.documents_at + 8 * self.num_entries

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.modes_at + self.has_modes * self.num_sequences


def encode_index(ends: Int64s, dtype: np.dtype[Any]) -> list[bytes]:
    """The parts of an `.idx` of sequences that lie one after another, each a document.

    Args:
        ends: (sequences + 1,), where each begins, in tokens, and the end.
        dtype: Of the tokens.
    """
    lengths = np.diff(ends)
    if len(lengths) and int(lengths.max()) > _MAX_LENGTH:
        raise StoreError(
            f"megatron: expected sequences of at most {_MAX_LENGTH} tokens, got one of {lengths.max()}\n"
            "  Cut it, or write another format."
        )
    code = next(code for code, name in CODES.items() if name == dtype.name)
    header = _HEADER.pack(MAGIC, 1, code, len(lengths), len(ends))
    documents = np.arange(len(ends), dtype="<i8")
    pointers = ends[:-1] * dtype.itemsize
    return [header, lengths.astype("<i4").tobytes(), pointers.astype("<i8").tobytes(), documents.tobytes()]


def decode_header(head: bytes, size_bytes: int, who: str) -> IndexLayout:
    """The layout of an `.idx` of this size, from its first bytes.

    Raises:
        StoreError: It is not an index, is of another version or of an unknown dtype, or its size does not fit its
            counts.
    """
    if len(head) < _HEADER.size or not head.startswith(MAGIC):
        raise StoreError(
            f"{who}: expected the magic {MAGIC!r}, got {shown(head[:9])}\n  This is not an index of Megatron."
        )
    _, version, code, num_sequences, num_entries = _HEADER.unpack_from(head)
    if version != 1 or code not in CODES:
        raise StoreError(
            f"{who}: expected version 1 and a dtype code of {CODES}, got version {version} and code {code}\n"
            "  Write it with Megatron-Core's IndexedDatasetBuilder, or with StoreWriter."
        )
    layout = IndexLayout(np.dtype(CODES[code]).newbyteorder("<"), num_sequences, num_entries)
    if num_sequences and layout.size_bytes + num_sequences == size_bytes:
        layout = layout._replace(has_modes=True)
    if layout.size_bytes != size_bytes:
        raise StoreError(
            f"{who}: expected {layout.size_bytes} bytes for {num_sequences} sequences and a document index of "
            f"{num_entries} entries, got {size_bytes}\n  Copy the index again."
        )
    return layout


@dataclass(frozen=True, eq=False, slots=True)
class Sequences:
    """Sequences by pointer and length.

    Attributes:
        count: How many.
        lengths: int32 (count,), in tokens.
        pointers: int64 (count,), in bytes.
        token_bytes: Of one token.
        end: The number of tokens.
    """

    count: int
    lengths: StoredArray
    pointers: StoredArray
    token_bytes: int
    end: int

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return self.lengths, self.pointers

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        pointer, length = int(open_(self.pointers)[index]), int(open_(self.lengths)[index])
        begin, rest = divmod(pointer, self.token_bytes)
        end = begin + length
        # Sequences lie one after another. A gap would be a record that `Store.fetch` reads and this does not.
        follows = end == self.start(index + 1, open_)
        if rest or length < 0 or not 0 <= begin <= end <= self.end or not follows:
            raise damaged(f"index '{self.lengths.file}', pointer {pointer}", index, begin, end, self.end)
        return begin, end

    def pointed(self, index: int, open_: Open) -> tuple[int, int]:
        """What `span` gives, by pointers alone: for sequences in no order, of which each is read once."""
        found = open_(self.pointers)[index : index + 2].tolist()
        (begin, rest), end = divmod(found[0], self.token_bytes), found[-1] // self.token_bytes
        if index + 1 == self.count:
            end = self.end
        if rest or not 0 <= begin <= end <= self.end:
            raise damaged(f"index '{self.pointers.file}', pointer {found[0]}", index, begin, end, self.end)
        return begin, end

    def start(self, index: int, open_: Open) -> int:
        """Where a sequence begins, in tokens; for `count` the end."""
        return self.end if index >= self.count else int(open_(self.pointers)[index]) // self.token_bytes


@dataclass(frozen=True, eq=False, slots=True)
class Documents:
    """Documents as runs of sequences.

    Attributes:
        firsts: int64 (documents + 1,), the sequence with which each begins, and the number of sequences.
        sequences: What they consist of.
    """

    firsts: StoredArray
    sequences: Sequences

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return self.firsts, *self.sequences.arrays

    def starts(self, begin: int, end: int, open_: Open) -> Int64s:
        who, num_sequences = f"document index of '{self.firsts.file}'", self.sequences.count

        def start(sequence: int) -> int:
            if not 0 <= sequence <= num_sequences:
                raise StoreError(
                    f"{who}: expected sequences up to {num_sequences}, got {sequence}\n"
                    "  Copy the index again, and check it with `streamdata verify`."
                )
            return self.sequences.start(int(sequence), open_)

        firsts = open_(self.firsts)
        first = bisect_right(firsts, begin, key=start)
        last = bisect_left(firsts, end, first, key=start)
        return rising([start(sequence) for sequence in firsts[first:last]], begin, end, who)
