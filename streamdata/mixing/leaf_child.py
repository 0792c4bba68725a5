"""A source as a child of a mixture."""

from collections.abc import Iterator
from typing import Any

from streamdata.mixing.mixture import Pairs, Run
from streamdata.progress import Cursor
from streamdata.sources import BlockOrder, Leaf, Source
from streamdata.sources.tally import Tally


class LeafChild:
    """A source in one lane; under an endless parent it rolls from epoch to epoch, else round r is its epoch r.

    Args:
        run: The lane and where it stood.
        path: The source's path of names.
        dataset: What the recipe names.
        source: The same, as blocks of records.
        seeds: The seeds and names on the path from the top.
        shuffle: Whether its order is shuffled.
        parent_endless: Whether its parent is endless.
    """

    is_mixture = False

    def __init__(
        self,
        run: Run,
        path: str,
        dataset: Any,
        source: Source,
        seeds: tuple[object, ...],
        shuffle: bool,
        parent_endless: bool,
    ) -> None:
        self.path, self.endless = path, parent_endless
        self._run, self._dataset, self._source, self._seeds, self._shuffle = run, dataset, source, seeds, shuffle
        standing = run.entries.standing(path)
        cursor = standing.cursor if standing is not None else Cursor()
        self._tally = Tally(path, int(getattr(dataset, "max_bad", 0)), cursor.dropped, cursor.bad)

    def has_records(self, round_: int) -> bool:
        return self.endless or self._order(round_).share(round_) > 0

    def start(self, round_: int, cursor: Cursor | None) -> Pairs:
        leaf = Leaf(
            self._dataset, self._source, self._run.lane, self._order(round_), self._tally, cursor, self._run.from_window
        )
        return iter(leaf)

    def epoch_paths(self) -> Iterator[str]:
        yield self.path

    def _order(self, round_: int) -> BlockOrder:
        only_epoch = None if self.endless else round_
        return BlockOrder(self._source.num_blocks, self._run.lane, self._seeds, self._shuffle, only_epoch)
