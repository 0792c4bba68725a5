"""Where each sample of a blend comes from: found in one step, with about a byte stored per sample, or next to none."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from streamdata.mixing.blend_column import Positions
from streamdata.mixing.blend_rule import blend
from streamdata.mixing.blend_weights import BlendWeights

_FEW = 16
"""Up to this many samples of one stretch are counted one by one; for more, all of the stretch is sorted once."""


class BlendIndex:
    """The dataset of each sample, and how many samples that dataset has given before.

    Integer weights of sum W give a blend of period W: each dataset has given exactly its weight after W samples, since
    none is ever chosen that is not behind its share. So one period is stored at most. What is stored is an id per
    sample (uint8 up to 256 datasets, uint16 up to 65,536, else uint32) and, each `distance` samples, an int64 count per
    dataset: as `distance` is at least 128 times the number of datasets, the counts add at most 1/16 byte per sample. A
    count is the one stored before plus that of equal ids since.

    Both are torch tensors, because these cross to workers without a copy: forked workers share them with the trainer,
    and the first worker spawned has them moved to shared memory.

    Args:
        weights: Of the datasets, at least one.
        size: The number of samples.
        megatron: Whether the rule is Megatron-Core's.
        distance: The samples from one stored count to the next; None for 4,096, or 128 times the number of datasets.
    """

    def __init__(self, weights: BlendWeights, size: int, *, megatron: bool, distance: int | None = None) -> None:
        self.num_datasets = len(weights.shares)
        self.size = size
        self.period = max(min(int(weights.unit), size), 1) if weights.exact else max(size, 1)
        self.distance = distance or max(4096, 128 * self.num_datasets)
        # The smallest type that holds every id, since one is stored for each sample.
        ids = np.empty(self.period, np.min_scalar_type(self.num_datasets - 1))
        counts = np.empty((-(-self.period // self.distance), self.num_datasets), np.int64)
        blend(weights, ids, counts, self.distance, megatron=megatron)
        # The last stored count, and the samples since: there is no row after the end of the period.
        self._per_period = counts[-1] + np.bincount(ids[(len(counts) - 1) * self.distance :], minlength=len(counts[-1]))
        self._ids, self._counts = torch.from_numpy(ids), torch.from_numpy(counts)

    @property
    def size_bytes(self) -> int:
        """The bytes that are stored."""
        return int(self._ids.nbytes + self._counts.nbytes + self._per_period.nbytes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids."""
        dtype: np.dtype[Any] = self._ids.numpy().dtype
        return dtype

    def totals(self) -> npt.NDArray[np.int64]:
        """How many samples each dataset gives, int64 (n,)."""
        periods, rest = divmod(self.size, self.period)
        # Of the last sample and not of `rest`: after a whole number of stretches there is no further row.
        row = max(rest - 1, 0) // self.distance
        since = self._ids.numpy()[row * self.distance : rest]
        partial = self._counts[row].numpy() + np.bincount(since, minlength=self.num_datasets)
        totals: npt.NDArray[np.int64] = self._per_period * periods + partial
        return totals

    def locate(self, position: int) -> tuple[int, int]:
        """The dataset of a sample in [0, size), and its number among those of this dataset."""
        periods, within = divmod(position, self.period)
        ids = self._ids.numpy()
        number = ids[within]
        return int(number), periods * int(self._per_period[number]) + self._count(ids, within, number)

    def datasets(self, positions: Positions) -> npt.NDArray[Any]:
        """The datasets of samples in [0, size), as ids (m,)."""
        return self._ids.numpy()[positions % self.period]

    def ranks(self, positions: Positions) -> npt.NDArray[np.int64]:
        """The numbers of samples in [0, size) among those of their own datasets, int64 (m,)."""
        periods, within = np.divmod(positions, self.period)
        ids = self._ids.numpy()
        numbers = ids[within]
        ranks: npt.NDArray[np.int64] = periods * self._per_period[numbers] + self._ranks_in_period(ids, within)
        return ranks

    def _count(self, ids: npt.NDArray[Any], within: int, number: Any) -> int:
        row = within // self.distance
        since = ids[row * self.distance : within]
        return int(self._counts[row, int(number)]) + int(np.count_nonzero(since == number))

    def _ranks_in_period(self, ids: npt.NDArray[Any], within: Positions) -> npt.NDArray[np.int64]:
        ranks = np.empty(len(within), np.int64)
        rows = within // self.distance
        # By stretch, since all positions of one need the same ids; positions of a shuffled batch come in any order.
        order = np.argsort(rows, kind="stable")
        cuts = np.flatnonzero(np.diff(rows[order])) + 1
        for some in np.split(order, cuts) if len(order) else ():
            if len(some) <= _FEW:
                ranks[some] = [self._count(ids, at, ids[at]) for at in within[some].tolist()]
            else:
                row = int(rows[some[0]])
                ranks[some] = self._ranks_of_row(ids, row)[within[some] - row * self.distance]
        return ranks

    def _ranks_of_row(self, ids: npt.NDArray[Any], row: int) -> npt.NDArray[np.int64]:
        """The ranks of all samples between two stored counts."""
        numbers = ids[row * self.distance : (row + 1) * self.distance]
        # Stable: samples of one dataset stand side by side then, in their order, so that their ranks are consecutive.
        order = np.argsort(numbers, kind="stable")
        each = np.bincount(numbers, minlength=self.num_datasets)
        first = self._counts[row].numpy() - (np.cumsum(each) - each)
        ranks = np.empty(len(numbers), np.int64)
        ranks[order] = np.arange(len(numbers)) + first[numbers[order]]
        return ranks
