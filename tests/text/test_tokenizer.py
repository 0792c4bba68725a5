from pathlib import Path

import pytest

from streamdata.text import end_token, load_tokenizer, tokenize, tokenizer_fingerprint
from tests.text.tiny_tokenizer import END, save_tiny_tokenizer


def test_tokens_spell_the_text(tmp_path: Path) -> None:
    """Ids decode to the text; nothing is added."""
    name = save_tiny_tokenizer(tmp_path)
    ids = tokenize(name, "the cat\nna\u00efve", with_special_tokens=False)
    assert ids.dtype == "int64"
    assert load_tokenizer(name).decode(ids.tolist()) == "the cat\nna\u00efve"


def test_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    """A document that spells the end token does not end there."""
    name = save_tiny_tokenizer(tmp_path)
    ids = tokenize(name, f"a{END}b", with_special_tokens=False)
    assert end_token(name) not in ids
    assert load_tokenizer(name).decode(ids.tolist()) == f"a{END}b"


def test_truncation_keeps_the_tokenizers_own_end(tmp_path: Path) -> None:
    """A text is cut to `max_tokens`, with start and end where the tokenizer has them."""
    name = save_tiny_tokenizer(tmp_path, starts=True)
    ids = tokenize(name, "the cat sat on the mat", 4, with_special_tokens=True).tolist()
    assert (len(ids), ids[0], ids[-1]) == (4, 1, 0)
    assert len(tokenize(name, "the cat sat on the mat", with_special_tokens=False)) > 4


def test_a_tokenizer_without_end_is_refused(tmp_path: Path) -> None:
    """The error names the tokenizer and the remedy."""
    name = save_tiny_tokenizer(tmp_path, eos=False)
    with pytest.raises(ValueError, match=rf"{name}.*has none\n.*eos_token"):
        end_token(name)


def test_fingerprint_depends_on_the_tokenizer_alone(tmp_path: Path) -> None:
    """Equal in another place, different for another vocabulary."""
    here, there = save_tiny_tokenizer(tmp_path / "a"), save_tiny_tokenizer(tmp_path / "b")
    other = save_tiny_tokenizer(tmp_path / "c", text="brown fox, naive quick jumps")
    assert tokenizer_fingerprint(here) == tokenizer_fingerprint(there) != tokenizer_fingerprint(other)
