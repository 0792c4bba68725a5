"""From the name of a format to the store that reads it."""

from pathlib import Path

from streamdata.stores.files import detect_format
from streamdata.stores.h5_store import H5Store
from streamdata.stores.megatron_store import MegatronStore
from streamdata.stores.mmap_store import MmapStore
from streamdata.stores.store import Store


class StoreFactory:
    """Makes stores by the name of their format: `h5`, `bin`, `megatron`, or one that was registered."""

    _stores: dict[str, type[Store]] = {"bin": MmapStore, "h5": H5Store, "megatron": MegatronStore}  # noqa: RUF012

    @classmethod
    def register(cls, storage_type: str, store: type[Store]) -> None:
        """Let `create` make this store under a new name.

        Raises:
            ValueError: The name is taken, or `store` is not a subclass of Store.
        """
        if not (isinstance(store, type) and issubclass(store, Store)):
            raise ValueError(f"StoreFactory.register: expected a subclass of Store, got {store!r}")
        if cls._stores.get(storage_type, store) is not store:
            raise ValueError(
                f"StoreFactory.register: {storage_type!r} is {cls._stores[storage_type].__name__} already\n"
                "  Choose another name."
            )
        cls._stores[storage_type] = store

    @classmethod
    def create(cls, storage_type: str) -> Store:
        """A store that has nothing loaded.

        Raises:
            ValueError: The format is unknown.
        """
        if storage_type not in cls._stores:
            raise ValueError(f"StoreFactory: expected a format of {sorted(cls._stores)}, got {storage_type!r}")
        return cls._stores[storage_type]()


def open_store(
    load_path: str | Path, storage_type: str | None = None, *, verify: bool = True, mapped: bool = False
) -> Store:
    """The loaded store at a path; without a format, that of its files is detected. See `Store.load`.

    Raises:
        FileNotFoundError: There is no such directory.
        ValueError: The format is unknown or cannot be detected, or the store is damaged.
    """
    return StoreFactory.create(storage_type or detect_format(load_path)).load(load_path, verify=verify, mapped=mapped)
