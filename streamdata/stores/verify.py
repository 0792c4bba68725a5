"""All of a store read and checked, which would take too long each time that it is loaded.

A store of another writer, or of an earlier version, has no sums of its blocks; they can be added.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.io.storage import LocalShard
from streamdata.stores.factory import open_store
from streamdata.stores.segments import Even, Runs, StoredArray
from streamdata.stores.spool import checksum
from streamdata.stores.store import Store
from streamdata.stores.stored_values import BLOCK, SUMS_CHUNK, Sums

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
    problems: list[str] = []
    checked = set()
    for key in store.keys:
        for segment in store.column(key).segments:
            for array in segment.arrays:
                if (array.file, array.dataset) not in checked:
                    checked.add((array.file, array.dataset))
                    problems += _checksum(store, array)
            for runs in segment.levels:
                problems += _runs(store, runs)
            if vocab_size is not None and key in _TOKEN_KEYS:
                problems += _ids(store, segment.data, vocab_size)
    with_sums = sorted({array.file for array in store.arrays() if array.has_sums})
    return problems + [problem for file in with_sums for problem in _damaged_blocks(file)]


def _chunks(store: Store, array: StoredArray) -> Iterator[tuple[int, Any]]:
    values = store.values(array)
    for begin in range(0, array.count, _CHUNK):
        yield begin, np.asarray(values[begin : begin + _CHUNK])


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


def _runs(store: Store, runs: Runs) -> Iterator[str]:
    if isinstance(runs, Even):
        return
    try:
        for first in range(0, max(runs.count, 1), _CHUNK):
            runs.spans(first, min(first + _CHUNK, runs.count), store.values)
    except StoreError as error:
        yield str(error)


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


def _damaged_blocks(file: str) -> Iterator[str]:
    """What is wrong between a file and its sums: at most one message for each 4 MiB."""
    data = LocalShard(file)
    try:
        sums = Sums(file, data.size)
    except StoreError as error:
        yield str(error)
        return
    for begin in range(0, data.size, SUMS_CHUNK):
        chunk = memoryview(data.read(SUMS_CHUNK, begin))
        try:
            sums.check([chunk[at : at + BLOCK] for at in range(0, len(chunk), BLOCK)], begin)
        except StoreError as error:
            yield str(error)
