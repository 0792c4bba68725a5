import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamdata.text.tokenizer import (
    end_token,
    load_tokenizer,
    token_ids,
    tokenize,
    tokenizer_digest,
    tokenizer_fingerprint,
    tokenizer_of,
)
from tests.text.tiny_tokenizer import END, START, save_tiny_tokenizer


def test_tokens_spell_the_text(tmp_path: Path) -> None:
    """Ids decode to the text; nothing is added."""
    name = save_tiny_tokenizer(tmp_path)
    ids = tokenize(name, "the cat\nna\u00efve", with_special_tokens=False)
    assert ids.dtype == "int64"
    assert load_tokenizer(name).decode(ids.tolist()) == "the cat\nna\u00efve"


def test_code_beside_a_tokenizer_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever somebody answers at a terminal, where transformers would ask."""
    name = save_tiny_tokenizer(tmp_path)
    (tmp_path / "boom.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Boom: pass\n")
    own = {"tokenizer_class": "Boom", "auto_map": {"AutoTokenizer": ["boom.Boom", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    monkeypatch.setattr("builtins.input", lambda *_: "yes")
    with pytest.raises(ValueError, match="trust_remote_code") as caught:
        load_tokenizer(name)
    assert "streamdata runs no code" in caught.value.__notes__[0]
    assert not (tmp_path / "ran").exists()


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


@pytest.mark.parametrize("name", ["models/tokenizzer", "./gone", "/gone/away", "a b"])
def test_a_name_that_can_only_be_a_path_is_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Such as one below a folder that is here: an error at once."""
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", None)
    with pytest.raises(FileNotFoundError, match=f"tokenizer '{name}': expected a directory, got none"):
        load_tokenizer(name)


def test_fingerprint_depends_on_the_tokenizer_alone(tmp_path: Path) -> None:
    """Equal in another place, different for another vocabulary."""
    here, there = save_tiny_tokenizer(tmp_path / "a"), save_tiny_tokenizer(tmp_path / "b")
    other = save_tiny_tokenizer(tmp_path / "c", text="brown fox, naive quick jumps")
    assert tokenizer_fingerprint(here) == tokenizer_fingerprint(there) != tokenizer_fingerprint(other)


def test_a_processor_has_its_tokenizer(tmp_path: Path) -> None:
    """Which is loaded once in this process."""
    name = save_tiny_tokenizer(tmp_path)
    tokenizer = load_tokenizer(name)
    assert tokenizer is load_tokenizer(name)
    processor = SimpleNamespace(tokenizer=tokenizer)
    assert tokenizer_of(processor) is tokenizer is tokenizer_of(tokenizer)


def test_tokens_of_a_rendered_text_may_be_special(tmp_path: Path) -> None:
    """What a template wrote is what it means, and nothing is added."""
    tokenizer = load_tokenizer(save_tiny_tokenizer(tmp_path, starts=True))
    ids = token_ids(tokenizer, f"{START}a{END}")
    assert (ids.dtype, ids.tolist()) == ("int64", [1, *tokenizer.encode("a", add_special_tokens=False), 0])
    assert token_ids(tokenizer, "a", with_special_tokens=True).tolist() == tokenizer("a")["input_ids"]


def test_digest_depends_on_what_decides_the_tokens(tmp_path: Path) -> None:
    """Not on the place or on calls before; on the vocabulary, special tokens and the chat template."""
    here, there = (load_tokenizer(save_tiny_tokenizer(tmp_path / place)) for place in "ab")
    there("a text", truncation=True, max_length=2, padding=False)
    assert tokenizer_digest(here) == tokenizer_digest(there)
    other = load_tokenizer(save_tiny_tokenizer(tmp_path / "c", text="fox"))
    digests = {tokenizer_digest(here), tokenizer_digest(other)}
    there.chat_template = "{{ messages }}"
    digests.add(tokenizer_digest(there))
    there.add_special_tokens({"pad_token": START})
    digests.add(tokenizer_digest(there))
    there.add_tokens(["fox"])
    digests.add(tokenizer_digest(there))
    assert len(digests) == 5


class Media:
    """Settings as an image processor of transformers has them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def to_dict(self) -> dict[str, object]:
        return {"size": self.size, "_name_or_path": id(self)}


def test_a_processors_digest_depends_on_its_media_too(tmp_path: Path) -> None:
    """And on its own template, but not on where it was loaded from."""
    tokenizer = load_tokenizer(save_tiny_tokenizer(tmp_path))

    def digest(size: int, template: str | None) -> str:
        return tokenizer_digest(
            SimpleNamespace(tokenizer=tokenizer, image_processor=Media(size), chat_template=template)
        )

    assert digest(1, "x") == digest(1, "x")
    assert len({digest(1, "x"), digest(2, "x"), digest(1, None), tokenizer_digest(tokenizer)}) == 4


def test_a_processors_digest_depends_on_its_own_settings(tmp_path: Path) -> None:
    """Such as the size of a patch, but not on what it keeps to itself."""
    tokenizer = load_tokenizer(save_tiny_tokenizer(tmp_path))

    def digest(**settings: object) -> str:
        own = {"_name_or_path": str(id(settings)), "object": object(), **settings}
        return tokenizer_digest(SimpleNamespace(tokenizer=tokenizer, to_dict=lambda: own))

    assert digest(patch_size=8, way="full") == digest(way="full", patch_size=8)
    found = [digest(), digest(patch_size=8), digest(patch_size=4), digest(way="full"), digest(way="default")]
    assert len(set(found)) == 5
