"""Megatron's pairs of files: tokens in `<name>.bin`, where sequences lie in `<name>.idx`."""

import os
import re
from pathlib import Path

import numpy as np

from streamdata.errors import StoreError, place_of_io
from streamdata.recipe.regular_files import open_regular
from streamdata.stores.bounds import Even, Open, StoredArray
from streamdata.stores.files import store_files, suffixed
from streamdata.stores.megatron_index import Documents, IndexLayout, Sequences, decode_header
from streamdata.stores.segments import Segment, Shard
from streamdata.stores.store import Store
from streamdata.stores.sums import has_sums

_KEY, _MODE = "sequence", "mode"
_HEADER_BYTES = 34
_OUR_NAMES = re.compile(r"data_\d{4,}")
_SHOWN = 5


class MegatronStore(Store):
    """Reads a pair, or all pairs below a directory, as one key, `sequence`, whose records are the sequences.

    Multimodal pairs have a second key, `mode`, with one number for each sequence.

    See `streamdata.stores.megatron_index` for the layout of the index. Sequences must lie one after another. Several
    pairs in one directory are one store if they are shards that `StoreWriter` named, `data_0000` and so on.
    """

    storage_type = "megatron"

    def read_shards(self, path: Path) -> list[Shard]:
        root, files = store_files(path)
        bins, indexes = suffixed(files, ".bin"), suffixed(files, ".idx")
        alone = {file[:-4] for file in bins} ^ {file[:-4] for file in indexes}
        if alone:
            raise StoreError(
                f"store '{path}': expected a .bin and an .idx of each name, got only one of {sorted(alone)[:4]}\n"
                "  The .idx comes last: write or copy the pair again, or remove it."
            )
        _check_prefixes(root, indexes)
        return [_shard(str(root / file), self.values) for file in indexes]


def _check_prefixes(path: Path, indexes: list[str]) -> None:
    """A directory has shards of our writer, or one pair of any name: several would be separate corpora."""
    prefixes: dict[str, list[str]] = {}
    for index in indexes:
        directory, _, name = index[: -len(".idx")].rpartition("/")
        prefixes.setdefault(directory, []).append(name)
    for directory, names in prefixes.items():
        if len(names) > 1 and not all(map(_OUR_NAMES.fullmatch, names)):
            raise StoreError(
                f"store '{path / directory}': expected one pair of .bin and .idx, or shards data_0000, data_0001 …, "
                f"got {len(names)} names: {', '.join(names[:_SHOWN])}{' …' if len(names) > _SHOWN else ''}\n"
                f"  Name one, such as '{path / directory / names[0]}': then each is a source to be mixed. Or give each "
                "its own directory (links will do): then all are one store if you name the directory above."
            )


def _shard(index: str, open_: Open) -> Shard:
    tokens = index[:-4] + ".bin"
    with open_regular(index, StoreError) as file, place_of_io(index):
        layout = decode_header(file.read(_HEADER_BYTES), os.fstat(file.fileno()).st_size, f"index '{index}'")
    size = os.stat(tokens).st_size
    count, rest = divmod(size, layout.dtype.itemsize)
    if rest:
        raise StoreError(
            f"file '{tokens}': expected a multiple of {layout.dtype.itemsize} bytes, as tokens of {layout.dtype.name} "
            f"take, got {size}\n  Copy it again."
        )
    data = StoredArray(tokens, layout.dtype, count, has_sums=has_sums(tokens))
    index_has_sums = has_sums(index)

    def in_index(dtype: str, size: int, at: int) -> StoredArray:
        return StoredArray(index, np.dtype(dtype), size, at, has_sums=index_has_sums)

    lengths = in_index("<i4", layout.num_sequences, layout.lengths_at)
    pointers = in_index("<i8", layout.num_sequences, layout.pointers_at)
    firsts = in_index("<i8", layout.num_entries, layout.documents_at)
    sequences = Sequences(layout.num_sequences, lengths, pointers, layout.dtype.itemsize, count)
    _check_ends(data, layout, sequences, firsts, open_)
    segments = {_KEY: [Segment(data, sequences, documents=Documents(firsts, sequences))]}
    if layout.has_modes:
        modes = in_index("i1", layout.num_sequences, layout.modes_at)
        segments[_MODE] = [Segment(modes, Even(layout.num_sequences, 1))]
    return Shard(index, segments)


def _check_ends(data: StoredArray, layout: IndexLayout, sequences: Sequences, firsts: StoredArray, open_: Open) -> None:
    """What can be checked without reading all: first and last entries fit the file of tokens, and each other."""
    index, lengths, pointers, entries = firsts.file, open_(sequences.lengths), open_(sequences.pointers), open_(firsts)
    pointed = pointers[-1] // layout.dtype.itemsize + lengths[-1] if layout.num_sequences else 0
    if pointed != sequences.end or (layout.num_sequences and pointers[0]):
        raise StoreError(
            f"file '{data.file}': expected {pointed} tokens of {layout.dtype.name} as in '{index}', got {data.count}\n"
            "  One of the two was cut short or belongs to another: copy both again."
        )
    if layout.num_entries < 1 or entries[0] or entries[-1] != layout.num_sequences:
        found = [entries[0], entries[-1]] if layout.num_entries else []
        raise StoreError(
            f"index '{index}': expected a document index from 0 to {layout.num_sequences}, got {found}\n"
            "  Copy it again."
        )
