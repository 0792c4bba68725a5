import numpy as np
import pytest
import torch

from streamdata.errors import StoreError
from streamdata.stores.datasets.record_datasets import DatasetFactory, dpo_collate, grpo_collate
from streamdata.stores.factory import open_store
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import KEYS, record, write, write_old_bin
from tests.streams import plain

FORMATS = ["bin", "h5"]


@pytest.mark.parametrize("storage_type", FORMATS)
def test_a_pair_is_one_record(tmp_path, storage_type):
    """Never a slice over two; tokens int64, masks bool."""
    dataset = DatasetFactory.load("dpo", write(storage_type, tmp_path, "dpo"), None)
    assert len(dataset) == 12
    for number, sample in enumerate(dataset):
        assert {key: value.tolist() for key, value in sample.items()} == record("dpo", number)
        assert [value.dtype for value in sample.values()] == [torch.int64] * 2 + [torch.bool] * 2
    assert dataset.get_index(-1) == (11, 12)


def test_window_size_cuts_pairs(tmp_path):
    """Tokens and masks alike; what is shorter stays."""
    dataset = DatasetFactory.load("dpo", write("bin", tmp_path, "dpo"), 4)
    assert [len(sample["chosen"]) for sample in dataset][:5] == [3, 4, 4, 4, 4]
    assert all(len(sample["chosen_mask"]) == len(sample["chosen"]) for sample in dataset)


@pytest.mark.parametrize("storage_type", FORMATS)
def test_a_rollout_is_one_record(tmp_path, storage_type):
    """Responses and masks as lists where they differ in length; rewards float32."""
    dataset = DatasetFactory.load("grpo", write(storage_type, tmp_path, "grpo"), None)
    for number, sample in enumerate(dataset):
        expected = record("grpo", number)
        assert sample["prompts"].tolist() == expected["prompts"]
        assert [run.tolist() for run in sample["responses"]] == expected["responses"]
        assert [run.tolist() for run in sample["masks"]] == expected["masks"]
        assert (sample["rewards"].dtype, sample["rewards"].tolist()) == (torch.float32, expected["rewards"])


def test_responses_of_one_length_are_one_tensor(tmp_path):
    """Also where they are so for being cut."""
    dataset = DatasetFactory.load("grpo", write("bin", tmp_path, "grpo"), 2)
    assert [tuple(dataset[3][key].shape) for key in ("prompts", "responses", "masks")] == [(2,), (3, 2), (3, 2)]
    assert dataset[3]["masks"].dtype == torch.bool


def test_many_records_are_the_single_ones(tmp_path):
    """In the order asked for; indices are those of a list."""
    dataset = DatasetFactory.load("grpo", write("bin", tmp_path, "grpo"), None)
    assert plain(dataset.__getitems__([5, -1, 0])) == plain([dataset[5], dataset[11], dataset[0]])
    with pytest.raises(IndexError):
        dataset[12]


@pytest.mark.parametrize(
    ("train_type", "missing"),
    [
        ("sft", ["loss_mask"]),
        ("dpo", ["chosen", "rejected", "chosen_mask", "rejected_mask"]),
        ("grpo", ["prompts", "responses", "rewards", "masks"]),
    ],
)
def test_a_store_for_something_else_names_the_missing_keys(tmp_path, train_type, missing):
    """And what it can serve."""
    with pytest.raises(StoreError) as caught:
        DatasetFactory.load(train_type, write("bin", tmp_path), 4)
    assert f"lacks {missing}" in str(caught.value)
    assert "can serve ['seq']" in str(caught.value)


def test_a_store_that_says_what_it_is_for_serves_nothing_else(tmp_path):
    """Though its keys would do."""
    write("bin", tmp_path, "sft", train_types=["sft"])
    assert len(DatasetFactory.load("sft", tmp_path, 4))
    with pytest.raises(StoreError, match=r"train type 'seq', got one written for \['sft'\]"):
        DatasetFactory.load("seq", tmp_path, 4)


def test_an_unknown_train_type_names_those_there_are(tmp_path):
    """As the factory knows them."""
    with pytest.raises(ValueError, match=r"of \['seq', 'sft', 'dpo', 'grpo'\], got 'rl'"):
        DatasetFactory.load("rl", tmp_path, 4)


def test_records_have_no_stride_and_no_window_options(tmp_path):
    """What does nothing is refused."""
    write("bin", tmp_path, "dpo")
    with pytest.raises(ValueError, match="are records, got stride=2"):
        DatasetFactory.load("dpo", tmp_path, 4, 2)
    with pytest.raises(TypeError, match="documents"):
        DatasetFactory.load("dpo", tmp_path, 4, documents=True)
    with pytest.raises(ValueError, match=r"window_size is .*, expected a whole number"):
        DatasetFactory.load("dpo", tmp_path, 0)


BAD_RECORDS = [
    ("dpo", {"chosen_mask": [True]}, r"'chosen_mask' as long as 'chosen' in record 0 .*got \(3, 1\)"),
    ("grpo", {"masks": [[True]]}, "masks as long as responses in record 0"),
    ("grpo", {"rewards": [1.0]}, "a reward per response in record 0 .*got 1 for 3"),
]


@pytest.mark.parametrize(("train_type", "change", "message"), BAD_RECORDS)
def test_a_record_that_does_not_fit_together_is_an_error(tmp_path, train_type, change, message):
    """With its number."""
    items = ("responses", "masks") if train_type == "grpo" else ()
    with StoreWriter("bin", tmp_path, KEYS[train_type], items=items) as writer:
        writer.append(record(train_type, 0) | change)
    with pytest.raises(StoreError, match=message):
        DatasetFactory.load(train_type, tmp_path, None)[0]


def test_keys_of_the_wrong_depth_are_an_error(tmp_path):
    """Responses that are no lists, and pairs that are."""
    flat = {key: np.zeros(3, np.uint8) for key in KEYS["grpo"]}
    with pytest.raises(StoreError, match="a list of 'responses' in record 0"):
        DatasetFactory.load("grpo", write_old_bin(tmp_path / "a" / "shard_0", flat, {"masks": [0]}).parent, None)[0]
    deep = {key: np.zeros((1, 2, 3), np.uint8) for key in KEYS["dpo"]}
    with pytest.raises(StoreError, match="one run of 'chosen' in record 0"):
        DatasetFactory.load("dpo", write_old_bin(tmp_path / "b" / "shard_0", deep).parent, None)[0]


def test_different_numbers_of_records_are_an_error(tmp_path):
    """Of an older store; so is none at all."""
    arrays = {key: np.zeros((2, 3), np.uint8) for key in KEYS["dpo"]}
    arrays["rejected"] = np.zeros((1, 3), np.uint8)
    with pytest.raises(StoreError, match="as many records of each key, and at least one"):
        DatasetFactory.load("dpo", write_old_bin(tmp_path / "shard_0", arrays).parent, None)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_are_padded_to_a_batch(tmp_path, side):
    """With masks for what is trained and for what is a token."""
    dataset = DatasetFactory.load("dpo", write("bin", tmp_path, "dpo"), None)
    batch = dpo_collate([dataset[0], dataset[2]], pad_id=9, side=side)
    short, long = record("dpo", 0)["chosen"], record("dpo", 2)["chosen"]
    padding, real = [9, 9], [False] * 2
    assert batch["chosen"].tolist() == [padding + short if side == "left" else short + padding, long]
    expected = real + [True] * 3 if side == "left" else [True] * 3 + real
    assert batch["chosen_mask"][0].tolist() == batch["chosen_attention_mask"][0].tolist() == expected
    assert (batch["rejected"].shape, batch["rejected_attention_mask"].all().item()) == ((2, 3), True)
    assert batch["rejected_mask"].tolist() == [[False, True, True]] * 2


def test_rollouts_are_padded_to_a_batch(tmp_path):
    """Prompts on the left, responses on the right, as (B, G, R)."""
    dataset = DatasetFactory.load("grpo", write("bin", tmp_path, "grpo"), None)
    batch = grpo_collate([dataset[0], dataset[1]], pad_id=9)
    ids = record("grpo", 0)["responses"][0]
    assert batch["responses"].shape == batch["masks"].shape == batch["responses_attention_mask"].shape == (2, 3, 4)
    assert batch["responses"][0].tolist() == [[*ids, 9], [*ids[:2], 9, 9], [*ids, 9]]
    assert batch["masks"][0, 1].tolist() == [True, True, False, False]
    assert batch["prompts_attention_mask"].all()
    assert batch["rewards"].tolist() == [[0.5, -1, 0], [0.5, -1, 1]]


def test_sides_of_rollouts_can_be_chosen():
    """Of prompts and of responses."""

    def sample(size):
        ids = torch.arange(1, size + 1)
        return {"prompts": ids, "responses": [ids], "masks": [ids > 0], "rewards": torch.ones(1)}

    batch = grpo_collate([sample(1), sample(2)], prompt_side="right", response_side="left")
    assert batch["prompts"].tolist() == [[1, 0], [1, 2]]
    assert batch["responses"].tolist() == [[[0, 1]], [[1, 2]]]


def test_batches_that_cannot_be_are_an_error():
    """No samples, another side, groups of different sizes."""
    one = {"prompts": torch.ones(1), "responses": [], "masks": [], "rewards": torch.ones(0)}
    two = one | {"responses": [torch.ones(1)], "masks": [torch.ones(1)]}
    with pytest.raises(ValueError, match="at least one sample"):
        dpo_collate([])
    with pytest.raises(ValueError, match="expected side to be one of"):
        grpo_collate([one], response_side="middle")
    with pytest.raises(ValueError, match=r"as many responses in each sample, got \[0, 1\]"):
        grpo_collate([one, two])
    assert grpo_collate([one])["responses"].shape == (1, 0, 0)


@pytest.mark.parametrize("train_type", ["dpo", "grpo"])
def test_an_older_store_without_offsets_is_refused(tmp_path, train_type):
    """All its pairs would be one, cut to the window."""
    arrays = {key: np.ones(12, np.uint8) for key in KEYS[train_type]}
    write_old_bin(tmp_path / "a" / "shard_0000", arrays)
    with pytest.raises(StoreError, match=r"where records of '.*' begin, got none for the 12 values[^\"]*\"offsets\""):
        DatasetFactory.load(train_type, tmp_path / "a", 4)
    write_old_bin(tmp_path / "b" / "shard_0000", arrays, {next(iter(arrays)): [0, 5]})
    assert open_store(tmp_path / "b").num_records == 2
