"""Which rows stay: `rows → lengths, measured once and kept in the cache → numbers of the rows that stay`."""

import hashlib
import logging
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.chats.prompts.config import WHO, PromptConfig
from streamdata.chats.prompts.measuring import NOT_MEASURED, Int32s, measure_rows
from streamdata.chats.prompts.reader import EMPTY, MEDIA_CUT, PromptReader
from streamdata.errors import SourceError
from streamdata.io.file_cache import FileCache, open_cached
from streamdata.shards.parquet.rows import ParquetRows

logger = logging.getLogger("streamdata")
Int64s = npt.NDArray[np.int64]
_NUMBER_BYTES = 8
_REASONS = {EMPTY: "empty", MEDIA_CUT: "media cut"}


class Kept(NamedTuple):
    """The rows that stay.

    Attributes:
        path: The file of their numbers, int64; None where all rows stay.
        size: How many they are.
        digest: A hash of their numbers.
        dropped: How many others there are, by reason.
    """

    path: Path | None
    size: int
    digest: str
    dropped: dict[str, int]


class KeptNumbers:
    """The numbers of rows in a file, read where they lie: an array in each worker's heap would grow with the data."""

    def __init__(self, path: Path) -> None:
        self._file = open_cached(path)

    def __getitem__(self, index: int) -> int:
        """Number `index`.

        Raises:
            SourceError: The file was cut short.
        """
        content = self._file.read(_NUMBER_BYTES, _NUMBER_BYTES * index)
        if len(content) < _NUMBER_BYTES:
            raise SourceError(
                f"'{self._file.url}': expected the number of row {index} that stays, got a file that ends before it\n"
                "  Start again: that makes the file again."
            )
        return int.from_bytes(content, "little", signed=True)


def _all_rows(size: int) -> Kept:
    return Kept(None, size, _digest(b""), {})


def _digest(numbers: bytes) -> str:
    return hashlib.blake2b(numbers, digest_size=8).hexdigest()


def choose_rows(reader: PromptReader) -> Kept:
    """Choose the rows that stay, and log how many do not.

    Raises:
        SourceError: None stays.
    """
    rows, config = reader.rows, reader.config
    if not len(rows):
        paths = [file.path for file in rows.files]
        raise SourceError(f"{WHO}: expected rows, got none in {paths}\n  Look at the data.")
    cache = FileCache(config.cache_dir)
    subset = _subset(len(rows), config)
    filters = config.filter_prompts or reader.measures_tokens
    if subset is None and not filters:
        return _all_rows(len(rows))
    policy = reader.policy() if filters else ""
    numbers = stay = np.arange(len(rows)) if subset is None else subset
    dropped: dict[str, int] = {}
    if filters:
        ascending = np.argsort(numbers)  # files of lengths are asked for in the order of their rows
        lengths = np.empty(len(numbers), dtype=np.int32)
        lengths[ascending] = measured(reader, cache, policy, numbers[ascending])
        stay, dropped = _filter(numbers, lengths, config)
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    if not len(stay):
        raise SourceError(
            f"{WHO}: expected rows that stay, got none of {len(numbers)}: {reasons}\n"
            "  Raise max_prompt_length, or look at the data."
        )
    if dropped:
        logger.warning("%s: dropped %d of %d rows: %s", WHO, len(numbers) - len(stay), len(numbers), reasons)
    # Without a file: millions of rows that all stay need no list of their numbers.
    if len(stay) == len(rows):
        return _all_rows(len(rows))
    content = stay.astype("<i8").tobytes()
    path = _stored_numbers(cache, _name_of_choice(rows, policy, config), content)
    return Kept(path, len(stay), _digest(content), dropped)


def _stored_numbers(cache: FileCache, name: str, content: bytes) -> Path:
    path = cache.get(name, lambda target: target.write_bytes(content))
    # One that holds other numbers is damaged: readers look at single numbers, so that only here all are compared.
    return path if path.read_bytes() == content else cache.publish(name, lambda target: target.write_bytes(content))


def _subset(total: int, config: PromptConfig) -> Int64s | None:
    """The rows of `max_samples`, in the order in which they come; None for all."""
    if not 0 < config.max_samples < total:
        return None
    if not config.shuffle:
        return np.arange(config.max_samples)
    # NumPy's own generator, which keeps its streams between versions: verl chooses by it, so the rows are the same.
    chosen: Int64s = np.random.default_rng(config.seed or 0).choice(total, config.max_samples, replace=False)
    return chosen


def _filter(numbers: Int64s, lengths: Int32s, config: PromptConfig) -> tuple[Int64s, dict[str, int]]:
    overlong = (lengths > config.max_prompt_length) & config.filter_overlong_prompts
    counts = {reason: int((lengths == code).sum()) for code, reason in _REASONS.items()}
    counts["overlong"] = int(overlong.sum())
    # What has no length is negative, see EMPTY and MEDIA_CUT; NOT_MEASURED cannot be here.
    return numbers[(lengths >= 0) & ~overlong], {reason: count for reason, count in counts.items() if count}


def _name_of_choice(rows: ParquetRows, policy: str, config: PromptConfig) -> str:
    # Settings that do not matter are left out, so that changing them makes no second file.
    subset = (config.max_samples, config.shuffle, config.seed) if 0 < config.max_samples < len(rows) else None
    limit = config.max_prompt_length if config.filter_overlong_prompts else None
    text = repr((rows.digest, policy, subset, limit))
    return f"kept/{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.i64"


class _FileLengths(NamedTuple):
    """What is asked of one parquet file.

    Attributes:
        name: Its file of lengths in the cache.
        span: Which of the rows asked for are its own.
        local: Their numbers in the file.
        num_rows: How many rows the file has.
    """

    name: str
    span: slice
    local: Int64s
    num_rows: int


def measured(reader: PromptReader, cache: FileCache, policy: str, numbers: Int64s) -> Int32s:
    """The lengths of these rows, int32, shape (n,); only those are measured that never were under this policy.

    The numbers ascend.
    They are kept in one file per parquet file, under the hashes of its content and of the policy, so that they serve
    whoever reads the same file under another path, with others, or in part. Images that rows name by their paths are
    taken to stay as they are.
    """
    rows = reader.rows
    first, last = (rows.locate(int(number))[0] for number in (numbers[0], numbers[-1]))
    files = [_file_lengths(rows, file, policy, numbers) for file in range(first, last + 1)]
    values = _known(cache, files, len(numbers))
    if (values == NOT_MEASURED).any():
        with ExitStack() as locks:
            # In one order everywhere: processes with the same files in another order would wait for each other's locks.
            for name in sorted({file.name for file in files}):
                locks.enter_context(cache.lock(name))
            values = _known(cache, files, len(numbers))  # another process may have measured meanwhile
            _measure_missing(reader, cache, numbers, values, files)
    return values


def _file_lengths(rows: ParquetRows, file: int, policy: str, numbers: Int64s) -> _FileLengths:
    first, end = rows.first(file), rows.first(file + 1)
    span = slice(*np.searchsorted(numbers, [first, end]).tolist())
    return _FileLengths(f"lengths/{rows.files[file].digest}-{policy}.i32", span, numbers[span] - first, end - first)


def _known(cache: FileCache, files: Sequence[_FileLengths], count: int) -> Int32s:
    values = np.full(count, NOT_MEASURED, dtype=np.int32)
    for file in files:
        values[file.span] = _stored(cache, file)[file.local]
    return values


def _stored(cache: FileCache, file: _FileLengths) -> Int32s:
    """The lengths of all rows of a file, which their checksum follows; NOT_MEASURED where the two do not agree."""
    path = cache.directory / file.name
    if file.num_rows and path.exists():
        content = np.fromfile(path, "<i4")
        if len(content) == file.num_rows + 1 and zlib.crc32(content[:-1].data) == content[-1:].view("<u4")[0]:
            return content[:-1]
    return np.full(file.num_rows, NOT_MEASURED, dtype=np.int32)


def _measure_missing(
    reader: PromptReader, cache: FileCache, numbers: Int64s, values: Int32s, files: Sequence[_FileLengths]
) -> None:
    missing = np.flatnonzero(values == NOT_MEASURED)
    found = np.full(len(missing), NOT_MEASURED, dtype=np.int32)
    try:
        measure_rows(reader, numbers[missing], found, reader.config.filter_overlong_prompts_workers)
    finally:  # what was measured before an error or a Ctrl-C is published too: images take hours
        values[missing] = found
        for file in files:
            lengths = np.array(_stored(cache, file))  # read again: two files of the same content share one of lengths
            lengths[file.local] = values[file.span]
            content = lengths.astype("<i4").tobytes()
            content += zlib.crc32(content).to_bytes(4, "little")
            cache.publish(file.name, partial(Path.write_bytes, data=content))
