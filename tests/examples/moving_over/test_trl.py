"""Rows of TRL's formats in a recipe, and their tokens as TRL has them."""

from itertools import islice

import pytest
from transformers import AutoTokenizer

from streamdata import SFTChatDataset, instantiate_from_yaml
from tests.chats.chat_files import assistant, user, write
from tests.text.chat_templates import chat_tokenizer

SFT = [{"prompt": "what is it", "completion": " a good answer"}]
DPO = [{"chosen": "the user says", "rejected": "the user is"}]
KTO = [{"prompt": [user("what is it")], "completion": [assistant("a good answer")], "label": True}]
GRPO = [{"prompt": [user("what is it")]}]
TRLS_TOKENS = ([283, 284, 222, 74, 85, 258, 296, 297, 300], [0, 0, 0, 0, 0, 1, 1, 1, 1])
"""What SFTTrainer of TRL 1.16.0 makes of `SFT` with this tokenizer: `input_ids` and `completion_mask`."""


@pytest.fixture
def tokenizer(tmp_path, monkeypatch):
    """The directory of a tokenizer."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    made = chat_tokenizer(tmp_path / "draft")
    made.pad_token, made.eos_token = "<|start|>", "<|im_end|>"
    made.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def test_each_source_says_by_its_fields_what_it_is(tmp_path, tokenizer):
    """A mixture of all four."""
    for name, rows in (("sft", SFT), ("dpo", DPO), ("kto", KTO), ("grpo", GRPO)):
        write(tmp_path / f"{name}.parquet", rows)
    variables = {"data": str(tmp_path), "tokenizer": tokenizer}
    stream = iter(instantiate_from_yaml("examples/moving_over/trl.yaml", variables))
    found = {sample["__datasetname__"]: sample for sample in islice(stream, 8)}
    assert "loss_mask" in found["sft"]
    assert {"chosen_loss_mask", "rejected_loss_mask"} <= set(found["dpo"])
    assert found["kto"]["label"] is True
    assert "raw_prompt_ids" in found["grpo"]


def test_tokens_are_those_of_trl(tmp_path, tokenizer):
    """Recorded."""
    path = write(tmp_path / "a.parquet", SFT)
    (item,) = SFTChatDataset(path, tokenizer, {"pad_mode": "no_padding"})
    assert (item["input_ids"].tolist(), item["loss_mask"].int().tolist()) == TRLS_TOKENS


@pytest.mark.parametrize(
    "row", [*SFT, {"prompt": "the user", "completion": "s say"}, {"prompt": "a ", "completion": "b"}]
)
def test_tokens_are_those_of_trl_where_it_is_installed(tmp_path, tokenizer, row):
    """By the functions by which its trainers encode; it needs `datasets`."""
    pytest.importorskip("datasets")
    trl = pytest.importorskip("trl.data_utils")
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    (item,) = SFTChatDataset(write(tmp_path / "a.parquet", [row]), tokenizer, {"pad_mode": "no_padding"})
    whole = loaded(row["prompt"] + row["completion"] + loaded.eos_token)["input_ids"]
    assert item["input_ids"].tolist() == whole
    shared = trl.common_prefix_length(loaded(row["prompt"])["input_ids"], whole)
    assert item["loss_mask"].tolist() == [number >= shared for number in range(len(whole))]
