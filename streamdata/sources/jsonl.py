"""JSONL shards."""

from collections.abc import Sequence

from streamdata.shards.jsonl import JsonlShards
from streamdata.shards.sequential import SequentialJsonl
from streamdata.shards.urls import JSONL_SUFFIXES, expand, is_sequential
from streamdata.sources.functions import PerRecordFn, StreamFn
from streamdata.sources.shard_source import BlockSource, SequentialSource, ShardDataset


class JsonlIterableDataset(ShardDataset):
    """Records of JSONL shards: each line is an object; its `__key__` is the line's number, as a string from "0".

    Blank lines are skipped and counted. `.jsonl.gz` and `.jsonl.zst` are read from their start.

    Args:
        path: A brace expression, a glob, a directory with all below it, a list of these, or several joined by commas.
        process_fn: A stream function, see `streamdata.sources`.
        single_process_fn: A function of one record, called first.
        block_size: The most records that are dealt to a lane at once; None: 64, less in a small source.
        shuffle_buffer: Records among which a lane shuffles; 0 keeps the order inside blocks.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A shard is listed twice.
        ShardError: A line is not a JSON object that Python can hold exactly; raised when it is read.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        process_fn: StreamFn | None = None,
        *,
        single_process_fn: PerRecordFn | None = None,
        block_size: int | None = None,
        shuffle_buffer: int = 1000,
        name: str | None = None,
        percent: float | None = None,
    ) -> None:
        super().__init__(name, percent)
        self.process_fn, self.single_process_fn = process_fn, single_process_fn
        urls = expand(path, JSONL_SUFFIXES)
        # One for all shards, so that a record has one kind of position, whichever shard it is in.
        if any(map(is_sequential, urls)):
            self.source = SequentialSource("jsonl", SequentialJsonl(urls), shuffle_buffer)
        else:
            self.source = BlockSource("jsonl", JsonlShards(urls), block_size, shuffle_buffer)
