"""Tiny tokenizers and processors, and parquet files of a few rows."""

import pytest

from tests.sources import tiny_processors


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Each test has its own cache."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer():
    """For text alone."""
    return tiny_processors.tiny_tokenizer()


@pytest.fixture(scope="session")
def qwen():
    """A processor with images and videos of different sizes."""
    return tiny_processors.tiny_qwen2_vl()


@pytest.fixture(scope="session")
def llava():
    """A processor whose images all have four tokens."""
    return tiny_processors.tiny_llava()
