"""From a path to an open store: which format its files have, and what reads that."""

from pathlib import Path

from streamdata.errors import StoreError, shown
from streamdata.stores.h5_store import H5Store
from streamdata.stores.megatron_store import MegatronStore
from streamdata.stores.mmap_store import MmapStore, meta_files
from streamdata.stores.store import H5_SUFFIXES, Store, store_files, suffixed
from streamdata.stores.token_files import TOKEN_SUFFIXES, TokenFileStore

_SHOWN = 5


def detect_format(load_path: str | Path) -> str:
    """The format of a store, by the names of its files.

    `h5` for *.h5 and *.hdf5, `bin` for *.bin with meta.json, `megatron` for *.bin with *.idx, `tokens` for *.npy, *.ds
    and a *.bin that is named itself.

    Raises:
        FileNotFoundError: There is nothing.
        StoreError: None of these, or several at once.
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


class StoreFactory:
    """Makes stores by the name of their format: `h5`, `bin`, `megatron`, `tokens`, or one that was registered."""

    _stores: dict[str, type[Store]] = {  # noqa: RUF012
        "bin": MmapStore, "h5": H5Store, "megatron": MegatronStore, "tokens": TokenFileStore,
    }  # fmt: skip

    @classmethod
    def register(cls, storage_type: str, store: type[Store]) -> None:
        """Let `create` make this store under a new name.

        Raises:
            ValueError: The name is taken, or `store` is not a subclass of Store.
        """
        if not (isinstance(store, type) and issubclass(store, Store)):
            raise ValueError(f"StoreFactory.register: expected a subclass of Store, got {shown(store)}")
        if cls._stores.get(storage_type, store) is not store:
            raise ValueError(
                f"StoreFactory.register: {shown(storage_type)} is {cls._stores[storage_type].__name__} already\n"
                "  Choose another name."
            )
        cls._stores[storage_type] = store

    @classmethod
    def create(cls, storage_type: str, dtype: str | None = None) -> Store:
        """A store that has nothing loaded.

        Args:
            storage_type: The format.
            dtype: Of the tokens, for files that do not say it; see `TokenFileStore`.

        Raises:
            ValueError: The format is unknown, or says itself of which dtype its tokens are.
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
        """The loaded store at a path; without a format, that of its files is detected. See `Store.load` and `create`.

        Raises:
            FileNotFoundError: There is nothing there.
            ValueError: The format is unknown or cannot be detected, or the store is damaged.
        """
        store = cls.create(storage_type or detect_format(load_path), dtype)
        return store.load(load_path, verify=verify, mapped=mapped)


open_store = StoreFactory.load
