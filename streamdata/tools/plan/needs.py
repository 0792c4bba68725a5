"""What a worker needs: `tree, settings → bytes that it holds at most, and files that it has open`."""

import math
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from streamdata.mixing.tree import Node
from streamdata.run.recent import most_open_files
from streamdata.shards.ahead.settings import AheadSettings
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.stores.datasets.base_dataset import BaseDataset
from streamdata.tools.plan.sampled import Sampled

_TAKEN_BYTES: Final = 8 << 20
"""What a reader of local shards reads at once, and holds, at most."""
_OWN_FILES: Final = 16
"""Of Python, torch and the queue to the trainer, about."""


class Needs(NamedTuple):
    """Of one worker process."""

    held_bytes: int
    """What its sources hold at most, the process itself and functions left out."""
    process_bytes: int
    """What this process has in memory, with the recipe built: a worker that is forked shares most of it."""
    descriptors: int
    """Open files and connections at most."""
    unknown: list[str]
    """Sources of which it is not known what they hold, by path."""


def needs_of(top: Node, settings: AheadSettings, sampled: Mapping[str, Sampled]) -> Needs:
    """What a worker needs that reads a tree."""
    leaves = [node for node in top.walk() if not node.is_mixture]
    held = {node.path: _held_bytes(node, sampled.get(node.path)) for node in leaves}
    sources = [node.source for node in leaves]
    shards = [source.shards for source in sources if isinstance(source, BlockSource | SequentialSource)]
    is_remote = any(each.has_remote for each in shards)
    num_files = sum(len(each.urls) for each in shards)
    arrays = sum(len(node.dataset.store.arrays()) for node in leaves if isinstance(node.dataset, BaseDataset))
    most = most_open_files()
    descriptors = min(2 * num_files, most) + 2 * min(arrays, most)  # a shard has an index; arrays have sums
    ahead = settings.read_ahead_bytes if is_remote else 0
    return Needs(
        held_bytes=ahead + math.ceil(sum(size for size in held.values() if size is not None)),
        process_bytes=_resident_bytes(),
        descriptors=_OWN_FILES + descriptors + (settings.connections if is_remote else 0),
        unknown=[path for path, size in held.items() if size is None],
    )


def _held_bytes(node: Node, sampled: Sampled | None) -> float | None:
    match node.source:
        case RowGroupSource() as source:
            return int(source.shards.sizes.sum()) if source.shards.fits else 2 * source.shards.window_bytes
        case BlockSource() as source:
            return 0.0 if source.shards.has_remote else min(_TAKEN_BYTES, int(source.shards.sizes.sum()))
        case SequentialSource() as source:
            return None if sampled is None else sampled.record_bytes * max(1, source.records_per_group)
    return 0.0 if isinstance(node.dataset, BaseDataset) else None


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
