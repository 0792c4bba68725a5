"""Text files as input: one document each."""

from pathlib import Path

import pytest

from streamdata.prepare import PrepareError, inputs
from streamdata.prepare.inputs import TaskInput, plan_tasks
from streamdata.stores.factory import open_store
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import PRETRAIN, interrupt, run, tree


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder of them: an empty one, one in a folder below, one with a byte order mark and no newline at its end."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for name, content in {"a": b"One.\nTwo.\n", "b": b"", "more/c": b"\xef\xbb\xbf{Three}", "d": b" \n"}.items():
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def stored(output: Path, tokenizer: str) -> list[str]:
    """The texts of a store's records."""
    store, decode = open_store(output), load_tokenizer(tokenizer).decode
    return [decode(store.fetch_record(number, "sequence")) for number in range(store.num_records)]


@pytest.mark.parametrize("pattern", ["", "/**/*.txt"])
def test_each_file_is_a_document(texts: Path, tokenizer: str, tmp_path: Path, pattern: str) -> None:
    """By folder and by glob, whatever the size of tasks; what is blank is none."""
    summary = run(PRETRAIN | {"task_bytes": 4}, tokenizer, f"{texts}{pattern}", tmp_path / "out")
    assert summary["counts"]["records"] == 2
    first, second = stored(tmp_path / "out", tokenizer)
    assert first.startswith("One.\nTwo.\n")
    assert second.startswith("{Three}")


def test_an_interrupted_run_over_texts_goes_on(texts: Path, tokenizer: str, tmp_path: Path) -> None:
    """What was tokenized is not tokenized again; and a text that has changed since is noticed."""
    for out in ("out", "changed"):
        interrupt(PRETRAIN, tokenizer, str(texts), tmp_path / out, 2)
    markers = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "tasks").iterdir()}
    assert len(markers) == 2
    for out in ("out", "whole"):
        run(PRETRAIN, tokenizer, str(texts), tmp_path / out)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    assert all(path.stat().st_mtime_ns == mtime for path, mtime in markers.items())
    (texts / "a.txt").write_text("Four.\n")
    with pytest.raises(PrepareError, match=r"expected a run of the same inputs, .* got a change in the input"):
        run(PRETRAIN, tokenizer, str(texts), tmp_path / "changed")


def test_a_text_that_is_not_utf_8_is_a_bad_record(texts: Path, tokenizer: str, tmp_path: Path) -> None:
    """With its place; some may be put aside."""
    (texts / "e.txt").write_bytes(b"caf\xe9")
    with pytest.raises(PrepareError, match=r"e\.txt: text: not UTF-8: expected UTF-8, got the byte 0xe9 at offset 3"):
        run(PRETRAIN, tokenizer, str(texts), tmp_path / "out")
    summary = run(PRETRAIN | {"max_bad": 1}, tokenizer, str(texts), tmp_path / "other")
    assert summary["bad"] == {"not UTF-8": 1}


def test_a_text_that_does_not_fit_into_memory_is_an_error(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to do."""
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 8)
    (task,) = plan_tasks(str(texts / "a.txt"), 4)
    with pytest.raises(PrepareError, match="a text of at most 8 bytes, got 10"):
        list(TaskInput(task).batches())
