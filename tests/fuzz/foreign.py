"""Files that C libraries parse: images and parquet; HDF5 is among the stores, what is compressed among the shards."""

import io
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from streamdata import DecodeImages, ParquetDataset, StreamdataError
from streamdata.sources.functions.images import jpeg_to_tensor
from tests.fuzz.case import Files, Kind

_PICTURE = np.random.default_rng(0).integers(0, 255, (24, 20, 4), dtype=np.uint8)
_IMAGE_ERRORS = (StreamdataError, ValueError, OSError)
"""As the functions document them: `PIL.UnidentifiedImageError` is an OSError."""


def _images(form: str, *settings: tuple[str, dict[str, Any]]) -> list[Files]:
    found = []
    for mode, options in settings:
        buffer = io.BytesIO()
        Image.fromarray(_PICTURE).convert(mode).save(buffer, form, **options)
        found.append({"a.img": buffer.getvalue()})
    return found


def with_sums_of_chunks(content: bytes) -> bytes:
    """A PNG whose chunks' checksums fit."""
    data, at = bytearray(content), 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 12 + size > len(data):
            break
        data[at + 8 + size : at + 12 + size] = struct.pack(">I", zlib.crc32(data[at + 4 : at + 8 + size]))
        at += 12 + size
    return bytes(data)


def _read_image(folder: Path) -> Any:
    content = (folder / "a.img").read_bytes()
    return DecodeImages("a", 8)({"a": content})["a"].tolist()


def _read_by_turbo(folder: Path) -> Any:
    return jpeg_to_tensor((folder / "a.img").read_bytes(), 8).tolist()


def _tables() -> list[Files]:
    columns = {
        "n": pa.array([1, None, 3, 2**62]), "text": pa.array(["a", "b" * 50, None, "é"]), "ids": pa.array([[1, 2],
        [], None, [3]]),
        "image": pa.array([{"bytes": b"x", "path": "p"}, None, {"bytes": None, "path": None}, {"bytes": b"",
        "path": ""}]),
        "t": pa.array([0, 1, 2, None], pa.timestamp("us")), "f": pa.array([0.5, float("nan"), None, -1.0]),
    }  # fmt: skip
    found = []
    for options in ({}, {"compression": "zstd", "row_group_size": 2}, {"use_dictionary": False, "compression": "none"},
                    {"compression": "gzip", "data_page_version": "2.0", "write_page_checksum": True}):  # fmt: skip
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, **options)
        found.append({"a.parquet": buffer.getvalue()})
    return found


def _read_table(folder: Path) -> Any:
    shards = ParquetDataset(str(folder / "a.parquet")).source.shards
    counts = shards.num_records.astype(np.int64)  # of each row group
    window = shards.window(np.arange(len(counts)), np.zeros_like(counts), counts)
    found = list(window.take(range(int(counts.sum()))))
    assert len(found) == counts.sum(), f"{len(found)} rows, the file has {counts}"
    return found


_image = partial(Kind, target="a.img", read=_read_image, allowed=_IMAGE_ERRORS, is_foreign=True)
_JPEGS = (("RGB", {}), ("L", {"quality": 30}), ("CMYK", {}), ("RGB", {"progressive": True, "optimize": True}))
_PNGS = (("RGB", {}), ("RGBA", {}), ("P", {}), ("1", {}), ("L", {}), ("LA", {}))
_WEBPS = (("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", {"quality": 10}))
KINDS = [
    _image("jpeg", sound=partial(_images, "JPEG", *_JPEGS)),
    _image("jpeg-turbo", sound=partial(_images, "JPEG", *_JPEGS), read=_read_by_turbo),
    _image("png", sound=partial(_images, "PNG", *_PNGS), repair=with_sums_of_chunks),
    _image("webp", sound=partial(_images, "WEBP", *_WEBPS)),
    Kind("parquet", "a.parquet", _tables, _read_table, is_foreign=True),
]
