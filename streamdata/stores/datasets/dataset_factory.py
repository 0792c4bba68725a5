"""From the name of a train type to its dataset."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from streamdata.errors import shown
from streamdata.stores.datasets.base_dataset import BaseDataset
from streamdata.stores.datasets.record_datasets import DPODataset, GRPODataset, RecordDataset
from streamdata.stores.datasets.window_datasets import SeqDataset, SFTDataset, WindowDataset

D = TypeVar("D", bound=type[BaseDataset])


class DatasetFactory:
    """Makes datasets over stores by train type: `seq`, `sft`, `dpo`, `grpo`, or one that was registered."""

    _datasets: dict[str, type[BaseDataset]] = {  # noqa: RUF012
        "seq": SeqDataset, "sft": SFTDataset, "dpo": DPODataset, "grpo": GRPODataset,
    }  # fmt: skip

    @classmethod
    def register(cls, name: str) -> Callable[[D], D]:
        """Decorate a subclass of BaseDataset, which `load` then makes under this name.

        A class without a `train_type` gets the name as such; its `required_keys` say what a store must have.

        Raises:
            ValueError: The name is taken, or it is no such class.
        """

        def registered(dataset: D) -> D:
            if not (isinstance(dataset, type) and issubclass(dataset, BaseDataset)):
                raise ValueError(f"DatasetFactory.register: expected a subclass of BaseDataset, got {shown(dataset)}")
            if cls._datasets.get(name, dataset) is not dataset:
                taken = f"{shown(name)} is {cls._datasets[name].__name__} already"
                raise ValueError(f"DatasetFactory.register: {taken}\n  Choose another name.")
            if not hasattr(dataset, "train_type"):
                dataset.train_type = name
            cls._datasets[name] = dataset
            return dataset

        return registered

    @staticmethod
    def load(
        train_type: str,
        load_path: str | Path,
        window_size: int | None = None,
        stride: int | None = None,
        storage_type: str | None = None,
        *,
        verify: bool = True,
        mapped: bool = False,
        **options: Any,
    ) -> BaseDataset:
        """The dataset over the store at `load_path`.

        Args:
            train_type: Of what the samples are for.
            load_path: A store: its directory, a file, or what a `.bin` and an `.idx` of Megatron have in common.
            window_size: Tokens in a window; for `dpo` and `grpo` where what is longer is cut, None not at all.
            stride: Tokens from one window to the next; `window_size` if not given.
            storage_type: The store's format; None to detect it from its files.
            verify: Compare what is read with the sums of the store's files; see `Store.load`.
            mapped: Read through memory maps; see `Store.load`.
            options: `name`, `percent` and `dtype`; for `seq` and `sft` also those of documents and `compat`, as
                `SeqDataset` has them; of a registered class its own.

        Raises:
            FileNotFoundError: There is nothing at the path.
            StoreError: The store is damaged, or lacks what the train type needs.
            ValueError: An unknown train type, a size that is not positive, or a stride where samples are records.
            TypeError: An option that the train type does not know.
        """
        datasets = DatasetFactory._datasets
        if train_type not in datasets:
            raise ValueError(
                f"DatasetFactory: expected a train type of {[*datasets]}, got {shown(train_type)}\n"
                "  Choose by what the samples are for."
            )
        dataset = datasets[train_type]
        if issubclass(dataset, RecordDataset) and stride is not None:
            raise ValueError(f"DatasetFactory: samples of {shown(train_type)} are records, got stride={stride}")
        if issubclass(dataset, WindowDataset) and window_size is None:
            raise ValueError(f"DatasetFactory: expected a window_size for {shown(train_type)}, got None")
        options |= {"verify": verify, "mapped": mapped}
        return dataset.load(load_path, window_size, stride, storage_type, **options)
