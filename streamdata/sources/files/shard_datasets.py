"""Shards that a recipe names by their format: CSV, JSONL, and tars of the webdataset convention."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamdata.errors import shown
from streamdata.fields import is_reserved
from streamdata.io.remote.addresses import CacheSetting, options_of_source, read_cache_settings
from streamdata.io.storage import is_remote, told_url
from streamdata.recipe.limits import Limits
from streamdata.recipe.named_source import Percent
from streamdata.shards.jsonl.csv_rows import CSV_SUFFIXES
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.listing import JSONL_SUFFIXES, TAR_SUFFIXES, is_sequential
from streamdata.shards.parquet.file import ROW_SUFFIXES
from streamdata.shards.sequential import SequentialCsv, SequentialJsonl, SequentialTar
from streamdata.shards.tar.shards import TarShards
from streamdata.shards.tar.sidecar import SIDECAR_KEYS
from streamdata.shards.urls import find_shards
from streamdata.sources.files.sequential_source import SequentialSource
from streamdata.sources.files.shard_source import BlockSource, ShardDataset
from streamdata.sources.functions.process_functions import PerRecordFn, StreamFns
from streamdata.sources.order.blocks import check_cut, cut_shards


class CsvDataset(ShardDataset):
    """Rows of CSV files as dicts of strings, named by the header; `__key__` is the row's number, from "0".

    Each file is read from its start, by one lane: write as many files as there are workers, or more.

    Args:
        path: A brace expression, a glob, a directory with all below it, a list of these, or several joined by commas:
            files of `.csv` and `.tsv`, compressed or not.
        process_fn: A stream function, or a list of several, see `docs/guides/sources.md`.
        delimiter: The character between values. None: a tab in `.tsv` files, a comma in others.
        single_process_fn: A function of one record, called first.
        shuffle_buffer: Records among which a lane shuffles; 0 keeps their order.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        cache: Where pages of remote files are kept on the node, `{path, max_bytes}`; see
            `docs/guides/object-stores.md`. None: as the top mixture says, or else STREAMDATA_DATA_CACHE.
        storage_options: Options of the store that holds the files: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), the longest line, or value over several lines, allowed.

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
        settings, bounds = read_cache_settings(cache), self._read_limits(limits)
        self.process_fn, self.single_process_fn = process_fn, single_process_fn
        check_cut(None, None, shuffle_buffer)
        urls, known = find_shards(path, CSV_SUFFIXES, None, options_of_source(storage_options, "CsvDataset"))
        # Where a row begins is known only to who has read all quotes before it: so a file is read from its start.
        kind = "csv" if delimiter is None else f"csv by {delimiter!r}"  # other rows, and other ones
        self.source = SequentialSource(kind, SequentialCsv(urls, known, bounds, delimiter), shuffle_buffer)
        self.cache = settings


class JsonlIterableDataset(ShardDataset):
    """Records of JSONL shards, one object per line; `__key__` is the line's number as a string, from "0".

    A file that is one JSON array of objects is read as if each element were a line.

    Blank lines are skipped and counted. A folder's shards are its `.jsonl` and `.ndjson`, and those compressed by gzip,
    Zstandard, bzip2 or xz (`.gz`, `.zst`, `.zstd`, `.bz2`, `.xz`), which are read from their start; `.json` and
    `.json.gz`, of lines or an array, are those that a glob ends in, or a list names.

    Args:
        path: A brace expression, a glob, a directory with all below it, a list of these, or several joined by commas.
        process_fn: A stream function, or a list of several, see `docs/guides/sources.md`.
        single_process_fn: A function of one record, called first.
        block_size: Records that are dealt to a lane at once, exactly. Without it bytes decide.
        block_bytes: Approximate bytes that are dealt to a lane at once: each shard is cut by its mean record. A source
            smaller than 2,048 blocks is cut finer, into about as many. None: 4 MiB and 64 records at most, and 512
            blocks at least where there are as many records.
        shuffle_buffer: Approximate number of records among which a lane shuffles: a window has as many blocks as hold
            that many records on average. 0 keeps the order inside blocks.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        cache: Where pages of remote shards are kept on the node, `{path, max_bytes}`; see
            `docs/guides/object-stores.md`. None: as the top mixture says, or else STREAMDATA_DATA_CACHE.
        storage_options: Options of the store that holds the shards: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `line_bytes` (64 MiB), the longest line allowed.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A shard is listed twice, or both block_size and block_bytes are given.
        ShardError: A line is not a JSON object that Python can hold exactly; raised when it is read.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        process_fn: StreamFns | None = None,
        *,
        single_process_fn: PerRecordFn | None = None,
        block_size: int | None = None,
        block_bytes: int | None = None,
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
        settings, options = read_cache_settings(cache), options_of_source(storage_options, "JsonlIterableDataset")
        bounds = self._read_limits(limits)
        self.process_fn, self.single_process_fn = process_fn, single_process_fn
        check_cut(block_size, block_bytes, shuffle_buffer)
        urls, known = find_shards(path, JSONL_SUFFIXES, None, options)
        # One for all shards, so that a record has one kind of position, whichever shard it is in.
        if any(map(is_sequential, urls)):
            self.source = SequentialSource("jsonl", SequentialJsonl(urls, known, bounds), shuffle_buffer)
        else:
            shards = JsonlShards(urls, known=known, limits=bounds)
            self.source = BlockSource("jsonl", shards, cut_shards(shards, block_size, block_bytes), shuffle_buffer)
        self.cache = settings


class MetaDistributedWebDataset(ShardDataset):
    """Records of tar shards, with fields from metadata beside `x/00001.tar`: `x/00001.meta.jsonl` or `.jsonl`.

    A record is a dict of the members that share a key, the path up to the base name's first dot: the rest of the
    name, lower-cased, is the field, and its value is raw bytes. See https://github.com/webdataset/webdataset for the
    convention.

    Args:
        path: A brace expression, a glob, a directory with all below it, a list of these, or several joined by commas.
        process_fn: A stream function, or a list of several, see `docs/guides/sources.md`.
        meta_names: Fields of a record's metadata line that join the record; None where the line or the field is
            missing. A line belongs to the record whose `.id` member, or else whose key, is its `key`.
        sidecar_key: How a line's `key` is matched: `id`, with the text of the record's `.id` member if it has one, or
            `key`, with the record's own key. By default each shard decides: by id if any line matches so, else by key.
        include_dirs: Further directories, with all below them; `dir*3` reads its shards three times per epoch.
        single_process_fn: A function of one record, called first.
        block_size: Records that are dealt to a lane at once, exactly. Without it bytes decide.
        block_bytes: Approximate bytes that are dealt to a lane at once: each shard is cut by its mean record. A source
            smaller than 2,048 blocks is cut finer, into about as many. None: 4 MiB and 64 records at most, and 512
            blocks at least where there are as many records.
        shuffle_buffer: Approximate number of records among which a lane shuffles: a window has as many blocks as hold
            that many records on average. 0 keeps the order inside blocks.
        name: Its name in a mixture, without a ".".
        percent: Its weight there.
        holdout: The share of its records that is held out of training; see `docs/guides/validation.md`.
        part: `train` or `valid`, where there is a holdout.
        cache: Where pages of remote shards are kept on the node, `{path, max_bytes}`; see
            `docs/guides/object-stores.md`. None: as the top mixture says, or else STREAMDATA_DATA_CACHE.
        storage_options: Options of the store that holds the shards: `endpoint`, `region`, `anonymous`, `profile`.
        limits: `member_bytes` (1 GiB) and `line_bytes` (64 MiB), the largest member and sidecar line allowed.
        mapped: Whether members are copied straight out of memory maps: less work, most in shuffled order. Only for
            uncompressed local shards that the kernel has in memory, since none is read ahead, and that nobody changes
            in the meantime: what is written may be delivered, and who truncates one kills the process (SIGBUS).

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A shard is listed twice, or both block_size and block_bytes are given; or one that is to be mapped
            is compressed or remote.
        ShardError: A shard or sidecar is damaged, or no line of a sidecar matches a record, or some match by id and
            others by key.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        process_fn: StreamFns | None = None,
        *,
        meta_names: Sequence[str] = (),
        include_dirs: str | Sequence[str] | None = None,
        single_process_fn: PerRecordFn | None = None,
        block_size: int | None = None,
        block_bytes: int | None = None,
        shuffle_buffer: int = 1000,
        sidecar_key: str | None = None,
        name: str | None = None,
        percent: Percent | None = None,
        holdout: float | None = None,
        part: str | None = None,
        cache: CacheSetting = None,
        storage_options: Mapping[str, Any] | None = None,
        limits: Limits = None,
        mapped: bool = False,
    ) -> None:
        super().__init__(name, percent, holdout, part)
        settings, options = read_cache_settings(cache), options_of_source(storage_options, "MetaDistributedWebDataset")
        bounds = self._read_limits(limits)
        self.process_fn, self.single_process_fn = process_fn, single_process_fn
        check_cut(block_size, block_bytes, shuffle_buffer)
        meta_names = _checked_meta(meta_names, sidecar_key)
        urls, known = find_shards(path, TAR_SUFFIXES, include_dirs, options)
        if mapped and (other := next((url for url in urls if is_sequential(url) or is_remote(url)), None)):
            got = f"mapped: expected uncompressed local tars, got '{told_url(other)}'"
            raise ValueError(f"MetaDistributedWebDataset: {got}\n  Leave it out: all shards can be read.")
        # One for all shards, so that a record has one kind of position, whichever shard it is in.
        if any(map(is_sequential, urls)):
            forward = SequentialTar(urls, meta_names, sidecar_key, known, bounds)
            self.source = SequentialSource("tar", forward, shuffle_buffer)
        else:
            shards = TarShards(urls, meta_names, sidecar_key, known=known, limits=bounds, mapped=mapped)
            self.source = BlockSource("tar", shards, cut_shards(shards, block_size, block_bytes), shuffle_buffer)
        self.cache = settings


def _checked_meta(meta_names: Sequence[str], sidecar_key: str | None) -> tuple[str, ...]:
    """Check a recipe's sidecar settings; return the field names as a tuple.

    Raises:
        ValueError: A name is none, comes twice, or is reserved; or `sidecar_key` is neither of the two, or there are no
            fields to join.
    """
    if isinstance(meta_names, str):
        raise ValueError(
            f"meta_names: expected a list of names, got the text {shown(meta_names)}\n  Write [{meta_names}]."
        )
    for index, name in enumerate(meta_names):
        if not isinstance(name, str) or name in meta_names[:index] or is_reserved(name):
            raise ValueError(
                f"meta_names: expected different names, without two underscores at both ends, got {shown(name)}\n"
                "  Name each field of the sidecar once."
            )
    if sidecar_key not in (None, *SIDECAR_KEYS):
        raise ValueError(
            f"sidecar_key: expected {' or '.join(map(repr, SIDECAR_KEYS))}, got {shown(sidecar_key)}\n"
            "  The keys of sidecars are the texts of '.id' members, or the records' keys. Without it, each shard tells."
        )
    if sidecar_key is not None and not meta_names:
        raise ValueError(
            f"sidecar_key: expected meta_names with it, got {shown(sidecar_key)} alone\n"
            "  Name the fields of the sidecar, or drop it."
        )
    return tuple(meta_names)


SHARD_SUFFIXES: Final = {
    "streamdata.CsvDataset": CSV_SUFFIXES,
    "streamdata.JsonlIterableDataset": JSONL_SUFFIXES,
    "streamdata.MetaDistributedWebDataset": TAR_SUFFIXES,
    "streamdata.ParquetDataset": ROW_SUFFIXES,
}
"""Suffixes of shards by the target of each source with a parameter `path` of shards."""
