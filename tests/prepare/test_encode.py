import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from streamdata.prepare import PrepareError
from streamdata.prepare.encode import (
    GigatokenBackend,
    TextTokenizer,
    TokenizersBackend,
    special_finder,
    vocabulary_size,
)
from streamdata.prepare.extract import TextPart
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import functions
from tests.text.tiny_tokenizer import END, START, save_tiny_tokenizer

CODE = [function["code"] for function in functions()]
STRANGE = ["", " ", "a<|im_end|>b", "na\u00efve \U0001f98a\r\n\t", "<think>x</think>", "<|end|>" * 3]


def test_ids_are_those_of_the_tokenizer(tokenizer: str) -> None:
    """With special tokens as text or not, with those of the format or not."""
    loaded = load_tokenizer(tokenizer)
    texts = [
        TextPart(text, train=True, is_data=is_data, add_special_tokens=special)
        for text in CODE[:5] + STRANGE
        for is_data in (True, False)
        for special in (True, False)
    ]
    backend = TokenizersBackend(loaded)
    for text in texts:
        (ids,) = backend([text.text], is_data=text.is_data, add_special_tokens=text.add_special_tokens)
        expected = loaded.encode(
            text.text, add_special_tokens=text.add_special_tokens, split_special_tokens=text.is_data
        )
        assert (ids.dtype, ids.tolist()) == (np.uint32, expected)


def test_special_tokens_of_the_tokenizers_format_are_added_where_they_are_asked_for(tmp_path: Path) -> None:
    """A start and an end, here; by gigatoken's backend too."""
    loaded = load_tokenizer(save_tiny_tokenizer(tmp_path, starts=True))
    start, end = loaded.convert_tokens_to_ids([START, END])
    for backend in (TokenizersBackend(loaded), GigatokenBackend(loaded)):
        bare, whole = (backend(["the cat"], is_data=True, add_special_tokens=special)[0] for special in (False, True))
        assert whole.tolist() == [start, *bare.tolist(), end]
        assert not {start, end} & set(bare.tolist())


def test_a_vocabulary_with_gaps_has_all_its_ids(tmp_path: Path) -> None:
    """It has fewer tokens than its largest id says; what workers load says the same."""
    path = Path(save_tiny_tokenizer(tmp_path)) / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["model"]["vocab"]["A"] = 70_000
    path.write_text(json.dumps(saved))
    loaded = load_tokenizer(str(tmp_path))
    assert len(loaded) < 400
    TextTokenizer.save(loaded, tmp_path / "texts.json")
    for found in (loaded, TextTokenizer.load(tmp_path / "texts.json")):
        assert vocabulary_size(found) == 70_001
        assert TokenizersBackend(found)(["A"], is_data=True, add_special_tokens=False)[0].tolist() == [70_000]


def test_what_other_callers_asked_of_the_tokenizer_does_not_matter(tokenizer: str) -> None:
    """It keeps truncation, padding and the like between calls."""
    loaded = load_tokenizer(tokenizer)
    expected = loaded.encode(CODE[0])
    loaded(CODE[:2], truncation=True, max_length=4)
    loaded.backend_tokenizer.enable_padding(length=9999)
    (ids,) = TokenizersBackend(loaded)(CODE[:1], is_data=True, add_special_tokens=False)
    assert ids.tolist() == expected


def test_the_environment_is_left_as_it_was(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the tokenizer is kept to one thread."""
    for before in ("true", None):
        if before is None:
            monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        else:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        TokenizersBackend(load_tokenizer(tokenizer))(["x"], is_data=True, add_special_tokens=False)
        assert os.environ.get("TOKENIZERS_PARALLELISM") == before


@pytest.mark.parametrize("is_data", [True, False])
@pytest.mark.parametrize("special", [True, False])
def test_gigatoken_gives_the_same_ids(tokenizer: str, is_data: bool, special: bool) -> None:
    """Texts with special tokens among them too."""
    loaded, texts = load_tokenizer(tokenizer), CODE + STRANGE
    fast, reference = GigatokenBackend(loaded), TokenizersBackend(loaded)
    settings = {"is_data": is_data, "add_special_tokens": special}
    pairs = list(zip(fast(texts, **settings), reference(texts, **settings), strict=True))
    assert len(pairs) == len(texts)
    assert all(np.array_equal(*pair) for pair in pairs)
    fast.check(texts, texts)


def test_gigatoken_that_differs_is_not_trusted(tokenizer: str, tmp_path) -> None:
    """The message says on which text, and what to use."""
    backend = GigatokenBackend(load_tokenizer(tokenizer))
    other = GigatokenBackend(load_tokenizer(save_tiny_tokenizer(tmp_path, text="return self def")))
    backend._tokenizer = other._tokenizer
    with pytest.raises(PrepareError, match=r"file:3: expected the tokenizer's ids.*\n  Use backend: tokenizers"):
        backend.check(["x y", "", " ", *CODE], [f"file:{number}" for number in range(999)])


def test_gigatoken_that_is_not_there_is_named_with_its_extra(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any optional library."""
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    with pytest.raises(ImportError, match=r"pip install torch-streamdata\[fast\]"):
        GigatokenBackend(load_tokenizer(tokenizer))


def test_special_tokens_are_found_in_text(tokenizer: str) -> None:
    """All of them, and nothing that only begins like one."""
    has_special = special_finder(load_tokenizer(tokenizer))
    assert [has_special(text) for text in ("a<|im_end|>", "<think>", "<|im_en", "<", "")] == [True, True, *[False] * 3]


def test_a_slow_tokenizer_is_refused() -> None:
    """There is no batch encoder behind it."""
    with pytest.raises(PrepareError, match="expected a fast tokenizer, got object"):
        TokenizersBackend(object())
