import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from streamdata.text.tokenizer import end_token, load_directory, tokenize, tokenizer_fingerprint
from tests.text.tiny_tokenizer import END, START, save_tiny_tokenizer

LINE = "The cat sat on the mat, and the dog didn't; na\u00efve caf\u00e9s cost 3.14 \u6771\u4eac"
SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
AROUND = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 1), ("[SEP]", 2)]}
TEXTS = [
    "",
    " ",
    LINE,
    f"{START}the cat{END} [CLS] the[MASK]cat [SEP]",
    "<img>cat<img> xcat cat's x <LSTRIP> y <RSTRIP> z",
    "\n\n\tdef f(x):\r\n    return x ** 2  #\x00 \U0001f98a\u200b" + "the " * 50,
]


def saved(path: Path, tokenizer: Tokenizer, **settings: Any) -> str:
    """What transformers writes of it."""
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings).save_pretrained(path)
    return str(path)


def trained(model: Any, trainer: Any, before: Any, normalizer: Any = None) -> Tokenizer:
    """A tokenizer of a line of text."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = before
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator([LINE] * 5, trainer)
    return tokenizer


def word_pieces(path: Path) -> str:
    """As BERT has them."""
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    words = models.WordPiece(unk_token="[UNK]")  # type: ignore[call-arg]
    bert = trained(words, trainer, pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    bert.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    return saved(path, bert, pad_token="[PAD]", eos_token="[SEP]", **names)


def unigrams(path: Path) -> str:
    """As SentencePiece has them, cut from the left, with tokens that were added."""
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False)
    pieces = trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), normalizers.NFKC())
    pieces.post_processor = processors.TemplateProcessing(**AROUND)
    pieces.add_tokens(["cat", AddedToken("<LSTRIP>", lstrip=True), AddedToken("the", single_word=True)])
    pieces.add_special_tokens([AddedToken("<RSTRIP>", rstrip=True), "<img>"])
    return saved(path, pieces, eos_token="[SEP]", truncation_side="left", extra_special_tokens=["<img>"])


def listed(path: Path) -> str:
    """As transformers 4 saved them: the configuration lists the added tokens once more, beside a map of names."""
    name = save_tiny_tokenizer(path, starts=True)
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    configure(path, added_tokens_decoder={str(token.pop("id")): token for token in added})
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "other"}}))
    return name


MAKERS = {
    "bytes": save_tiny_tokenizer,
    "bytes between a start and an end": lambda path: save_tiny_tokenizer(path, starts=True),
    "word pieces": word_pieces,
    "unigrams": unigrams,
    "listed": listed,
}


def configure(path: Path, **settings: Any) -> None:
    """Change settings of a tokenizer's configuration; None takes one away."""
    file = path / "tokenizer_config.json"
    config = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def reference(tokenizer: Any, text: str, max_tokens: int | None, special: bool) -> Any:
    """What transformers gives, or the error that it raises."""
    cut = {"truncation": max_tokens is not None, "max_length": max_tokens}
    try:
        return tokenizer.encode(text, add_special_tokens=special, split_special_tokens=True, verbose=False, **cut)
    except Exception as error:
        return str(error)


def ours(name: str, text: str, max_tokens: int | None, special: bool) -> Any:
    """What we give, or the error."""
    try:
        return tokenize(name, text, max_tokens, with_special_tokens=special).tolist()
    except Exception as error:
        return str(error)


@pytest.fixture(scope="module", params=MAKERS)
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A directory, whose name says nothing, and its tokenizer as transformers loads it."""
    name = MAKERS[request.param](tmp_path_factory.mktemp("gpt2-bert-llama"))
    assert load_directory(name) is not None
    return name, AutoTokenizer.from_pretrained(name)


@pytest.mark.parametrize("special", [False, True])
def test_ids_are_those_of_transformers(both: tuple[str, Any], special: bool) -> None:
    """Of texts with and without what looks like special tokens, whole and cut, down to where a cut is an error."""
    name, tokenizer = both
    for text in TEXTS:
        for max_tokens in (None, 100, 7, 3, 2, 1, 0, None):
            expected = reference(tokenizer, text, max_tokens, special)
            assert ours(name, text, max_tokens, special) == expected, (text, max_tokens)


@given(text=st.text(max_size=60), max_tokens=st.none() | st.integers(2, 30), special=st.booleans())
def test_ids_of_any_text_are_those_of_transformers(
    both: tuple[str, Any], text: str, max_tokens: int | None, special: bool
) -> None:
    """Whatever it holds."""
    name, tokenizer = both
    assert ours(name, text, max_tokens, special) == reference(tokenizer, text, max_tokens, special)


def test_end_and_fingerprint_are_those_of_transformers(both: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """States that were written before hold the fingerprint."""
    name, tokenizer = both
    assert end_token(name) == tokenizer.eos_token_id
    assert len(load_directory(name) or "") == len(tokenizer)
    plain = tokenizer_fingerprint.__wrapped__(name)
    monkeypatch.setattr("streamdata.text.tokenizer._directory_tokenizer", lambda _: None)
    assert tokenizer_fingerprint.__wrapped__(name) == plain


SETTINGS: dict[str, dict[str, Any]] = {
    "a class that may build it otherwise": {"tokenizer_class": "LlamaTokenizer"},
    "no class": {"tokenizer_class": None},
    "a start that the file does not add": {"add_bos_token": True, "bos_token": START},
    "a space before each text": {"add_prefix_space": True},
    "a special token that the file does not know": {"mask_token": "<new>"},
    "a special token that is a word to the file": {"bos_token": "the"},
    "more special tokens": {"extra_special_tokens": ["cat"]},
    "named special tokens": {"extra_special_tokens": {"image_token": "cat"}},
    "a token that is added otherwise": {"added_tokens_decoder": {"0": {"content": END, "lstrip": True}}},
    "a token that is added anew": {"added_tokens_decoder": {"1000": {"content": "cat"}}},
    "a setting that is unknown here": {"fix_mistral_regex": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_the_file_does_not_hold_is_left_to_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Then the ids are its own."""
    name = save_tiny_tokenizer(tmp_path)
    assert load_directory(name) is not None
    configure(tmp_path, **settings)
    assert load_directory(name) is None
    tokenizer = AutoTokenizer.from_pretrained(name)
    for text in ("the cat sat", f"{START}cat{END}"):
        assert ours(name, text, None, True) == reference(tokenizer, text, None, True)


@pytest.mark.parametrize("file", ["config.json", "added_tokens.json", "special_tokens_map.json", "vocab.json"])
def test_other_files_leave_it_to_transformers(tmp_path: Path, file: str) -> None:
    """A model's configuration may ask for another class, others for more tokens."""
    name = save_tiny_tokenizer(tmp_path)
    (tmp_path / file).write_text("{}")
    assert load_directory(name) is None


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_directory_that_lacks_a_file_is_left_to_transformers(tmp_path: Path, file: str, text: str | None) -> None:
    """It raises the error, if it is one."""
    name = save_tiny_tokenizer(tmp_path)
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text)
    assert load_directory(name) is None
    assert load_directory(str(tmp_path / "missing")) is None


def test_settings_of_a_call_that_were_saved_are_left_to_transformers(tmp_path: Path) -> None:
    """A tokenizer that truncated or padded when it was saved does so for ever."""
    for change in ("enable_truncation", "enable_padding"):
        name = save_tiny_tokenizer(tmp_path)
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        getattr(tokenizer, change)(**({"max_length": 5} if change == "enable_truncation" else {}))
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        assert load_directory(name) is None


def test_a_class_of_transformers_with_rules_of_its_own_is_left_to_it(tmp_path: Path) -> None:
    """As it saves itself."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, "the", "cat", "##s"])}
    BertTokenizer(vocab=vocabulary).save_pretrained(tmp_path)
    assert load_directory(str(tmp_path)) is None


def test_texts_are_encoded_without_transformers(tmp_path: Path, python: Callable) -> None:
    """Importing it takes seconds, in each worker."""
    name = save_tiny_tokenizer(tmp_path)
    code = f"""
import sys
from streamdata.text.tokenizer import end_token, tokenize, tokenizer_fingerprint
tokenize({name!r}, "the cat", 5, with_special_tokens=True), end_token({name!r}), tokenizer_fingerprint({name!r})
print("tokenizers" in sys.modules, "transformers" in sys.modules)
"""
    assert python("-c", code).stdout.split() == ["True", "False"]
