"""Datasets whose samples are whole records: preference pairs, and prompts with responses and rewards."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from streamdata.errors import StoreError, shown
from streamdata.recipe.named_source import Percent
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.stores.base_dataset import BaseDataset, Sample, positive
from streamdata.stores.store import RecordValues, Store
from streamdata.stores.train_types import TRAIN_TYPES


class RecordDataset(BaseDataset):
    """One sample per record of a store.

    Args:
        load_path: A store: its directory, a file, or what a `.bin` and an `.idx` of Megatron have in common.
        window_size: Longer sequences are cut after this many tokens; None cuts nothing.
        storage_type: The store's format; None to detect it from its files.
        store: The store itself, loaded, instead of a path.
        verify: Compare what is read with the sums of the store's files; see `Store.load`.
        mapped: Read through memory maps; see `Store.load`.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.

    Raises:
        FileNotFoundError: There is nothing at the path.
        StoreError: The store is damaged, does not serve this train type, has no records, or does not say where they
            begin.
        ValueError: A `window_size` that is not positive.
    """

    def __init__(
        self,
        load_path: str | Path | None = None,
        window_size: int | None = None,
        storage_type: str | None = None,
        *,
        store: Store | None = None,
        verify: bool = True,
        mapped: bool = False,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(
            load_path,
            storage_type,
            store,
            verify=verify,
            mapped=mapped,
            name=name,
            percent=percent,
            holdout=holdout,
            part=part,
        )
        self.window_size = None if window_size is None else positive(window_size, "window_size", self._who)
        self._keys = list(TRAIN_TYPES[self.train_type])
        self._check_divided()
        counts = {key: self.store.column(key).num_records for key in self._keys}
        self._count = min(counts.values())
        if len(set(counts.values())) > 1 or not self._count:
            raise StoreError(
                f"{self._who}: expected as many records of each key, and at least one, got {counts} in store "
                f"'{self.store.path}'\n  Write it again."
            )

    def __len__(self) -> int:
        return self._count

    def get_index(self, idx: int) -> tuple[int, int]:
        """The records that the sample reads: (idx, idx + 1)."""
        number = self._number(idx)
        return number, number + 1

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        end_worker_with_trainer()
        return [self._sample(number, self.store.fetch_record(number, self._keys)) for number in self._numbers(indices)]

    @abstractmethod
    def _sample(self, number: int, record: dict[str, RecordValues]) -> Sample:
        """The sample of a record."""

    def _check_divided(self) -> None:
        for key in self._keys:
            for segment in self.store.column(key).segments:
                if segment.is_undivided:
                    raise StoreError(
                        f"{self._who}: expected offsets that say where records of {shown(key)} begin, got none for the "
                        f"{segment.data.count} values in '{segment.data.file}'\n  All of them would be one record: "
                        'write the store again with StoreWriter, or list the begin of each record as "offsets" of '
                        "the key in meta.json."
                    )

    def _expect(self, right: bool, number: int, expected: str, got: Any) -> None:
        """Raise StoreError about a record unless all is right."""
        if not right:
            raise StoreError(
                f"{self._who}: expected {expected} in record {number} of store '{self.store.path}', got {got}\n"
                "  Write the store again."
            )

    def _flat(self, record: dict[str, RecordValues], key: str, number: int) -> torch.Tensor:
        value = record[key]
        if isinstance(value, list) or value.ndim != 1:
            self._expect(False, number, f"one run of {shown(key)}", "a list of them")
        assert isinstance(value, torch.Tensor), "a list that passed"
        return value


class DPODataset(RecordDataset):
    """Samples of train type `dpo`: one pair each, never a slice over two.

    A sample has `chosen` and `rejected`, int64 (tokens,) each, and `chosen_mask` and `rejected_mask`, bool of the same
    lengths: which tokens are trained. See `RecordDataset` for arguments and errors.
    """

    train_type = "dpo"

    def _sample(self, number: int, record: dict[str, RecordValues]) -> Sample:
        sample = {key: self._flat(record, key, number)[: self.window_size] for key in self._keys}
        for key in ("chosen", "rejected"):
            mask = f"{key}_mask"
            sizes = (len(self._flat(record, key, number)), len(self._flat(record, mask, number)))
            self._expect(sizes[0] == sizes[1], number, f"{shown(mask)} as long as {shown(key)}", sizes)
            sample[mask] = sample[mask].bool()
        return sample


class GRPODataset(RecordDataset):
    """Samples of train type `grpo`: one prompt with its responses each.

    A sample has `prompts`, int64 (tokens,), `responses`, int64 (responses, tokens), and `masks`, bool of that shape;
    where responses differ in length these two are lists of 1-D tensors. `rewards` is float32 (responses,).
    `window_size` cuts the prompt and each response. See `RecordDataset` for arguments and errors.
    """

    train_type = "grpo"

    def _sample(self, number: int, record: dict[str, RecordValues]) -> Sample:
        responses, masks = self._runs(record, "responses", number), self._runs(record, "masks", number)
        rewards = self._flat(record, "rewards", number)
        sizes, mask_sizes = [len(run) for run in responses], [len(run) for run in masks]
        self._expect(sizes == mask_sizes, number, "masks as long as responses", f"{sizes} and {mask_sizes}")
        self._expect(len(rewards) == len(sizes), number, "a reward per response", f"{len(rewards)} for {len(sizes)}")
        return {
            "prompts": self._flat(record, "prompts", number)[: self.window_size],
            "responses": _joined([run[: self.window_size] for run in responses], torch.int64),
            "masks": _joined([run[: self.window_size].bool() for run in masks], torch.bool),
            "rewards": rewards.float(),
        }

    def _runs(self, record: dict[str, RecordValues], key: str, number: int) -> list[torch.Tensor]:
        value = record[key]
        self._expect(isinstance(value, list) or value.ndim == 2, number, f"a list of {shown(key)}", "one run")  # noqa: PLR2004
        return list(value)


def _joined(runs: list[torch.Tensor], dtype: torch.dtype) -> RecordValues:
    """One tensor where all are equally long, if need be after they were cut."""
    if len({len(run) for run in runs}) > 1:
        return runs
    return torch.stack(runs) if runs else torch.empty(0, 0, dtype=dtype)
