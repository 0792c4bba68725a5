"""Stores of every format, their sums, and what they say of themselves."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

from streamdata.stores.factory import open_store, verify
from streamdata.stores.store import Store
from streamdata.stores.stored_values import write_sums
from tests.fuzz.case import JSON, Files, Kind
from tests.stores.tiny_stores import write, write_old_bin, write_old_h5, write_old_megatron

_MOST_RECORDS = 2000


def _files(write_all: Callable[[Path], object]) -> Files:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_all(folder / "s")
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read(name: str, folder: Path, **options: Any) -> Any:
    """All that a store says and holds."""
    path = folder / name
    store: Store = open_store(path, **options)
    found: list[Any] = [store.keys, store.identity, store.train_types, len(store)]
    for key in store.keys:
        column = store.column(key)
        found.append(store.array(key, 0, len(column)).tobytes())
        for number in range(min(column.num_records, _MOST_RECORDS)):
            record = store.record(key, number)
            found.append([run.tobytes() for run in record] if isinstance(record, list) else record.tobytes())
        if all(segment.documents is not None for segment in column.segments):
            starts = store.document_starts(key, 0, len(column))
            assert all(0 < start < len(column) for start in starts), f"documents of {key!r} begin at {starts}"
            found.append(starts.tobytes())
    found.append(store.num_records)
    found.append([problem.replace(str(folder), "") for problem in verify(path, vocab_size=50_000)])
    return found


def _bins() -> list[Files]:
    settings = {"records": 3, "max_tokens_per_shard": 100}
    return [_files(partial(write, "bin", train_type=kind, **settings)) for kind in ("sft", "grpo")]


def _old_bins() -> list[Files]:
    arrays = {"sequence": np.arange(40, dtype=np.uint16), "loss_mask": np.ones(40, bool)}
    rows = {"sequence": np.arange(40, dtype=np.int32).reshape(4, 10)}
    return [
        _files(lambda folder: write_old_bin(folder / "shard_0000", arrays, {"sequence": [0, 3, 3, 40]})),
        _files(lambda folder: write_old_bin(folder / "shard_0000", rows)),
    ]


def _megatrons() -> list[Files]:
    sequences = [[1, 2, 3], [4], [], [5, 6, 7, 8]]
    found = [
        _files(lambda folder: write_old_megatron(folder / "data_0000", sequences, 8, "uint16", [0, 2, 4])),
        _files(lambda folder: write_old_megatron(folder / "data_0000", [[9] * 700, [1]], 4, "int32", [0, 1, 2])),
    ]
    modes = dict(found[0])
    modes["s/data_0000.idx"] += bytes([0, 1, 0, 1])
    return [*found, modes]


def _h5s() -> list[Files]:
    plain = {"sequence": [np.arange(30, dtype=np.uint16), np.arange(7, dtype=np.uint16)]}
    found = [
        _files(lambda folder: write_old_h5(folder / "data_0000.h5", plain)),
        _files(lambda folder: write_old_h5(folder / "data_0000.h5", plain, chunks=(4,), compression="gzip")),
        _files(lambda folder: write_old_h5(folder / "data_0000.h5", {"a": [np.ones((3, 5))]}, fletcher32=True)),
        _files(partial(write, "h5", train_type="sft", records=3, max_tokens_per_shard=100)),
        _files(_latest_h5),
    ]
    names = [next(name for name in files if name.endswith(".h5")) for files in found]
    return [{"s/data_0000.h5": files[name]} for files, name in zip(found, names, strict=True)]


def _latest_h5(folder: Path) -> None:
    folder.mkdir()
    with h5py.File(folder / "data_0000.h5", "w", libver="latest") as file:
        file.create_dataset("sequence/data_0", data=np.arange(50, dtype=np.int32), chunks=(16,), shuffle=True)


def _npys() -> list[Files]:
    found = []
    for version, array in (((1, 0), np.arange(20, dtype=np.uint16)), ((2, 0), np.arange(9)), ((3, 0), np.ones(3))):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, version)
        found.append({"s/a.npy": buffer.getvalue()})
    return found


def _ds() -> Files:
    ids = np.arange(20, dtype="<u2").tobytes()
    index = np.array([3, 3, 20], "<u8").tobytes()
    return {"s/a.ds": ids, "s/a.ds.index": index, "s/a.ds.metadata": b"gpt2|2\n20\n", "s/a.ds.loss": bytes([1, 0] * 10)}


def _tokens() -> list[Files]:
    llmc = [
        np.array([20240520, 1, 30, *[0] * 253], "<i4").tobytes() + np.arange(30, dtype="<u2").tobytes(),
        np.array([20240801, 7, 30, *[0] * 253], "<i4").tobytes() + np.arange(30, dtype="<u4").tobytes(),
    ]
    return [*({"s/a.bin": content} for content in llmc), {"s/a.bin": np.arange(40, dtype="<u2").tobytes()}]


def _summed() -> list[Files]:
    def write_both(folder: Path) -> None:
        folder.mkdir()
        np.save(folder / "a.npy", np.arange(9000, dtype=np.uint16))
        write_sums(folder / "a.npy", folder / "a.npy.sums")

    return [_files(write_both)]


_META_LEAVES = ("sequence", "loss_mask", "data", "records", "items", "uint8", "int64", "float16", ">u2", "u1,u2", "U3",
                "sequence.bin", "sequence.records.bin", "data_0", "sequence/data_0", "seq", "O", "V8",
                "M8[ns]")  # fmt: skip
_NPY_WORDS = (
    b"'<u2'", b"'O'", b"'|V8'", b"('<u2', (3,))", b"[('a', '<u2')]", b"(20L,)", b"(", b")" * 9, b"(" * 300, b"-1",
    b"True",
    b"{", b"}", b"'", b"\n", b"\0", b"1" * 30, b"(1, 2)", b"None", b"\\x00", b"'shape'", b"...", b"lambda: 0",
    b"  \n  1\n 2",
)  # fmt: skip
_DIGITS = (b"|", b"\n", b"\xc2\xb2", b"\xd9\xa3")  # the last two are digits of other scripts, or nearly
_LAST = "s/shard_0000/meta.json"
KINDS = [
    Kind("store-meta", _LAST, _bins, partial(_read, "s"), tree=JSON, leaves=_META_LEAVES),
    Kind("store-old-meta", _LAST, _old_bins, partial(_read, "s"), tree=JSON, leaves=_META_LEAVES),
    Kind("store-bin", "s/shard_0000/sequence.bin", _old_bins, partial(_read, "s")),
    Kind("store-megatron", "s/data_0000.idx", _megatrons, partial(_read, "s")),
    Kind("store-npy", "s/a.npy", _npys, partial(_read, "s"), words=_NPY_WORDS),
    Kind("store-ds", "s/a.ds.index", lambda: [_ds()], partial(_read, "s")),
    Kind("store-ds-metadata", "s/a.ds.metadata", lambda: [_ds()], partial(_read, "s"), words=_DIGITS),
    Kind("store-tokens", "s/a.bin", _tokens, partial(_read, "s/a.bin")),
    Kind("sums", "s/a.npy.sums", _summed, partial(_read, "s")),
    Kind("store-h5", "s/data_0000.h5", _h5s, partial(_read, "s"), is_foreign=True),
]  # fmt: skip
