import errno
import os
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.errors import StoreError
from streamdata.stores import stored_values
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.factory import open_store
from streamdata.stores.h5_store import H5Store
from streamdata.stores.segments import StoredArray
from streamdata.stores.stored_values import StoredValues, publish_sums
from tests.stores.tiny_stores import write

COUNT = 3000


@pytest.fixture(scope="module", params=["plain", "summed", "mapped", "mapped and summed"])
def opened(request, tmp_path_factory):
    """Opens an array of int32, 0 to 3,000, from byte 6 of a file on."""
    path = tmp_path_factory.mktemp("array") / "file"
    path.write_bytes(bytes(6) + np.arange(COUNT, dtype="<i4").tobytes() + b"after")
    if "summed" in request.param:
        publish_sums(str(path))
    array = StoredArray(str(path), np.dtype("<i4"), COUNT, 6, None, "summed" in request.param)
    return partial(StoredValues, array, verify=True, mapped="mapped" in request.param)


@given(begin=st.integers(-10, COUNT + 10), end=st.integers(-10, COUNT + 10), index=st.integers(-COUNT, COUNT - 1))
def test_it_reads_as_an_array_does(opened, begin, end, index):
    """By slices and ints, that count from either end; what lies before and after in the file is never seen."""
    values, array = opened(), np.arange(COUNT)
    assert values[begin:end].tolist() == array[begin:end].tolist()
    assert (values[index], len(values), type(values[index])) == (array[index], COUNT, int)


@given(length=st.integers(1, COUNT), data=st.data())
def test_rows_are_filled_with_runs(opened, length, data):
    """Wherever in a block they begin, and in any order."""
    firsts = data.draw(st.lists(st.integers(0, COUNT - length), max_size=5))
    rows = np.empty((len(firsts), length), "<i4")
    opened().read_into(rows, enumerate([100 + first for first in firsts]), 100)
    assert rows.tolist() == [list(range(first, first + length)) for first in firsts]


def test_an_index_outside_is_an_error(opened):
    """As of a list."""
    for index in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            opened()[index]


@pytest.mark.parametrize("most", [1, 100])
def test_reads_that_give_less_at_once_go_on(opened, most, monkeypatch):
    """One call gives at most 2 GiB, and some file systems less."""
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr("os.pread", lambda fd, size, at: pread(fd, min(size, most), at))
    monkeypatch.setattr("os.preadv", lambda fd, memories, at: preadv(fd, [memories[0][:most]], at))
    values, rows = opened(), np.empty((1, 300), "<i4")
    values.read_into(rows, [(0, 2700)], 0)
    assert rows[0].tolist() == values[2700:].tolist() == list(range(2700, 3000))


CUTS = [("bin", "e.bin"), ("bin", "records.bin"), ("h5", ".h5"), ("megatron", ".bin"), ("megatron", ".idx")]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("storage_type", "name"), CUTS)
def test_a_file_that_is_cut_short_later_is_an_error_not_a_crash(
    tmp_path, storage_type, name, is_open, verify, monkeypatch
):
    """Under a map the process would end; also where it was read from before."""
    monkeypatch.setattr(stored_values, "_kept", stored_values.Recent(1))  # offsets that are kept stay right
    store = open_store(write(storage_type, tmp_path, records=4), verify=verify)
    if is_open:
        store.fetch(0, 1, "sequence")
        store.values(store.column("sequence").segments[0].records.arrays[0])[0:1]
    (path,) = [path for path in tmp_path.rglob("*") if path.name.endswith(name)]
    os.truncate(path, 4)
    with pytest.raises(StoreError, match=f"{path}': expected|{path}.sums': expected"):
        [store.fetch_record(number, "sequence") for number in range(4)]


def test_the_options_of_loading_go_with_a_store(tmp_path):
    """Into workers, where it is loaded again; a store that is loaded has its own."""
    path = write("bin", tmp_path) / "shard_0000" / "sequence.bin"
    dataset = DatasetFactory.load("seq", tmp_path, 6, verify=False, mapped=True)
    with path.open("r+b") as file:
        file.write(b"\x09")
    again = pickle.loads(pickle.dumps(dataset))
    assert again[0]["input_ids"][0] == dataset[0]["input_ids"][0] == 9
    assert again.store.values(again.store.column("sequence").segments[0].data)._map is not None
    with pytest.raises(ValueError, match="verify, mapped and dtype with a load_path"):
        type(dataset)(store=dataset.store, window_size=6, mapped=True)


def test_shared_memory_is_checked_when_it_is_filled(tmp_path):
    """Afterwards no file is read."""
    store = H5Store().load(write("h5", tmp_path, records=4))
    (path,) = tmp_path.glob("*.h5")
    data = bytearray(path.read_bytes())
    data[data.index(np.array([700, 707], "<u2").tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="expected the block"):
        store.share_memory_()


@pytest.mark.parametrize("has_sums", [False, True])
@pytest.mark.parametrize("how", ["slice", "rows"])
def test_an_error_of_the_disk_keeps_its_type_and_says_where(tmp_path, monkeypatch, how, has_sums):
    """File and bytes, with sums and without."""
    np.arange(COUNT, dtype="<i4").tofile(path := tmp_path / "file")
    if has_sums:
        publish_sums(str(path))
    values = StoredValues(StoredArray(str(path), np.dtype("<i4"), COUNT, 0, None, has_sums), verify=True, mapped=False)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    for name in ("pread", "preadv"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        _ = values[3:5] if how == "slice" else values.read_into(np.empty((1, 2), "<i4"), [(0, 3)], 0)
    begin, end = (0, 4096) if has_sums else (12, 20)
    assert (caught.value.errno, caught.value.__notes__) == (
        errno.EIO,
        [f"  reading bytes {begin} to {end} of '{path}'"],
    )
