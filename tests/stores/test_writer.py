import hashlib
import json
import resource
import time
from contextlib import contextmanager
from itertools import pairwise

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.errors import StoreError
from streamdata.stores import spool
from streamdata.stores.factory import open_store
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import FORMATS, KEYS, record, tokens, write, write_rows


def contents(directory):
    """Every file by its relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize("storage_type", FORMATS)
def test_records_come_back_as_they_were_written(tmp_path, storage_type):
    """In order, over shards."""
    store = open_store(write(storage_type, tmp_path / "store"))
    assert store.num_records == 12
    for number in range(12):
        assert store.fetch_record(number, "sequence").tolist() == record("seq", number)["sequence"]


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
@pytest.mark.parametrize("name", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float64"])
def test_every_dtype_comes_back(tmp_path, storage_type, name):
    """With its extreme values, as int64, bool or float."""
    dtype = np.dtype(name)
    values = [0, 1] if dtype.kind in "bf" else [np.iinfo(dtype).min, 1, np.iinfo(dtype).max]
    with StoreWriter(storage_type, tmp_path, {"sequence": name}) as writer:
        writer.append({"sequence": np.array(values, dtype)})
    fetched = open_store(tmp_path).fetch(0, len(values), "sequence")
    assert fetched.tolist() == values
    assert str(fetched.dtype) == {"b": "torch.bool", "f": "torch.float64"}.get(dtype.kind, "torch.int64")


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"])
def test_every_dtype_of_megatron_comes_back(tmp_path, name):
    """All eight codes."""
    with StoreWriter("megatron", tmp_path, {"sequence": name}) as writer:
        writer.extend({"sequence": np.array([1, 2, 3, 120], name)}, [1, 3])
    assert open_store(tmp_path).fetch_record(1, "sequence").tolist() == [2, 3, 120]


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12), cuts=st.sets(st.integers(1, 11)))
def test_the_bytes_do_not_depend_on_the_portions(tmp_path_factory, sizes, cuts):
    """Record by record or many at once."""
    directory = tmp_path_factory.mktemp("stores")
    flat = np.array(tokens(0, sum(sizes)))
    with StoreWriter("bin", directory / "a", KEYS["seq"], max_tokens_per_shard=10) as writer:
        for end, size in zip(np.cumsum(sizes), sizes, strict=True):
            writer.append({"sequence": flat[end - size : end]})
    with StoreWriter("bin", directory / "b", KEYS["seq"], max_tokens_per_shard=10) as writer:
        borders = [0, *sorted(cut for cut in cuts if cut < len(sizes)), len(sizes)]
        for first, last in pairwise(borders):
            part = flat[sum(sizes[:first]) : sum(sizes[:last])]
            writer.extend({"sequence": part}, sizes[first:last])
    assert contents(directory / "a") == contents(directory / "b")


@pytest.mark.parametrize("storage_type", FORMATS)
def test_the_same_records_give_the_same_bytes(tmp_path, storage_type):
    """At any time: no file holds a date."""
    first = contents(write(storage_type, tmp_path / "a"))
    time.sleep(1.05 if storage_type == "h5" else 0)
    assert contents(write(storage_type, tmp_path / "b")) == first


def test_a_shard_ends_before_it_is_too_long(tmp_path):
    """By its longest key; a record that is longer alone is a shard."""
    with StoreWriter("bin", tmp_path, {"a": "uint8", "b": "uint8"}, max_tokens_per_shard=5) as writer:
        for size in (1, 2, 2, 9, 1):
            writer.append({"a": [1], "b": [1] * size})
    sizes = [json.loads(path.joinpath("meta.json").read_text())["keys"]["b"]["shape"] for path in writer.shards]
    assert sizes == [[5], [9], [1]]


def test_meta_says_what_is_there(tmp_path):
    """Format, counts, offsets, rows, documents, what it is for, and a checksum per file."""
    write_rows("bin", tmp_path, [5, 5, 6], [[2, 3], [5], [1, 5]])
    meta = json.loads((tmp_path / "shard_0000" / "meta.json").read_text())
    assert (meta["format"], meta["version"], meta["num_tokens"], meta["num_records"]) == ("streamdata", 1, 16, 3)
    assert (meta["rows"], meta["train_types"]) == (True, ["seq", "sft"])
    key = meta["keys"]["sequence"]
    data = (tmp_path / "shard_0000" / "sequence.bin").read_bytes()
    assert key["checksum"] == hashlib.blake2b(data, digest_size=16).hexdigest()
    assert np.frombuffer(data, "<u2").tolist() == list(range(16))
    assert np.fromfile(tmp_path / "shard_0000" / key["records"]["data"], "<i8").tolist() == [0, 5, 10, 16]
    assert np.fromfile(tmp_path / "shard_0000" / meta["documents"]["data"], "<i8").tolist() == [0, 2, 5, 10, 11, 16]


def test_equal_lengths_need_no_offsets(tmp_path):
    """Then the length is told, and keys with the same offsets share them."""
    even = write("bin", tmp_path / "even", "seq", records=0)
    with StoreWriter("bin", tmp_path / "rows", KEYS["sft"], rows=True) as writer:
        for key_values in ([1, 2], [3, 4]):
            writer.append(dict.fromkeys(KEYS["sft"], np.array(key_values) % 2))
    assert not list(even.glob("*"))
    assert sorted(path.name for path in (tmp_path / "rows" / "shard_0000").iterdir()) == [
        "loss_mask.bin", "loss_mask.bin.sums", "meta.json", "position_ids.bin", "position_ids.bin.sums", "sequence.bin",
        "sequence.bin.sums",
    ]  # fmt: skip
    names = [path.name for path in (write("bin", tmp_path / "sft", "sft") / "shard_0000").glob("*.records.bin")]
    assert names == ["sequence.records.bin"]


def test_h5_says_the_same_in_its_file(tmp_path):
    """Contiguous datasets in a group per key, with the facts as an attribute."""
    write("h5", tmp_path)
    with h5py.File(tmp_path / "data_0000.h5") as file:
        assert json.loads(file.attrs["streamdata"])["num_records"] == 4
        assert sorted(file["sequence"]) == ["data_0", "records"]
        assert file["sequence/data_0"].dtype == np.uint16


@pytest.mark.parametrize("storage_type", FORMATS)
def test_what_fails_before_it_is_published_leaves_nothing_to_read(tmp_path, storage_type, monkeypatch):
    """Neither a shard nor a temporary one."""

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(spool, "publish_written", fail)
    with pytest.raises(OSError, match="disk full"), StoreWriter(storage_type, tmp_path, KEYS["seq"]) as writer:
        writer.append({"sequence": [1, 2]})
    assert not list(tmp_path.iterdir())


def write_then_fail(writer):
    """A shard and the begin of another, then lengths that are wrong."""
    writer.extend({"sequence": [1, 2, 3, 4]}, [3, 1])
    writer.extend({"sequence": [1]}, [2])


def test_an_error_drops_the_shard_under_way_and_keeps_the_others(tmp_path):
    """As a context manager."""
    writer = StoreWriter("bin", tmp_path, KEYS["seq"], max_tokens_per_shard=3)
    with pytest.raises(StoreError, match="add up"), writer:
        write_then_fail(writer)
    assert [path.name for path in tmp_path.iterdir()] == ["shard_0000"]


BAD_RECORDS = [
    ({"sequence": [1]}, "expected records with the keys"),
    ({"sequence": [1], "loss_mask": [True], "position_ids": [0], "more": [1]}, "expected records with the keys"),
    ({"sequence": [65_536], "loss_mask": [True], "position_ids": [0]}, "'sequence': expected values from 0 to 65535"),
    ({"sequence": [-1], "loss_mask": [True], "position_ids": [0]}, "got -1 to -1"),
    ({"sequence": [1], "loss_mask": [2], "position_ids": [0]}, "'loss_mask': expected values from 0 to 1"),
]


@contextmanager
def full_disk(size_bytes=1 << 12):
    """No file grows beyond so much."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("storage_type", FORMATS)
def test_a_full_disk_closes_the_writer_and_leaves_nothing(tmp_path, storage_type):
    """Some keys have the record then, and some not: no shard is made of that, now or later."""
    writer, last = (StoreWriter(storage_type, tmp_path / name, KEYS["seq"]) for name in ("middle", "last"))
    with pytest.raises(OSError, match="File too large"), full_disk():
        writer.append({"sequence": np.zeros(200_000, np.uint16)})
    with pytest.raises(StoreError, match="one that was closed"):
        writer.append({"sequence": [1]})
    writer.close()
    last.append({"sequence": range(10_000)})
    with pytest.raises(OSError, match="File too large"), full_disk():
        last.close()
    assert list(tmp_path.glob("*/*")) == []


@pytest.mark.parametrize("missing", [1, 400, 800, 2000])
def test_a_disk_that_is_full_with_the_last_bytes_of_an_h5_file_is_an_error(tmp_path, missing):
    """HDF5 itself would end the process there."""
    for name in ("whole", "cut"):
        writer = StoreWriter("h5", tmp_path / name, KEYS["seq"])
        writer.append({"sequence": range(10_000)})
        if name == "whole":
            writer.close()
    size_bytes = (tmp_path / "whole" / "data_0000.h5").stat().st_size
    with pytest.raises(OSError, match="File too large"), full_disk(size_bytes - missing):
        writer.close()
    assert list((tmp_path / "cut").iterdir()) == []


@pytest.mark.parametrize(("bad", "message"), BAD_RECORDS)
def test_a_bad_record_is_refused_whole(tmp_path, bad, message):
    """What was written before and after is all there is."""
    with StoreWriter("bin", tmp_path, KEYS["sft"]) as writer:
        writer.append({"sequence": [1, 2], "loss_mask": [True, False], "position_ids": [0, 1]})
        with pytest.raises(StoreError, match=message):
            writer.append(bad)
    assert (writer.num_records, writer.num_tokens, len(open_store(tmp_path))) == (1, 2, 2)


@pytest.mark.parametrize(
    ("lengths", "items", "documents", "message"),
    [
        ([3], None, None, "add up to 3, got 4 values"),
        ([5, -1], None, None, "lengths of at least 0"),
        ([4], None, [4], "documents lie in packed rows"),
    ],
)
def test_lengths_that_cannot_be_are_refused(tmp_path, lengths, items, documents, message):
    """They must add up, and documents need rows."""
    writer = StoreWriter("bin", tmp_path, KEYS["seq"])
    with pytest.raises(StoreError, match=message):
        writer.extend({"sequence": [1, 2, 3, 4]}, lengths, items, documents)


@pytest.mark.parametrize("documents", [[3, 1], [2, 1], [2, 2, 1], [0, 2, 2]])
def test_documents_fill_their_rows(tmp_path, documents):
    """None reaches into the next row, and none is empty."""
    writer = StoreWriter("bin", tmp_path, KEYS["seq"], rows=True)
    with pytest.raises(StoreError, match="documents"):
        writer.extend({"sequence": [1, 2, 3, 4]}, [2, 2], None, documents)


def test_documents_are_given_with_every_row_or_with_none(tmp_path):
    """A store that knows half of them knows nothing."""
    writer = StoreWriter("bin", tmp_path, KEYS["seq"], rows=True)
    writer.append({"sequence": [1, 2]}, [1, 1])
    with pytest.raises(StoreError, match="of all rows or of none"):
        writer.append({"sequence": [1, 2]})
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_keys_have_as_many_records(tmp_path):
    """And the items of lists are told one by one."""
    writer = StoreWriter("bin", tmp_path, {"a": "uint8", "b": "uint8"}, items=["b"])
    with pytest.raises(StoreError, match="as many records of every key"):
        writer.extend({"a": [1, 2], "b": [1]}, {"a": [1, 1], "b": [1]}, {"b": [1]})
    with pytest.raises(StoreError, match="have 2 items, got 1"):
        writer.extend({"a": [1], "b": [1]}, {"a": [1], "b": [2]}, {"b": [1]})


BAD_WRITERS = [
    (("tar", {"sequence": "uint16"}), {}, "expected a format of"),
    (("bin", {}), {}, "expected keys"),
    (("bin", {"../x": "uint16"}), {}, "expected a key of letters"),
    (("bin", {"sequence": "uint64"}), {}, "expected a dtype of"),
    (("bin", {"sequence": "uint16"}), {"items": ["other"]}, "items among them"),
    (("bin", {"sequence": "uint16"}), {"max_tokens_per_shard": 0}, "at least 1"),
    (("bin", {"sequence": "uint16"}), {"train_types": ["sft"]}, r"needs the keys \['loss_mask'\]"),
    (("bin", {"sequence": "uint16"}), {"train_types": ["other"]}, "'other'"),
    (("megatron", {"sequence": "uint32"}), {}, "format 'megatron' holds one key"),
    (("megatron", {"chosen": "uint16"}), {}, "format 'megatron' holds one key"),
    (("megatron", {"sequence": "uint16"}), {"rows": True}, "format 'megatron' holds one key"),
]


@pytest.mark.parametrize(("arguments", "options", "message"), BAD_WRITERS)
def test_a_writer_that_cannot_be_says_why(tmp_path, arguments, options, message):
    """Before anything is made."""
    storage_type, keys = arguments
    with pytest.raises(StoreError, match=message):
        StoreWriter(storage_type, tmp_path / "store", keys, **options)
    assert not (tmp_path / "store").exists()


def test_a_directory_with_shards_is_refused(tmp_path):
    """Nothing is overwritten or mixed."""
    write("bin", tmp_path)
    with pytest.raises(StoreError, match=r"expected no shards in it, got \['shard_0000'"):
        StoreWriter("h5", tmp_path, KEYS["seq"])


def test_a_closed_writer_takes_no_more(tmp_path):
    """Closing twice is nothing."""
    writer = StoreWriter("bin", tmp_path, KEYS["seq"])
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.append({"sequence": [1]})


def test_a_megatron_sequence_that_is_too_long_is_refused():
    """Its lengths are int32."""
    from streamdata.stores.megatron_store import encode_index

    with pytest.raises(StoreError, match="at most 2147483647"):
        encode_index(np.array([0, 2**31]), np.dtype("uint8"))
