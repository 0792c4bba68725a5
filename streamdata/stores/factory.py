"""From a path to an open store: which format its files have, and what reads that. Or all of a store read and checked.

A check of everything would take too long each time that a store is loaded. A store of another writer, or of an earlier
version, has no sums of its blocks; they can be added.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamdata.errors import StoreError, shown
from streamdata.io.storage import LocalShard
from streamdata.stores.h5_store import H5Store
from streamdata.stores.megatron_store import MegatronStore
from streamdata.stores.mmap_store import MmapStore, meta_files
from streamdata.stores.segments import Even, Runs, StoredArray
from streamdata.stores.spool import checksum
from streamdata.stores.store import H5_SUFFIXES, Store, store_files, suffixed
from streamdata.stores.stored_values import BLOCK, SUMS_CHUNK, Sums
from streamdata.stores.token_files import TOKEN_SUFFIXES, TokenFileStore

_SHOWN = 5
_CHUNK = 1 << 22
_TOKEN_KEYS = ("sequence", "chosen", "rejected", "prompts", "responses")


def detect_format(load_path: str | Path) -> str:
    """Detects the format of a store from the names of its files.

    The format is `h5` for *.h5 and *.hdf5, `bin` for *.bin with meta.json, `megatron` for *.bin with *.idx, and
    `tokens` for *.npy, *.ds and a path that is itself a *.bin.

    Raises:
        FileNotFoundError: Nothing lies at the path.
        StoreError: The files are of no format, or of several.
    """
    path = Path(load_path)
    _, files = store_files(path)
    bins = suffixed(files, ".bin")
    found = {
        "h5": suffixed(files, *H5_SUFFIXES),
        "bin": meta_files(files) if bins else [],
        "megatron": suffixed(files, ".idx") if bins else [],
    }
    found = {name: some for name, some in found.items() if some}
    # Last, since a directory of another format may have arrays that belong to it, such as Megatron's indices.
    if not found and (suffixed(files, *TOKEN_SUFFIXES) or (bins and not path.is_dir())):
        return "tokens"
    if len(found) == 1:
        return next(iter(found))
    who = f"store '{load_path}'"
    if found:
        listed = "; ".join(f"{name} ({', '.join(some[:2])}, …)" for name, some in found.items())
        raise StoreError.mismatch(who, "one format", f"{len(found)}: {listed}", "Give each its own directory.")
    raise StoreError.mismatch(
        who, "*.h5, *.hdf5, *.bin with meta.json, *.bin with *.idx, *.npy or *.ds",
        ", ".join(files[:_SHOWN]) + (", …" if len(files) > _SHOWN else "") if files else "no files",
        "Name the directory that the store was written to, or one *.bin of nanoGPT or llm.c itself.",
    )  # fmt: skip


def enter(classes: dict[str, Any], name: str, entry: Any, base: type, who: str) -> None:
    """Enter a class in a table of these.

    Raises:
        ValueError: The name is taken, or it is not a subclass of `base`.
    """
    if not (isinstance(entry, type) and issubclass(entry, base)):
        raise ValueError(f"{who}: expected a subclass of {base.__name__}, got {shown(entry)}")
    if classes.get(name, entry) is not entry:
        raise ValueError(f"{who}: {shown(name)} is {classes[name].__name__} already\n  Choose another name.")
    classes[name] = entry


class StoreFactory:
    """Makes stores by the name of their format: `h5`, `bin`, `megatron`, `tokens`, or a registered one."""

    _stores: dict[str, type[Store]] = {  # noqa: RUF012
        "bin": MmapStore, "h5": H5Store, "megatron": MegatronStore, "tokens": TokenFileStore,
    }  # fmt: skip

    @classmethod
    def register(cls, storage_type: str, store: type[Store]) -> None:
        """Register a store class under a new format name, for `create`.

        Raises:
            ValueError: The name is taken, or `store` is not a subclass of Store.
        """
        enter(cls._stores, storage_type, store, Store, "StoreFactory.register")

    @classmethod
    def create(cls, storage_type: str, dtype: str | None = None) -> Store:
        """Make a store of a format, with nothing loaded.

        Args:
            storage_type: The format.
            dtype: Of the tokens, such as "uint32", for a file of bare tokens that does not say it, as nanoGPT's `.bin`.

        Raises:
            ValueError: The format is unknown, or it records the dtype itself.
        """
        if storage_type not in cls._stores:
            raise ValueError(f"StoreFactory: expected a format of {sorted(cls._stores)}, got {shown(storage_type)}")
        store = cls._stores[storage_type]
        if dtype is None:
            return store()
        if not issubclass(store, TokenFileStore):
            raise ValueError(
                f"StoreFactory: expected dtype for files of bare tokens (*.npy, *.ds, *.bin), got dtype={shown(dtype)} "
                f"for the format {shown(storage_type)}, which says it itself\n  Leave dtype out."
            )
        return store(dtype)

    @classmethod
    def load(
        cls,
        load_path: str | Path,
        storage_type: str | None = None,
        *,
        verify: bool = True,
        mapped: bool = False,
        dtype: str | None = None,
    ) -> Store:
        """Load the store at a path; without a format, the format is detected. See `Store.load` and `create`.

        Raises:
            FileNotFoundError: Nothing lies at the path.
            ValueError: The format is unknown or cannot be detected, or the store is damaged.
        """
        store = cls.create(storage_type or detect_format(load_path), dtype)
        return store.load(load_path, verify=verify, mapped=mapped)


open_store = StoreFactory.load


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
    # Keys may share offsets, each of which is an array of its own there.
    arrays = {(array.file, array.dataset): array for array in store.arrays() if array.checksum is not None}
    problems: list[str] = []
    for array in arrays.values():
        found = checksum()
        for _, values in _chunks(store, array):
            found.update(np.ascontiguousarray(values).data.cast("B"))
        if found.hexdigest() != array.checksum:
            who = f"file '{array.file}'" + (f", dataset {shown(array.dataset)}" if array.dataset else "")
            problems.append(
                f"{who}: expected checksum {array.checksum}, got {found.hexdigest()}\n"
                "  It was changed after it was written: copy it again."
            )
    for key in store.keys:
        for segment in store.column(key).segments:
            problems += [problem for runs in segment.levels for problem in _runs(store, runs)]
            if vocab_size is not None and key in _TOKEN_KEYS:
                problems += _ids(store, segment.data, vocab_size)
    with_sums = sorted({array.file for array in store.arrays() if array.has_sums})
    return problems + [problem for file in with_sums for problem in _damaged_blocks(file)]


def _chunks(store: Store, array: StoredArray) -> Iterator[tuple[int, Any]]:
    values = store.values(array)
    for begin in range(0, array.count, _CHUNK):
        yield begin, np.asarray(values[begin : begin + _CHUNK])


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
    """Messages about blocks that differ from their sums, at most one for each 4 MiB."""
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
