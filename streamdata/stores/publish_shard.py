"""The last step of writing: a spooled shard becomes a shard of its format, all of it at once.

bin: `shard_NNNN/` with the spooled files and `meta.json`. h5: `data_NNNN.h5`, one group per key with the contiguous
datasets `data_0`, `records`, `items`, `documents`, and the meta as attribute. megatron: `data_NNNN.bin`, then the
`data_NNNN.idx` that makes it readable. Each file of values has its sums (`streamdata.stores.sums`) beside it, which
are there before the shard can be read. The same records give the same bytes.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamdata.run.publish import publish_written
from streamdata.stores.megatron_index import encode_index
from streamdata.stores.meta import Purpose, encode
from streamdata.stores.spool import OFFSET_DTYPE, Spool, SpooledBounds, file_name
from streamdata.stores.sums import SUMS, write_sums

_CHUNK = 1 << 22
_H5_OVERHEAD = 1 << 16
"""More than the groups and datasets of all keys take beside their values."""


def publish_bin(spool: Spool, directory: Path, number: int, purpose: Purpose) -> Path:
    """Publish `shard_NNNN/`."""
    for file in sorted(spool.directory.iterdir()):
        _with_sums(file)
    meta = encode(spool, purpose, file_name)
    spool.directory.joinpath("meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    path = directory / f"shard_{number:04d}"
    publish_written(spool.directory, path)
    return path


def publish_h5(spool: Spool, directory: Path, number: int, purpose: Purpose) -> Path:
    """Publish `data_NNNN.h5`; one version of the file format and no times in it, so that its bytes are reproducible."""
    import h5py

    temporary = spool.directory / "data.h5"
    meta = json.dumps(encode(spool, purpose, _dataset_name))
    _reserve(temporary, sum(file.stat().st_size for file in spool.directory.iterdir()) + len(meta) + _H5_OVERHEAD)
    with h5py.File(temporary, "w", libver=("v110", "v110"), locking=False) as file:
        file.attrs["streamdata"] = meta
        for key, written in spool.keys.items():
            _copy(file, spool, (key, "data"), written.dtype, written.count)
        for bounds in _stored_bounds(spool):
            _copy(file, spool, bounds.part, OFFSET_DTYPE, bounds.count + 1)
    path = directory / f"data_{number:04d}.h5"
    _publish_in_turn(zip(reversed(_with_sums(temporary)), (Path(f"{path}{SUMS}"), path), strict=True))
    return path


def _reserve(path: Path, size_bytes: int) -> None:
    """Raise OSError where a file of this size does not fit: HDF5 ends the process when the disk is full."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)


def publish_megatron(spool: Spool, directory: Path, number: int, _: Purpose) -> Path:
    """Publish `data_NNNN.bin`, then `data_NNNN.idx`, which cannot record a purpose."""
    ((key, written),) = spool.keys.items()
    path = directory / f"data_{number:04d}.bin"
    bounds = written.records
    ends = (
        np.fromfile(spool.path(*bounds.part), OFFSET_DTYPE)
        if bounds.length is None
        else np.arange(bounds.count + 1, dtype=OFFSET_DTYPE) * bounds.length
    )
    index = spool.directory / "index"
    with index.open("wb") as file:
        file.writelines(encode_index(ends, written.dtype))
    tokens, tokens_sums = _with_sums(spool.path(key, "data"))
    index, index_sums = _with_sums(index)
    paths = [path, Path(f"{path}{SUMS}"), path.with_suffix(f".idx{SUMS}"), path.with_suffix(".idx")]
    _publish_in_turn(zip([tokens, tokens_sums, index_sums, index], paths, strict=True))
    return path


PUBLISH: Final[Mapping[str, Callable[[Spool, Path, int, Purpose], Path]]] = {
    "bin": publish_bin,
    "h5": publish_h5,
    "megatron": publish_megatron,
}


def _with_sums(file: Path) -> tuple[Path, Path]:
    """The file, and that of its sums, written beside it."""
    sums = Path(f"{file}{SUMS}")
    write_sums(file, sums)
    return file, sums


def _publish_in_turn(files: Iterable[tuple[Path, Path]]) -> None:
    """Publish files, each from its temporary path; the last makes the others readable. All of them or none."""
    published: list[Path] = []
    try:
        for temporary, path in files:
            publish_written(temporary, path)
            published.append(path)
    except BaseException:
        for path in published:
            path.unlink()
        raise


def _dataset_name(key: str, part: str) -> str:
    return f"{key}/{'data_0' if part == 'data' else part}"


def _stored_bounds(spool: Spool) -> list[SpooledBounds]:
    """Each array of offsets once, though keys may share it."""
    levels = [bounds for key in spool.keys.values() for bounds in (key.records, key.items)] + [spool.documents]
    return list({bounds.part: bounds for bounds in levels if bounds is not None and bounds.length is None}.values())


def _copy(file: Any, spool: Spool, part: tuple[str, str], dtype: np.dtype[Any], count: int) -> None:
    dataset = file.create_dataset(_dataset_name(*part), shape=(count,), dtype=dtype, track_times=False)
    for begin in range(0, count, _CHUNK):
        values = np.fromfile(spool.path(*part), dtype, _CHUNK, offset=begin * dtype.itemsize)
        dataset[begin : begin + len(values)] = values
