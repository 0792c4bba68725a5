import multiprocessing
import os
import pickle

import h5py
import numpy as np
import pytest
import torch

from streamdata.errors import StoreError
from streamdata.stores import h5_store
from streamdata.stores.factory import open_store
from streamdata.stores.h5_store import H5Store
from tests.stores.tiny_stores import record, write, write_old_h5


def test_older_datasets_are_read_in_the_order_of_their_numbers(tmp_path):
    """data_10 comes after data_9, file after file; each is a record."""
    parts = [np.array([number], np.int32) for number in range(11)]
    write_old_h5(tmp_path / "data_0000.h5", {"sequence": parts})
    write_old_h5(tmp_path / "data_0001.h5", {"sequence": [np.array([11], np.int32)]})
    store = open_store(tmp_path)
    assert store.fetch(0, 12, "sequence").tolist() == list(range(12))
    assert store.fetch_record(10, "sequence").tolist() == [10]


def test_older_groups_of_responses_are_lists(tmp_path):
    """A dataset of two dimensions is a record of items."""
    arrays = {
        "prompts": [np.array([1, 2]), np.array([3])],
        "responses": [np.array([[1, 2], [3, 4]]), np.array([[5], [6]])],
        "masks": [np.ones((2, 2), np.bool_), np.ones((2, 1), np.bool_)],
        "rewards": [np.array([0.5, 1]), np.array([1.0, 2])],
    }
    store = open_store(write_old_h5(tmp_path / "data_0000.h5", arrays).parent)
    assert (store.num_records, store.train_types) == (2, ("grpo",))
    assert store.fetch_record(0, "responses").tolist() == [[1, 2], [3, 4]]
    assert store.fetch_record(1, "masks").tolist() == [[True], [True]]


@pytest.mark.parametrize("options", [{}, {"chunks": (4,)}, {"chunks": (3,), "compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize("dtype", ["uint16", ">i4", "bool", "float64"])
def test_chunks_filters_and_byte_orders_are_read(tmp_path, options, dtype):
    """Contiguous or not."""
    values = np.arange(11).astype(dtype)
    store = open_store(write_old_h5(tmp_path / "data_0000.h5", {"sequence": [values, values]}, **options).parent)
    assert store.fetch(3, 20, "sequence").tolist() == [*values[3:].tolist(), *values[:9].tolist()]


@pytest.mark.parametrize("options", [{}, {"chunks": (2, 2)}, {"fletcher32": True}])
def test_arrays_of_two_dimensions_are_read_row_after_row(tmp_path, options):
    """Chunked or not, from any value to any other."""
    values = np.arange(15).reshape(5, 3)
    store = open_store(write_old_h5(tmp_path / "data_0000.h5", {"sequence": [values]}, **options).parent)
    for begin, end in ((0, 15), (2, 3), (2, 11), (6, 6), (14, 15)):
        assert store.fetch(begin, end, "sequence").tolist() == list(range(begin, end))
    assert store.fetch_record(0, "sequence").tolist() == values.tolist()


def test_numbers_that_the_library_has_no_type_for_are_damage(tmp_path):
    """h5py raises a ValueError of its own where it is asked for the dtype."""
    path = write_old_h5(tmp_path / "data_0000.h5", {"sequence": [np.ones(5)]})
    exponent = bytes([0, 0, 64, 0, 52, 11, 0, 52])
    content = path.read_bytes()
    path.write_bytes(content.replace(exponent + b"\xff\x03", exponent + b"\xff\x83"))
    with pytest.raises(StoreError, match=r"data_0000\.h5': expected a readable h5 file, got ValueError"):
        open_store(path)


def link(file, kind):
    """Puts something in place of sequence/data_0 that leads elsewhere."""
    group = file.create_group("sequence")
    if kind == "soft":
        file["other/data_0"] = np.arange(3)
        group["data_0"] = h5py.SoftLink("/other/data_0")
    elif kind == "linked file":
        group["data_0"] = h5py.ExternalLink("other.h5", "/sequence/data_0")
    elif kind == "external":
        group.create_dataset("data_0", (3,), "uint8", external=[("secret.bin", 0, 3)])
    elif kind == "virtual":
        layout = h5py.VirtualLayout((3,), "uint8")
        layout[:] = h5py.VirtualSource("other.h5", "sequence/data_0", (3,))
        group.create_virtual_dataset("data_0", layout)
    elif kind == "group":
        group.create_group("data_0")


@pytest.mark.parametrize("kind", ["soft", "linked file", "external", "virtual", "group"])
def test_datasets_that_lead_out_of_the_file_are_refused(tmp_path, kind):
    """What a downloaded file names is not opened."""
    (tmp_path / "store").mkdir()
    (tmp_path / "secret.bin").write_bytes(b"abc")
    with h5py.File(tmp_path / "store" / "data_0000.h5", "w") as file:
        link(file, kind)
    with pytest.raises(StoreError, match=r"expected 'sequence/data_0' to (lie in this file|be a dataset in this file)"):
        open_store(tmp_path / "store")


def test_a_linked_group_is_refused(tmp_path):
    """As a linked dataset is."""
    write_old_h5(tmp_path / "other.h5", {"sequence": [np.arange(3)]})
    with h5py.File(tmp_path / "data_0000.h5", "w") as file:
        file["sequence"] = h5py.ExternalLink("other.h5", "/sequence")
    with pytest.raises(StoreError, match="expected a group 'sequence' with datasets"):
        open_store(tmp_path)


BAD_FILES = [
    (lambda file: None, "got an empty file"),
    (lambda file: file.create_dataset("sequence", data=[1]), "expected a group 'sequence'"),
    (lambda file: file.create_group("sequence"), "expected a group 'sequence'"),
    (lambda file: file.create_dataset("sequence/tokens", data=[1]), "got .'tokens'"),
    (lambda file: file.create_dataset("sequence/data_0", data=np.zeros((1, 1, 1))), "expected 1 or 2 dimensions"),
    (lambda file: file.create_dataset("sequence/data_0", data=b"text"), "expected 1 or 2 dimensions"),
    (lambda file: file.create_dataset("sequence/data_0", data=[b"text"]), "expected a dtype"),
    (lambda file: file.create_dataset("sequence/data_0", data=np.zeros(2, np.uint64)), "expected a dtype"),
]


@pytest.mark.parametrize(("fill", "message"), BAD_FILES)
def test_other_contents_are_refused(tmp_path, fill, message):
    """With what was found."""
    with h5py.File(tmp_path / "data_0000.h5", "w") as file:
        fill(file)
    with pytest.raises(StoreError, match=message):
        open_store(tmp_path)


def test_what_is_not_an_h5_file_is_an_error(tmp_path):
    """Or one that was cut short."""
    (tmp_path / "data_0000.h5").write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"data_0000.h5': expected a readable h5 file"):
        open_store(tmp_path)
    path = write("h5", tmp_path / "store", records=4) / "data_0000.h5"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"data_0000.h5': expected"):
        open_store(path.parent)


@pytest.mark.parametrize("older", [False, True])
def test_a_damaged_byte_is_a_store_error_or_a_value(tmp_path, older):
    """Whatever h5py raises for it, on loading or on reading."""
    if older:
        write_old_h5(tmp_path / "data_0000.h5", {"sequence": [np.arange(30)]}, chunks=(7,), compression="gzip")
    else:
        write("h5", tmp_path, records=4)
    path = tmp_path / "data_0000.h5"
    sound, failures = path.read_bytes(), 0
    for place in range(0, len(sound), len(sound) // 150):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0xFF]) + sound[place + 1 :])
        try:
            store = open_store(tmp_path)
            store.fetch(0, len(store), "sequence")
        except StoreError:
            failures += 1
    assert failures > 10


def test_an_attribute_without_a_format_is_refused(tmp_path):
    """Of our own files."""
    write("h5", tmp_path, records=4)
    with h5py.File(tmp_path / "data_0000.h5", "a") as file:
        file.attrs["streamdata"] = '{"keys": {}}'
    with pytest.raises(StoreError, match="expected format 'streamdata' version 1, got None None"):
        open_store(tmp_path)


def test_facts_that_do_not_fit_the_datasets_are_an_error(tmp_path):
    """Of our own files: the shape in the attribute and that of the dataset."""
    write("h5", tmp_path, records=4)
    with h5py.File(tmp_path / "data_0000.h5", "a") as file:
        file.attrs["streamdata"] = file.attrs["streamdata"].replace('"uint16"', '"uint32"')
    with pytest.raises(StoreError, match="expected 'sequence/data_0' to be uint32 of shape"):
        open_store(tmp_path)


def chunked(directory):
    """A store that is read through handles."""
    parts = [np.arange(number, number + 5) for number in range(4)]
    return write_old_h5(directory / "data_0000.h5", {"sequence": parts}, chunks=(2,)).parent


def test_a_handle_does_not_cross_a_fork(tmp_path):
    """A child opens its own."""
    store = H5Store().load(chunked(tmp_path))
    store.fetch(0, 20, "sequence")
    read, written = os.pipe()
    if not (child := os.fork()):
        right = store.fetch(4, 6, "sequence").tolist() == [4, 1] and os.getpid() in store._open_files
        os.write(written, b"1" if right else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"


def test_open_files_are_bounded(tmp_path, monkeypatch):
    """However many are read."""
    monkeypatch.setattr(h5_store, "_MAX_OPEN_FILES", 2)
    for number in range(5):
        write_old_h5(tmp_path / f"data_{number:04d}.h5", {"sequence": [np.arange(4)]}, chunks=(2,))
    store = H5Store().load(tmp_path)
    assert store.fetch(0, 20, "sequence").tolist() == [0, 1, 2, 3] * 5
    assert len(list(store._open_files[os.getpid()])) == 2


def test_a_store_with_open_files_is_pickled_without_them(tmp_path):
    """They stay behind."""
    store = H5Store().load(chunked(tmp_path))
    first = store.fetch(0, 20, "sequence")
    assert torch.equal(pickle.loads(pickle.dumps(store)).fetch(0, 20, "sequence"), first)


def read_shared(store, removed, queue):
    """In a worker: the data sets are gone from the disk."""
    queue.put((store._shared.is_shared(), store.fetch(0, len(store), store.keys[0]).tolist(), removed))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_shared_memory_is_filled_once_for_all_workers(tmp_path, method):
    """They see the same bytes, and what a worker fetches is still a copy."""
    store = H5Store().load(chunked(tmp_path)).share_memory_()
    assert store.share_memory_()._shared is store._shared
    expected = store.fetch(0, 20, "sequence").tolist()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    worker = context.Process(target=read_shared, args=(store, False, queue))
    worker.start()
    assert queue.get(timeout=60)[:2] == (True, expected)
    worker.join()
    store._shared[:8] = 255
    assert store.fetch(0, 1, "sequence").item() == -1


@pytest.mark.parametrize("train_type", ["seq", "grpo"])
def test_records_come_out_of_shared_memory_too(tmp_path, train_type):
    """Offsets are shared as well."""
    store = H5Store().load(write("h5", tmp_path, train_type)).share_memory_()
    key = "sequence" if train_type == "seq" else "prompts"
    for number in range(12):
        assert store.fetch_record(number, key).tolist() == record(train_type, number)[key]


def test_sharing_needs_something_loaded():
    """An empty store shares nothing."""
    with pytest.raises(RuntimeError, match="Store not loaded"):
        H5Store().share_memory_()
