"""Datasets whose samples are whole records, and their batches; and the dataset of any train type by its name.

Records are preference pairs, and prompts with responses. Under a MergedDataset let the DataLoader use `mixed_collate`,
take `to_state(batch)`, and call the collate functions in the trainer: a batch of tensors has no room for the state that
samples carry.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from streamdata.errors import StoreError, shown
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.stores.datasets.base_dataset import BaseDataset, Sample
from streamdata.stores.datasets.window_datasets import SeqDataset, SFTDataset, WindowDataset
from streamdata.stores.dtypes import TRAIN_TYPES
from streamdata.stores.factory import enter
from streamdata.stores.store import RecordValues

Batch = dict[str, torch.Tensor]
_SIDES = ("left", "right")
_PAIR = ("chosen", "rejected")


class RecordDataset(BaseDataset):
    """One sample per record of a store; `window_size` cuts longer sequences. See `BaseDataset` for the arguments.

    Raises:
        FileNotFoundError: There is nothing at the path.
        StoreError: The store is damaged, does not serve this train type, has no records, or does not say where they
            begin.
        ValueError: A `window_size` that is not positive.
    """

    def __len__(self) -> int:
        return self.store.column(self._keys[0]).num_records

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

    @property
    def _keys(self) -> tuple[str, ...]:
        return TRAIN_TYPES[self.train_type]

    def _check_store(self) -> None:
        super()._check_store()
        for key in self._keys:
            for segment in self.store.column(key).segments:
                if segment.is_undivided:
                    raise StoreError.mismatch(
                        self._who, f"offsets that say where records of {shown(key)} begin",
                        f"none for the {segment.data.count} values in '{segment.data.file}'",
                        "All of them would be one record: write the store again with StoreWriter, or list the begin of "
                        'each record as "offsets" of the key in meta.json.',
                    )  # fmt: skip
        counts = {key: self.store.column(key).num_records for key in self._keys}
        if len(set(counts.values())) > 1 or not len(self):
            got = f"{counts} in store '{self.store.path}'"
            raise StoreError.mismatch(
                self._who, "as many records of each key, and at least one", got, "Write it again."
            )

    def _flat(self, record: dict[str, RecordValues], key: str, number: int) -> torch.Tensor:
        value = record[key]
        if isinstance(value, list) or value.ndim != 1:
            raise self._unfit(number, f"one run of {shown(key)}", "a list of them")
        return value

    def _unfit(self, number: int, expected: str, got: Any) -> StoreError:
        where = f"{expected} in record {number} of store '{self.store.path}'"
        return StoreError.mismatch(self._who, where, got, "Write the store again.")


class DPODataset(RecordDataset):
    """Preference pairs for train type `dpo`; each sample is one pair.

    A sample has `chosen` and `rejected`, int64 (tokens,) each, and `chosen_mask` and `rejected_mask`, bool of the same
    lengths: which tokens are trained. See `RecordDataset` for arguments and errors.
    """

    train_type = "dpo"

    def _sample(self, number: int, record: dict[str, RecordValues]) -> Sample:
        sample = {key: self._flat(record, key, number)[: self.window_size] for key in self._keys}
        for key in ("chosen", "rejected"):
            mask = f"{key}_mask"
            sizes = (len(self._flat(record, key, number)), len(self._flat(record, mask, number)))
            if sizes[0] != sizes[1]:
                raise self._unfit(number, f"{shown(mask)} as long as {shown(key)}", sizes)
            sample[mask] = sample[mask].bool()
        return sample


class GRPODataset(RecordDataset):
    """Rollouts for train type `grpo`; each sample is one prompt with its responses.

    A sample has `prompts`, int64 (tokens,), `responses`, int64 (responses, tokens), and `masks`, bool of that shape;
    where responses differ in length these two are lists of 1-D tensors. `rewards` is float32 (responses,).
    `window_size` cuts the prompt and each response. See `RecordDataset` for arguments and errors.
    """

    train_type = "grpo"

    def _sample(self, number: int, record: dict[str, RecordValues]) -> Sample:
        responses, masks = self._runs(record, "responses", number), self._runs(record, "masks", number)
        rewards = self._flat(record, "rewards", number)
        sizes, mask_sizes = [len(run) for run in responses], [len(run) for run in masks]
        if sizes != mask_sizes:
            raise self._unfit(number, "masks as long as responses", f"{sizes} and {mask_sizes}")
        if len(rewards) != len(sizes):
            raise self._unfit(number, "a reward per response", f"{len(rewards)} for {len(sizes)}")
        return {
            "prompts": self._flat(record, "prompts", number)[: self.window_size],
            "responses": _joined([run[: self.window_size] for run in responses], torch.int64),
            "masks": _joined([run[: self.window_size].bool() for run in masks], torch.bool),
            "rewards": rewards.float(),
        }

    def _runs(self, record: dict[str, RecordValues], key: str, number: int) -> list[torch.Tensor]:
        value = record[key]
        if not isinstance(value, list) and value.ndim == 1:
            raise self._unfit(number, f"a list of {shown(key)}", "one run")
        return list(value)


def _joined(runs: list[torch.Tensor], dtype: torch.dtype) -> RecordValues:
    """One tensor where all are equally long, if need be after they were cut."""
    if len({len(run) for run in runs}) > 1:
        return runs
    return torch.stack(runs) if runs else torch.empty(0, 0, dtype=dtype)


def dpo_collate(samples: Sequence[Sample], pad_id: int = 0, side: str = "right", *, joint_width: bool = False) -> Batch:
    """Collates samples of a DPODataset, padding their token sequences.

    Args:
        samples: B samples of a DPODataset.
        pad_id: The token id of padding in `chosen` and `rejected`.
        side: The side of padding: `left` or `right`.
        joint_width: Pad `chosen` and `rejected` to one common length, so that a trainer can stack them.

    Returns:
        `chosen` and `rejected`, int64 (B, longest of them), `chosen_mask` and `rejected_mask`, bool, False in padding,
        and `chosen_attention_mask` and `rejected_attention_mask`, bool, True for every token.

    Raises:
        ValueError: There are no samples, or `side` has another value.
    """
    _check(samples, side, "dpo_collate")
    batch: Batch = {}
    width = max(len(sample[key]) for sample in samples for key in _PAIR) if joint_width else 0
    for key in _PAIR:
        batch |= _padded(key, [sample[key] for sample in samples], pad_id, side, width)
        batch[f"{key}_mask"] = _pad([sample[f"{key}_mask"] for sample in samples], False, side, width)
    return batch


def grpo_collate(
    samples: Sequence[Sample], pad_id: int = 0, prompt_side: str = "left", response_side: str = "right"
) -> Batch:
    """Collates samples of a GRPODataset, padding them so that the end of a prompt meets the start of its responses.

    Args:
        samples: B samples of a GRPODataset, with G responses each.
        pad_id: The token id of padding in `prompts` and `responses`.
        prompt_side: The side of padding in `prompts`: `left` or `right`.
        response_side: The side of padding in `responses`: `left` or `right`.

    Returns:
        `prompts`, int64 (B, longest), `responses`, int64 (B, G, longest), `masks`, bool of that shape, False in
        padding, `prompts_attention_mask` and `responses_attention_mask`, bool, True for every token, and `rewards`,
        float32 (B, G).

    Raises:
        ValueError: There are no samples, a side has another value, or numbers of responses differ.
    """
    for side in (prompt_side, response_side):
        _check(samples, side, "grpo_collate")
    groups = [len(sample["responses"]) for sample in samples]
    if len(set(groups)) > 1:
        raise ValueError(
            f"grpo_collate: expected as many responses in each sample, got {groups}\n"
            "  Batch samples with the same number of responses."
        )
    shape = (len(samples), groups[0], -1) if groups[0] else (len(samples), 0, 0)
    batch = _padded("prompts", [sample["prompts"] for sample in samples], pad_id, prompt_side)
    runs = [run for sample in samples for run in sample["responses"]]
    batch |= {key: value.view(shape) for key, value in _padded("responses", runs, pad_id, response_side).items()}
    masks = [mask for sample in samples for mask in sample["masks"]]
    batch["masks"] = _pad(masks, False, response_side).view(shape)
    batch["rewards"] = torch.stack([sample["rewards"] for sample in samples])
    return batch


def _padded(key: str, runs: Sequence[torch.Tensor], pad_id: int, side: str, width: int = 0) -> Batch:
    """The runs and which of the result they are."""
    ones = [torch.ones(len(run), dtype=torch.bool) for run in runs]
    return {key: _pad(runs, pad_id, side, width), f"{key}_attention_mask": _pad(ones, False, side, width)}


def _pad(runs: Sequence[torch.Tensor], fill: int, side: str, width: int = 0) -> torch.Tensor:
    """Runs of any length, as rows of one, which is at least `width`."""
    longest = max([width, *map(len, runs)])
    dtype = runs[0].dtype if runs else torch.int64
    padded = torch.full((len(runs), longest), fill, dtype=dtype)
    for row, run in zip(padded, runs, strict=True):
        begin = longest - len(run) if side == "left" else 0
        row[begin : begin + len(run)] = run
    return padded


def _check(samples: Sequence[Sample], side: str, who: str) -> None:
    if side not in _SIDES:
        raise ValueError(f"{who}: expected side to be one of {_SIDES}, got {shown(side)}")
    if not samples:
        raise ValueError(f"{who}: expected at least one sample, got none")


D = TypeVar("D", bound=type[BaseDataset])


class DatasetFactory:
    """Makes datasets over stores by train type: `seq`, `sft`, `dpo`, `grpo`, or a registered one."""

    classes: ClassVar[dict[str, type[BaseDataset]]] = {
        "seq": SeqDataset, "sft": SFTDataset, "dpo": DPODataset, "grpo": GRPODataset,
    }  # fmt: skip

    @classmethod
    def register(cls, name: str) -> Callable[[D], D]:
        """Register a subclass of BaseDataset for `load` under a name, as a decorator.

        A class without a `train_type` gets the name as its train type; its `required_keys` are what a store must have.

        Raises:
            ValueError: The name is taken, or the class is not a subclass of BaseDataset.
        """

        def registered(dataset: D) -> D:
            enter(cls.classes, name, dataset, BaseDataset, "DatasetFactory.register")
            if not hasattr(dataset, "train_type"):
                dataset.train_type = name
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
        """Load the dataset for a train type over the store at `load_path`.

        Args:
            train_type: The kind of training that the samples are for.
            load_path: A store: its directory, a file, or the common prefix of Megatron's `.bin` and `.idx`.
            window_size: The tokens in a window; for `dpo` and `grpo` the length at which records are cut, None not to
                cut.
            stride: Tokens from one window to the next; `window_size` if not given.
            storage_type: The store's format; None to detect it from its files.
            verify: Compare what is read with the checksums of the store's files; see `Store.load`.
            mapped: Read through memory maps; see `Store.load`.
            options: Those of the train type's class, `SeqDataset`, `SFTDataset`, `DPODataset` or `GRPODataset`; of a
                registered one its own.

        Raises:
            FileNotFoundError: Nothing lies at the path.
            StoreError: The store is damaged, or lacks what the train type needs.
            ValueError: An unknown train type, a size that is not positive, or a stride where samples are records.
            TypeError: The train type does not have such an option.
        """
        classes = DatasetFactory.classes
        if train_type not in classes:
            raise ValueError(
                f"DatasetFactory: expected a train type of {[*classes]}, got {shown(train_type)}\n"
                "  Choose by what the samples are for."
            )
        dataset = classes[train_type]
        if issubclass(dataset, RecordDataset) and stride is not None:
            raise ValueError(f"DatasetFactory: samples of {shown(train_type)} are records, got stride={stride}")
        if issubclass(dataset, WindowDataset) and window_size is None:
            raise ValueError(f"DatasetFactory: expected a window_size for {shown(train_type)}, got None")
        options |= {"verify": verify, "mapped": mapped}
        return dataset.load(load_path, window_size, stride, storage_type, **options)
