"""All of a store read and checked, which would take too long each time that it is loaded.

A store of another writer, or of an earlier version, has no sums of its blocks; they can be added.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.stores.bounds import Ends, Offsets, StoredArray
from streamdata.stores.factory import open_store
from streamdata.stores.megatron_index import Documents, Sequences
from streamdata.stores.spool import checksum
from streamdata.stores.store import Store
from streamdata.stores.sums import damaged_blocks

_CHUNK = 1 << 22
_TOKEN_KEYS = ("sequence", "chosen", "rejected", "prompts", "responses")


def verify(load_path: str | Path, vocab_size: int | None = None, storage_type: str | None = None) -> list[str]:
    """Everything that is wrong with a store: sizes, counts, offsets, checksums, and token ids outside the vocabulary.

    Args:
        load_path: The store: a directory, a file, or a Megatron prefix.
        vocab_size: How many token ids there are, from 0; None if that is not known.
        storage_type: Its format; None to detect it from its files.

    Returns:
        A message per problem; none for a sound store. Where it cannot even be loaded that is the only one.

    Raises:
        FileNotFoundError: There is nothing at the path.
    """
    try:
        store = open_store(load_path, storage_type, verify=False)  # reading would stop at the first of the problems
        _ = store.num_records
    except StoreError as error:
        return [str(error)]
    checked: set[tuple[str, str]] = set()
    problems = [problem for key in store.keys for problem in _of_key(store, key, vocab_size, checked)]
    with_sums = sorted({array.file for array in store.arrays() if array.has_sums})
    return problems + [problem for file in with_sums for problem in damaged_blocks(file)]


def _of_key(store: Store, key: str, vocab_size: int | None, checked: set[tuple[str, str]]) -> Iterator[str]:
    for segment in store.column(key).segments:
        for array in segment.arrays:
            if (array.file, array.dataset) not in checked:
                checked.add((array.file, array.dataset))
                yield from _checksum(store, array)
        for bounds in dict.fromkeys((segment.records, segment.items, segment.documents)):
            if isinstance(bounds, Offsets):
                yield from _rising(store, bounds)
            if isinstance(bounds, Ends):
                yield from _rising_ends(store, bounds)
        if isinstance(segment.records, Sequences):
            yield from _sequences(store, segment.records)
        if isinstance(segment.documents, Documents):
            yield from _documents(store, segment.documents)
        if vocab_size is not None and key in _TOKEN_KEYS:
            yield from _ids(store, segment.data, vocab_size)


def _chunks(store: Store, array: StoredArray, overlap: int = 0) -> Iterator[tuple[int, Any]]:
    values = store.values(array)
    for begin in range(0, max(array.count - overlap, 0), _CHUNK):
        yield begin, np.asarray(values[begin : begin + _CHUNK + overlap])


def _checksum(store: Store, array: StoredArray) -> Iterator[str]:
    if array.checksum is None:
        return
    found = checksum()
    for _, values in _chunks(store, array):
        found.update(np.ascontiguousarray(values).data.cast("B"))
    if found.hexdigest() != array.checksum:
        dataset = f", dataset {shown(array.dataset)}" if array.dataset else ""
        yield (
            f"file '{array.file}'{dataset}: expected checksum {array.checksum}, "
            f"got {found.hexdigest()}\n  It was changed after it was written: copy it again."
        )


def _rising(store: Store, bounds: Offsets) -> Iterator[str]:
    if not isinstance(bounds.values, StoredArray):
        return  # checked when it was read
    ends = [int(store.values(bounds.values)[index]) for index in (0, bounds.count)]
    falls = any((np.diff(values) < 0).any() for _, values in _chunks(store, bounds.values, 1))
    if ends != [0, bounds.end] or falls:
        order = "falling" if falls else "rising"
        found = f"{order} ones from {ends[0]} to {ends[1]}"
        yield f"{bounds.who}: expected offsets that rise from 0 to {bounds.end}, got {found}\n  Copy the shard again."


def _rising_ends(store: Store, bounds: Ends) -> Iterator[str]:
    # That the last of them is the end is checked when the store is loaded.
    if any((np.diff(values.astype(np.int64)) < 0).any() for _, values in _chunks(store, bounds.values, 1)):
        yield f"{bounds.who}: expected ends that rise to {bounds.end}, got falling ones\n  Copy the index again."


def _sequences(store: Store, sequences: Sequences) -> Iterator[str]:
    """They must lie one after another, from the first byte to the last."""
    expected = 0
    lengths_of, pointers_of = store.values(sequences.lengths), store.values(sequences.pointers)
    for begin in range(0, sequences.count, _CHUNK):
        lengths = np.asarray(lengths_of[begin : begin + _CHUNK], np.int64) * sequences.token_bytes
        ends = expected + np.cumsum(lengths)
        wrong = np.flatnonzero((lengths < 0) | (pointers_of[begin : begin + _CHUNK] != ends - lengths))
        if len(wrong):
            index = int(wrong[0])
            yield (
                f"index '{sequences.lengths.file}': expected sequence {begin + index} at byte "
                f"{ends[index] - lengths[index]}, got pointer {pointers_of[begin + index]} and length "
                f"{lengths_of[begin + index]}\n  Copy the index again."
            )
            return
        expected = int(ends[-1])


def _documents(store: Store, documents: Documents) -> Iterator[str]:
    for begin, values in _chunks(store, documents.firsts, 1):
        wrong = np.flatnonzero(np.diff(values) < 0)
        if len(wrong):
            index = begin + int(wrong[0])
            yield (
                f"document index of '{documents.firsts.file}': expected rising sequences, got a fall after entry "
                f"{index}\n  Copy the index again."
            )
            return


def _ids(store: Store, array: StoredArray, vocab_size: int) -> Iterator[str]:
    for begin, values in _chunks(store, array):
        wrong = np.flatnonzero((values < 0) | (values >= vocab_size))
        if len(wrong):
            index = int(wrong[0])
            yield (
                f"file '{array.file}': expected token ids below {vocab_size}, got {values[index].item()} at position "
                f"{begin + index}\n  The store was written with another tokenizer."
            )
            return
