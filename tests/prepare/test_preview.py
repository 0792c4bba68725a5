from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdata.errors import StoreError
from streamdata.prepare import load_config
from streamdata.prepare.finished_runs import manifest_of
from streamdata.prepare.preview import first_records, stored_record
from streamdata.stores.factory import open_store
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import PRETRAIN, run, write

SFT = {
    "train_type": "sft",
    "sections": [{"field": "q", "action": "mask"}, {"field": "a", "action": "train"}],
}
PACKED = SFT | {"packing": "bfd", "max_packed_len": 16, "max_seq_len": 16}
RECORDS = [{"q": f"q{number}", "a": "answer" * (number % 2)} for number in range(8)]
PAIRS = {
    "train_type": "dpo",
    "sources": {
        name: [{"field": "q", "action": "mask"}, {"field": name, "action": "train"}] for name in ("chosen", "rejected")
    },
}


TOKENS = ("sequence", "chosen", "rejected", "prompts")


def decoded(tokenizer: str, record: dict[str, Any]) -> dict[str, Any]:
    """A record with the texts of its tokens; other fields as they are, as lists."""
    decode = load_tokenizer(tokenizer).decode
    texts = {key: [decode(ids) for ids in np.atleast_2d(record[key])] for key in record if key in TOKENS}
    return {key: texts.get(key, as_list(value)) for key, value in record.items()}


def as_list(value: Any) -> Any:
    """An array, or a list of some, as lists."""
    return [each.tolist() for each in value] if isinstance(value, list) else value.tolist()


def first(config: dict, tokenizer: str, path: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """What the first records become."""
    return list(first_records(load_config(config), load_tokenizer(tokenizer), path, count))


def trained(tokenizer: str, ids: Any, mask: Any) -> str:
    """The text of what is trained."""
    return load_tokenizer(tokenizer).decode(ids[mask])


def test_the_first_records_are_shown_as_they_would_be_written(tokenizer: str, tmp_path: Path) -> None:
    """So many and no more, over tasks; those that are left out with their reason."""
    path = write(tmp_path / "a.jsonl", RECORDS)
    *shown, left_out = first(SFT | {"task_bytes": 40}, tokenizer, path, 4)
    assert [name for name, _ in shown] == ["document 0", "document 1"]
    assert [decoded(tokenizer, record)["sequence"] for _, record in shown] == [["q1answer"], ["q3answer"]]
    assert [trained(tokenizer, each["sequence"], each["loss_mask"]) for _, each in shown] == ["answer"] * 2
    assert left_out == ("left out", {"nothing to train": 2})


def test_rows_are_shown_with_their_documents_and_padding(tokenizer: str, tmp_path: Path) -> None:
    """As in a finished store."""
    path = write(tmp_path / "a.jsonl", RECORDS)
    shown = first(PACKED, tokenizer, path, 100)
    run(PACKED, tokenizer, path, tmp_path / "out")
    decode = load_tokenizer(tokenizer).decode
    for number, (name, row) in enumerate(shown[:-1]):
        assert name == f"row {number}"
        documents = [decode(row["sequence"][begin:end]) for begin, end in pairwise(row["cu_seqlens"])]
        expected = [["q1answer", "q3answer", "q5answer"], ["q7answer"]][number]
        assert [text for text in documents if "answer" in text] == expected
        assert trained(tokenizer, row["sequence"], row["loss_mask"]) == "answer" * (3, 1)[number]
        stored = stored_record(open_store(tmp_path / "out"), number)
        assert {key: as_list(value) for key, value in stored.items()} == {
            key: as_list(value) for key, value in row.items()
        }


def test_a_pair_is_two_texts(tokenizer: str, tmp_path: Path) -> None:
    """Before and after it is written."""
    path = write(tmp_path / "a.jsonl", [{"q": "q", "chosen": "yes", "rejected": "no"}])
    ((name, pair),) = first(PAIRS, tokenizer, path, 1)
    assert name == "record 0"
    for side, (text, said) in {"chosen": ("qyes", "yes"), "rejected": ("qno", "no")}.items():
        assert decoded(tokenizer, pair)[side] == [text]
        assert trained(tokenizer, pair[side], pair[f"{side}_mask"]) == said
    run(PAIRS, tokenizer, path, tmp_path / "out")
    stored = stored_record(open_store(tmp_path / "out"), 0)
    assert decoded(tokenizer, stored) == decoded(tokenizer, pair)


def test_a_rollout_shows_its_responses_and_rewards(tokenizer: str, tmp_path: Path) -> None:
    """Rewards as numbers."""
    sources = {
        "prompts": [{"field": "p", "action": "mask"}],
        "responses": [{"field": "r", "action": "train"}],
        "rewards": [{"field": "w", "action": "value"}],
    }
    config = {"train_type": "grpo", "sources": sources}
    path = write(tmp_path / "a.jsonl", [{"p": "p", "r": ["one", "three"], "w": [0.5, 1]}])
    ((_, shown),) = first(config, tokenizer, path, 1)
    assert decoded(tokenizer, shown)["prompts"] == ["p"]
    assert [load_tokenizer(tokenizer).decode(ids) for ids in shown["responses"]] == ["one", "three"]
    assert shown["rewards"].tolist() == [0.5, 1]
    run(config, tokenizer, path, tmp_path / "out")
    assert decoded(tokenizer, stored_record(open_store(tmp_path / "out"), 0)) == decoded(tokenizer, shown)


@pytest.mark.parametrize("train_type", ["seq", "sft"])
def test_a_stored_record_has_its_mask_if_there_is_one(
    tokenizer: str, texts: str, tmp_path: Path, train_type: str
) -> None:
    """Both train types call its tokens the same."""
    run(PRETRAIN | {"train_type": train_type}, tokenizer, texts, tmp_path / "out")
    record = stored_record(open_store(tmp_path / "out"), 0)
    assert ("sequence" in record, "loss_mask" in record) == (True, train_type == "sft")


def test_the_manifest_is_found_from_any_directory_of_the_store(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """And none where there is none."""
    manifest = run(PRETRAIN, tokenizer, texts, tmp_path / "out")
    assert manifest_of(tmp_path / "out" / "data" / "task_00000") == manifest_of(tmp_path / "out") == manifest
    assert manifest_of(tmp_path) is None


def test_a_record_that_is_not_there_is_an_error(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """As is a store that is none."""
    run(PRETRAIN, tokenizer, texts, tmp_path / "out")
    with pytest.raises(ValueError, match="expected a record of 60"):
        stored_record(open_store(tmp_path / "out"), 60)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError):
        stored_record(open_store(tmp_path / "empty"), 0)
