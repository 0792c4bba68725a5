from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prepare.runs import documents, write
from tests.text.chat_templates import chat_tokenizer


@pytest.fixture(scope="module", autouse=True)
def without_waiting_for_the_disk() -> Iterator[None]:
    """Nine tenths of a small run are that: `tests/shards` shows that what is published is on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a byte-level tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    chat_tokenizer(folder / "draft").save_pretrained(folder / "saved")
    return str(folder / "saved")


@pytest.fixture
def texts(tmp_path: Path) -> str:
    """Sixty documents of real text in JSONL."""
    return write(tmp_path / "texts.jsonl", documents())
