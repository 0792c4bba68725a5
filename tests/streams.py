"""What the tests share: tiny datasets, simulated lanes, and the one contract of resume."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from traceback import clear_frames
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from streamdata import MergedDataset, to_state
from streamdata.run import find_data_parallel
from streamdata.states.headers import canonical, compared, digest_of

MakeDataset = Callable[[], MergedDataset]
NEAR = 8
"""Batches that are compared after any step of a stream: from there on it stands where it was resumed before."""
EACH = 24
"""Steps that are all resumed; of later ones every third is."""


class Numbers:
    """A map-style dataset of the numbers 0 to size - 1."""

    def __init__(self, name: str, size: int, percent: float = 1.0, **attributes: object) -> None:
        self.name, self.size, self.percent = name, size, percent
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return {"value": index}


class NumbersAhead(Numbers):
    """The same, read many at once."""

    def __getitems__(self, indices: list[int]) -> list[dict]:
        return [self[index] for index in indices]


def through_json(states: dict) -> dict:
    """A checkpoint written and read."""
    return json.loads(json.dumps(states))


@contextmanager
def raises_in_worker(error: type[Exception], match: str) -> Iterator[Any]:
    """As `pytest.raises`; the DataLoader's workers end at once.

    The error holds itself in torch's frames, and the iterator with it. A collection, in a later test, would end the
    iterator's queues before the iterator, whose workers then do not hear of it: it waits 5 s for each.
    """
    import pytest  # scripts that import this module do without

    with pytest.raises(error, match=match) as caught:
        yield caught
    clear_frames(caught.tb)
    del caught  # this frame is one of them, and runs


def plain(value: object) -> object:
    """A sample's own content and fields, comparable with ==; without its cursor, which tells of the run."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key not in ("__cursor__", "__states__")}
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.tolist())
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.tolist())
    if hasattr(value, "tobytes"):
        return ("image", value.size, value.tobytes())
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def in_lane(dataset: MergedDataset, worker: int, num_workers: int) -> Iterable[dict]:
    """The stream as DataLoader worker `worker` would give it, in this process."""
    info = SimpleNamespace(id=worker, num_workers=num_workers)
    # No fork begins this lane: an earlier test's may have found another rank.
    found = {"get_worker_info": lambda: info, "data_parallel_at_fork": find_data_parallel}
    with patch.multiple("streamdata.mixing.merged", **found):
        return iter(dataset)


def signed(header: dict) -> dict:
    """A generation's header with the digest of what it says, as if it had been written so."""
    return {**header, "digest": digest_of(canonical(compared(header)))}


def loaded(dataset: MergedDataset, num_workers: int, batch_size: int = 1) -> Iterable[list[dict]]:
    """The batches of a stock DataLoader, simulated: workers take turns, one that is exhausted is left out."""
    if num_workers < 2:
        lanes = [iter(dataset)]
    else:
        lanes = [iter(in_lane(dataset, worker, num_workers)) for worker in range(num_workers)]
    while lanes:
        for lane in list(lanes):
            batch = list(islice(lane, batch_size))
            if batch:
                yield batch
            if len(batch) < batch_size:
                lanes.remove(lane)


def assert_exact_resume(
    make_dataset: MakeDataset, *, steps: int = 24, beyond: int = 24, num_workers: int = 0, batch_size: int = 1
) -> list[object]:
    """Stop after every step (beyond 24, every third), resume from the JSON states: always the uninterrupted suffix.

    After each eighth step to its end; and there stop three batches later, and resume again.
    """
    whole = [plain(batch) for batch in islice(loaded(make_dataset(), num_workers, batch_size), steps + beyond)]
    assert whole, "the stream gave nothing"
    states: dict = {}
    for step, batch in enumerate(islice(loaded(make_dataset(), num_workers, batch_size), steps), 1):
        states.update(to_state(batch))
        if step > EACH and step % 3 != 1:
            continue
        again = resumed(make_dataset, states)
        second = dict(through_json(states))
        rest = []
        to_the_end = step % 8 == 1
        ahead = len(whole) - step if to_the_end else min(NEAR, len(whole) - step)
        for number, later in enumerate(islice(loaded(again, num_workers, batch_size), ahead)):
            rest.append(plain(later))
            if number < 3:
                second.update(to_state(later))
        assert rest == whole[step : step + ahead], f"resume after step {step} is not the suffix"
        if to_the_end:
            want = whole[step + min(3, len(rest)) :][:NEAR]
            third = loaded(resumed(make_dataset, second), num_workers, batch_size)
            assert [plain(batch) for batch in islice(third, len(want))] == want, f"second resume after step {step}"
    return whole


def resumed(make_dataset: MakeDataset, states: dict) -> MergedDataset:
    """A new dataset that goes on where the states say."""
    dataset = make_dataset()
    dataset.set_dataloader_states(through_json(states))
    return dataset


def delivered(make_dataset: MakeDataset, dp_size: int, num_workers: int) -> Counter:
    """What all lanes together deliver of a finite stream: (source, url or index, key) as a multiset."""
    counts: Counter = Counter()
    for dp_rank in range(dp_size):
        dataset = make_dataset()
        dataset.set_data_parallel(dp_size, dp_rank)
        for batch in loaded(dataset, num_workers):
            counts.update(identity(sample) for sample in batch)
    return counts


def identity(sample: dict) -> tuple:
    """Which record a sample is."""
    return sample["__datasetname__"], sample.get("__url__", sample.get("__index__")), sample.get("__key__")
