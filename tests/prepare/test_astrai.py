"""AstrAI's pipeline configurations, as its guide has them, read as configurations of `prepare`."""

import json
import logging
from pathlib import Path

import pytest

from streamdata.errors import RecipeError
from streamdata.prepare import Pipeline, load_config
from streamdata.stores.datasets.record_datasets import DatasetFactory
from tests.prepare.runs import PRETRAIN as TEXTS
from tests.prepare.runs import run, write

CHAT = {
    "input": {"sections": [{"field": "messages", "action": "$role", "template": True}]},
    "mask": {"system": "mask", "user": "mask", "assistant": "train"},
    "mask_default": "mask",
    "preprocessing": {"max_seq_len": 2048, "batch_size": 9},
    "output": {"storage_format": "bin", "dtype": {"loss_mask": "bool"}},
}
INSTRUCT = {"input": {"sections": [{"field": "prompt", "action": "mask"}, {"field": "response", "action": "train"}]}}
PRETRAIN = {
    "input": {"sections": [{"field": "text", "action": "train"}]},
    "preprocessing": {"max_seq_len": 8192, "min_chars": 1, "packing_strategy": "bfd", "max_packed_len": 64},
}
PAIRS = {
    "input": {
        "sources": {
            key: {"sections": [{"field": key, "action": "$role", "template": True}]} for key in ("chosen", "rejected")
        }
    },
    "mask": {"assistant": "train"},
}
GROUPS = {
    "input": {
        "sources": {
            "prompts": {"sections": [{"field": "prompt", "action": "mask", "template": True}]},
            "responses": {"sections": [{"field": "responses", "action": "train"}], "list_field": True},
            "rewards": {"sections": [{"field": "rewards", "action": "value"}]},
        }
    },
}


@pytest.mark.parametrize(
    ("config", "train_type", "limits"),
    [
        (CHAT, "sft", (2048, "none", "doc_reset", 0)),
        (INSTRUCT, "sft", (2048, "none", "doc_reset", 0)),
        (PRETRAIN, "seq", (64, "bfd", "doc_reset", 1)),
        (PAIRS, "dpo", (2048, "none", None, 0)),
        (GROUPS, "grpo", (2048, "none", None, 0)),
    ],
)
def test_each_of_the_guide_is_read(tmp_path: Path, config: dict, train_type: str, limits: tuple) -> None:
    """With AstrAI's defaults for what it leaves out."""
    (tmp_path / "pipeline.json").write_text(json.dumps(config))
    found = load_config(tmp_path / "pipeline.json")
    assert found.train_type == train_type
    assert (found.max_seq_len, found.packing, found.position_ids, found.min_chars) == limits
    assert (found.too_long, found.max_tokens_per_shard) == ("truncate_right", 100_000_000)
    assert found.all_sections()[0].add_special_tokens == (config in (INSTRUCT, PRETRAIN))


def test_what_is_different_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the configuration that it became."""
    with caplog.at_level(logging.WARNING, "streamdata"):
        load_config(CHAT)
    (message,) = caplog.messages
    assert message.startswith('config: a configuration of AstrAI, read as {"train_type": "sft", "sections": ')
    for note in ("not message by message", "batch_size is left out", "dtype is left out", "is an error; set max_bad"):
        assert f"  - {note}" in message or note in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": {}}, r"config: the configuration: expected the keys version, .* got the keys \['masks'\]"),
        ({"preprocessing": {"max_len": 3}}, r"preprocessing: expected the keys max_seq_len, .* \['max_len'\]"),
        ({"input": {"sources": {"chosen": {}}}}, r"input: expected sections, or sources .* got \['chosen'\]"),
        ({"output": {"storage_format": "jsonl"}}, "format: expected 'bin', 'h5' or 'megatron', got 'jsonl'"),
    ],
)
def test_what_cannot_be_read_is_an_error(change: dict, message: str) -> None:
    """In its words, or in ours where a value does not fit."""
    with pytest.raises(RecipeError, match=message):
        load_config(CHAT | change)


def test_a_store_is_written_by_it(tokenizer: str, tmp_path: Path) -> None:
    """And read under its train type."""
    chats = [{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]}] * 3
    run(load_config(CHAT), tokenizer, write(tmp_path / "in.jsonl", chats), tmp_path / "out")
    masks = [sample["loss_mask"] for sample in DatasetFactory.load("sft", tmp_path / "out", 8)]
    assert any(mask.any() for mask in masks)
    assert not all(mask.all() for mask in masks)


def test_names_of_its_pipeline_are_taken(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """By keyword: `tokenizer_path` and `output_dir`; not beside ours."""
    Pipeline(TEXTS, tokenizer_path=tokenizer).run(texts, output_dir=tmp_path / "out")
    assert len(DatasetFactory.load("seq", tmp_path / "out", 8))
    with pytest.raises(TypeError, match="Pipeline: expected tokenizer or tokenizer_path, got neither"):
        Pipeline(TEXTS)
    with pytest.raises(TypeError, match="prepare: expected output or output_dir, got both"):
        Pipeline(TEXTS, tokenizer).run(texts, "a", output_dir="b")
