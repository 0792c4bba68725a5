"""From the name of a format to the store that reads it."""

from pathlib import Path

from streamdata.errors import shown
from streamdata.stores.files import detect_format
from streamdata.stores.h5_store import H5Store
from streamdata.stores.megatron_store import MegatronStore
from streamdata.stores.mmap_store import MmapStore
from streamdata.stores.store import Store
from streamdata.stores.token_files import TokenFileStore


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
        if dtype is None:
            return cls._stores[storage_type]()
        store = cls._stores[storage_type]
        if not issubclass(store, TokenFileStore):
            raise ValueError(
                "StoreFactory: expected dtype for files of bare tokens (*.npy, *.ds, *.bin), got "
                f"dtype={shown(dtype)} for "
                f"the format {shown(storage_type)}, which says it itself\n  Leave dtype out."
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
