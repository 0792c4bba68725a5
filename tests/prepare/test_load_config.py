import json
import os
from pathlib import Path

import pytest

from streamdata.errors import RecipeError
from streamdata.prepare import PrepareConfig, load_config

CONFIGS = sorted(Path(__file__).parents[2].joinpath("configs", "prepare").glob("*.yaml"))
TEXT = {"field": "text", "action": "train"}
SEQ = {"train_type": "seq", "sections": [TEXT]}
SFT = {"train_type": "sft", "sections": [TEXT]}
DPO = {"train_type": "dpo", "sources": {"chosen": [TEXT], "rejected": [TEXT]}}


def problems(config: dict) -> str:
    """The message of a config that is refused."""
    with pytest.raises(RecipeError) as caught:
        load_config(config)
    return str(caught.value)


def test_all_errors_are_told_at_once_with_their_places_and_guesses(tmp_path: Path) -> None:
    """A config is corrected in one go."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "train_type: sftt\nsections:\n  - {field: a, action: trian}\n  - {action: train, tmplate: x}\n"
        "packng: bfd\nmax_bad: 1.5\n"
    )
    actions = "'train', 'mask', '$role' or 'value'"
    lines = [line for line in problems(path).splitlines() if not line.startswith("  ")]
    assert lines == [
        f"{path}:1:13: train_type: expected 'seq', 'sft', 'dpo' or 'grpo', got 'sftt', did you mean 'sft'?",
        f"{path}:3:24: sections[0].action: expected {actions}, got 'trian', did you mean 'train'?",
        f"{path}:4:5: sections[1]: expected the key 'field', got none",
        f"{path}:4:30: sections[1].tmplate: unknown key, did you mean 'template'?",
        f"{path}:6:10: max_bad: expected a valid integer, got 1.5",
        f"{path}:5:9: packng: unknown key, did you mean 'packing'?",
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SEQ | {"sources": {"sequence": [TEXT]}}, "expected `sections`, and no `sources`"),
        ({"train_type": "dpo", "sections": [TEXT]}, "expected chosen, rejected for train_type 'dpo', got `sections`"),
        ({"train_type": "dpo", "sources": {"chosen": [TEXT], "rejected": []}}, "at least one section"),
        (SEQ | {"packing": "simple"}, "packing: goes with max_packed_len, got 'simple' and None"),
        (SEQ | {"max_packed_len": 8}, "packing: goes with max_packed_len, got 'none' and 8"),
        (SEQ | {"packing": "bfd", "max_packed_len": 8}, "expected at most max_packed_len (8) with packing 'bfd'"),
        (SEQ | {"format": "megatron", "packing": "simple", "max_packed_len": 8}, "format: megatron holds"),
        (SFT | {"format": "megatron"}, "format: megatron holds"),
        (SEQ | {"format": "megatron", "weight_field": "q"}, "no position ids or weights\n  Write bin or h5."),
        (DPO | {"weight_field": "q"}, "weight_field: goes with train_type seq or sft, got 'dpo'"),
        (SFT | {"position_ids": "none"}, "position_ids: expected doc_reset or continuous"),
        (SEQ | {"sections": [TEXT | {"action": "mask"}]}, "'sequence' has no mask: expected the action 'train'"),
        (SFT | {"sections": [TEXT | {"action": "value"}]}, "the action 'value' is for rewards"),
        (SFT | {"sections": [TEXT | {"template": "none"}]}, "expected a template with {value} in it, once, got 'none'"),
        (SFT | {"sections": [TEXT | {"template": "{value}{value}"}]}, "in it, once, got '{value}{value}'"),
        (SEQ | {"end_of_document": True, "max_seq_len": 1}, "max_seq_len: expected at least 2 with end_of_document"),
        (SFT | {"sections": [TEXT | {"tools": "tools"}]}, "tools goes with the action $role, got 'train'"),
        (
            SFT | {"sections": [TEXT | {"action": "$role", "add_generation_prompt": True}]},
            "add_generation_prompt is for prompts",
        ),
        (
            SFT | {"sections": [TEXT | {"action": "$role", "add_special_tokens": True}]},
            "a chat template writes its own",
        ),
        (SEQ | {"min_chars": 9, "max_chars": 3}, "max_chars: expected at least min_chars (9), got 3"),
        (SEQ | {"max_bad": "many"}, "max_bad: expected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_together_is_told(config: dict, message: str) -> None:
    """Though each value alone is right."""
    assert message in problems(config)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_ready_made_configs_are_sound(path: Path) -> None:
    """As they stand."""
    assert load_config(path).train_type in {"seq", "sft", "dpo", "grpo"}


def test_a_config_may_be_json_or_one_already(tmp_path: Path) -> None:
    """All the same."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SEQ | {"max_bad": "0.5%"}))
    config = load_config(path)
    assert config == load_config(config) == load_config(config.model_dump())
    assert config.most_bad(1000) == 5


def test_a_config_of_any_size_is_not_read(tmp_path: Path) -> None:
    """As a recipe is not."""
    path = tmp_path / "config.yaml"
    path.touch()
    os.truncate(path, 1 << 40)
    assert "config.yaml: expected at most 1048576 bytes, got more" in problems(path)


def test_the_schema_describes_every_key() -> None:
    """For editors, and for people."""
    schema = PrepareConfig.model_json_schema()
    described = [*schema["properties"].values(), *schema["$defs"]["Section"]["properties"].values()]
    assert all(entry["description"] for entry in described)


def test_no_yaml_is_an_error_with_its_place(tmp_path: Path) -> None:
    """As for recipes."""
    path = tmp_path / "config.yaml"
    path.write_text("train_type: [")
    assert f"{path}:2:1: root: not valid YAML: " in problems(path)  # where it ends
