"""HDF5, parquet and images are damaged: what is not skipped and recorded ends in one error.

The name of each fault begins with its number in the table of `tests/README.md`.
"""

import io
import re
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from streamdata import (
    DatasetFactory,
    DecodeImages,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    ShardError,
    StoreError,
)
from streamdata.stores.writer import StoreWriter
from tests.faults.damaged_files import Damage, changed, cut, flip
from tests.faults.outcomes import after_damage
from tests.shard_files import jpeg
from tests.stores.tiny_stores import write_old_megatron

H5 = {
    "19 flip": (
        changed(np.arange(100, 104, dtype="<u2").tobytes(), b"xxxxxxxx"),
        r"the block of 4096 bytes at \d+ to be",
    ),
    "19 cut": (cut(-300), "expected a readable h5 file, got .*truncated file"),
    "19 cut by half": (lambda data: data[: len(data) // 2], "expected a readable h5 file, got .*truncated file"),
    "19 empty": (cut(0), "expected a readable h5 file, got .*signature not found"),
}
PARQUET = {
    "20 flip": (
        changed(b"text 60 text 60", b"text 60!text 60"),
        "expected a parquet file, got .* in row group 1: could",
    ),
    "20 cut": (cut(-20), "expected a parquet file, got .* cannot read in its footer"),
    "20 cut by half": (
        lambda data: data[: len(data) // 2],
        "expected a parquet file, got .* cannot read in its footer",
    ),
    "20 footer": (lambda data: flip(len(data) - 200)(data), "expected a parquet file, got .* cannot read in its foote"),
    "20 end": (lambda data: data[:-8] + bytes(8), "expected a parquet file, got .* cannot read in its footer"),
}


def cases(faults: dict[str, tuple[Damage, str]]) -> pytest.MarkDecorator:
    """A test for each of them."""
    return pytest.mark.parametrize(("damage", "message"), faults.values(), ids=faults)


def rewrite(path: Path, damage: Damage) -> None:
    """Damage a file."""
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))


@pytest.fixture
def h5(tmp_path: Path) -> Callable[..., Callable[[], MergedDataset]]:
    """Windows of eight tokens out of a file with sums."""
    with StoreWriter("h5", tmp_path, {"sequence": "uint16"}) as writer:
        writer.extend({"sequence": np.arange(6000)}, [60] * 100)

    def make(max_bad: int = 0) -> Callable[[], MergedDataset]:
        def stream() -> MergedDataset:
            dataset = DatasetFactory.load("seq", tmp_path, 250)
            dataset.name, dataset.percent, dataset.max_bad = "s", 1, max_bad
            return MergedDataset([dataset], cyclic=False)

        return stream

    return make


@cases(H5)
def test_a_damaged_h5_store_is_one_error(h5, tmp_path, caplog, damage, message) -> None:
    """When it is opened, or when the damaged block is read."""
    path = tmp_path / "data_0000.h5"
    outcome = after_damage(h5(), lambda: rewrite(path, damage), caplog)
    assert type(outcome.error) is StoreError
    assert re.search(f"file '{re.escape(str(path))}': .*{message}", outcome.said, re.DOTALL)


def test_windows_of_a_damaged_block_are_skipped_and_recorded(h5, tmp_path, caplog) -> None:
    """19: where the source may skip so many; all others come in their order."""
    damage, _ = H5["19 flip"]
    outcome = after_damage(h5(max_bad=20), lambda: rewrite(tmp_path / "data_0000.h5", damage), caplog)
    assert outcome.error is None
    assert 1 <= len(outcome.skipped) <= 9
    assert "index 0" in outcome.skipped


def number(at: int, layout: str, value: int) -> Damage:
    """Another number at an offset."""
    packed = struct.pack(layout, value)
    return lambda data: data[:at] + packed + data[at + len(packed) :]


POINTERS = 34 + 4 * 100  # behind the header and the lengths of a hundred sequences
PAIR = {
    "16 cut": (".bin", cut(-20), "expected"),
    "16 cut in a token": (".bin", cut(-3), "expected"),
    "17 cut": (".idx", cut(-8), "expected 2042 bytes for 100 sequences .*, got 2034"),
    "17 huge count": (".idx", number(18, "<Q", 1 << 60), "expected 13835058055282164554 bytes .*, got 2042"),
    "17 falls": (".idx", number(POINTERS + 8 * 50, "<q", 0), ""),
    "17 huge pointer": (".idx", number(POINTERS + 8 * 50, "<q", 1 << 60), ""),
    "17 negative length": (".idx", number(34 + 4 * 50, "<i", -60), ""),
}


@pytest.mark.parametrize(("suffix", "damage", "message"), PAIR.values(), ids=PAIR)
def test_a_damaged_pair_of_megatron_is_one_error(tmp_path, caplog, suffix, damage, message) -> None:
    """When it is opened, and nothing is allocated by what it says; windows do not ask where each sequence lies."""
    write_old_megatron(tmp_path / "name", np.arange(6000).reshape(100, 60).tolist(), 4, "int32", list(range(101)))
    path = tmp_path / f"name{suffix}"

    def stream() -> MergedDataset:
        dataset = DatasetFactory.load("seq", tmp_path, 250)
        dataset.name, dataset.percent = "s", 1
        return MergedDataset([dataset], cyclic=False)

    tracemalloc.start()
    outcome = after_damage(stream, lambda: rewrite(path, damage), caplog)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20
    assert type(outcome.error) is (StoreError if message else type(None))
    assert re.search(f"'{re.escape(str(path))}': {message}", outcome.said) if message else len(outcome.delivered) == 23


@cases(PARQUET)
def test_a_damaged_parquet_file_is_one_error(tmp_path, caplog, damage, message) -> None:
    """With file and row group; a flip of a bit shows where the file has sums of its pages."""
    for number in range(2):
        rows = pa.table({"text": [f"text {row} " * 9 for row in range(100 * number, 100 * number + 100)]})
        options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=50, **options)
    path = tmp_path / "0.parquet"

    def stream() -> MergedDataset:
        return MergedDataset([ParquetDataset(str(tmp_path), name="s", percent=1)], cyclic=False)

    outcome = after_damage(stream, lambda: rewrite(path, damage), caplog)
    assert type(outcome.error) is ShardError
    assert re.search(f"shard '{re.escape(str(path))}': {message}", outcome.said, re.DOTALL)


def bomb() -> bytes:
    """A PNG of a hundred bytes whose header promises 10^10 pixels."""
    buffer = io.BytesIO()
    Image.new("1", (4, 4)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = (100_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


IMAGES = {
    "21 cut": (jpeg(3, 64)[:600], OSError, "(?i)truncated"),
    "21 cut in its header": (jpeg(3, 64)[:30], OSError, "(?i)truncated|cannot identify image"),
    "21 bomb": (
        bomb(),
        ValueError,
        r"expected at most 89478485 pixels, got more \(Image size \(10000000000 pixels\).*; it is",
    ),
}


@pytest.mark.parametrize(("image", "error", "message"), IMAGES.values(), ids=IMAGES)
def test_an_image_that_does_not_decode_is_skipped_or_one_error(tmp_path, caplog, image, error, message) -> None:
    """Recorded, or with source, shard and key in the note; its type is the decoder's."""

    def write(third: bytes) -> None:
        with webdataset.TarWriter(str(tmp_path / "00000.tar"), mtime=0) as writer:
            for number in range(8):
                writer.write({"__key__": str(number), "jpg": third if number == 2 else jpeg(number, 64)})

    def stream(max_bad: int = 1) -> MergedDataset:
        function = DecodeImages("jpg", 8)
        dataset = MetaDistributedWebDataset(str(tmp_path), single_process_fn=function, shuffle_buffer=4)
        dataset.name, dataset.percent, dataset.max_bad = "s", 1, max_bad
        return MergedDataset([dataset], cyclic=False)

    write(jpeg(2, 64))
    outcome = after_damage(stream, lambda: write(image), caplog)
    assert outcome.skipped == [f"{tmp_path}/00000.tar, key '2'"]
    with pytest.raises(error, match=message) as caught:
        list(stream(max_bad=0))
    (note,) = caught.value.__notes__
    assert note.startswith(f"source 's': single_process_fn failed at {tmp_path}/00000.tar, key '2'\n  Mend the data or")
