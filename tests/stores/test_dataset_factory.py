import numpy as np
import pytest
import torch

from streamdata import DatasetFactory, SeqDataset
from streamdata.errors import StoreError
from streamdata.stores.datasets.base_dataset import BaseDataset
from streamdata.stores.datasets.record_datasets import dpo_collate
from streamdata.stores.datasets.window_datasets import SFTDataset
from tests.stores.tiny_stores import write, write_old_bin


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(DatasetFactory, "classes", dict(DatasetFactory.classes))


def test_a_class_that_is_registered_is_a_train_type(tmp_path):
    """With the windows of its base, and samples of its own."""

    @DatasetFactory.register("shouted")
    class Shouted(SeqDataset):
        def __getitems__(self, indices):
            return [{"ids": -sample["input_ids"]} for sample in super().__getitems__(indices)]

    dataset = DatasetFactory.load("shouted", write("bin", tmp_path), 4, documents=True)
    assert type(dataset) is Shouted
    assert torch.equal(dataset[0]["ids"], -SeqDataset(tmp_path, 4)[0]["input_ids"])


def test_a_class_from_the_ground_names_its_keys(tmp_path):
    """Its train type is the name; a store without the keys is refused."""

    @DatasetFactory.register("scores")
    class Scores(BaseDataset):
        required_keys = ("scores",)

        def __len__(self):
            return self.count

        def get_index(self, idx):
            return idx, idx + 1

        def __getitems__(self, indices):
            return [{"score": self.store.fetch(at, at + 1, "scores")} for at in self._numbers(indices)]

    write_old_bin(tmp_path / "a" / "shard_0000", {"scores": np.arange(3, dtype=np.int32)})
    dataset = DatasetFactory.load("scores", tmp_path / "a")
    assert (Scores.train_type, len(dataset), dataset[-1]["score"].tolist()) == ("scores", 3, [2])
    with pytest.raises(StoreError, match=r"train type 'scores' needs the keys \['scores'\]"):
        DatasetFactory.load("scores", write("bin", tmp_path / "b"))


def test_a_name_is_registered_once():
    """And for a dataset over stores."""
    with pytest.raises(ValueError, match="'seq' is SeqDataset already"):
        DatasetFactory.register("seq")(SFTDataset)
    with pytest.raises(ValueError, match="expected a subclass of BaseDataset"):
        DatasetFactory.register("mine")(dict)
    with pytest.raises(ValueError, match=r"expected a train type of \['seq', 'sft', 'dpo', 'grpo'\], got 'mine'"):
        DatasetFactory.load("mine", "x")


@pytest.mark.parametrize("train_type", ["seq", "sft", "dpo"])
def test_a_class_loads_what_the_factory_does(tmp_path, train_type):
    """`keys` are those of the store, `count` its tokens."""
    dataset = DatasetFactory.load(train_type, write("bin", tmp_path, train_type), 4)
    again = type(dataset).load(tmp_path, 4)
    assert (again.source_identity, len(again)) == (dataset.source_identity, len(dataset))
    assert dataset.keys == dataset.store.keys
    assert dataset.count == {"seq": 57, "sft": 57, "dpo": 57 + 12 * 3}[train_type]


def test_sft_needs_no_position_ids(tmp_path):
    """They are counted in each window, or in each document."""
    arrays = {"sequence": np.arange(20, dtype=np.uint16), "loss_mask": np.arange(20) % 2 == 0}
    directory = write_old_bin(tmp_path / "shard_0000", arrays, {"sequence": [0, 3, 9]}).parent
    dataset = DatasetFactory.load("sft", directory, 6)
    assert [sample["position_ids"].tolist() for sample in dataset] == [list(range(6))] * 3
    assert dataset[1]["loss_mask"].tolist() == [False, True] * 3
    reset = DatasetFactory.load("sft", directory, 6, reset_position_ids=True)
    assert reset[0].keys() == dataset[0].keys()
    assert reset[0]["position_ids"].tolist() == [0, 1, 2, 0, 1, 2]


def test_marks_are_chosen_one_by_one(tmp_path):
    """The input that ends a document is not trained on; what follows it begins anew."""
    arrays = {"sequence": np.array([5, 0, 6, 7, 0, 8, 9], np.uint16), "loss_mask": np.ones(7, np.bool_)}
    directory = write_old_bin(tmp_path / "shard_0000", arrays).parent
    wanted = {
        "eod_mask_loss": ("loss_mask", [True, False, True, True, False, True]),
        "reset_position_ids": ("position_ids", [0, 1, 0, 1, 2, 0]),
        "reset_attention_mask": ("cu_seqlens", [0, 2, 5, 6]),
    }
    for option, (field, values) in wanted.items():
        sample = SeqDataset(directory, 6, eod_token=0, **{option: True})[0]
        extra = {"max_seqlen"} if option == "reset_attention_mask" else set()
        assert sample.keys() == {"input_ids", "target_ids", field} | extra
        assert sample[field].tolist() == values
    masked = DatasetFactory.load("sft", directory, 6, eod_token=0, eod_mask_loss=True)[0]
    assert masked["loss_mask"].tolist() == wanted["eod_mask_loss"][1]
    with pytest.raises(ValueError, match="eod_mask_loss needs eod_token"):
        SeqDataset(directory, 6, eod_mask_loss=True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_are_padded_to_one_width_on_request(side):
    """The longest of both."""
    pairs = [
        {key: torch.arange(1, size + 1) for key, size in (("chosen", a), ("rejected", b))} for a, b in ((2, 5), (3, 1))
    ]
    for pair in pairs:
        pair |= {f"{key}_mask": torch.ones(len(pair[key]), dtype=torch.bool) for key in ("chosen", "rejected")}
    batch = dpo_collate(pairs, side=side, joint_width=True)
    assert {value.shape for value in batch.values()} == {(2, 5)}
    assert batch["chosen"][0].tolist() == ([1, 2, 0, 0, 0] if side == "right" else [0, 0, 0, 1, 2])
    assert dpo_collate(pairs)["chosen"].shape == (2, 3)
