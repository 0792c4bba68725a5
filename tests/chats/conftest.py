"""A tiny tokenizer saved with its chat template, and a cache of each test's own."""

import pytest

from tests.text.chat_templates import CHATML, chat_tokenizer


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory):
    """A directory with a tokenizer, as a recipe names it."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = chat_tokenizer(path, CHATML)
    tokenizer.pad_token = "<|start|>"
    tokenizer.save_pretrained(path / "saved")
    return str(path / "saved")


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path):
    """The same as an object."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_path)
