from pathlib import Path

import pytest

from streamdata.errors import StoreError
from streamdata.prepare import load_config
from streamdata.prepare.finished_runs import manifest_of
from streamdata.prepare.preview import Shown, first_records, stored_record
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


def told(shown: list[Shown], tokenizer: str) -> list[tuple]:
    """Names, texts of pieces, texts of what is trained in them, and notes."""
    decode = load_tokenizer(tokenizer).decode
    return [
        (
            ", ".join(filter(None, (record.name, record.key))),
            [decode(piece.ids) for piece in record.pieces],
            [decode(piece.ids[piece.train]) for piece in record.pieces if piece.train is not None],
            record.note,
        )
        for record in shown
    ]


def first(config: dict, tokenizer: str, path: str, count: int) -> list[tuple]:
    """What the first records become."""
    return told(list(first_records(load_config(config), load_tokenizer(tokenizer), path, count)), tokenizer)


def test_the_first_records_are_shown_as_they_would_be_written(tokenizer: str, tmp_path: Path) -> None:
    """So many and no more, over tasks; those that are left out with their reason."""
    path = write(tmp_path / "a.jsonl", RECORDS)
    shown = first(SFT | {"task_bytes": 40}, tokenizer, path, 4)
    assert shown == [
        ("document 0, sequence", ["q1answer"], ["answer"], ""),
        ("document 1, sequence", ["q3answer"], ["answer"], ""),
        ("left out", [], [], "nothing to train 2"),
    ]


def test_rows_are_shown_with_their_documents_and_padding(tokenizer: str, tmp_path: Path) -> None:
    """As in a finished store."""
    path = write(tmp_path / "a.jsonl", RECORDS)
    shown = first(PACKED, tokenizer, path, 100)
    run(PACKED, tokenizer, path, tmp_path / "out")
    for number, (name, pieces, trained, _) in enumerate(shown[:-1]):
        assert name == f"row {number}, sequence"
        assert [piece for piece in pieces if "answer" in piece] == [["q1answer", "q3answer", "q5answer"], ["q7answer"]][
            number
        ]
        assert "".join(trained) == "answer" * (3, 1)[number]
        ((stored, *rest),) = told(list(stored_record(open_store(tmp_path / "out"), number)), tokenizer)
        assert stored == f"record {number}, sequence"
        assert rest == [pieces, trained, ""]


def test_a_pair_is_two_texts(tokenizer: str, tmp_path: Path) -> None:
    """Before and after it is written."""
    path = write(tmp_path / "a.jsonl", [{"q": "q", "chosen": "yes", "rejected": "no"}])
    shown = first(PAIRS, tokenizer, path, 1)
    assert shown == [("record 0, chosen", ["qyes"], ["yes"], ""), ("record 0, rejected", ["qno"], ["no"], "")]
    run(PAIRS, tokenizer, path, tmp_path / "out")
    assert told(list(stored_record(open_store(tmp_path / "out"), 0)), tokenizer) == shown


def test_a_rollout_shows_its_responses_and_rewards(tokenizer: str, tmp_path: Path) -> None:
    """Rewards as numbers."""
    sources = {
        "prompts": [{"field": "p", "action": "mask"}],
        "responses": [{"field": "r", "action": "train"}],
        "rewards": [{"field": "w", "action": "value"}],
    }
    config = {"train_type": "grpo", "sources": sources}
    path = write(tmp_path / "a.jsonl", [{"p": "p", "r": ["one", "three"], "w": [0.5, 1]}])
    shown = first(config, tokenizer, path, 1)
    assert shown == [
        ("record 0, prompts", ["p"], [], ""),
        ("record 0, responses", ["one", "three"], ["one", "three"], ""),
        ("record 0, rewards", [], [], "0.5, 1"),
    ]
    run(config, tokenizer, path, tmp_path / "out")
    assert told(list(stored_record(open_store(tmp_path / "out"), 0)), tokenizer) == shown


@pytest.mark.parametrize("train_type", ["seq", "sft"])
def test_a_stored_record_is_shown_once(tokenizer: str, texts: str, tmp_path: Path, train_type: str) -> None:
    """With its mask or without; both train types call its tokens the same."""
    run(PRETRAIN | {"train_type": train_type}, tokenizer, texts, tmp_path / "out")
    (shown,) = stored_record(open_store(tmp_path / "out"), 0)
    assert (shown.name, shown.key) == ("record 0", "sequence")
    assert (shown.pieces[0].train is not None) == (train_type == "sft")


def test_the_manifest_is_found_from_any_directory_of_the_store(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """And none where there is none."""
    manifest = run(PRETRAIN, tokenizer, texts, tmp_path / "out")
    assert manifest_of(tmp_path / "out" / "data" / "task_00000") == manifest_of(tmp_path / "out") == manifest
    assert manifest_of(tmp_path) is None


def test_a_record_that_is_not_there_is_an_error(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """As is a store that is none."""
    run(PRETRAIN, tokenizer, texts, tmp_path / "out")
    with pytest.raises(ValueError, match="expected a record of 60"):
        list(stored_record(open_store(tmp_path / "out"), 60))
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError):
        list(stored_record(open_store(tmp_path / "empty"), 0))
