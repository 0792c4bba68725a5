"""Map-style datasets as one map-style dataset, mixed by weight.

Where each sample comes from is found in one step, with about a byte stored per sample, or next to none.
"""

import logging
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from streamdata.errors import shown
from streamdata.recipe.named_source import NamedSource, Percent
from streamdata.run import Permutation, stable_seed
from streamdata.run.trainer import end_worker_with_trainer
from streamdata.stores.datasets.base_dataset import position_of
from streamdata.stores.datasets.blend_rule import NEARLY_EQUAL, BlendWeights, blend, blend_weights
from streamdata.stores.datasets.from_megatron import megatron_blend

logger = logging.getLogger("streamdata")

Positions = npt.NDArray[np.int64]

_FEW = 16  # up to this many samples of one stretch are counted one by one; for more, all of the stretch is sorted once
_CHUNK = 1 << 16
_MAX_SAMPLES = 1 << 53  # from here on float64 does not hold every number of a sample
_LISTED = 16
_FEW_INDICES = 12  # up to this many numbers are permuted one by one in less time than by NumPy


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

    Attributes:
        dtype: Of the ids.
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
        self.dtype = ids.dtype
        self._ids, self._counts = torch.from_numpy(ids), torch.from_numpy(counts)
        self._per_period = self._given(self.period)

    @property
    def size_bytes(self) -> int:
        """The bytes that are stored."""
        return int(self._ids.nbytes + self._counts.nbytes + self._per_period.nbytes)

    def totals(self) -> Positions:
        """How many samples each dataset gives, int64 (n,)."""
        periods, rest = divmod(self.size, self.period)
        totals: Positions = self._per_period * periods + self._given(rest)
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

    def ranks(self, positions: Positions) -> Positions:
        """The numbers of samples in [0, size) among those of their own datasets, int64 (m,)."""
        periods, within = np.divmod(positions, self.period)
        ids = self._ids.numpy()
        ranks: Positions = periods * self._per_period[ids[within]]
        rows = within // self.distance
        # By stretch, since all positions of one need the same ids; positions of a shuffled batch come in any order.
        order = np.argsort(rows, kind="stable")
        cuts = np.flatnonzero(np.diff(rows[order])) + 1
        for some in np.split(order, cuts) if len(order) else ():
            if len(some) <= _FEW:
                ranks[some] += [self._count(ids, at, ids[at]) for at in within[some].tolist()]
            else:
                row = int(rows[some[0]])
                numbers = ids[row * self.distance : (row + 1) * self.distance]
                # Stable: samples of one dataset stand side by side then, in their order: their ranks are consecutive.
                by_dataset, each = np.argsort(numbers, kind="stable"), np.bincount(numbers, minlength=self.num_datasets)
                first = self._counts[row].numpy() - (np.cumsum(each) - each)
                of_row = np.empty(len(numbers), np.int64)
                of_row[by_dataset] = np.arange(len(numbers)) + first[numbers[by_dataset]]
                ranks[some] += of_row[within[some] - row * self.distance]
        return ranks

    def _given(self, end: int) -> Positions:
        """How many of the first `end` samples of a period are of each dataset, int64 (n,)."""
        row = max(end - 1, 0) // self.distance  # of the last sample: behind a whole stretch there may be no row
        since = self._ids.numpy()[row * self.distance : end]
        given: Positions = self._counts[row].numpy() + np.bincount(since, minlength=self.num_datasets)
        return given

    def _count(self, ids: npt.NDArray[Any], within: int, number: Any) -> int:
        row = within // self.distance
        since = ids[row * self.distance : within]
        return int(self._counts[row, int(number)]) + int(np.count_nonzero(since == number))


class BlendColumn:
    """A sequence of numbers that are computed when asked for: by an int, a slice or an array of integers.

    `numpy.asarray` computes all.

    Args:
        size: How many.
        compute: Positions in [0, size), int64 (m,), to values (m,).
        dtype: Of the values.
    """

    def __init__(self, size: int, compute: Callable[[Positions], npt.NDArray[Any]], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = (size,), np.dtype(dtype)
        self._compute = compute

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._compute(np.arange(*key.indices(len(self)), dtype=np.int64))
        if np.ndim(key) == 0:
            return int(self._compute(positions_of([key], len(self)))[0])
        return self._compute(positions_of(key, len(self)))

    def __iter__(self) -> Iterator[int]:
        # In chunks: whoever iterates over 10**9 samples must not need the memory of all.
        for start in range(0, len(self), _CHUNK):
            yield from self[start : start + _CHUNK].tolist()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


def positions_of(indices: Any, size: int) -> Positions:
    """Indices, some of them perhaps negative, as positions in [0, size), int64 (m,).

    Raises:
        IndexError: One is outside, or they are no integers.
    """
    given = np.asarray(indices)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise IndexError(f"expected integers, got an array of {given.dtype} with shape {given.shape}")
    positions = given.astype(np.int64)
    outside = np.flatnonzero((positions < -size) | (positions >= size))
    if outside.size:
        raise IndexError(f"index {given[outside[0]]} is out of range for {size} samples")
    return np.where(positions < 0, positions + size, positions)


class BlendableDataset(NamedSource, Dataset[Any]):
    """Blends map-style datasets in a fixed order, in which each comes evenly at the rate of its weight.

    Sample j (from 0) comes from the dataset with the largest `weight · (j + 1) - count`, at a tie the first, where
    `count` is the number of samples that it has given before; its sample number is the count modulo its length. This
    is the blending of Megatron-LM (`build_blending_indices`), whose exact rule `compat` selects. A sample that
    is a dict is copied (not deeply) and gains `dataset_idx`, the number of its dataset; of a blend of blends it is the
    number in the outer one.

    The order is built when the dataset is: in compiled code with the extra `fast`, and to one period alone where all
    weights are int or Fraction. It takes a byte per sample, two with more than 256 datasets.

    Args:
        datasets: Datasets with `__len__` and `__getitem__`; those with `__getitems__` are read many samples at once.
        weights: A positive number for each dataset; they need not add to 1. If all are int, Fraction or text such as
            "1/3", the rule is computed with integers, else in float64, with `weights / weights.sum()`.
        size: The number of samples; it may exceed the sum of the lengths, as a dataset at its end begins again. None is
            that sum.
        seed: Shuffle each dataset, anew for each of its epochs. None reads them in order.
        compat: "megatron" gives exactly the order of Megatron-Core: `max(j, 1)` in place of `j + 1`, always in float64.
            The exception: weights that differ by less than 1e-5 as shares (the largest and the smallest of them) count
            as exactly equal, so that 0.333333, 0.333333, 0.333334 take turns.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.

    Attributes:
        dataset_index: The dataset of each sample: a lazy sequence, indexed by int, slice or integer array.
        dataset_sample_index: The number of earlier samples of the same dataset, a lazy sequence too: the index into
            that dataset before the modulo.
        shares: The share of each dataset in all samples, float64 (n,).

    Raises:
        ValueError: There are no datasets, one is empty, weights are not a positive number for each, or the size
            is invalid.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[Any] | BlendWeights,
        size: int | None = None,
        seed: int | None = None,
        compat: Literal["megatron"] | None = None,
        *,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        self.datasets = list(datasets)
        self.seed, self._compat = None if seed is None else operator.index(seed), compat
        self._lengths = _checked_lengths(self.datasets)
        if compat not in (None, "megatron"):
            raise ValueError(f"BlendableDataset: expected compat='megatron' or None, got {shown(compat)}")
        if compat is not None and size is None:
            raise ValueError(
                "BlendableDataset: compat='megatron' needs size, got None\n"
                "  Without a size Megatron-Core draws exactly weight[i] samples from each dataset, by another rule."
            )
        size = int(self._lengths.sum()) if size is None else size
        if isinstance(size, bool) or not hasattr(size, "__index__") or not 0 <= size <= _MAX_SAMPLES:
            raise ValueError(f"BlendableDataset: expected an int from 0 to 2**53 as size, or None, got {shown(size)}")
        if not isinstance(weights, BlendWeights):  # those of `from_megatron` are checked already
            tolerance = 0.0 if compat is None else NEARLY_EQUAL
            weights = blend_weights(weights, len(self.datasets), exact=compat is None, tolerance=tolerance)
        self._weights = weights
        self._index = BlendIndex(weights, operator.index(size), megatron=compat == "megatron")
        self.shares = self._index.totals() / max(len(self), 1)
        wanted = weights.normalised()
        furthest = sorted(np.argsort(-np.abs(self.shares - wanted), kind="stable")[:_LISTED].tolist())
        listed = [f"{number}: {self.shares[number]:.6g} of {wanted[number]:.6g}" for number in furthest]
        some = f"the {_LISTED} furthest from it of {len(wanted)}, " if len(wanted) > _LISTED else ""
        message = "BlendableDataset: shares in %d samples of what was asked for: %s%s"
        logger.info(message, len(self), some, ", ".join(listed))

    @classmethod
    def from_megatron(
        cls,
        paths: str | os.PathLike[str] | Sequence[Any],
        window_size: int,
        stride: int | None = None,
        *,
        parts: str | Sequence[float] | None = None,
        part: str = "train",
        size: int | None = None,
        seed: int | None = None,
        compat: Literal["megatron"] | None = None,
        name: str | None = None,
        percent: Percent | None = None,
        **options: Any,
    ) -> Self:
        """Make the blend of a Megatron command line: windows over each of its pairs of files, by weight.

        Args:
            paths: The value of `--data-path`: "0.3 a 0.7 b", or prefixes alone, which are weighted by their numbers of
                samples; text or a list. A single prefix may be a Path.
            window_size: Tokens in a window, `--seq-length`.
            stride: Tokens from one window to the next; `window_size` if not given.
            parts: The value of `--split`, such as "969,30,1": shares of train, valid and test, as ranges of each pair's
                sequences. None is everything.
            part: The part to read: `train`, `valid` or `test`.
            size: The number of samples; see the class.
            seed: The seed of the order in which each pair is read; see the class.
            compat: "megatron" gives Megatron-Core's samples in its order, for its `--seed`; see `SeqDataset`. With
                weights it needs a size, and has some samples more, as there. The exception: weights that are nearly
                equal count as equal; see the class.
            name: Its name in a mixture, without a ".".
            percent: Its weight there.
            options: Options of `SeqDataset`: `eod_token`, `eod_mask_loss`, `reset_position_ids`,
                `reset_attention_mask`, `documents`, `verify`, `mapped`, `dtype`.

        Raises:
            FileNotFoundError: A pair does not exist.
            ValueError: The part is empty, weights do not fit, or a pair is damaged.
        """
        options |= {"window_size": window_size, "stride": stride, "compat": compat}
        if compat is not None:
            options["seed"] = seed
        datasets, weights, size = megatron_blend(paths, parts, part, size, options)
        return cls(datasets, weights, size, seed if compat is None else None, compat, name=name, percent=percent)

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self)

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """The datasets' weights, scaled to a sum of 1: float64 (n,)."""
        return self._weights.normalised()

    @property
    def dataset_index(self) -> BlendColumn:
        """The number of the dataset of each sample."""
        return BlendColumn(len(self), self._index.datasets, self._index.dtype)

    @property
    def dataset_sample_index(self) -> BlendColumn:
        """For each sample, the number of earlier samples of its dataset: its index there before the modulo."""
        return BlendColumn(len(self), self._index.ranks, np.int64)

    @property
    def source_identity(self) -> str:
        """A text that identifies the samples (the rule, the datasets' lengths and identities); a resume compares it."""
        identities = [getattr(dataset, "source_identity", None) for dataset in self.datasets]
        rule = (self._weights.shares, self._weights.unit, len(self), self.seed, self._compat)
        return f"blend {stable_seed(rule, self._lengths.tolist(), identities):016x}"

    def __len__(self) -> int:
        return self._index.size

    def __getitem__(self, index: int) -> Any:
        number, rank = self._index.locate(position_of(index, len(self), "BlendableDataset"))
        return _marked(self.datasets[number][self._index_of(number, rank)], number)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of many indices, in their order: each dataset is asked once for all that it gives."""
        end_worker_with_trainer()
        positions = positions_of(indices, len(self))
        numbers, ranks = self._index.datasets(positions), self._index.ranks(positions)
        samples: list[Any] = [None] * len(positions)
        # One call for each dataset, however its samples are spread over the batch: stores read many windows in one go.
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            found = self._read(number, self._indices(number, ranks[mine]))
            for at, sample in zip(mine.tolist(), found, strict=True):
                samples[at] = _marked(sample, number)
        return samples

    def _index_of(self, number: int, rank: int) -> int:
        """The index of a sample in its dataset: past the end that begins again, with a seed in another order."""
        length = int(self._lengths[number])
        times, index = divmod(rank, length)
        return index if self.seed is None else _order(length, self.seed, number, times).at(index)

    def _indices(self, number: int, ranks: npt.NDArray[np.int64]) -> list[int]:
        """Many samples at once."""
        if len(ranks) <= _FEW_INDICES:
            return [self._index_of(number, rank) for rank in ranks.tolist()]
        length = int(self._lengths[number])
        times, indices = np.divmod(ranks, length)
        if self.seed is not None:
            for time in np.unique(times).tolist():
                mine = times == time
                indices[mine] = _order(length, self.seed, number, time)(indices[mine])
        listed: list[int] = indices.tolist()
        return listed

    def _read(self, number: int, indices: list[int]) -> Sequence[Any]:
        dataset = self.datasets[number]
        ahead = getattr(dataset, "__getitems__", None)
        if ahead is None:
            return [dataset[index] for index in indices]
        samples: Sequence[Any] = ahead(indices)
        if len(samples) != len(indices):
            raise ValueError(
                f"BlendableDataset, dataset {number} ({type(dataset).__name__}): __getitems__ gave {len(samples)} "
                f"samples for the {len(indices)} indices {indices}\n"
                "  It must give a sample for each index, in their order."
            )
        return samples


def make_blendable_dataset(
    datasets: Sequence[Sequence[Any]], weights: Sequence[Any], seed: int | None = None
) -> list[Any]:
    """Blends lists of samples into one list, as long as all of them together; the lists stay unchanged.

    Args:
        datasets: Lists of samples.
        weights: A weight for each list; see `BlendableDataset`.
        seed: Shuffle each list at first, and again whenever it comes to its end.

    Raises:
        ValueError: See `BlendableDataset`.
    """
    blended = BlendableDataset(datasets, weights, seed=seed)
    return blended.__getitems__(range(len(blended)))


@lru_cache(maxsize=1024)
def _order(length: int, seed: int, number: int, time: int) -> Permutation:
    # Seeded by number, not by name as in a mixture: datasets of a blend have no names, and their order breaks ties.
    return Permutation(length, stable_seed(seed, "blend", number, time))


def _marked(sample: Any, number: int) -> Any:
    return {**sample, "dataset_idx": number} if isinstance(sample, dict) else sample


def _checked_lengths(datasets: Sequence[Any]) -> npt.NDArray[np.int64]:
    if not datasets:
        raise ValueError("BlendableDataset: expected at least one dataset, got none")
    for number, dataset in enumerate(datasets):
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ValueError(
                f"BlendableDataset, dataset {number}: expected a map-style dataset (__len__ and __getitem__), "
                f"got {type(dataset).__name__}\n  Mix a stream by MergedDataset."
            )
        if len(dataset) < 1:
            raise ValueError(
                f"BlendableDataset, dataset {number} ({type(dataset).__name__}): expected at least one sample, "
                "got an empty dataset\n  Leave it out, with its weight."
            )
    return np.array([len(dataset) for dataset in datasets], np.int64)
