"""Any map-style dataset as a source: its blocks are single records."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streamdata.errors import SourceError
from streamdata.progress import Position
from streamdata.progress.fields import DATASET_NAME, DP_RANK, INDEX, SEED, WORKER_ID
from streamdata.sources.order import BlockOrder
from streamdata.sources.source import ReadTask, Record

logger = logging.getLogger("streamdata")

_FIRST_CHUNK, _CHUNK = 64, 1024
_LOOK_AHEAD = 32


class MapStyleSource:
    """Reads a dataset by `__getitem__`, or ahead in the lane's own order by `__getitems__`.

    Args:
        dataset: Has `__len__` and `__getitem__`. An item that is no dict is delivered under `data`; a dict is copied.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    @property
    def num_blocks(self) -> int:
        return len(self._dataset)

    def describe(self, shuffle: bool) -> str:
        return f"map-style, {self.num_blocks} records, shuffle {shuffle}"

    def num_windows(self, order: BlockOrder, epoch: int) -> int:
        return order.share(epoch)

    def window_start(self, task: ReadTask, position: Position) -> Position:
        return (*position[:2], 0, 0)

    def read(self, task: ReadTask, position: Position) -> Iterator[tuple[Record, Position]]:
        ahead = getattr(self._dataset, "__getitems__", None)
        for epoch, number, indices in _chunks(task, position):
            seed = task.order.seed(epoch)
            if ahead is None:
                yield from self._singly(task, epoch, number, seed, indices)
            else:
                yield from self._ahead(ahead, task, epoch, number, seed, indices)

    def _singly(
        self, task: ReadTask, epoch: int, number: int, seed: int, indices: list[int]
    ) -> Iterator[tuple[Record, Position]]:
        name, dp_rank, worker = task.fields.values()
        get = self._dataset.__getitem__
        for index in indices:
            number += 1
            try:
                item = get(index)
            except Exception as error:  # a user's dataset may raise anything; the tally decides
                task.tally.fail(error, f"index {index}", "__getitem__")
                continue
            item = item if isinstance(item, dict) else {"data": item}
            yield (
                {**item, DATASET_NAME: name, DP_RANK: dp_rank, WORKER_ID: worker, SEED: seed, INDEX: index},
                (epoch, number, 0, 0),
            )

    def _ahead(
        self,
        get: Callable[[list[int]], Sequence[Any]],
        task: ReadTask,
        epoch: int,
        number: int,
        seed: int,
        indices: list[int],
    ) -> Iterator[tuple[Record, Position]]:
        start = 0
        while start < len(indices):
            some = indices[start : start + task.grow(_LOOK_AHEAD)]
            try:
                items = get(some)
            except Exception as error:  # one of them is bad: find out which, one by one
                logger.warning("source %r: __getitems__ of %s raised %r; reading one by one", task.name, some, error)
                yield from self._singly(task, epoch, number + start, seed, some)
            else:
                _check_length(items, some, task.name)
                for offset, (index, item) in enumerate(zip(some, items, strict=True), number + start + 1):
                    fields = item if isinstance(item, dict) else {"data": item}
                    yield {**fields, **task.fields, SEED: seed, INDEX: index}, (epoch, offset, 0, 0)
            start += len(some)


def _check_length(items: Sequence[Any], indices: list[int], name: str) -> None:
    if len(items) != len(indices):
        raise SourceError(
            f"source {name!r}: __getitems__ gave {len(items)} items for the {len(indices)} indices {indices}\n"
            "  It must give an item for each index, in their order; drop items in single_process_fn."
        )


def _chunks(task: ReadTask, position: Position) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (epoch, number of the first, indices): the permutation is computed for many at once, few at the start."""
    order = task.order
    epoch: int | None = position[0]
    first, size = position[1], _FIRST_CHUNK
    while epoch is not None:
        while len(blocks := order.blocks(epoch, first, first + size)):
            yield epoch, first, blocks.tolist()
            first, size = first + len(blocks), min(4 * size, _CHUNK)
        epoch, first = task.next_epoch(epoch), 0
