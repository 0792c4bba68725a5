"""Which rows stay: `rows → lengths, measured once and kept in the cache → numbers of the rows that stay`."""

import hashlib
import logging
import zlib
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import SourceError
from streamdata.run import Permutation, stable_seed
from streamdata.shards.file_cache import FileCache
from streamdata.shards.parquet_rows import ParquetRows
from streamdata.shards.storage import LocalShard
from streamdata.shards.stored_rows import GONE
from streamdata.sources.prompts.config import WHO, PromptConfig
from streamdata.sources.prompts.measuring import NOT_MEASURED, Int32s, measure_rows
from streamdata.sources.prompts.reader import EMPTY, MEDIA_CUT, PromptReader

logger = logging.getLogger("streamdata")
Int64s = npt.NDArray[np.int64]
_NUMBER_BYTES = 8
_REASONS = {EMPTY: "empty", MEDIA_CUT: "media cut"}


class Kept(NamedTuple):
    """The rows that stay: a file of their numbers, int64, how many they are, their hash, and why the others do not."""

    path: Path | None
    size: int
    digest: str
    dropped: dict[str, int]

    def numbers(self) -> "KeptNumbers | None":
        """The rows' numbers; None where all rows stay, in their order.

        Raises:
            FileNotFoundError: The cache was deleted since.
        """
        return None if self.path is None else KeptNumbers(self.path)


class KeptNumbers:
    """The numbers of rows in a file, which is read by positioned reads."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = LocalShard(str(path))
        except FileNotFoundError as error:
            error.add_note(GONE)
            raise

    def __getitem__(self, place: int) -> int:
        """Number `place`.

        Raises:
            SourceError: The file was cut short.
        """
        content = self._file.read(_NUMBER_BYTES, _NUMBER_BYTES * place)
        if len(content) < _NUMBER_BYTES:
            raise SourceError(
                f"'{self._file.url}': expected the number of row {place} that stays, got a file that ends before it\n"
                "  Start again: that makes the file again."
            )
        return int.from_bytes(content, "little", signed=True)


def _everything(size: int) -> Kept:
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
    wanted = _wanted(len(rows), config)
    filters = config.filter_prompts or reader.measures_tokens
    if wanted is None and not filters:
        return _everything(len(rows))
    policy = reader.policy() if filters else ""
    name = _name_of_choice(rows, policy, config)
    numbers = np.arange(len(rows)) if wanted is None else wanted
    stay = numbers
    dropped: dict[str, int] = {}
    if filters:
        lengths = measured(reader, cache, policy, numbers)
        stay, dropped = _filter(numbers, lengths, config)
    if not len(stay):
        raise SourceError(
            f"{WHO}: expected rows that stay, got none of {len(numbers)}: {_told(dropped)}\n"
            "  Raise max_prompt_length, or look at the data."
        )
    if dropped:
        logger.warning("%s: dropped %d of %d rows: %s", WHO, len(numbers) - len(stay), len(numbers), _told(dropped))
    if len(stay) == len(rows):
        return _everything(len(rows))
    content = stay.astype("<i8").tobytes()
    return Kept(_stored_numbers(cache, name, content), len(stay), _digest(content), dropped)


def _stored_numbers(cache: FileCache, name: str, content: bytes) -> Path:
    """The file of the numbers; one that holds others is damaged, and made again."""

    def write(path: Path) -> None:
        path.write_bytes(content)

    path = cache.get(name, write)
    return path if path.read_bytes() == content else cache.publish(name, write)


def _wanted(total: int, config: PromptConfig) -> Int64s | None:
    """The rows of `max_samples`, ascending; None for all."""
    if not 0 < config.max_samples < total:
        return None
    first = np.arange(config.max_samples)
    return np.sort(Permutation(total, stable_seed("prompts", config.seed or 0))(first)) if config.shuffle else first


def _filter(numbers: Int64s, lengths: Int32s, config: PromptConfig) -> tuple[Int64s, dict[str, int]]:
    overlong = lengths > config.max_prompt_length if config.filter_overlong_prompts else np.zeros(len(lengths), bool)
    dropped = Counter({reason: int((lengths == code).sum()) for code, reason in _REASONS.items()})
    dropped["overlong"] = int(overlong.sum())
    return numbers[(lengths >= 0) & ~overlong], {reason: count for reason, count in dropped.items() if count}


def _told(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items())


def _name_of_choice(rows: ParquetRows, policy: str, config: PromptConfig) -> str:
    subset = (config.max_samples, config.shuffle, config.seed) if 0 < config.max_samples < len(rows) else None
    limit = config.max_prompt_length if config.filter_overlong_prompts else None
    text = repr((rows.digest, policy, subset, limit))
    return f"kept/{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.i64"


def measured(reader: PromptReader, cache: FileCache, policy: str, numbers: Int64s) -> Int32s:
    """The lengths of these rows, int32, shape (n,); only those are measured that never were under this policy.

    They are kept in one file per parquet file, under the hashes of its content and of the policy, so that they serve
    whoever reads the same file in another place, with others, or in part. Images that rows name by their paths are
    taken to stay as they are.
    """
    rows = reader.rows
    files = [rows.locate(int(number))[0] for number in (numbers[0], numbers[-1])]
    values = np.full(len(numbers), NOT_MEASURED, dtype=np.int32)
    parts = [_part(rows, file, numbers) for file in range(files[0], files[1] + 1)]
    names = [f"lengths/{rows.files[file].digest}-{policy}.i32" for file in range(files[0], files[1] + 1)]
    for name, (span, local, size) in zip(names, parts, strict=True):
        values[span] = _stored(cache, name, size)[local]
    if (values == NOT_MEASURED).any():
        with ExitStack() as locks:
            for name in sorted(set(names)):
                locks.enter_context(cache.lock(name))
            _measure_missing(reader, cache, numbers, values, list(zip(names, parts, strict=True)))
    return values


class _Part(NamedTuple):
    """Rows of one file: where they are among those asked for, their numbers in the file, and its number of rows."""

    span: slice
    local: Int64s
    size: int


def _part(rows: ParquetRows, file: int, numbers: Int64s) -> _Part:
    first = rows.first(file)
    end = rows.first(file + 1)
    span = slice(*np.searchsorted(numbers, [first, end]).tolist())
    return _Part(span, numbers[span] - first, end - first)


def _stored(cache: FileCache, name: str, size: int) -> Int32s:
    """The lengths of a file's rows, and after them their checksum; none was measured where they do not agree."""
    path = cache.directory / name
    if size and path.exists():
        whole = np.fromfile(path, "<i4")
        if len(whole) == size + 1 and zlib.crc32(whole[:-1].data) == whole[-1:].view("<u4")[0]:
            return whole[:-1]
    return np.full(size, NOT_MEASURED, dtype=np.int32)


def _measure_missing(
    reader: PromptReader, cache: FileCache, numbers: Int64s, values: Int32s, parts: list[tuple[str, _Part]]
) -> None:
    """Measure and publish; what was measured before an error or a Ctrl-C is published too."""
    for name, (span, local, size) in parts:  # another process may have measured while this one waited for the lock
        values[span] = _stored(cache, name, size)[local]
    missing = np.flatnonzero(values == NOT_MEASURED)
    found = np.full(len(missing), NOT_MEASURED, dtype=np.int32)
    try:
        measure_rows(reader, numbers[missing], found, reader.config.filter_overlong_prompts_workers)
    finally:
        values[missing] = found
        for name, (span, local, size) in parts:
            whole = np.array(_stored(cache, name, size))
            whole[local] = values[span]
            cache.publish(name, partial(_write, whole))


def _write(lengths: Int32s, path: Path) -> None:
    content = lengths.astype("<i4").tobytes()
    path.write_bytes(content + zlib.crc32(content).to_bytes(4, "little"))
