"""From the name of a train type to its dataset."""

from pathlib import Path
from typing import Any, Final

from streamdata.stores.base_dataset import BaseDataset
from streamdata.stores.record_datasets import DPODataset, GRPODataset, RecordDataset
from streamdata.stores.window_datasets import SeqDataset, SFTDataset, WindowDataset

_WINDOWS: Final[dict[str, type[WindowDataset]]] = {"seq": SeqDataset, "sft": SFTDataset}
_RECORDS: Final[dict[str, type[RecordDataset]]] = {"dpo": DPODataset, "grpo": GRPODataset}


class DatasetFactory:
    """Makes datasets over stores by train type: `seq`, `sft`, `dpo`, `grpo`."""

    @staticmethod
    def load(
        train_type: str,
        load_path: str | Path,
        window_size: int | None,
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
            load_path: The directory of a store.
            window_size: Tokens in a window; for `dpo` and `grpo` where what is longer is cut, None not at all.
            stride: Tokens from one window to the next; `window_size` if not given.
            storage_type: The store's format; None to detect it from its files.
            verify: Compare what is read with the sums of the store's files; see `Store.load`.
            mapped: Read through memory maps; see `Store.load`.
            options: `name` and `percent`; for `seq` and `sft` also `documents` and `eod_token`.

        Raises:
            FileNotFoundError: There is no such directory.
            StoreError: The store is damaged, or lacks what the train type needs.
            ValueError: An unknown train type, a size that is not positive, or a stride where samples are records.
            TypeError: An option that the train type does not know.
        """
        options |= {"verify": verify, "mapped": mapped}
        if train_type in _RECORDS:
            if stride is not None:
                raise ValueError(f"DatasetFactory: samples of {train_type!r} are records, got stride={stride}")
            return _RECORDS[train_type](load_path, window_size, storage_type, **options)
        if train_type not in _WINDOWS:
            raise ValueError(
                f"DatasetFactory: expected a train type of {[*_WINDOWS, *_RECORDS]}, got {train_type!r}\n"
                "  Choose by what the samples are for."
            )
        if window_size is None:
            raise ValueError(f"DatasetFactory: expected a window_size for {train_type!r}, got None")
        return _WINDOWS[train_type](load_path, window_size, stride, storage_type, **options)
