"""Writing shards: `samples → tars of bounded size, with their sidecars → a manifest beside them`."""

import tarfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import orjson

from streamdata.errors import names_text, shown
from streamdata.fields import KEY, is_reserved
from streamdata.io.storage import is_pipe, is_remote, local_path
from streamdata.run.publish import make_directory, publish_written, temporary_beside
from streamdata.shards.index.indexing import folder_of
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from streamdata.shards.listing import META_SUFFIX
from streamdata.shards.tar.headers import BLOCK, padded

_RECORD_BYTES = 10240
"""Archives are filled up to a multiple of this: 20 blocks, as POSIX has it."""


def write_shards(
    samples: Iterable[Mapping[str, Any]],
    pattern: str,
    *,
    max_records: int | None = None,
    max_bytes: int | None = None,
    sidecar: Collection[str] = (),
) -> list[str]:
    """Writes samples to tar shards, with a manifest of their folder, so that readers need not index them.

    A shard appears when it is complete. The same samples give the same bytes. Fields that streamdata itself sets
    (`__url__`, `__seed__` …) are left out, so that what a source delivers can be written again.

    Args:
        samples: Dicts with `__key__`, a string, and fields of bytes.
        pattern: The shards' paths, with a placeholder for their numbers from 0: `out/{:05d}.tar`.
        max_records: The most records of one shard.
        max_bytes: The largest shard, headers and padding included. A larger sample is a shard of its own.
        sidecar: Fields that go to the shard's `.meta.jsonl`, whatever JSON can say, and not into the tar.

    Returns:
        The paths of the shards.

    Raises:
        ValueError: The pattern has no number, or a sample cannot be written so that it is read again as it is.
        FileExistsError: A shard is there already.
    """
    _check(pattern, max_records, max_bytes, sidecar)
    written: list[str] = []
    with ExitStack() as stack:
        shard: _OpenTar | None = None
        for number, given in enumerate(samples):
            sample = _checked(given, number, sidecar)
            if shard is not None and shard.is_full_for(sample, max_records, max_bytes):
                shard.publish()
                shard = None
            if shard is None:
                shard = stack.enter_context(_OpenTar(pattern.format(len(written)), with_sidecar=bool(sidecar)))
                written.append(shard.url)
            shard.add(sample, number)
        if shard is not None:
            shard.publish()
    for folder in sorted({folder_of(url) or "./" for url in written}):
        make_manifest(take_stock([folder]))
    return written


class _Sample(NamedTuple):
    key: str
    fields: dict[str, bytes]
    line: bytes  # of the sidecar

    def num_bytes(self) -> int:
        """The bytes that the sample takes in an archive: headers, and data in whole blocks."""
        names = [f"{self.key}.{name}" for name in self.fields]
        # A name that its own header cannot say has another before it.
        headers = (
            BLOCK
            if name.isascii() and len(name) <= tarfile.LENGTH_NAME
            else len(tarfile.TarInfo(name).tobuf(tarfile.PAX_FORMAT))
            for name in names
        )
        return sum(headers) + sum(map(padded, map(len, self.fields.values())))


class _OpenTar:
    """A shard that is being written, under another name than it will have.

    Args:
        url: The shard.
        with_sidecar: Whether it has one.

    Raises:
        FileExistsError: It is there already.
    """

    def __init__(self, url: str, *, with_sidecar: bool) -> None:
        from webdataset import TarWriter

        self.url = url
        tar = Path(local_path(url))
        sidecar = tar.with_name(tar.name.removesuffix(".tar") + META_SUFFIX)
        for target in (tar, sidecar):
            if target.exists():
                raise FileExistsError(f"write_shards: '{target}' is there already\n  Remove it, or write elsewhere.")
        make_directory(tar.parent)
        # The sidecar comes first, so that the tar is never there without.
        self._targets = [sidecar, tar] if with_sidecar else [tar]
        self._temporary = list(map(temporary_beside, self._targets))
        self._files = [path.open("xb") for path in self._temporary]
        # mtime 0: the same samples are the same bytes.
        self._writer = TarWriter(self._files[-1], encoder=False, keep_meta=True, mtime=0)
        self._keys: set[str] = set()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind of a shard that was not published."""
        self._writer.close()
        for file, path in zip(self._files, self._temporary, strict=True):
            file.close()
            path.unlink(missing_ok=True)

    def is_full_for(self, sample: _Sample, max_records: int | None, max_bytes: int | None) -> bool:
        size = self._size + sample.num_bytes() + 2 * BLOCK
        size += -size % _RECORD_BYTES  # the archive is filled up
        return len(self._keys) == max_records or (max_bytes is not None and size > max_bytes)

    def add(self, sample: _Sample, number: int) -> None:
        if sample.key in self._keys:
            _refuse(number, "a key that no other sample of its shard has", repr(sample.key), "Give each its own.")
        self._writer.write({KEY: sample.key, **sample.fields})
        self._keys.add(sample.key)
        self._size += sample.num_bytes()
        if len(self._files) > 1:
            self._files[0].write(sample.line)

    def publish(self) -> None:
        self._writer.close()
        for file, temporary, target in zip(self._files, self._temporary, self._targets, strict=True):
            file.close()
            publish_written(temporary, target)


def _checked(sample: Mapping[str, Any], number: int, sidecar: Collection[str]) -> _Sample:
    key = sample.get(KEY)
    if not isinstance(key, str) or not key.rpartition("/")[2] or "." in key.rpartition("/")[2] or "\0" in key:
        _refuse(number, f"a text in '{KEY}', without a dot after its last slash", repr(key), "The dot ends the key.")
    fields: dict[str, bytes] = {}
    for name, value in sample.items():
        if is_reserved(name) or name in sidecar:
            continue
        if not name or name != name.lower() or "/" in name or "\0" in name:
            _refuse(number, "fields in lower case, without slashes", repr(name), "Readers would call it otherwise.")
        if not isinstance(value, bytes | bytearray | memoryview):
            got = f"{type(value).__name__} in '{name}'"
            _refuse(number, "bytes", got, f"Encode it, or put it into the sidecar: sidecar=['{name}'].")
        fields[name] = bytes(value)
    if not fields:
        _refuse(number, "a field of bytes", f"only {names_text(sample)}", "A record without one is not in a tar.")
    said = {name: sample[name] for name in sidecar if name in sample}
    try:
        return _Sample(key, fields, orjson.dumps({"key": key, **said}) + b"\n" if sidecar else b"")
    except TypeError as error:
        _refuse(number, f"what JSON can say in {names_text(said)}", str(error), "Convert it, or leave it out.")


def _refuse(number: int, expected: str, got: str, remedy: str) -> NoReturn:
    raise ValueError(f"write_shards: sample {number}: expected {expected}, got {got}\n  {remedy}")


def _check(pattern: str, max_records: int | None, max_bytes: int | None, sidecar: Collection[str]) -> None:
    try:
        names = pattern.format(0), pattern.format(1)
    except (IndexError, KeyError, ValueError) as error:
        names = str(error), str(error)
    if names[0] == names[1] or not pattern.endswith(".tar") or is_pipe(pattern):
        raise ValueError(
            "write_shards: expected a path with one place for a number, such as 'out/{{:05d}}.tar', got "
            f"{shown(pattern)}\n"
            "  Shards are tars; compressed ones could only be read from their start."
        )
    if is_remote(pattern):
        raise ValueError(
            f"write_shards: expected a local path, got {shown(pattern)}\n"
            "  Write to a disk, copy the folder, and run `streamdata index` there."
        )
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"write_shards: expected a positive number as {name}, got {shown(value)}")
    if isinstance(sidecar, str) or KEY in sidecar or "key" in sidecar or any(map(is_reserved, sidecar)):
        raise ValueError(
            f"write_shards: expected a list of fields as sidecar, without 'key', got {shown(sidecar)}\n"
            "  The key of each line is written by itself."
        )
