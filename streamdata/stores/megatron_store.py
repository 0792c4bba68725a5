r"""Megatron's pairs of files: tokens in `<name>.bin`, where sequences lie in `<name>.idx`.

Little-endian, as Megatron-Core's `indexed_dataset.py` has it: the magic `MMIDIDX\x00\x00`, version uint64 1, dtype
code uint8 (`CODES`), number of sequences uint64, number of entries of the document index uint64; then int32 the length
of each sequence in tokens, int64 the byte in the `.bin` at which it begins, and int64 the document index: the sequence
with which each document begins, and the number of sequences. A multimodal one has an int8 more for each sequence, its
mode: what kind of tokens these are.
"""

import os
import re
import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamdata.errors import StoreError, place_of_io, shown
from streamdata.recipe.limits import open_regular
from streamdata.stores.dtypes import Int64s
from streamdata.stores.segments import Even, Offsets, Open, Segment, Shard, StoredArray
from streamdata.stores.store import Store, store_files, suffixed
from streamdata.stores.stored_values import has_sums

CODES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16",
}  # fmt: skip
_MAGIC: Final = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_MAX_LENGTH = np.iinfo(np.int32).max
_OUR_NAMES = re.compile(r"data_\d{4,}")
_SHOWN = 5


class MegatronStore(Store):
    """Reads Megatron pairs (`.bin`, `.idx`) as one key, `sequence`, whose records are the pairs' sequences.

    The path names one pair, or a directory with all pairs below it. Multimodal pairs have a second key, `mode`, with
    one number for each sequence. Sequences must lie one after another. Several pairs in one directory are one store if
    they are shards that `StoreWriter` named, `data_0000` and so on.
    """

    storage_type = "megatron"

    def read_shards(self, path: Path) -> list[Shard]:
        root, files = store_files(path)
        bins, indexes = suffixed(files, ".bin"), suffixed(files, ".idx")
        if alone := {file[:-4] for file in bins} ^ {file[:-4] for file in indexes}:
            raise StoreError.mismatch(
                f"store '{path}'", "a .bin and an .idx of each name", f"only one of {sorted(alone)[:4]}",
                "The .idx comes last: write or copy the pair again, or remove it.",
            )  # fmt: skip
        folders = defaultdict(list)
        for index in indexes:
            directory, _, name = index[: -len(".idx")].rpartition("/")
            folders[directory].append(name)
        for directory, names in folders.items():
            if len(names) > 1 and not all(map(_OUR_NAMES.fullmatch, names)):  # several would be separate corpora
                listed = f"{', '.join(names[:_SHOWN])}{' …' if len(names) > _SHOWN else ''}"
                raise StoreError.mismatch(
                    f"store '{root / directory}'", "one pair of .bin and .idx, or shards data_0000, data_0001 …",
                    f"{len(names)} names: {listed}",
                    f"Name one, such as '{root / directory / names[0]}': then each is a source to be mixed. Or give "
                    "each its own directory (links will do): then all are one store if you name the directory above.",
                )  # fmt: skip
        return [_shard(str(root / file), self.values) for file in indexes]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Sequences(Offsets):
    """Sequences by pointer and length.

    Attributes:
        values: The pointers, int64 (count,), in bytes.
        lengths: int32 (count,), in tokens.
        token_bytes: Of one token.
    """

    values: StoredArray
    lengths: StoredArray
    token_bytes: int

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return self.lengths, self.values

    def span(self, index: int, open_: Open) -> tuple[int, int]:
        begin, end = Offsets.span(self, index, open_)
        # Sequences lie one after another. A gap would be a record that `Store.fetch` reads and this does not.
        if int(open_(self.lengths)[index]) != end - begin:
            raise self.damaged(index, begin, end)
        return begin, end

    def spans(self, first: int, last: int, open_: Open) -> Int64s:
        begins = Offsets.spans(self, first, last, open_)
        wrong = np.flatnonzero(np.diff(begins) != open_(self.lengths)[first:last])
        if len(wrong):
            index = int(wrong[0])
            raise self.damaged(first + index, int(begins[index]), int(begins[index + 1]))
        return begins

    def begin(self, index: int, opened: Any) -> int:
        if index >= self.count:
            return self.end
        begin, rest = divmod(int(opened[index]), self.token_bytes)
        return -1 if rest else begin  # within a token is nowhere

    def begins(self, first: int, last: int, open_: Open) -> Int64s:
        begins, rests = np.divmod(np.asarray(open_(self.values)[first:last], np.int64), self.token_bytes)
        begins[rests > 0] = -1
        return np.append(begins, self.end) if last > self.count else begins


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Documents(Offsets):
    """Documents as runs of sequences.

    Attributes:
        values: The sequence with which each begins, and the number of sequences, int64 (count + 1,).
        sequences: What they consist of.
    """

    values: StoredArray
    sequences: Sequences

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        return self.values, *self.sequences.arrays

    def begin(self, index: int, opened: Any) -> int:
        firsts, pointers = opened
        sequence = int(firsts[index])
        if not 0 <= sequence <= self.sequences.count:
            raise self._unfit(sequence)
        return self.sequences.begin(sequence, pointers)

    def begins(self, first: int, last: int, open_: Open) -> Int64s:
        firsts = np.asarray(open_(self.values)[first:last], np.int64)
        if not len(firsts):
            return firsts
        least, most = int(firsts[0]), int(firsts[-1])
        if not 0 <= least <= most <= self.sequences.count or bool((np.diff(firsts) < 0).any()):
            raise self._unfit(f"{least} to {most} from entry {first} on")
        return self.sequences.begins(least, most + 1, open_)[firsts - least]

    def _opened(self, open_: Open) -> Any:
        return open_(self.values), open_(self.sequences.values)

    def _unfit(self, got: object) -> StoreError:
        remedy = "Copy the index again, and check it with `streamdata verify`."
        return StoreError.mismatch(self.who, f"rising sequences up to {self.sequences.count}", got, remedy)


def _shard(index: str, open_: Open) -> Shard:
    tokens, who = index[:-4] + ".bin", f"index '{index}'"
    with open_regular(index, StoreError) as file, place_of_io(index):
        head, size_bytes = file.read(_HEADER.size), os.fstat(file.fileno()).st_size
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise StoreError.mismatch(who, f"the magic {_MAGIC!r}", shown(head[:9]), "This is not an index of Megatron.")
    _, version, code, num_sequences, num_entries = _HEADER.unpack(head)
    if version != 1 or code not in CODES:
        raise StoreError.mismatch(
            who, f"version 1 and a dtype code of {CODES}", f"version {version} and code {code}",
            "Write it with Megatron-Core's IndexedDatasetBuilder, or with StoreWriter.",
        )  # fmt: skip
    dtype, at, parts, index_has_sums = np.dtype(CODES[code]).newbyteorder("<"), _HEADER.size, [], has_sums(index)
    for name, count in (("<i4", num_sequences), ("<i8", num_sequences), ("<i8", num_entries), ("i1", num_sequences)):
        parts.append(StoredArray(index, np.dtype(name), count, at, has_sums=index_has_sums))
        at += count * parts[-1].dtype.itemsize
    lengths, pointers, firsts, modes = parts
    if size_bytes not in (modes.offset, at):
        counts = f"{num_sequences} sequences and a document index of {num_entries} entries"
        raise StoreError.mismatch(who, f"{modes.offset} bytes for {counts}", size_bytes, "Copy the index again.")
    size_bytes_of_tokens = os.stat(tokens).st_size
    num_tokens, rest = divmod(size_bytes_of_tokens, dtype.itemsize)
    if rest:
        whole = f"a multiple of {dtype.itemsize} bytes, as tokens of {dtype.name} take"
        raise StoreError.mismatch(f"file '{tokens}'", whole, size_bytes_of_tokens)
    data = StoredArray(tokens, dtype, num_tokens, has_sums=has_sums(tokens))
    sequences = Sequences(
        count=num_sequences, values=pointers, end=num_tokens, who=who, lengths=lengths, token_bytes=dtype.itemsize
    )
    documents = Documents(
        count=num_entries - 1, values=firsts, end=num_tokens, who=f"document index of '{index}'", sequences=sequences
    )
    _check_ends(data, sequences, documents, open_)
    segments = {"sequence": [Segment(data, sequences, documents=documents)]}
    if num_sequences and size_bytes == at:
        segments["mode"] = [Segment(modes, Even(num_sequences, 1))]
    return Shard(index, segments)


def _check_ends(data: StoredArray, sequences: Sequences, documents: Documents, open_: Open) -> None:
    """Check that first and last entries fit the file of tokens, and each other: for that not all is read."""
    index, pointers, num_sequences = documents.values.file, open_(sequences.values), sequences.count
    pointed = pointers[-1] // sequences.token_bytes + open_(sequences.lengths)[-1] if num_sequences else 0
    if pointed != data.count or (num_sequences and pointers[0]):
        raise StoreError.mismatch(
            f"file '{data.file}'", f"{pointed} tokens of {data.dtype.name} as in '{index}'", data.count,
            "One of the two was cut short or belongs to another: copy both again.",
        )  # fmt: skip
    entries = open_(documents.values)
    found = [entries[0], entries[-1]] if len(entries) else []
    if found != [0, num_sequences]:
        raise StoreError.mismatch(f"index '{index}'", f"a document index from 0 to {num_sequences}", found)


def encode_index(ends: Int64s, dtype: np.dtype[Any]) -> list[bytes]:
    """The parts of an `.idx` of sequences that lie one after another, each a document.

    Args:
        ends: (sequences + 1,), where each begins, in tokens, and the end.
        dtype: Of the tokens.
    """
    lengths = np.diff(ends)
    if len(lengths) and int(lengths.max()) > _MAX_LENGTH:
        longest = f"one of {lengths.max()}"
        most = f"sequences of at most {_MAX_LENGTH} tokens"
        raise StoreError.mismatch("megatron", most, longest, "Cut it, or write another format.")
    code = next(code for code, name in CODES.items() if name == dtype.name)
    header = _HEADER.pack(_MAGIC, 1, code, len(lengths), len(ends))
    pointers, documents = (ends[:-1] * dtype.itemsize).astype("<i8"), np.arange(len(ends), dtype="<i8")
    return [header, lengths.astype("<i4").tobytes(), pointers.tobytes(), documents.tobytes()]
