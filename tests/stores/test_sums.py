import logging
import os
import pickle
import struct

import numpy as np
import pytest
import xxhash

from streamdata.errors import StoreError
from streamdata.stores import spool, stored_values
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.factory import open_store, verify
from streamdata.stores.h5_store import H5Store
from streamdata.stores.stored_values import BLOCK, Sums, publish_sums
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import FORMATS, write, write_old_h5, write_old_megatron


def contents(store):
    """All that a store holds: by position, by record, and where documents begin."""
    keys, size = store.keys, len(store)
    records = [store.fetch_record(number, key).tolist() for number in range(store.num_records) for key in keys]
    return [store.fetch(0, size, key).tolist() for key in keys], records, store.document_starts("sequence", 0, size)


def flipped(path, bit):
    """The file with one bit changed in place, as a disk or a cable does it."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("storage_type", FORMATS)
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path, storage_type):
    """Anywhere in tokens, offsets, index or sums; thirty of them."""
    want = repr(contents(open_store(write(storage_type, tmp_path, records=4))))
    errors, rng = 0, np.random.default_rng(0)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.name != "meta.json")
    for turn in range(30):
        path = files[turn % len(files)]
        bit = int(rng.integers(8 * path.stat().st_size))
        flipped(path, bit)
        try:
            assert repr(contents(open_store(tmp_path))) == want
        except StoreError:
            errors += 1
        flipped(path, bit)
    assert errors == 30 or (storage_type == "h5" and errors > 10)  # most of a small h5 file means nothing


def test_the_sums_are_those_of_the_blocks(tmp_path):
    """As their description has it, of every file of values."""
    with StoreWriter("bin", tmp_path, {"sequence": "uint16"}) as writer:
        writer.extend({"sequence": np.arange(5000)}, [2000, 3000])
    data = (tmp_path / "shard_0000" / "sequence.bin").read_bytes()
    expected = [xxhash.xxh3_64_intdigest(data[at : at + 4096]) & 0xFFFFFFFF for at in (0, 4096, 8192)]
    found = (tmp_path / "shard_0000" / "sequence.bin.sums").read_bytes()
    assert found == struct.pack("<8sQQ3I", b"sdsums\n\x01", 4096, 10_000, *expected)
    assert (tmp_path / "shard_0000" / "sequence.records.bin.sums").exists()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("storage_type", FORMATS)
def test_every_read_is_checked(tmp_path, storage_type, mapped):
    """What was sound a moment ago may not be so now; windows of a batch, of one, and a range."""
    with StoreWriter(storage_type, tmp_path, {"sequence": "uint16"}) as writer:
        writer.extend({"sequence": np.arange(20_000)}, [20_000])
    path = next(path for path in tmp_path.rglob("*") if path.suffix in {".bin", ".h5"})
    dataset = DatasetFactory.load("seq", tmp_path, 100, mapped=mapped)
    fetch = dataset.store.fetch
    reads = [lambda: dataset[100], lambda: dataset.__getitems__([3, 100]), lambda: fetch(0, 12_000, "sequence")]
    before = [read() for read in reads]
    at = path.read_bytes().index(struct.pack("<3H", 10_010, 10_011, 10_012))
    flipped(path, 8 * at)
    for read in reads:
        with pytest.raises(StoreError, match=rf"the block of 4096 bytes at {at // 4096 * 4096} to be as it was"):
            read()
    flipped(path, 8 * at)
    assert repr([read() for read in reads]) == repr(before)


def test_verify_false_reads_what_is_there(tmp_path):
    """For whoever would rather have most of it."""
    path = write("bin", tmp_path) / "shard_0000" / "sequence.bin"
    flipped(path, 0)
    with pytest.raises(StoreError, match=f"{path}': expected the block"):
        DatasetFactory.load("seq", tmp_path, 6)[0]
    assert DatasetFactory.load("seq", tmp_path, 6, verify=False)[0]["input_ids"].tolist() == [1, 7, 14, 700, 707, 714]


def test_sums_are_read_by_chunks_of_which_some_are_kept(tmp_path, monkeypatch):
    """Over their borders, in any order."""
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(9 * BLOCK + 24))
    publish_sums(str(path))
    monkeypatch.setattr(stored_values, "CHUNK_SUMS", 2)
    monkeypatch.setattr(stored_values, "MAX_CHUNKS", 2)
    found = Sums(str(path), path.stat().st_size)
    data = path.read_bytes()
    blocks = [memoryview(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    for first, last in [(0, 10), (3, 4), (1, 8), (9, 10), (0, 1), (5, 9)]:
        found.check(blocks[first:last], first * BLOCK)
        assert len(found) <= 2
    for number, block in enumerate(blocks):
        blocks[number] = memoryview(bytes([block[0] ^ 1]) + block[1:])
        with pytest.raises(StoreError, match=f"4096 bytes at {BLOCK * number} to be"):
            found.check(blocks, 0)
        blocks[number] = block


DAMAGE = [
    (lambda file, found: file.unlink(), "expected the sums of '.*', which were there, got no file"),
    (lambda file, found: file.write_bytes(b""), "expected sums that begin with"),
    (lambda file, found: file.write_bytes(b"x" + found[1:]), "expected sums that begin with"),
    (lambda file, found: file.write_bytes(found[:-1]), "expected 28 bytes, got 27"),
    (lambda file, found: file.write_bytes(found + b"x"), "expected 28 bytes, got 29"),
    (lambda file, found: file.write_bytes(found[:8] + b"\1" + found[9:]), "its sums of blocks of 4097"),
    (lambda file, found: file.with_suffix("").write_bytes(bytes(38)), "expected 36 bytes, as when its sums"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_sums_that_cannot_be_are_an_error(tmp_path, damage, message):
    """Gone since the store was loaded, cut short, or of a file of another size."""
    file = write("bin", tmp_path, records=4) / "shard_0000" / "sequence.bin.sums"
    store = open_store(tmp_path)
    damage(file, file.read_bytes())
    with pytest.raises(StoreError, match=message):
        store.fetch(0, 1, "sequence")


def test_sums_that_are_cut_short_while_they_are_read_are_an_error(tmp_path):
    """And not a wrong block."""
    file = write("bin", tmp_path, records=4) / "shard_0000" / "sequence.bin.sums"
    opened = Sums(str(file.with_suffix("")), 36)
    os.truncate(file, 25)
    with pytest.raises(StoreError, match=r"sums': expected 4 bytes of sum 0 on, got 1"):
        opened.check([memoryview(bytes(36))], 0)


def test_a_store_without_sums_says_so_once(tmp_path, caplog):
    """Not again in the workers that it is sent to, nor where that was chosen."""
    path = write_old_megatron(tmp_path / "name", [[1, 2], [3]], 4, "int32", [0, 1, 2])
    with caplog.at_level(logging.INFO, "streamdata"):
        store = open_store(path)
        assert len(pickle.loads(pickle.dumps(store))) == 3
        open_store(path, verify=False)
    (message,) = caplog.messages
    assert "no sums of 2 of its files" in message
    assert "streamdata verify --write-sums" in message


def test_a_store_with_sums_says_nothing(tmp_path, caplog):
    """All of its files are checked."""
    for storage_type in FORMATS:
        open_store(write(storage_type, tmp_path / storage_type))
    assert not caplog.messages


def test_chunked_datasets_are_not_checked_and_say_so(tmp_path, caplog):
    """Their library reads them; but `verify` does check the file."""
    path = write_old_h5(tmp_path / "data_0000.h5", {"sequence": [np.arange(30)]}, chunks=(7,))
    publish_sums(str(path))
    assert H5Store().load(tmp_path).fetch(0, 3, "sequence").tolist() == [0, 1, 2]
    (message,) = caplog.messages
    assert "not checked when they are read, since they are chunked or compressed: 1 datasets" in message
    flipped(path, 8 * 4000)
    assert any("expected the block" in problem for problem in verify(tmp_path))


@pytest.mark.parametrize("storage_type", FORMATS)
def test_sums_are_there_before_the_shard_can_be_read(tmp_path, storage_type, monkeypatch):
    """Their file comes before the marker, and if anything fails nothing stays."""
    published = []
    publish = spool.publish_written

    def recorded(temporary, path):
        names = [path.name] if temporary.is_file() else sorted(file.name for file in temporary.iterdir())
        published.append(names)
        if len(published) == stop:
            raise OSError("disk full")
        publish(temporary, path)

    monkeypatch.setattr(spool, "publish_written", recorded)
    stop = 0
    write(storage_type, tmp_path / "whole", records=4)
    steps, published = published, []
    assert any(name.endswith(".sums") for name in steps[-2 if len(steps) > 1 else 0])
    for stop in range(1, len(steps) + 1):
        published.clear()
        with pytest.raises(OSError, match="disk full"):
            write(storage_type, tmp_path / f"failed_{stop}", records=4)
        assert list((tmp_path / f"failed_{stop}").iterdir()) == []
