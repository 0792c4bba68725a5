"""The order of a map-style dataset over data-parallel replicas, which can be resumed anywhere."""

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.utils.data import Sampler

from streamdata.errors import StateError, one_of_two, shown
from streamdata.run import DataParallel, Permutation, find_data_parallel, stable_seed

_VERSION = 1
_INDICES_PER_CHUNK = 4096


class ResumableDistributedSampler(Sampler[int]):
    """Yields this replica's indices of an epoch, from where the job stood; later iterations yield the next epochs.

    All replicas go through one sequence together: the permutation of the epoch, then (unless `drop_last`) its beginning
    once more, until each has equally many. Replica r takes numbers r, r + num_replicas, … of what is left of it. Since
    all replicas have then delivered equally many, the trainer's count says where the whole job stands, and that is the
    state: it can be loaded with another `num_replicas`, and what was delivered before and after is the epoch.

    Records that belong together (`records_per_block` of the dataset, such as the copies of a prompt) stay adjacent in
    that sequence: a single replica reads them one after another, several replicas read them at the same time. A
    MergedDataset keeps them in one lane instead.

        loader = DataLoader(dataset, batch_size, sampler=sampler)
        sampler.load_state_dict(checkpoint)                      # or start afresh
        for epoch in range(sampler.epoch, num_epochs):
            sampler.set_epoch(epoch)
            delivered = sampler.delivered
            for batch in loader:
                delivered += len(batch)
                ...
                checkpoint = sampler.state_dict(delivered)

    A StatefulDataLoader of torchdata needs none of that: it saves and loads the sampler with its own state, at a batch
    that it has delivered. That state, too, can be loaded with another `num_replicas`.

    Args:
        dataset: Has `__len__`; 10**9 is fine. It may have `records_per_block`, which divides its length.
        start_epoch: The epoch to start in.
        start_iter: How many samples this replica has delivered in `start_epoch` already. Other epochs start at 0.
        seed: Epoch e is shuffled by `seed + e`.
        shuffle: True lists `torch.randperm` of a generator with that seed, 8 bytes per sample while iterating. "lazy"
            computes an order of its own instead and holds next to nothing. False is the natural order.
        drop_last: Leave out what does not make up a sample for each replica, instead of repeating samples.
        num_replicas: By default taken from torch.distributed or WORLD_SIZE.
        rank: By default taken from torch.distributed or RANK.
        data_source: AstrAI's name of `dataset`, instead of it.
        process_group: Of torch.distributed, the replicas, instead of `num_replicas` and `rank`.

    Raises:
        TypeError: Not exactly one of `dataset` and `data_source` is given.
        ValueError: An argument is invalid: the message says which.
    """

    def __init__(
        self,
        dataset: Sized | None = None,
        start_epoch: int = 0,
        start_iter: int = 0,
        seed: int = 42,
        shuffle: bool | Literal["lazy"] = True,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        data_source: Sized | None = None,
        process_group: Any = None,
    ) -> None:
        dataset = one_of_two("ResumableDistributedSampler", dataset=dataset, data_source=data_source)
        self._size = len(dataset)
        if not self._size:
            raise ValueError("ResumableDistributedSampler: expected a dataset with samples, got an empty one")
        if shuffle not in (True, False, "lazy"):
            raise ValueError(
                f"ResumableDistributedSampler: expected True, False or 'lazy' as shuffle, got {shown(shuffle)}"
            )
        self._block = int(getattr(dataset, "records_per_block", 1))
        if self._block < 1 or self._size % self._block:
            raise ValueError(
                f"ResumableDistributedSampler: expected a length that records_per_block {self._block} divides, "
                f"got {self._size}\n  Give each block the same number of records."
            )
        group = _replicas(process_group, num_replicas, rank)
        self.num_replicas, self.rank = group.dp_size, group.dp_rank
        self.seed, self.shuffle, self.drop_last = _non_negative_int("seed", seed), shuffle, drop_last
        self.epoch = self._start_epoch = _non_negative_int("start_epoch", start_epoch)
        self._start = _non_negative_int("start_iter", start_iter) * self.num_replicas
        self._has_ended, self._is_in_torchdata = False, False
        self._given = _Given()
        if self._start >= self._size + self.num_replicas:
            raise ValueError(
                f"ResumableDistributedSampler: expected at most {self._rounds(0)} as start_iter, got {start_iter}\n"
                f"  It counts samples of one of {self.num_replicas} replicas, of {self._size} samples in all."
            )

    @property
    def delivered(self) -> int:
        """The number of samples of this epoch that this replica had delivered at its start: count on from it.

        After a change of `num_replicas` it is what the job has delivered, divided by the present number, rounded down.
        """
        return self._begin() // self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Iterate over `epoch` next: from its start, or in `start_epoch` from `start_iter`.

        Without it epochs count up by themselves: an iteration that came to its end is followed by the next epoch. Until
        that begins, `epoch`, `delivered` and `state_dict` describe the one that ended, because a DataLoader reaches
        the end of the sampler before the trainer has received what was prefetched.

        Raises:
            ValueError: `epoch` is negative or not an int.
        """
        number = _non_negative_int("epoch", epoch)
        self._forget_start_of_ended()
        self.epoch = number

    def __len__(self) -> int:
        """How many samples this replica has still to deliver in this epoch."""
        return self._rounds(self._begin())

    def __iter__(self) -> Iterator[int]:
        if self._has_ended:
            self._forget_start_of_ended()
            self.epoch += 1
        # Without being asked: a StatefulDataLoader that was saved at the end of an epoch leaves this iteration at once,
        # and begins the next. Others may begin one iteration twice.
        self._has_ended = self._is_in_torchdata and not len(self)
        self._given = _Given()
        return self._indices(self._given)

    def _forget_start_of_ended(self) -> None:
        """Where to start in an epoch holds until that epoch has ended; another iteration over it starts at 0."""
        if self._has_ended and self.epoch == self._start_epoch:
            self._start = 0
        self._has_ended = False

    def _indices(self, given: "_Given") -> Iterator[int]:
        epoch, begin = self.epoch, self._begin()
        order, rounds = self._order(), self._rounds(begin)
        for first in range(0, rounds, _INDICES_PER_CHUNK):
            numbers = np.arange(first, min(first + _INDICES_PER_CHUNK, rounds), dtype=np.int64)
            positions = begin + self.rank + numbers * self.num_replicas
            for index in order(positions % self._size).tolist():
                given.count += 1
                yield index
        self._has_ended = self._has_ended or self.epoch == epoch

    def state_dict(self, delivered: int | None = None) -> dict[str, Any]:
        """Where the job stands, as plain JSON; the same on all replicas.

        Args:
            delivered: How many samples of this epoch this replica has delivered by the trainer's own count, since a
                DataLoader's workers are ahead of it. That count continues from `delivered` of this sampler. To be left
                out by torchdata alone, which asks for each index that it takes.

        Raises:
            ValueError: The count is missing, lower than that, or higher than the epoch allows.
        """
        begin = self._begin()
        if delivered is None:
            if not _is_called_by_torchdata():
                raise ValueError(
                    "ResumableDistributedSampler: state_dict() needs the trainer's count of delivered samples: a "
                    "DataLoader takes indices ahead of it\n"
                    "  Call state_dict(delivered), or use torchdata's StatefulDataLoader and save its state."
                )
            delivered = self.delivered + self._given.count
        lowest, highest = self.delivered, self.delivered + self._rounds(begin)
        if not lowest <= _non_negative_int("delivered", delivered) <= highest:
            raise ValueError(
                f"ResumableDistributedSampler: expected {lowest} to {highest} samples delivered in epoch {self.epoch}, "
                f"got {delivered}\n  Count this replica's samples of the epoch, starting at the sampler's `delivered`."
            )
        # A finished epoch may have ended with the repeats of more replicas than there are now.
        by_all = min(begin + (int(delivered) - lowest) * self.num_replicas, self._size + self.num_replicas - 1)
        position = {"epoch": self.epoch, "delivered_by_all": by_all, "num_replicas": self.num_replicas}
        return {"version": _VERSION} | position | self._identity()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the job stood, with the present number of replicas.

        Raises:
            StateError: `state` is of another dataset, seed or shuffle, or not a sampler's state.
        """
        for key, value in self._identity().items():
            if key not in state or type(state[key]) is not type(value) or state[key] != value:
                raise StateError(
                    f"sampler state: expected {key} {shown(value)}, got {shown(state.get(key))}\n"
                    "  A state belongs to its dataset, seed and shuffle; only num_replicas and drop_last may change."
                )
        try:
            epoch, delivered, replicas = (
                _non_negative_int(key, state.get(key)) for key in ("epoch", "delivered_by_all", "num_replicas")
            )
        except ValueError as error:
            raise StateError(f"sampler state: {error}") from None
        if delivered >= self._size + replicas:  # the repeats at the end of an epoch are fewer than its replicas
            raise StateError(
                f"sampler state: expected less than {self._size + replicas} as delivered_by_all, got {delivered}"
            )
        self.epoch = self._start_epoch = epoch
        self._start = delivered
        self._has_ended, self._given = False, _Given()
        self._is_in_torchdata = _is_called_by_torchdata()

    def _identity(self) -> dict[str, Any]:
        """The facts that determine the order of an epoch: a state holds only where all of them are equal."""
        return {
            "version": _VERSION,
            "num_samples": self._size,
            "records_per_block": self._block,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def _begin(self) -> int:
        """How many samples the job has delivered when it begins to iterate."""
        return self._start if self.epoch == self._start_epoch else 0

    def _rounds(self, begin: int) -> int:
        left = max(self._size - begin, 0)
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    def _order(self) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]:
        """The order of the epoch: a function from positions to indices."""
        if not self.shuffle:
            return lambda positions: positions
        size, seed = self._block, self.seed + self.epoch
        if self.shuffle == "lazy":
            blocks: Callable[[Any], Any] = Permutation(self._size // size, stable_seed("sampler", seed))
        else:
            generator = torch.Generator()
            generator.manual_seed(seed)
            blocks = torch.randperm(self._size // size, generator=generator).numpy().take
        return blocks if size == 1 else lambda positions: blocks(positions // size) * size + positions % size


class _Given:
    """How many indices an iteration has given."""

    count = 0


def _is_called_by_torchdata() -> bool:
    """Whether it is torchdata that calls the method that asks this.

    Its loaders ask for the state with each index that they take, and keep it until that batch has been delivered.
    """
    caller = sys._getframe(2).f_globals.get("__name__", "")  # noqa: SLF001  what the inspect module itself uses
    return bool(caller.partition(".")[0] == "torchdata")


def _replicas(process_group: Any, num_replicas: int | None, rank: int | None) -> DataParallel:
    if process_group is not None:
        if (num_replicas, rank) != (None, None):
            raise ValueError(
                "ResumableDistributedSampler: expected process_group alone, got num_replicas, rank "
                f"{(num_replicas, rank)} too"
            )
        num_replicas, rank = distributed.get_world_size(process_group), distributed.get_rank(process_group)
    if num_replicas is None or rank is None:
        found = find_data_parallel()
        num_replicas = found.dp_size if num_replicas is None else num_replicas
        rank = found.dp_rank if rank is None else rank
    return DataParallel(
        dp_size=_non_negative_int("num_replicas", num_replicas), dp_rank=_non_negative_int("rank", rank)
    )


def _non_negative_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"ResumableDistributedSampler: expected an int >= 0 as {name}, got {shown(value)}")
    return operator.index(value)
