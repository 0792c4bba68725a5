"""Megatron's pairs of files: tokens in `<name>.bin`, where sequences lie in `<name>.idx`."""

import os
from pathlib import Path

import numpy as np

from streamdata.errors import StoreError
from streamdata.stores.bounds import StoredArray
from streamdata.stores.files import store_files, suffixed
from streamdata.stores.mapped import mapped
from streamdata.stores.megatron_bounds import Documents, Sequences
from streamdata.stores.megatron_index import IndexLayout, decode_header
from streamdata.stores.segments import Segment, Shard
from streamdata.stores.store import Store

_KEY = "sequence"
_HEADER_BYTES = 34


class MegatronStore(Store):
    """Reads all pairs below a directory as one key, `sequence`, whose records are the sequences.

    See `streamdata.stores.megatron_index` for the layout of the index. Sequences must lie one after another.
    """

    storage_type = "megatron"

    def read_shards(self, path: Path) -> list[Shard]:
        files = store_files(path)
        bins, indexes = suffixed(files, ".bin"), suffixed(files, ".idx")
        alone = {file[:-4] for file in bins} ^ {file[:-4] for file in indexes}
        if alone:
            raise StoreError(
                f"store '{path}': expected a .bin and an .idx of each name, got only one of {sorted(alone)[:4]}\n"
                "  The .idx comes last: write or copy the pair again, or remove it."
            )
        return [_shard(str(path / file)) for file in indexes]

    values = staticmethod(mapped)


def _shard(index: str) -> Shard:
    tokens = index[:-4] + ".bin"
    with open(index, "rb") as file:
        layout = decode_header(file.read(_HEADER_BYTES), os.fstat(file.fileno()).st_size, f"index '{index}'")
    size = os.stat(tokens).st_size
    count, rest = divmod(size, layout.dtype.itemsize)
    if rest:
        raise StoreError(
            f"file '{tokens}': expected whole tokens of {layout.dtype.name}, got {size} bytes\n  Copy it again."
        )
    data = StoredArray(tokens, layout.dtype, count)
    sequences = Sequences(
        layout.num_sequences,
        StoredArray(index, np.dtype("<i4"), layout.num_sequences, layout.lengths_at),
        StoredArray(index, np.dtype("<i8"), layout.num_sequences, layout.pointers_at),
        layout.dtype.itemsize,
        count,
    )
    firsts = StoredArray(index, np.dtype("<i8"), layout.num_entries, layout.documents_at)
    _check_ends(index, tokens, layout, sequences, firsts)
    return Shard(
        index, {_KEY: [Segment(data, sequences, documents=Documents(layout.num_entries - 1, firsts, sequences))]}
    )


def _check_ends(index: str, tokens: str, layout: IndexLayout, sequences: Sequences, firsts: StoredArray) -> None:
    """What can be checked at once: that first and last fit to the file of tokens and to each other."""
    lengths, pointers, entries = mapped(sequences.lengths), mapped(sequences.pointers), mapped(firsts)
    pointed = int(pointers[-1]) // layout.dtype.itemsize + int(lengths[-1]) if layout.num_sequences else 0
    if pointed != sequences.end or (layout.num_sequences and int(pointers[0])):
        raise StoreError(
            f"file '{tokens}': expected {pointed} tokens of {layout.dtype.name} as in '{index}', got {sequences.end}\n"
            "  One of the two was cut short or belongs to another: copy both again."
        )
    if layout.num_entries < 1 or int(entries[0]) or int(entries[-1]) != layout.num_sequences:
        found = entries[[0, -1]].tolist() if layout.num_entries else []
        raise StoreError(
            f"index '{index}': expected a document index from 0 to {layout.num_sequences}, got {found}\n"
            "  Copy it again."
        )
