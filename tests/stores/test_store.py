import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamdata.errors import StoreError
from streamdata.run.per_process import Recent
from streamdata.stores import store
from streamdata.stores.factory import StoreFactory, open_store
from streamdata.stores.h5_store import H5Store
from streamdata.stores.megatron_store import MegatronStore
from streamdata.stores.mmap_store import MmapStore
from streamdata.stores.token_files import TokenFileStore
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import FORMATS, record, write, write_old_bin, write_old_h5

segments = st.lists(st.integers(0, 7), min_size=1, max_size=8)


def written(storage_type, directory, sizes):
    """One segment per size, however it comes about in the format; the tokens joined."""
    flat = np.arange(sum(sizes), dtype=np.uint16)
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    if storage_type == "h5":
        write_old_h5(directory / "data_0000.h5", {"sequence": parts})
    for number, part in enumerate(parts):
        if storage_type == "bin":
            write_old_bin(directory / f"shard_{number:04d}", {"sequence": part})
        elif storage_type == "megatron":
            with StoreWriter("megatron", directory / f"part_{number}", {"sequence": "uint16"}) as writer:
                writer.append({"sequence": part})
    return flat


@pytest.mark.parametrize("storage_type", FORMATS)
@given(sizes=segments, data=st.data())
def test_fetch_is_a_slice_of_all_segments_joined(tmp_path_factory, storage_type, sizes, data):
    """Any segments, empty ones too, any range; of the right dtype also where it is empty."""
    directory = tmp_path_factory.mktemp("store")
    flat = written(storage_type, directory, sizes)
    store = StoreFactory.create(storage_type).load(directory)
    begin = data.draw(st.integers(0, len(flat)))
    end = data.draw(st.integers(begin, len(flat)))
    fetched = store.fetch(begin, end, "sequence")
    assert (fetched.tolist(), fetched.dtype) == (flat[begin:end].tolist(), torch.int64)
    assert torch.equal(store.fetch(begin, end, ["sequence"])["sequence"], fetched)
    assert len(store) == len(flat)


@pytest.mark.parametrize("storage_type", FORMATS)
@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8), data=st.data())
def test_gathered_rows_are_slices(tmp_path_factory, storage_type, sizes, data):
    """Over the borders of segments too, in any order."""
    flat = written(storage_type, directory := tmp_path_factory.mktemp("store"), [*sizes, 3])
    store = StoreFactory.create(storage_type).load(directory)
    length = data.draw(st.integers(1, len(flat)))
    begins = data.draw(st.lists(st.integers(0, len(flat) - length), max_size=5))
    out = store.gather("sequence", begins, length)
    assert out.tolist() == [flat[begin : begin + length].tolist() for begin in begins]
    for begin in begins:
        assert store.stored("sequence", begin, begin + length).tolist() == flat[begin : begin + length].tolist()


@pytest.mark.parametrize("storage_type", FORMATS)
@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, 61), (61, 61)])
def test_a_range_outside_is_an_error_with_range_and_size(tmp_path, storage_type, begin, end):
    """Nothing is clipped."""
    store = open_store(write(storage_type, tmp_path))
    assert len(store) == 57
    with pytest.raises(ValueError, match=f"expected a range within 0 to 57, got {begin} to {end}"):
        store.fetch(begin, end, "sequence")


@pytest.mark.parametrize("index", [-1, 12])
def test_a_record_outside_is_an_error(tmp_path, index):
    """With the number of records."""
    with pytest.raises(ValueError, match=f"expected a record of 12, from 0, got {index}"):
        open_store(write("bin", tmp_path)).fetch_record(index, "sequence")


@pytest.mark.parametrize("kind", [MmapStore, H5Store, MegatronStore])
def test_a_store_must_be_loaded_first(kind):
    """Whatever is asked."""
    for ask in (lambda s: s.fetch(0, 1, "a"), len, lambda s: s.keys, lambda s: s.num_records, lambda s: s.train_types):
        with pytest.raises(RuntimeError, match="Store not loaded"):
            ask(kind())


def test_an_unknown_key_names_those_there_are(tmp_path):
    """Alone or in a list."""
    store = open_store(write("bin", tmp_path, "sft"))
    for keys in ("tokens", ["sequence", "tokens"]):
        with pytest.raises(
            ValueError, match=r"one of the keys \['loss_mask', 'position_ids', 'sequence'\], got 'tokens'"
        ):
            store.fetch(0, 1, keys)


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
@pytest.mark.parametrize("train_type", ["sft", "dpo", "grpo"])
def test_records_of_every_train_type_come_back(tmp_path, storage_type, train_type):
    """Lists of runs of different length as lists, in every shard."""
    store = open_store(write(storage_type, tmp_path, train_type))
    for number in range(12):
        expected = record(train_type, number)
        for key, value in store.fetch_record(number, store.keys).items():
            found = [run.tolist() for run in value] if isinstance(value, list) else value.tolist()
            assert found == (list(expected[key]) if key != "rewards" else expected[key])


def test_runs_of_one_length_come_as_one_tensor(tmp_path):
    """(items, values), also with no items or empty ones."""
    with StoreWriter("bin", tmp_path, {"responses": "uint16"}, items=["responses"]) as writer:
        for runs in ([[1, 2], [3, 4]], [], [[], []], [[5], []]):
            writer.append({"responses": runs})
    found = [open_store(tmp_path).fetch_record(number, "responses") for number in range(4)]
    assert [tuple(value.shape) for value in found[:3]] == [(2, 2), (0, 0), (2, 0)]
    assert found[0].tolist() == [[1, 2], [3, 4]]
    assert [run.tolist() for run in found[3]] == [[5], []]


@pytest.mark.parametrize("storage_type", FORMATS)
def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path, storage_type):
    """Nor does it crash: what comes out is a copy."""
    store = open_store(write(storage_type, tmp_path))
    before = store.fetch(0, 40, "sequence").tolist()
    store.fetch(0, 40, "sequence").fill_(-1)
    store.fetch_record(0, "sequence").fill_(-1)
    assert store.fetch(0, 40, "sequence").tolist() == before


def test_a_map_cannot_be_written_to(tmp_path):
    """Whoever gets at it."""
    store = open_store(write("bin", tmp_path))
    with pytest.raises(ValueError, match="read-only"):
        store.stored("sequence", 0, 2)[0] = 1


def test_a_bounded_number_of_maps_is_open(tmp_path, monkeypatch):
    """However many shards are read, and every one is still right."""
    monkeypatch.setattr(store, "open_files", Recent(3))
    opened = open_store(write("bin", tmp_path, max_tokens_per_shard=5))
    assert len(opened.column("sequence").segments) > 6
    for number in (*range(12), *range(12)):
        assert opened.fetch_record(number, "sequence").tolist() == record("seq", number)["sequence"]
    assert len(list(store.open_files)) == 3


@pytest.mark.parametrize("storage_type", FORMATS)
def test_a_store_is_pickled_as_its_path(tmp_path, storage_type, monkeypatch):
    """Small, and loaded again where it is used, whatever the working directory there."""
    monkeypatch.chdir(tmp_path)
    write(storage_type, tmp_path / "store", records=300)
    store = open_store("store")
    pickled = pickle.dumps(store)
    assert len(pickled) < 600
    monkeypatch.chdir("/")
    again = pickle.loads(pickled)
    assert torch.equal(again.fetch(0, len(store), "sequence"), store.fetch(0, len(store), "sequence"))


@pytest.mark.parametrize("storage_type", FORMATS)
def test_threads_may_read_at_the_same_time(tmp_path, storage_type):
    """Each has its own maps and handles."""
    store = open_store(write(storage_type, tmp_path))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: store.fetch_record(number % 12, "sequence").tolist(), range(60)))
    assert found == [record("seq", number % 12)["sequence"] for number in range(60)]


def test_shards_with_other_keys_or_kinds_do_not_go_together(tmp_path):
    """Tokens and floats are not one sequence."""
    write_old_bin(tmp_path / "a" / "shard_0", {"sequence": np.zeros(2, np.uint16)})
    write_old_bin(tmp_path / "a" / "shard_1", {"tokens": np.zeros(2, np.uint16)})
    with pytest.raises(StoreError, match=r"shard_1.*expected the keys \['sequence'\].*got \['tokens'\]"):
        open_store(tmp_path / "a")
    write_old_bin(tmp_path / "b" / "shard_0", {"sequence": np.zeros(2, np.uint16)})
    write_old_bin(tmp_path / "b" / "shard_1", {"sequence": np.zeros(2, np.float32)})
    with pytest.raises(StoreError, match="one kind of values in all shards"):
        open_store(tmp_path / "b")


def test_shards_may_have_different_widths(tmp_path):
    """Tokens of uint16 and uint32 are both int64."""
    write_old_bin(tmp_path / "shard_0", {"sequence": np.array([1, 2], np.uint16)})
    write_old_bin(tmp_path / "shard_1", {"sequence": np.array([2**32 - 1], np.uint32)})
    assert open_store(tmp_path).fetch(0, 3, "sequence").tolist() == [1, 2, 2**32 - 1]


def test_a_store_without_shards_is_an_error(tmp_path):
    """Of the format that was asked for."""
    (tmp_path / "readme.txt").touch()
    with pytest.raises(StoreError, match="expected shards of format 'h5', got none"):
        H5Store().load(tmp_path)


def test_share_memory_of_maps_is_nothing(tmp_path):
    """Maps are shared as they are."""
    store = open_store(write("bin", tmp_path))
    assert store.share_memory_() is store


class OwnStore(MmapStore):
    """A backend of a user."""


def test_an_own_backend_can_be_registered(tmp_path, monkeypatch):
    """Under a free name, and only a Store."""
    monkeypatch.setattr(StoreFactory, "_stores", dict(StoreFactory._stores))
    StoreFactory.register("own", OwnStore)
    StoreFactory.register("own", OwnStore)
    assert type(open_store(write("bin", tmp_path), "own")) is OwnStore
    with pytest.raises(ValueError, match="'bin' is MmapStore already"):
        StoreFactory.register("bin", OwnStore)
    with pytest.raises(ValueError, match="expected a subclass of Store"):
        StoreFactory.register("other", dict)


@pytest.mark.parametrize(
    ("name", "kind"), [("h5", H5Store), ("bin", MmapStore), ("megatron", MegatronStore), ("tokens", TokenFileStore)]
)
def test_the_factory_makes_each_kind(name, kind):
    """By name; an unknown one names those there are."""
    assert type(StoreFactory.create(name)) is kind
    with pytest.raises(ValueError, match=r"expected a format of \['bin', 'h5', 'megatron', 'tokens'\], got 'zarr'"):
        StoreFactory.create("zarr")
