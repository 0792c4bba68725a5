"""Records that cannot become tokens: an error with its place, or a counted skip, and how many may be skipped."""

import json
import math
from pathlib import Path

import pyarrow.parquet
import pytest

from streamdata.prepare import PrepareError
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import PRETRAIN, documents, run, tree, write

SMALL = PRETRAIN | {"task_bytes": 4000}


def broken(count: int, *places: int) -> list:
    """Documents, some of them broken lines."""
    return [f'{{"text": {number}, ' if number in places else record for number, record in enumerate(documents(count))]


def test_a_bad_record_is_an_error_with_file_line_and_field(tokenizer: str, tmp_path: Path) -> None:
    """In whatever task it is; with workers too."""
    path = write(tmp_path / "a.jsonl", [*documents(30), {"txt": "x"}, *documents(9)])
    for workers in (1, 2):
        with pytest.raises(PrepareError, match="expected it, got the fields txt") as caught:
            run(SMALL, tokenizer, path, tmp_path / "out", workers=workers)
        assert str(caught.value).startswith(f"{path}:31: text: missing field: ")
    write(tmp_path / "a.jsonl", broken(30, 20))
    with pytest.raises(PrepareError, match=r"a.jsonl:21: broken line: column \d+: expected a JSON object"):
        run(SMALL, tokenizer, path, tmp_path / "other")


def test_nan_in_a_field_that_nobody_reads_stops_nothing(tokenizer: str, tmp_path: Path) -> None:
    """As Python writes it; the store is that of the texts alone."""
    texts = documents(3)
    run(SMALL, tokenizer, write(tmp_path / "a.jsonl", texts), tmp_path / "plain")
    scored = [{"score": math.nan, **text, "all": [math.inf]} for text in texts]
    run(SMALL, tokenizer, write(tmp_path / "a.jsonl", scored), tmp_path / "scored")
    data = [
        {name: data for name, data in tree(tmp_path / out).items() if name.endswith(".bin")}
        for out in ("plain", "scored")
    ]
    assert data[0] == data[1] != {}


CHAT = {
    "train_type": "sft",
    "sections": [{"field": "m", "action": "$role", "template": "{{ messages[0].content.x() }}"}],
}
ASK, SAY = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("config", "record", "told"),
    [
        (SMALL, '{"text": ', "broken line: column 10: expected a JSON object"),
        (SMALL, "[1]", "broken line: column 1: expected a JSON object, got list"),
        (SMALL, {"txt": "x"}, "text: missing field: expected it"),
        (SMALL, {"text": ["x", None]}, "text: wrong type: expected a text, got None"),
        (SMALL, {"text": math.nan}, "text: wrong type: expected a text, got nan"),
        (SMALL, {"text": "\u00fe"}, "sequence: id outside the vocabulary: expected ids below the vocabulary's size"),
        (CHAT, '{"m": [{"n": 123456789012345678901}]}', "broken line: column 14: expected an integer from -2^63"),
        (CHAT, {"m": [ASK, SAY], "images": ["a.png"]}, "m: media: expected text alone, got images"),
        (CHAT, {"m": [ASK, SAY]}, "m: chat template: chat template of"),
    ],
)
def test_what_is_wrong_with_a_record_is_told_with_file_line_and_field(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict, record: object, told: str
) -> None:
    """Or it is put aside with the same, where some may be bad; the rest is what it would be without it."""
    outside = max(load_tokenizer(tokenizer).encode("\u00fe"))
    monkeypatch.setattr("streamdata.prepare.documents.vocabulary_size", lambda _: outside)
    good = [] if config is CHAT else [{"text": "!"}]
    path = write(tmp_path / "a.jsonl", [*good, "", record, *good])
    with pytest.raises(PrepareError) as caught:
        run(config, tokenizer, path, tmp_path / "out")
    assert str(caught.value).startswith(f"{path}:{len(good) + 2}: {told}")
    if good:
        run(config | {"max_bad": 1}, tokenizer, path, tmp_path / "out")
        (line,) = map(json.loads, (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines())
        field = f"{line['field']}: " if line["field"] else ""
        assert f"{line['place']}: {field}{line['reason']}: {line['message']}".startswith(f"{path}:3: {told}")


def test_some_bad_records_are_put_aside(tokenizer: str, tmp_path: Path) -> None:
    """Each with its place and reason; the others are what they would be without them."""
    path = write(tmp_path / "a.jsonl", [*broken(40, 3, 33), {"text": 5}, {"text": ""}])
    manifest = run(SMALL | {"max_bad": 3}, tokenizer, path, tmp_path / "out")
    assert manifest["bad"] == {"broken line": 2, "wrong type": 1}
    assert manifest["dropped"] == {"no tokens": 1}
    assert manifest["counts"]["records"] == 42
    lines = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert [(line["place"], line["reason"], line["field"]) for line in lines] == [
        (f"{path}:4", "broken line", ""),
        (f"{path}:34", "broken line", ""),
        (f"{path}:41", "wrong type", "text"),
    ]
    assert [line["record"] for line in lines] == ['{"text": 3, ', '{"text": 33, ', '{"text": 5}']


@pytest.mark.parametrize(("most", "passes"), [(2, False), (3, True), ("7%", False), ("7.5%", True)])
def test_too_many_bad_records_are_an_error(tokenizer: str, tmp_path: Path, most: object, passes: bool) -> None:
    """As a number or as a share of all; a raised limit lets the same run go on."""
    path = write(tmp_path / "a.jsonl", broken(40, 5, 20, 38))
    if passes:
        assert run(SMALL | {"max_bad": most}, tokenizer, path, tmp_path / "out")["bad"] == {"broken line": 3}
        return
    with pytest.raises(PrepareError, match=r"quarantine.jsonl; correct them, or raise max_bad"):
        run(SMALL | {"max_bad": most}, tokenizer, path, tmp_path / "out")
    assert not (tmp_path / "out" / "data").exists()
    run(SMALL | {"max_bad": 3}, tokenizer, path, tmp_path / "out")
    fresh = run(SMALL | {"max_bad": 3}, tokenizer, path, tmp_path / "fresh")
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")
    assert fresh["bad"] == {"broken line": 3}


def test_quarantined_records_keep_the_order_of_the_input(tokenizer: str, tmp_path: Path) -> None:
    """Whatever is wrong with them, and whenever that is found."""
    path = write(tmp_path / "a.jsonl", [{"text": 1}, "{", {"text": "x"}, {"txt": 1}, "{"])
    run(SMALL | {"max_bad": 4}, tokenizer, path, tmp_path / "out")
    lines = (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["place"].rpartition(":")[2] for line in lines] == ["1", "2", "4", "5"]


@pytest.mark.parametrize("none", [0, "0%", "0.0%"])
def test_no_bad_record_at_all_is_the_default(tokenizer: str, tmp_path: Path, none: object) -> None:
    """However nought is written, the first one ends the run with its place."""
    path = write(tmp_path / "a.jsonl", broken(9, 5))
    with pytest.raises(PrepareError, match=r"a.jsonl:6: broken line"):
        run(SMALL | {"max_bad": none}, tokenizer, path, tmp_path / "out")


def test_an_input_that_is_all_bad_ends_soon(tokenizer: str, tmp_path: Path) -> None:
    """Not after hours."""
    path = write(tmp_path / "a.jsonl", ["{"] * 10000)
    with pytest.raises(PrepareError, match="bad records in about 10,"):
        run(SMALL | {"max_bad": "1%"}, tokenizer, path, tmp_path / "out")
    assert len(list((tmp_path / "out" / "tasks").glob("*[0-9].json"))) == 1


def test_a_task_that_is_all_bad_ends_before_memory_does(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compressed file of any size is one task; whether too many of all are bad is not known before its end."""
    monkeypatch.setattr("streamdata.prepare.worker.MAX_BAD_BYTES", 1000)
    path = write(tmp_path / "a.jsonl.gz", [{"txt": "x"}] * 100)
    with pytest.raises(PrepareError, match=r"gz:\d: expected bad records of at most 1000 bytes .*: missing field"):
        run(SMALL | {"max_bad": "50%"}, tokenizer, path, tmp_path / "out")


def test_an_input_of_which_nothing_is_left_is_an_error(tokenizer: str, tmp_path: Path) -> None:
    """It says why."""
    path = write(tmp_path / "a.jsonl", [{"text": "x"}] * 5)
    with pytest.raises(PrepareError, match="expected tokens, got none of 5 records: 5 fewer than min_chars"):
        run(SMALL | {"min_chars": 2}, tokenizer, path, tmp_path / "out")
    write(tmp_path / "a.jsonl", [{"text": 1}] * 5)
    with pytest.raises(PrepareError, match="got none of 5 records: 5 wrong type"):
        run(SMALL | {"max_bad": "100%"}, tokenizer, path, tmp_path / "bad")


def test_the_first_bad_row_of_a_parquet_file_is_told(tokenizer: str, tmp_path: Path) -> None:
    """Its fields too: it was never text."""
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x", None, "y"], "id": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(PrepareError, match=r"a.parquet:2: text: wrong type: .*\n  Its fields are 'text', 'id'"):
        run(PRETRAIN | {"max_bad": "1%"}, tokenizer, str(tmp_path / "a.parquet"), tmp_path / "out")
