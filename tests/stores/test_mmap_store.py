import json

import numpy as np
import pytest

from streamdata.errors import StoreError
from streamdata.stores.datasets.window_datasets import SFTDataset
from streamdata.stores.factory import open_store
from streamdata.stores.mmap_store import MmapStore
from tests.stores.tiny_stores import write, write_old_bin, write_rows


def changed_meta(directory, change):
    """Changes the meta.json of the first shard."""
    path = directory / "shard_0000" / "meta.json"
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))


def test_an_older_shard_of_one_dimension_is_one_record(tmp_path):
    """It is raw little-endian, bool as a byte."""
    arrays = {"sequence": np.array([1, 2, 65_535], np.uint16), "loss_mask": np.array([True, False, True])}
    store = open_store(write_old_bin(tmp_path / "shard_0000", arrays).parent)
    assert store.fetch_record(0, store.keys)["sequence"].tolist() == [1, 2, 65_535]
    assert store.fetch(1, 3, "loss_mask").tolist() == [False, True]
    assert (store.num_records, store.train_types) == (1, ("seq", "sft"))


@pytest.mark.parametrize("offsets", [[0, 2, 5], [0, 2, 5, 6]])
def test_older_offsets_are_where_records_begin(tmp_path, offsets):
    """With or without the end; a key of the same length shares them."""
    arrays = {"sequence": np.arange(6, dtype=np.uint16), "loss_mask": np.ones(6, np.bool_)}
    store = open_store(write_old_bin(tmp_path / "shard_0000", arrays, {"sequence": offsets}).parent)
    assert [store.fetch_record(number, "sequence").tolist() for number in range(3)] == [[0, 1], [2, 3, 4], [5]]
    assert store.fetch_record(1, "loss_mask").tolist() == [True] * 3


def test_older_arrays_of_more_dimensions_are_rows_and_lists(tmp_path):
    """(rows, tokens); with offsets (items, tokens); (records, items, tokens)."""
    arrays = {
        "sequence": np.arange(6, dtype=np.int32).reshape(2, 3),
        "responses": np.arange(8, dtype=np.int32).reshape(4, 2),
        "masks": np.ones((2, 2, 2), np.bool_),
    }
    store = open_store(write_old_bin(tmp_path / "shard_0000", arrays, {"responses": [0, 3]}).parent)
    assert store.fetch_record(1, "sequence").tolist() == [3, 4, 5]
    assert store.fetch_record(0, "responses").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert store.fetch_record(1, "masks").shape == (2, 2)
    assert store.column("sequence").segments[0].rows is not None
    assert store.num_records == 2


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path):
    """In nested directories too, as tasks leave them."""
    for number in (10, 9, 0):
        write_old_bin(tmp_path / f"task_{number}" / "shard_0000", {"sequence": np.array([number], np.uint8)})
    assert open_store(tmp_path).fetch(0, 3, "sequence").tolist() == [0, 9, 10]


def test_a_byte_that_is_no_bool_is_true(tmp_path):
    """Whatever a file holds, a mask is a mask."""
    write_old_bin(tmp_path / "shard_0", {"loss_mask": np.ones(2, np.bool_)})
    (tmp_path / "shard_0" / "loss_mask.bin").write_bytes(b"\x00\x07")
    assert open_store(tmp_path).fetch(0, 2, "loss_mask").tolist() == [False, True]


@pytest.mark.parametrize("size", [0, 1, 41, 43])
def test_a_file_of_another_size_is_an_error(tmp_path, size):
    """With file, expected and got, before anything is read."""
    path = write_old_bin(tmp_path / "shard_0", {"sequence": np.zeros(21, np.uint16)}) / "sequence.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(StoreError, match=f"sequence.bin': expected 42 bytes for 21 values of uint16, got {size}"):
        open_store(tmp_path)


def test_a_file_that_is_missing_is_an_error(tmp_path):
    """By its name."""
    write("bin", tmp_path)
    (tmp_path / "shard_0000" / "sequence.bin").unlink()
    with pytest.raises(StoreError, match=r"sequence.bin': expected .* bytes, got no file"):
        open_store(tmp_path)


def test_a_shard_without_meta_is_an_error(tmp_path):
    """It was not finished; temporaries are passed over."""
    write("bin", tmp_path)
    (tmp_path / ".shard_0009.tmp").mkdir()
    (tmp_path / ".shard_0009.tmp" / "sequence.bin").touch()
    assert open_store(tmp_path).num_records == 12
    (tmp_path / "shard_0001" / "meta.json").unlink()
    with pytest.raises(StoreError, match=r"shard_0001/sequence.* expected meta.json beside it"):
        open_store(tmp_path)


OLD_METAS = [
    ("not json", "expected JSON"),
    ("[" * 100_000, "expected JSON"),
    ("[1]", "expected a JSON object"),
    ("{}", "expected a JSON object"),
    ('{"sequence": {"shape": [3]}}', "expected a dtype"),
    ('{"sequence": {"shape": [3], "dtype": "object"}}', "expected a dtype"),
    ('{"sequence": {"shape": [3], "dtype": "uint64"}}', "expected a dtype"),
    ('{"sequence": {"shape": [3], "dtype": ">u2"}}', "expected a dtype"),
    ('{"sequence": {"shape": [3], "dtype": "f4:"}}', "expected a dtype"),
    ('{"sequence": {"dtype": "uint8"}}', "expected a shape"),
    ('{"sequence": {"shape": [-3], "dtype": "uint8"}}', "expected a shape"),
    ('{"sequence": {"shape": [1.5], "dtype": "uint8"}}', "expected a shape"),
    ('{"sequence": {"shape": [1, 1, 1, 3], "dtype": "uint8"}}', "expected a shape"),
    ('{"sequence": {"shape": [4611686018427387903, 9999], "dtype": "uint8"}}', "expected 4611"),
    ('{"sequence": 3}', "expected a shape"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": [0, 2, 1]}}', "expected offsets that rise"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": [0, 9]}}', "expected offsets that rise"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": [-1, 3]}}', "expected offsets that rise"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": []}}', "expected offsets that rise"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": [0, 1.5]}}', "expected offsets that rise"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": "x"}}', "expected offsets that rise"),
    ('{"sequence": {"shape": [3], "dtype": "uint8", "offsets": [[0]]}}', "expected offsets that rise"),
    ('{"../x": {"shape": [3], "dtype": "uint8"}}', "expected the name of a file beside"),
]


@pytest.mark.parametrize(("text", "message"), OLD_METAS)
def test_a_damaged_older_meta_is_an_error(tmp_path, text, message):
    """Nothing in it is believed."""
    write_old_bin(tmp_path / "shard_0000", {"sequence": np.zeros(3, np.uint8)})
    (tmp_path / "shard_0000" / "meta.json").write_text(text)
    with pytest.raises(StoreError, match=message):
        MmapStore().load(tmp_path)


CHANGES = [
    (lambda m: m.update(version=2), "version 1, got 'streamdata' 2"),
    (lambda m: m.update(format="other"), "got 'other' 1"),
    (lambda m: m.update(num_records=5), "expected 5 records of key"),
    (lambda m: m.update(num_tokens=7), "num_tokens"),
    (lambda m: m.update(num_tokens=True), "'num_tokens' of type int, got True"),
    (lambda m: m.update(rows="yes"), "'rows' of type bool, got 'yes'"),
    (lambda m: m.update(keys={}), "num_tokens of its first key"),
    (lambda m: (m.update(keys={}), m.pop("num_tokens")), "num_tokens of its first key, got None"),
    (lambda m: m["keys"]["sequence"].update(shape=[10**15]), "expected 2000000000000000 bytes"),
    (lambda m: m["keys"]["sequence"].update(shape=[-1]), "'shape' of at least 0"),
    (lambda m: m["keys"]["sequence"].update(shape=[]), "'shape' of type int"),
    (lambda m: m["keys"]["sequence"].update(dtype="uint64"), "expected a dtype"),
    (lambda m: m["keys"]["sequence"].update(dtype="uint32"), "expected 72 bytes"),
    (lambda m: m["keys"]["sequence"].update(data="../shard_0001/sequence.bin"), "the name of a file beside"),
    (lambda m: m["keys"]["sequence"].update(data="/etc/passwd"), "the name of a file beside"),
    (lambda m: m["keys"]["sequence"].update(data="\ud800"), "the name of a file beside"),
    (lambda m: m["keys"]["sequence"].update(data="é" * 128), "the name of a file beside"),
    (lambda m: m["keys"]["sequence"].update(records={"count": 4}), "'data' of type str"),
    (lambda m: m["keys"]["sequence"].update(records={"count": 4, "length": 5}), "expected 18 in all"),
    (lambda m: m["keys"]["sequence"]["records"].update(count=10**9), "expected 8000000008 bytes"),
    (lambda m: m["keys"]["sequence"].pop("checksum"), "'checksum' of type str"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_damaged_meta_is_an_error(tmp_path, change, message):
    """Counts are checked against the files before they are used."""
    changed_meta(write("bin", tmp_path), change)
    with pytest.raises(StoreError, match=message):
        open_store(tmp_path)


BAD_OFFSETS = [[0, 3, 2, 12, 17], [0, -4, 7, 12, 17], [0, 3, 7, 99, 17], [1, 3, 7, 12, 17], [0, 3, 7, 12, 16]]


@pytest.mark.parametrize("offsets", BAD_OFFSETS)
def test_damaged_offsets_are_an_error_when_they_are_used(tmp_path, offsets):
    """And not a slice of something else."""
    store = open_store(write("bin", tmp_path), verify=False)
    np.array(offsets, "<i8").tofile(tmp_path / "shard_0000" / "sequence.records.bin")
    with pytest.raises(StoreError, match="The offsets are damaged"):
        [store.fetch_record(number, "sequence") for number in range(4)]


@pytest.mark.parametrize("offsets", [[0, 9, 20], [3, 11, 19], [0, 11, 18]])
def test_damaged_offsets_of_rows_are_an_error_at_once(tmp_path, offsets):
    """Windows over uneven rows need them all."""
    write_rows("bin", tmp_path, [8, 11])
    np.array(offsets, "<i8").tofile(tmp_path / "shard_0000" / "sequence.records.bin")
    with pytest.raises(StoreError, match="The offsets are damaged"):
        SFTDataset(tmp_path, 4, verify=False)


@pytest.mark.parametrize("shape", [[1, 2**61, 0], [2**17, 1, 0]])
def test_more_items_without_a_value_than_there_can_be_are_an_error(tmp_path, shape):
    """No size of a file bounds them, and a record would give each."""
    write_old_bin(tmp_path / "shard_0000", {"responses": np.zeros((1, 1, 0), np.uint8)})
    (tmp_path / "shard_0000" / "meta.json").write_text(json.dumps({"responses": {"shape": shape, "dtype": "uint8"}}))
    with pytest.raises(StoreError, match=r"responses\.bin': expected at most 65536 items without a value, got"):
        open_store(tmp_path)


def test_items_that_do_not_add_up_are_an_error(tmp_path):
    """Of records that are lists."""
    write("bin", tmp_path, "grpo", 3)
    changed_meta(tmp_path, lambda m: m["keys"]["responses"].update(items={"count": 2, "length": 3}))
    with pytest.raises(StoreError, match="items of key 'responses': expected 17 in all, got 2 of length 3"):
        open_store(tmp_path)


def test_rows_and_documents_come_back(tmp_path):
    """As bounds of the tokens."""
    store = open_store(write_rows("bin", tmp_path, [5, 5, 6, 8], [[2, 3], [5], [1, 5], [4, 4]]))
    assert store.document_starts("sequence", 0, 24).tolist() == [2, 5, 10, 11, 16, 20]
    assert store.document_starts("sequence", 5, 11).tolist() == [10]
    assert all(segment.rows is not None for segment in store.column("sequence").segments)
