import logging

import pytest

from streamdata.errors import RecipeError
from streamdata.prepare import PrepareError, load_config
from streamdata.prepare.preview import first_records
from streamdata.stores.dtypes import SOURCES
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import run, write

ASK, ANSWER = {"role": "user", "content": "what is it"}, {"role": "assistant", "content": "a good answer"}
GPT = [{"from": "human", "value": "what is it"}, {"from": "gpt", "value": "a good answer"}]
TRAINED = "a good answer<|im_end|>"
SFT = {
    "language-modeling, standard": {"text": "a good answer"},
    "language-modeling, conversational": {"messages": [ASK, ANSWER]},
    "prompt-completion, standard": {"prompt": "what is it ", "completion": "a good answer"},
    "prompt-completion, conversational": {"prompt": [ASK, ANSWER, ASK], "completion": [ANSWER]},
    "sharegpt, conversational": {"conversations": GPT},
    "alpaca, conversational": {"instruction": "what", "input": "is it", "output": "a good answer"},
}
PAIRS = [
    {"prompt": "what is it ", "chosen": "a good", "rejected": "the user"},
    {"chosen": "what is it a good", "rejected": "what is it the user"},
    {"prompt": [ASK], "chosen": [ANSWER | {"content": "a good"}], "rejected": [ANSWER | {"content": "the user"}]},
    {"conversations": GPT[:1], "chosen": GPT[1] | {"value": "a good"}, "rejected": GPT[1] | {"value": "the user"}},
]


@pytest.fixture(scope="module")
def ended(tokenizer, tmp_path_factory):
    """The tokenizer with an end token, which ends texts as its template ends messages."""
    loaded = load_tokenizer(tokenizer)
    path = str(tmp_path_factory.mktemp("ended"))
    kept, loaded.eos_token = loaded.eos_token, "<|im_end|>"
    loaded.save_pretrained(path)
    loaded.eos_token = kept
    return path


def trained(config, tokenizer, path):
    """What of the first records is trained, decoded, by key of tokens."""
    loaded = load_tokenizer(tokenizer)
    keys = SOURCES[config["train_type"]].values()
    records = [record for _, record in first_records(load_config(config), loaded, path, 9)]
    return [loaded.decode(record[key.tokens][record[key.mask]]) for record in records for key in keys]


@pytest.mark.parametrize("name", SFT)
def test_records_are_recognised_without_sections(tmp_path, ended, name, caplog):
    """It is said once; texts end with the end token; the answers of a prompt are not trained."""
    caplog.set_level(logging.INFO, "streamdata")
    path = write(tmp_path / "a.jsonl", [SFT[name]] * 2)
    assert trained({"train_type": "sft", "format": "auto"}, ended, path) == [TRAINED] * 2
    assert [record.getMessage() for record in caplog.records if " recognised as " in record.getMessage()] == [
        f"prepare: recognised as {name}"
    ]


@pytest.mark.parametrize("record", PAIRS, ids=str)
def test_pairs_train_what_they_do_not_share(tmp_path, ended, record):
    """An implicit prompt of texts is their common beginning in tokens."""
    path = write(tmp_path / "a.jsonl", [record])
    found = [text.strip().removesuffix("<|im_end|>") for text in trained({"train_type": "dpo"}, ended, path)]
    assert found == ["a good", "the user"]


def test_a_run_says_in_its_manifest_what_records_were(tmp_path, ended):
    """A run that goes on is of the same; variables of a record reach its template."""
    records = [{"messages": [ASK, ANSWER], "chat_template_kwargs": kwargs} for kwargs in (None, {"tools_first": 1})]
    path = write(tmp_path / "a.jsonl", records)
    config = {"train_type": "sft", "max_bad": 0}
    manifest = run(config, ended, path, tmp_path / "out")
    assert manifest["config"]["records"] == "language-modeling"
    assert run(config, ended, path, tmp_path / "out") == manifest


@pytest.mark.parametrize(
    ("kind", "record", "message"),
    [
        ("sft", {"question": "x"}, r"prompt-completion, sharegpt, alpaca, got the fields \['question'\]"),
        ("sft", {"text": "x", "instruction": "a", "output": "b"}, "standard and alpaca, conversational"),
        ("sft", {"prompt": "a", "completion": "b", "label": True}, "they are of unpaired-preference, standard"),
        ("dpo", {"text": "x"}, "among preference, got"),
    ],
)
def test_a_record_of_none_or_of_several_is_an_error(tmp_path, ended, kind, record, message):
    """With the fields seen."""
    path = write(tmp_path / "a.jsonl", [record])
    with pytest.raises(PrepareError, match=message):
        run({"train_type": kind}, ended, path, tmp_path / "out")


def test_a_format_may_be_named():
    """Where there are no sections, and of those that the train type takes."""
    assert load_config({"train_type": "sft", "records": "alpaca"}).records == "alpaca"
    assert load_config({"train_type": "sft", "format": "auto"}).format == "bin"
    with pytest.raises(RecipeError, match=r"format: expected .*\n.* said by 'records: sharegpt'"):
        load_config({"train_type": "sft", "format": "sharegpt"})
    with pytest.raises(RecipeError, match="records: expected preference for train_type 'dpo', got 'alpaca'"):
        load_config({"train_type": "dpo", "records": "alpaca"})
    with pytest.raises(RecipeError, match="records: goes without sections"):
        load_config({"train_type": "seq", "records": "alpaca", "sections": [{"field": "a", "action": "train"}]})
    with pytest.raises(RecipeError, match="expected prompts, responses, rewards"):
        load_config({"train_type": "grpo"})
