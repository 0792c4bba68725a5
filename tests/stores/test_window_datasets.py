import logging
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from streamdata import TensorCollate
from streamdata.errors import StoreError
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.datasets.window_datasets import SeqDataset, SFTDataset
from streamdata.stores.factory import open_store
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import FORMATS, KEYS, write, write_old_bin, write_old_h5, write_old_megatron, write_rows
from tests.streams import plain


@pytest.mark.parametrize("storage_type", FORMATS)
@pytest.mark.parametrize(("window", "stride"), [(4, None), (4, 3), (7, 9), (56, 1)])
def test_a_window_has_the_next_token_as_target(tmp_path, storage_type, window, stride):
    """`input_ids` and `target_ids` are int64, one token apart, from where `get_index` says."""
    dataset = DatasetFactory.load("seq", write(storage_type, tmp_path), window, stride)
    flat = dataset.store.fetch(0, len(dataset.store), "sequence")
    assert len(dataset) == 1 + (57 - 1 - window) // (stride or window)
    for number in range(len(dataset)):
        begin, end = dataset.get_index(number)
        assert (begin, end) == (number * (stride or window), number * (stride or window) + window)
        sample = dataset[number]
        assert list(sample) == ["input_ids", "target_ids"]
        assert torch.equal(sample["input_ids"], flat[begin:end])
        assert torch.equal(sample["target_ids"], flat[begin + 1 : end + 1])


@pytest.mark.parametrize("train_type", ["seq", "sft"])
@given(data=st.data(), window=st.integers(1, 20), stride=st.integers(1, 9), documents=st.booleans())
def test_a_batch_is_its_samples_one_by_one(tmp_path_factory, train_type, data, window, stride, documents):
    """Any indices, in any order, more than once, over shards, with all options."""
    directory = write("bin", tmp_path_factory.mktemp("store"), train_type)
    dataset = DatasetFactory.load(train_type, directory, window, stride, documents=documents)
    indices = data.draw(st.lists(st.integers(-len(dataset), len(dataset) - 1), max_size=6))
    assert plain(dataset.__getitems__(indices)) == plain([dataset[index] for index in indices])


def test_targets_masked_in_place_change_nothing_else_of_a_batch(tmp_path):
    """Of a sample alone they are its inputs, one further; a batch, other samples and the store stay as they were."""
    dataset = DatasetFactory.load("seq", write("bin", tmp_path), 4, 2)
    before = plain(dataset.__getitems__([0, 1]))
    for samples in ([dataset[0], dataset[1]], dataset.__getitems__([0, 1])):
        for collate in (TensorCollate(), default_collate):
            batch = collate(samples)
            batch["target_ids"].fill_(-100)
            assert plain(list(batch["input_ids"])) == [sample["input_ids"] for sample in before]
        samples[0]["target_ids"].fill_(-100)
        assert plain(samples[1]) == before[1]
        assert samples[0]["input_ids"].tolist()[1:] == [-100] * 3
    assert plain(dataset[0]) == before[0]


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
def test_masks_are_aligned_with_targets(tmp_path, storage_type):
    """A loss mask is that of the token predicted, a position id that of the token given."""
    dataset = DatasetFactory.load("sft", write(storage_type, tmp_path, "sft"), 5)
    whole = dataset.store.fetch(0, 57, ["sequence", "loss_mask", "position_ids"])
    for number in range(len(dataset)):
        sample, begin = dataset[number], 5 * number
        assert torch.equal(sample["target_ids"], whole["sequence"][begin + 1 : begin + 6])
        assert torch.equal(sample["loss_mask"], whole["loss_mask"][begin + 1 : begin + 6])
        assert torch.equal(sample["position_ids"], whole["position_ids"][begin : begin + 5])
        assert [sample[key].dtype for key in ("loss_mask", "position_ids")] == [torch.bool, torch.int64]


def test_indices_are_those_of_a_list(tmp_path):
    """Negative ones count from the end, others raise IndexError, so that a loop over the dataset ends."""
    dataset = DatasetFactory.load("seq", write("bin", tmp_path), 4)
    assert plain(dataset[-1]) == plain(dataset[len(dataset) - 1]) == plain(dataset[np.int64(-1)])
    assert plain(list(dataset)) == plain([dataset[number] for number in range(len(dataset))])
    assert dataset.get_index(-1) == dataset.get_index(len(dataset) - 1)
    for index in (len(dataset), -len(dataset) - 1):
        for ask in (dataset.__getitem__, dataset.get_index, lambda i: dataset.__getitems__([0, i])):
            with pytest.raises(IndexError, match=f"of 14 samples, got {index}"):
                ask(index)
    with pytest.raises(TypeError):
        dataset["1"]


def test_a_whole_row_is_a_window_without_its_last_target(tmp_path):
    """-100, with a loss mask of False; nothing of another row is in it."""
    dataset = DatasetFactory.load("sft", write_rows("bin", tmp_path, [8, 8, 8, 8, 8]), 8)
    assert len(dataset) == 5
    for number, sample in enumerate(dataset):
        assert sample["input_ids"].tolist() == list(range(8 * number, 8 * number + 8))
        assert sample["target_ids"].tolist() == [*range(8 * number + 1, 8 * number + 8), -100]
        assert sample["loss_mask"].tolist() == [True] * 7 + [False]
        assert sample["position_ids"].tolist() == list(range(8))


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
def test_windows_of_a_batch_may_end_with_their_row_or_not(tmp_path, storage_type):
    """Each has the target that its row has."""
    dataset = DatasetFactory.load("seq", write_rows(storage_type, tmp_path, [5, 3, 8, 4]), 4)
    samples = dataset.__getitems__(range(len(dataset)))
    assert [sample["input_ids"].tolist() for sample in samples] == [
        [0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19],
    ]  # fmt: skip
    assert [sample["target_ids"][-1].item() for sample in samples] == [4, 12, -100, -100]
    assert plain(samples) == plain([dataset[number] for number in range(4)])


@pytest.mark.parametrize("make", ["bin", "h5"])
def test_older_rows_are_not_crossed_either(tmp_path, make):
    """An array of (rows, tokens) says where they are."""
    rows = np.arange(12, dtype=np.uint16).reshape(3, 4)
    if make == "bin":
        write_old_bin(tmp_path / "shard_0000", {"sequence": rows})
    else:
        write_old_h5(tmp_path / "data_0000.h5", {"sequence": [rows[:2], rows[2:]]})
    dataset = DatasetFactory.load("seq", tmp_path, 4)
    assert [sample["input_ids"].tolist() for sample in dataset] == rows.tolist()


def naive_documents(starts, window):
    """The three facts about documents, from the places in the window where one begins."""
    marks = [0, *starts, window]
    lengths = [last - first for first, last in pairwise(marks)]
    return marks, max(lengths), [place for length in lengths for place in range(length)]


def check_documents(sample, starts):
    """They are those, with their dtypes."""
    marks, longest, positions = naive_documents(starts, len(sample["input_ids"]))
    assert sample["cu_seqlens"].tolist() == marks
    assert (sample["max_seqlen"], sample["position_ids"].tolist()) == (longest, positions)
    assert (sample["cu_seqlens"].dtype, sample["position_ids"].dtype) == (torch.int32, torch.int64)


@pytest.mark.parametrize("storage_type", FORMATS)
@given(lengths=st.lists(st.integers(1, 9), min_size=3, max_size=12), window=st.integers(1, 12))
def test_documents_begin_where_records_do(tmp_path_factory, storage_type, lengths, window):
    """In any window, over shards."""
    directory, total = tmp_path_factory.mktemp("store"), sum(lengths)
    with StoreWriter(storage_type, directory, KEYS["seq"], max_tokens_per_shard=12) as writer:
        writer.extend({"sequence": np.arange(total)}, lengths)
    dataset = SeqDataset(directory, min(window, total - 1), 1, documents=True)
    begins = np.cumsum([0, *lengths])
    for number, sample in enumerate(dataset):
        check_documents(sample, [int(b) - number for b in begins if number < b < number + dataset.window_size])


def test_documents_in_rows_are_those_recorded(tmp_path):
    """Padding is one of its own; position ids begin anew in `sft` too."""
    write_rows("bin", tmp_path, [8, 8, 8], [[3, 5], [8], [1, 6, 1]])
    samples = list(SFTDataset(tmp_path, 8, documents=True))
    for sample, starts in zip(samples, [[3], [], [1, 7]], strict=True):
        check_documents(sample, starts)


def test_documents_may_be_found_by_a_token(tmp_path):
    """Each ends with it, also where a window begins after one or ends with one."""
    write_old_megatron(tmp_path / "name", [[1, 9, 2, 3, 9, 9, 4, 5, 9, 6]], 4, "int32", [0, 1])
    samples = list(DatasetFactory.load("seq", tmp_path, 3, documents=True, eod_token=9))
    for sample, starts in zip(samples, [[2], [2], []], strict=True):
        check_documents(sample, starts)


def test_documents_that_nobody_recorded_need_a_token(tmp_path):
    """Rather than one document that is none."""
    write_old_bin(tmp_path / "a" / "shard_0", {"sequence": np.arange(9, dtype=np.uint16)})
    write_rows("bin", tmp_path / "b", [8, 8])
    for directory in (tmp_path / "a", tmp_path / "b"):
        with pytest.raises(StoreError, match=r"got none\n  Give eod_token"):
            DatasetFactory.load("seq", directory, 4, documents=True)
    with pytest.raises(StoreError, match="Give eod_token"):
        open_store(tmp_path / "a").document_starts("sequence", 0, 4)


@pytest.mark.parametrize(("window", "tokens"), [(57, "58 tokens"), (1000, "1001 tokens")])
def test_fewer_tokens_than_one_window_are_an_error(tmp_path, window, tokens):
    """Not a length of 0."""
    with pytest.raises(StoreError, match=f"expected at least {tokens} for one window, got 57 tokens"):
        DatasetFactory.load("seq", write("bin", tmp_path), window)


def test_rows_that_are_all_too_short_are_an_error(tmp_path):
    """The same in rows."""
    with pytest.raises(StoreError, match="expected at least a row of 9 tokens"):
        DatasetFactory.load("seq", write_rows("bin", tmp_path, [8, 8]), 9)


def test_the_unused_tail_is_logged(tmp_path, caplog):
    """How many tokens no window has."""
    with caplog.at_level(logging.INFO, "streamdata"):
        DatasetFactory.load("seq", write("bin", tmp_path), 10)
    assert "6 of 57 tokens" in caplog.text


BAD_ARGUMENTS = [
    ({"window_size": 0}, "window_size is 0, expected a whole number of at least 1"),
    ({"window_size": 2.5}, "window_size is 2.5, expected a whole number of at least 1"),
    ({"window_size": None}, "expected a window_size for 'seq', got None"),
    ({"window_size": 4, "stride": 0}, "stride is 0, expected a whole number of at least 1"),
    ({"window_size": 4, "stride": -1}, "stride is -1, expected a whole number of at least 1"),
    ({"window_size": 4, "eod_token": 3}, "got documents=False"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    """With what was expected."""
    with pytest.raises(ValueError, match=message):
        DatasetFactory.load("seq", write("bin", tmp_path), **arguments)


def test_a_dataset_takes_a_path_or_a_store(tmp_path):
    """One of the two; a store may serve several datasets."""
    store = open_store(write("bin", tmp_path, "sft"))
    assert len(SeqDataset(store=store, window_size=4)) == len(SFTDataset(store=store, window_size=4)) == 14
    for arguments in ({}, {"load_path": tmp_path, "store": store}):
        with pytest.raises(ValueError, match="expected a load_path or a store"):
            SeqDataset(window_size=4, **arguments)


def test_a_format_that_is_given_is_not_detected(tmp_path):
    """It reads what is of that format."""
    write("h5", tmp_path / "a")
    write("bin", tmp_path / "b")
    for storage_type in ("bin", "h5"):
        assert len(DatasetFactory.load("seq", tmp_path, 4, storage_type=storage_type)) == 14


@pytest.mark.parametrize(
    ("arrays", "train_type", "message"),
    [
        ({"sequence": np.zeros(9, np.float32)}, "seq", "'sequence' to be integers, got float32"),
        ({"sequence": 9, "loss_mask": 8, "position_ids": 9}, "sft", "as many values of each key"),
        ({"sequence": 9, "loss_mask": np.zeros(9), "position_ids": 9}, "sft", "'loss_mask' cannot be float64"),
        ({"sequence": 9, "loss_mask": 9, "position_ids": np.zeros(9, bool)}, "sft", "'position_ids' cannot be bool"),
    ],
)
def test_keys_of_another_kind_are_an_error(tmp_path, arrays, train_type, message):
    """Before the first sample."""
    arrays = {key: np.zeros(value, np.uint8) if isinstance(value, int) else value for key, value in arrays.items()}
    write_old_bin(tmp_path / "shard_0", arrays)
    with pytest.raises(StoreError, match=message):
        DatasetFactory.load(train_type, tmp_path, 4)


@pytest.mark.parametrize(("dtype", "weights"), [("float32", [1, 2]), ("float32", []), ("uint8", [1])])
def test_weights_are_a_float_for_each_document(tmp_path, dtype, weights):
    """Of other numbers nobody knows whose they are."""
    with StoreWriter("bin", tmp_path, {"sequence": "uint16", "document_weights": dtype}) as writer:
        writer.append({"sequence": range(9), "document_weights": weights})
    with pytest.raises(StoreError, match=rf"a float for each of 1 documents .* got {len(weights)} of {dtype}"):
        DatasetFactory.load("seq", tmp_path, 4)


def test_an_older_mask_of_integers_is_a_mask(tmp_path):
    """Whatever is not 0 is trained."""
    arrays = {key: np.array([0, 1, 2, 0], np.uint8) for key in KEYS["sft"]}
    dataset = DatasetFactory.load("sft", write_old_bin(tmp_path / "shard_0", arrays).parent, 3)
    assert dataset[0]["loss_mask"].tolist() == [True, True, False]


def test_rows_in_some_shards_only_are_an_error(tmp_path):
    """Windows cannot be both."""
    write_old_bin(tmp_path / "shard_0", {"sequence": np.zeros((2, 4), np.uint8)})
    write_old_bin(tmp_path / "shard_1", {"sequence": np.zeros(8, np.uint8)})
    with pytest.raises(StoreError, match=r"in all shards of .* or in none"):
        DatasetFactory.load("seq", tmp_path, 4)


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
def test_items_are_documents_and_rows_of_their_own(tmp_path, storage_type):
    """Where records are lists, windows and documents count values, not items."""
    for rows in (False, True):
        with StoreWriter(storage_type, tmp_path / str(rows), KEYS["seq"], items=["sequence"], rows=rows) as writer:
            writer.append({"sequence": [[1, 2, 3], [4, 5]]})
            writer.append({"sequence": [[6, 7, 8, 9]]})
    flat = [sample["cu_seqlens"].tolist() for sample in SeqDataset(tmp_path / "False", 4, documents=True)]
    assert flat == [[0, 3, 4], [0, 1, 4]]
    in_rows = [sample["target_ids"].tolist() for sample in SeqDataset(tmp_path / "True", 2)]
    assert in_rows == [[2, 3], [5, -100], [7, 8], [9, -100]]
