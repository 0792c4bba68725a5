"""CSV shards."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamdata.io.cache.settings import CacheSetting, read_cache_settings
from streamdata.io.remote import options_of_source
from streamdata.recipe.limits import Limits, ShardLimits, read_limits
from streamdata.recipe.named_source import Percent
from streamdata.shards.jsonl.csv_rows import CSV_SUFFIXES
from streamdata.shards.sequential import SequentialCsv
from streamdata.shards.urls import find_shards
from streamdata.sources.files.sequential_source import SequentialSource
from streamdata.sources.files.shard_source import ShardDataset
from streamdata.sources.functions.process_functions import PerRecordFn, StreamFns
from streamdata.sources.order.cut import check_cut


class CsvDataset(ShardDataset):
    """Rows of CSV files: the header names the fields, and values stay text; `__key__` is the row's number, from "0".

    Each file is read from its start, by one lane: write as many files as there are workers, or more.

    Args:
        path: A brace expression, a glob, a directory with all below it, a list of these, or several joined by commas:
            files of `.csv` and `.tsv`, compressed or not.
        process_fn: A stream function, or a list of several, see `streamdata.sources`.
        delimiter: What stands between values, one character. None: a tab in files called `.tsv`, a comma in others.
        single_process_fn: A function of one record, called first.
        shuffle_buffer: Records among which a lane shuffles; 0 keeps their order.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: Which share of its records is held out of training; see `NamedSource`.
        part: `train` or `valid`, where there is a holdout.
        cache: Where pages of remote files are kept on the node, `{path, max_bytes}`; see `CacheSettings`. None: as the
            top mixture says, or else STREAMDATA_DATA_CACHE.
        storage_options: Of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), what a line, and a value over several, may have at most.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A file is listed twice, or the delimiter is not one character.
        ShardError: A row has another number of fields than the header; raised when it is read, with file and line.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        process_fn: StreamFns | None = None,
        *,
        delimiter: str | None = None,
        single_process_fn: PerRecordFn | None = None,
        shuffle_buffer: int = 1000,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        cache: CacheSetting = None,
        storage_options: Mapping[str, Any] | None = None,
        limits: Limits = None,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        settings, bounds = read_cache_settings(cache), read_limits(limits, ShardLimits, "CsvDataset")
        self.process_fn, self.single_process_fn = process_fn, single_process_fn
        check_cut(None, None, shuffle_buffer)
        urls, known = find_shards(path, CSV_SUFFIXES, None, options_of_source(storage_options, "CsvDataset"))
        # Where a row begins is known only to who has read all quotes before it: so a file is read from its start.
        kind = "csv" if delimiter is None else f"csv by {delimiter!r}"  # other rows, and other ones
        self.source = SequentialSource(kind, SequentialCsv(urls, known, bounds, delimiter), shuffle_buffer)
        self.cache = settings
