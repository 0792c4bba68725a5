"""Torch IterableDatasets as people write them."""

from collections.abc import Iterator

from torch.utils.data import IterableDataset, get_worker_info


class Counting(IterableDataset):
    """The numbers below `size`, plainly."""

    def __init__(self, name: str = "own", size: int = 20, percent: float = 1.0, **attributes: object) -> None:
        self.name, self.size, self.percent = name, size, percent
        self.read: list[int] = []
        self.__dict__.update(attributes)

    def __iter__(self) -> Iterator[object]:
        for number in range(self.size):
            self.read.append(number)
            yield {"value": number}


class SplitsItself(Counting):
    """Asks which worker it is in."""

    def __iter__(self) -> Iterator[object]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(first, self.size, step):
            yield {"value": number}


class Sharded(Counting):
    """Gives each lane a stretch, and shuffles by epoch."""

    first, last, epoch = 0, None, 0

    def shard(self, num_shards: int, index: int) -> "Sharded":
        """Number `index` of so many stretches."""
        bounds = [self.size * number // num_shards for number in range(num_shards + 1)]
        return Sharded(size=self.size, first=bounds[index], last=bounds[index + 1])

    def set_epoch(self, epoch: int) -> None:
        """What the order follows from."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[object]:
        numbers = list(range(self.first, self.size if self.last is None else self.last))
        turn = self.epoch % max(1, len(numbers))
        for number in numbers[turn:] + numbers[:turn]:
            yield {"value": number}


class Stateful(Counting):
    """Says where it is, as torchdata and Hugging Face have it: of the iteration that runs, for the next one."""

    at, start = 0, 0

    def state_dict(self) -> dict:
        """The next number."""
        return {"at": self.at, "of": [self.size]}

    def load_state_dict(self, state: dict) -> None:
        """Go on there."""
        self.start = state["at"]

    def __iter__(self) -> Iterator[object]:
        for number in range(self.start, self.size):
            self.at = number + 1
            self.read.append(number)
            yield {"value": number}


class StatefulIterator:
    """An iterator that says where it is."""

    def __init__(self, size: int, read: list[int]) -> None:
        self.size, self.at, self.read = size, 0, read

    def __iter__(self) -> "StatefulIterator":
        return self

    def __next__(self) -> dict:
        if self.at == self.size:
            raise StopIteration
        self.at += 1
        self.read.append(self.at - 1)
        return {"value": self.at - 1}

    def state_dict(self) -> dict:
        """The next number."""
        return {"at": self.at}

    def load_state_dict(self, state: dict) -> None:
        """Go on there."""
        self.at = state["at"]


class _OfGrain:
    """What Grain's datasets and iterators have in common: they are no IterableDatasets of torch."""

    def __init__(self, size: int = 20, name: str = "own", percent: float = 1.0, **attributes: object) -> None:
        self.size, self.name, self.percent, self.at = size, name, percent, 0
        self.__dict__.update(attributes)


class DatasetIterator(_OfGrain):
    """Says where it is by other names than torch's."""

    __module__ = "grain._src.python.dataset.dataset"

    def __iter__(self) -> "DatasetIterator":
        return self

    def __next__(self) -> dict:
        if self.at == self.size:
            raise StopIteration
        self.at += 1
        return {"value": self.at - 1}

    def get_state(self) -> dict:
        """The next number."""
        return {"next_index": self.at}

    def set_state(self, state: dict) -> None:
        """Go on there."""
        self.at = state["next_index"]


class IterDataset(_OfGrain):
    """Grain's, as far as a source needs it."""

    __module__ = "grain._src.python.dataset.dataset"

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self.size)


class WithStatefulIterator(Counting):
    """Whose iterator says where it is."""

    def __iter__(self) -> StatefulIterator:
        return StatefulIterator(self.size, self.read)
