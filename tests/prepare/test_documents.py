import numpy as np
import pytest

from streamdata.prepare import load_config
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.encode import TokenizersBackend
from streamdata.text.tokenizer import load_tokenizer
from tests.text.chat_templates import encode_chat

TEXT = {"field": "t", "action": "train"}
PROMPTED = [{"field": "q", "action": "mask"}, TEXT]
USER, ASSISTANT = {"role": "user", "content": "what is asked"}, {"role": "assistant", "content": "a good answer"}
GRPO = {
    "prompts": [{"field": "p", "action": "$role", "add_generation_prompt": True}],
    "responses": [{"field": "r", "action": "train"}],
    "rewards": [{"field": "w", "action": "value"}],
}


def make(tokenizer: str, config: dict, *records: dict) -> tuple[list[TokenizedDocument], list[str]]:
    """The documents of some records, and why others are none."""
    loaded = load_tokenizer(tokenizer)
    maker = DocumentMaker(load_config(config), loaded, TokenizersBackend(loaded))
    failed: list[str] = []
    made = maker.make(list(enumerate(records)), lambda number, error: failed.append(f"{number} {error.reason}"))
    return list(made), failed


def sequence(tokenizer: str, record: dict, **config: object) -> tuple[list[int], list[bool]]:
    """The ids of a record's only sequence, and which are trained."""
    (document,), _ = make(tokenizer, {"train_type": "sft", **config}, record)
    ((ids, train, _),) = document.sequences["sequence"]
    return ids.tolist(), train.tolist()


def words(tokenizer: str, text: str) -> list[int]:
    return load_tokenizer(tokenizer).encode(text, add_special_tokens=False)


def test_sections_are_joined_with_their_masks_and_the_end(tokenizer: str) -> None:
    """The end of a trained text is trained."""
    q, t, end = words(tokenizer, "what is"), words(tokenizer, "the answer"), load_tokenizer(tokenizer).eos_token_id
    found = sequence(tokenizer, {"q": "what is", "t": "the answer"}, sections=PROMPTED, end_of_document=True)
    assert found == ([*q, *t, end], [False] * len(q) + [True] * (len(t) + 1))


@pytest.mark.parametrize("policy", ["truncate_left", "truncate_right"])
def test_a_cut_keeps_the_end_token_within_the_limit(tokenizer: str, policy: str) -> None:
    """It is trained only where the text does end there."""
    t, end = words(tokenizer, "abcdefghijkl"), load_tokenizer(tokenizer).eos_token_id
    ids, train = sequence(
        tokenizer, {"t": "abcdefghijkl"}, sections=[TEXT], end_of_document=True, max_seq_len=5, too_long=policy
    )
    assert ids == [*(t[-4:] if policy == "truncate_left" else t[:4]), end]
    assert train == [True] * 4 + [policy == "truncate_left"]


@pytest.mark.parametrize(
    ("policy", "reason"), [("drop", "more than max_seq_len"), ("truncate_right", "nothing to train"),
                           ("error", "more than max_seq_len")]
)  # fmt: skip
def test_too_long_records_are_left_out_with_their_reason(tokenizer: str, policy: str, reason: str) -> None:
    """Also where the cut leaves nothing to train; the others stay."""
    config = {"train_type": "sft", "sections": PROMPTED, "max_seq_len": 6, "too_long": policy}
    found, failed = make(tokenizer, config, {"q": "q", "t": "t"}, {"q": "abcdefgh", "t": "t"}, {"q": "r", "t": "u"})
    assert [document.sequences["sequence"][0].ids.tolist() for document in found] == [
        words(tokenizer, "q") + words(tokenizer, "t"),
        words(tokenizer, "r") + words(tokenizer, "u"),
    ]
    assert failed == [f"1 {reason}"]


def test_a_record_that_must_not_be_too_long_is_bad(tokenizer: str) -> None:
    """The message speaks of the config's limit, and counts the end token."""
    config = {"train_type": "seq", "sections": [TEXT], "max_seq_len": 3, "too_long": "error", "end_of_document": True}
    loaded, told = load_tokenizer(tokenizer), []
    maker = DocumentMaker(load_config(config), loaded, TokenizersBackend(loaded))
    assert not list(maker.make([(0, {"t": "\x01\x02\x03"})], lambda _, error: told.append(error.message)))
    assert told == ["expected at most 3 tokens, got 4"]


def test_what_trains_nothing_is_left_out(tokenizer: str) -> None:
    """An empty answer, an empty text, a chat whose messages are all masked."""
    assert make(tokenizer, {"train_type": "sft", "sections": PROMPTED}, {"q": "x", "t": ""})[1] == [
        "0 nothing to train"
    ]
    assert make(tokenizer, {"train_type": "seq", "sections": [TEXT]}, {"t": ""})[1] == ["0 no tokens"]
    chat = {"train_type": "sft", "sections": [{"field": "m", "action": "$role"}]}
    assert make(tokenizer, chat, {"m": [USER, ASSISTANT | {"train": False}]})[1] == ["0 nothing to train"]


def test_a_chat_is_encoded_as_online(tokenizer: str) -> None:
    """By the one implementation there is, with the config's roles, and the template that it names."""
    section = {"field": "m", "action": "$role", "roles": {"user": "train"}, "template_kwargs": {"x": 1}}
    expected = encode_chat(load_tokenizer(tokenizer), [USER, ASSISTANT], actions={"user": "train"})
    found = sequence(tokenizer, {"m": [USER, ASSISTANT]}, sections=[section])
    assert found == (expected.input_ids.tolist(), expected.train.tolist())
    other = "{% for m in messages %}{{ m.content }}{% endfor %}"
    ids, _ = sequence(tokenizer, {"m": [USER, ASSISTANT]}, sections=[section | {"template": other}])
    assert ids == words(tokenizer, USER["content"] + ASSISTANT["content"])


def test_a_chat_learns_to_stop_where_its_template_has_no_end(tokenizer: str) -> None:
    """By the next role's token, unless the config says otherwise."""
    template = (
        "{% for m in messages %}{{ '<|User|>' if m.role == 'user' else '<|Assistant|>' }}{{ m.content }}{% endfor %}"
    )
    section = {"field": "m", "action": "$role", "template": template}
    header, answer = "<|User|>what is asked<|Assistant|>", "a good answer"
    for settings, end in (({}, "<|User|>"), ({"append_stop": False}, "")):
        ids, train = sequence(tokenizer, {"m": [USER, ASSISTANT]}, sections=[section | settings])
        assert ids == words(tokenizer, header + answer + end)
        assert train == [False] * len(words(tokenizer, header)) + [True] * len(words(tokenizer, answer + end))


def test_a_template_that_fails_is_told_with_its_field(tokenizer: str) -> None:
    """And only that record is bad."""
    section = {"field": "m", "action": "$role", "template": "{{ raise_exception('no') if messages[0].bad else 'x' }}"}
    config = {"train_type": "sft", "sections": [section | {"roles": {"user": "train"}}]}
    assert "0 chat template" in make(tokenizer, config, {"m": [USER | {"bad": True}, ASSISTANT]})[1]


def test_pairs_are_two_sequences(tokenizer: str) -> None:
    """A list is no pair."""
    sources = {
        name: [{"field": "q", "action": "mask"}, {"field": name, "action": "train"}] for name in ("chosen", "rejected")
    }
    config = {"train_type": "dpo", "sources": sources}
    record = {"q": "x", "chosen": "yes", "rejected": "no"}
    (document,), failed = make(tokenizer, config, record, record | {"chosen": ["a", "b"]})
    assert document.sequences["rejected"][0].ids.tolist() == words(tokenizer, "x") + words(tokenizer, "no")
    assert failed == ["1 wrong type"]


def test_rollouts_keep_their_groups(tokenizer: str) -> None:
    """A prompt ends where the assistant begins, each response stays one, rewards stay floats."""
    config = {"train_type": "grpo", "sources": GRPO}
    record = {"p": [USER], "r": ["a good answer", "no"], "w": [0.25, 1]}
    bad = [record | {"w": [1]}, record | {"w": "high"}, record | {"r": [], "w": []}]
    (document,), failed = make(tokenizer, config, record, *bad)
    prompt = load_tokenizer(tokenizer).decode(document.sequences["prompts"][0].ids)
    assert prompt.endswith("what is asked<|im_end|>\n<|im_start|>assistant\n")
    assert [row.ids.tolist() for row in document.sequences["responses"]] == [
        words(tokenizer, text) for text in record["r"]
    ]
    assert document.values == {"rewards": [0.25, 1.0]}
    assert failed == ["1 wrong number", "2 wrong type", "3 no responses"]


def test_an_id_outside_the_vocabulary_is_bad(tokenizer: str) -> None:
    """Whatever gave it."""
    loaded = load_tokenizer(tokenizer)
    config = load_config({"train_type": "seq", "sections": [TEXT]})
    maker = DocumentMaker(config, loaded, lambda texts, **kind: [np.array([len(loaded)], np.uint32) for _ in texts])
    failed = []
    assert not list(maker.make([(7, {"t": "x"})], lambda number, error: failed.append((number, error.reason))))
    assert failed == [(7, "id outside the vocabulary")]


@pytest.mark.parametrize("train_type", ["seq", "sft"])
def test_an_empty_list_is_left_out_with_its_reason(tokenizer: str, train_type: str) -> None:
    """It does not vanish."""
    found, failed = make(tokenizer, {"train_type": train_type, "sections": [TEXT]}, {"t": []}, {"t": ["x"]})
    assert len(found) == 1
    assert failed == ["0 no tokens"]


def test_what_is_cut_at_its_start_does_not_train_its_first_token(tokenizer: str) -> None:
    """Nothing of its document predicts it; where it is all that was trained, the record is left out."""
    config = {"sections": [TEXT, {"field": "q", "action": "mask"}], "too_long": "truncate_left"}
    record = {"t": "\x01\x02\x03", "q": "\x04\x05"}
    ids, train = sequence(tokenizer, record, **config, max_seq_len=4)
    assert ids == words(tokenizer, "\x02\x03\x04\x05")
    assert train == [False, True, False, False]
    failed = make(tokenizer, {"train_type": "sft", **config, "max_seq_len": 3}, record)[1]
    assert failed == ["0 nothing to train"]


def test_text_that_is_binary_is_a_bad_record(tokenizer: str) -> None:
    """As a column of parquet may be."""
    chat = {"train_type": "sft", "sections": [{"field": "m", "action": "$role"}]}
    assert make(tokenizer, chat, {"m": [USER, ASSISTANT | {"content": b"x"}]}) == ([], ["0 chat template"])
