"""Rows as TRL's documentation has them, and ShareGPT's and Alpaca's."""

import copy
import json
import logging
import math

import pytest
import torch
from transformers import AutoTokenizer

from streamdata import PreferenceDataset, SFTChatDataset, mixed_collate
from tests.chats.chat_files import assistant, user, write
from tests.chats.prompts.prompt_files import image
from tests.sources import tiny_processors
from tests.text.chat_templates import encode_chat

END = "<|im_end|>"
ASK, ANSWER = user("what is it"), assistant("a good answer")
GPT = [{"from": "human", "value": "what is it"}, {"from": "gpt", "value": "a good answer"}]
UNPADDED = {"pad_mode": "no_padding"}
SAID = f"a good answer{END}"
TRAINING = {
    "language-modeling, standard": ({"text": "a good answer"}, SAID),
    "language-modeling, conversational": ({"messages": [ASK, ANSWER]}, SAID),
    "prompt-completion, standard": ({"prompt": "what is it", "completion": " a good answer"}, f" {SAID}"),
    "prompt-completion, conversational": ({"prompt": [ASK, ANSWER, ASK], "completion": [ANSWER]}, SAID),
    "sharegpt, conversational": ({"system": "be good", "conversations": GPT}, SAID),
    "alpaca, conversational": ({"instruction": "what", "input": "is it", "output": "a good answer"}, SAID),
}
PAIRS = {
    "standard, with a prompt": {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
    "standard, without": {"chosen": "The sky is blue.", "rejected": "The sky is green."},
    "conversational": {"prompt": [ASK], "chosen": [assistant(" blue.")], "rejected": [assistant(" green.")]},
    "sharegpt": {
        "conversations": GPT[:1],
        "chosen": GPT[1] | {"value": " blue."},
        "rejected": GPT[1] | {"value": " green."},
    },
    "alpaca": {"instruction": "x", "chosen": " blue.", "rejected": " green."},
}


@pytest.fixture
def ended(tokenizer_path):
    """The tokenizer with an end token of its own."""
    return AutoTokenizer.from_pretrained(tokenizer_path, eos_token=END)


def trained(tokenizer, item, side=""):
    """What is trained, decoded."""
    return tokenizer.decode(item[f"{side}input_ids"][item[f"{side}loss_mask"]])


def told(caplog):
    """What was recognised."""
    return [record.getMessage() for record in caplog.records if " recognised as " in record.getMessage()]


@pytest.mark.parametrize("name", TRAINING)
def test_rows_are_recognised_by_their_fields(tmp_path, ended, name, caplog):
    """It is said once; of a text all is trained, of a prompt and its completion the completion."""
    caplog.set_level(logging.INFO, "streamdata")
    row, said = TRAINING[name]
    dataset = SFTChatDataset(write(tmp_path / "a.parquet", [row] * 2), ended, UNPADDED)
    assert [trained(ended, item) for item in dataset] == [said] * 2
    assert told(caplog) == [f"SFTChatDataset: recognised as {name}"]
    named = SFTChatDataset(write(tmp_path / "b.parquet", [row]), ended, {**UNPADDED, "format": name.split(",")[0]})
    assert named[0]["input_ids"].tolist() == dataset[0]["input_ids"].tolist()


def test_texts_are_encoded_as_one_with_the_end(tmp_path, ended):
    """All tokens of a text are trained; those of a prompt are what both it and the whole begin with."""
    rows = [{"text": "a good answer"}]
    (item,) = SFTChatDataset(write(tmp_path / "a.parquet", rows), ended, UNPADDED)
    assert item["input_ids"].tolist() == ended(f"a good answer{END}")["input_ids"]
    assert item["loss_mask"].all()
    rows = [{"prompt": "what is it", "completion": " a good answer"}]
    (item,) = SFTChatDataset(write(tmp_path / "b.parquet", rows), ended, {"max_length": 64})
    whole, prompt = ended(f"what is it a good answer{END}")["input_ids"], ended("what is it")["input_ids"]
    assert item["input_ids"][: len(whole)].tolist() == whole
    assert item["loss_mask"].tolist() == [len(prompt) <= number < len(whole) for number in range(64)]


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_train_what_they_do_not_share(tmp_path, ended, name):
    """An implicit prompt of two texts is their common beginning in tokens."""
    (item,) = PreferenceDataset(write(tmp_path / "a.parquet", [PAIRS[name]]), ended, UNPADDED)
    found = [trained(ended, item, side).strip() for side in ("chosen_", "rejected_")]
    assert found == [f"blue.{END}", f"green.{END}"]


@pytest.mark.parametrize(
    "row", [{"prompt": "what is it", "completion": " good"}, {"prompt": [ASK], "completion": [assistant(" good")]}]
)
@pytest.mark.parametrize("label", [True, False])
def test_unpaired_rows_have_a_label(tmp_path, ended, row, label):
    """A bool, beside the fields of one side."""
    (item,) = PreferenceDataset(write(tmp_path / "a.parquet", [{**row, "label": label}]), ended)
    assert item["label"] is label
    assert set(item) == {"input_ids", "attention_mask", "position_ids", "loss_mask", "label"}
    assert (item["input_ids"].dtype, item["loss_mask"].dtype) == (torch.int64, torch.bool)
    assert trained(ended, item).strip() == f"good{END}"
    assert mixed_collate([item])


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        (SFTChatDataset, {"question": "a", "reply": "b"}, r"got the fields \['question', 'reply'\]\n"),
        (SFTChatDataset, {"text": "a", "prompt": "b", "completion": "c"}, "fit language-modeling, standard and prompt"),
        (
            SFTChatDataset,
            {"prompt": "a", "completion": "b", "label": True},
            "they are of unpaired-preference, standard",
        ),
        (SFTChatDataset, {"conversations": GPT, "text": "x"}, r"\['conversations', 'text'\], which fit"),
        (PreferenceDataset, {"text": "a"}, "among preference, unpaired-preference, got the fields"),
    ],
)
def test_fields_of_no_format_or_of_two_are_an_error(tmp_path, ended, kind, row, message):
    """With the fields seen, at the start."""
    with pytest.raises(ValueError, match=message):
        kind(write(tmp_path / "a.parquet", [row]), ended)


def test_messages_stay_what_they_were_unless_auto_is_asked_for(tmp_path, ended):
    """Rows may have had other fields beside them always."""
    path = write(tmp_path / "a.parquet", [{"messages": [ASK, ANSWER], "text": "else"}])
    assert trained(ended, SFTChatDataset(path, ended, UNPADDED)[0]) == SAID
    with pytest.raises(ValueError, match="fit language-modeling, conversational and language-modeling, standard"):
        SFTChatDataset(path, ended, {"format": "auto"})


def test_a_column_of_nulls_is_no_column(tmp_path, ended):
    """Another format's is there only because the file was merged from several."""
    path = write(tmp_path / "a.parquet", [{"messages": None, "text": "a good answer"}])
    assert trained(ended, SFTChatDataset(path, ended)[0]).startswith("a good answer")
    row = {"chosen": None, "rejected": None, "prompt": "a", "completion": " good", "label": True}
    assert PreferenceDataset(write(tmp_path / "b.parquet", [row]), ended)[0]["label"] is True
    with pytest.raises(
        ValueError, match=r"got the fields \['completion' \(null\), 'prompt'\]; they are of prompt-only"
    ):
        SFTChatDataset(write(tmp_path / "c.parquet", [{"prompt": "a", "completion": None}]), ended)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": ["q"]}, r"expected a text in 'input', got \['q'\]"),
        ({"history": [["x", "y", "z"]]}, "expected pairs of a question and its answer in 'history', got"),
        ({"history": math.nan}, "expected pairs of a question and its answer in 'history', got .nan"),
        ({"system": math.nan}, "expected a text in 'system', got nan"),
        ({"input": math.nan}, "expected a text in 'input', got nan"),
    ],
)
def test_fields_of_alpaca_are_what_they_should_be(tmp_path, ended, fields, message):
    """An error that names the field, which a budget of bad rows may allow."""
    path = write(tmp_path / "a.parquet", [{"instruction": "a", "output": "b", **fields}])
    with pytest.raises(ValueError, match=message):
        SFTChatDataset(path, ended)[0]


def test_nan_in_a_column_that_nobody_reads_stops_nothing(tmp_path, ended):
    """Of rows that Python wrote."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"instruction": "what is it", "output": "a good answer", "score": math.nan}]))
    assert trained(ended, SFTChatDataset(str(path), ended, UNPADDED)[0]) == SAID


def test_a_format_that_is_named_goes_before_what_fields_say(tmp_path, ended):
    """Alpaca's own files have a text too; a label may be a column that nobody asked for."""
    rows = [{"instruction": "what", "output": "a good answer", "text": "x"}]
    path = write(tmp_path / "a.parquet", rows)
    assert trained(ended, SFTChatDataset(path, ended, {**UNPADDED, "format": "alpaca"})[0]) == SAID
    path = write(tmp_path / "b.parquet", [{"prompt": "x", "completion": "y", "label": 1}])
    assert trained(ended, SFTChatDataset(path, ended, {**UNPADDED, "format": "prompt-completion"})[0]) == f"y{END}"
    with pytest.raises(ValueError, match="sharegpt, alpaca as format, got 'alpca', did you mean 'alpaca'"):
        SFTChatDataset(path, ended, {"format": "alpca"})


def test_rows_bring_variables_of_their_template(tmp_path, ended):
    """They go before the config's, as a mapping or JSON; none where a row has none."""
    ended.chat_template = "{% for m in messages %}{{ mark }}{{ m.content }}{% endfor %}"
    rows = [{"mark": "<|eot|>"}, None, json.dumps({"mark": "[INST]"})]
    files = [
        write(tmp_path / f"{number}.parquet", [{"messages": [ASK, ANSWER], "chat_template_kwargs": kwargs}])
        for number, kwargs in enumerate(rows)
    ]
    dataset = SFTChatDataset(
        files, ended, {**UNPADDED, "append_stop": False, "apply_chat_template_kwargs": {"mark": "<s>"}}
    )
    found = [ended.decode(item["input_ids"]) for item in dataset]
    assert found == [f"{mark}what is it{mark}a good answer" for mark in ("<|eot|>", "<s>", "[INST]")]
    wrong = write(tmp_path / "x.parquet", [{"messages": [ASK, ANSWER], "chat_template_kwargs": {"tokenize": True}}])
    with pytest.raises(ValueError, match="chat_template_kwargs: expected variables"):
        SFTChatDataset(wrong, ended)[0]


def test_tools_reach_the_template_of_a_prompt_and_its_completion(tmp_path, ended):
    """As of any conversation."""
    tools = [{"function": {"name": "look"}, "type": "function"}]
    rows = [{"prompt": [ASK], "completion": [ANSWER], "tools": json.dumps(tools)}]
    (item,) = SFTChatDataset(write(tmp_path / "a.parquet", rows), ended, UNPADDED)
    assert item["input_ids"].tolist() == encode_chat(ended, [ASK, ANSWER], tools=tools).input_ids.tolist()


def test_speakers_of_sharegpt_have_roles(tmp_path, ended):
    """Calls of functions and what they gave; an unknown one is an error."""
    call = {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "it"}}'}
    rows = [{"conversations": [GPT[0], call, {"from": "observation", "value": "a user"}, GPT[1]]}]
    ended.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.tool_calls | tojson if m.tool_calls else m.content }}\n{% endfor %}"
    )
    (item,) = SFTChatDataset(write(tmp_path / "a.parquet", rows), ended, UNPADDED)
    roles = [line.split()[0] for line in ended.decode(item["input_ids"]).splitlines()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    path = write(tmp_path / "b.parquet", [{"conversations": [{"from": "parrot", "value": "x"}]}])
    with pytest.raises(ValueError, match=r"`from` among system, human, .*, got 'parrot'"):
        SFTChatDataset(path, ended)[0]


@pytest.mark.parametrize("placed", [False, True])
def test_images_are_expanded_and_never_trained(tmp_path, placed):
    """In `images` or `image`; where no message has a place for them they stand before what a user says first."""
    qwen = tiny_processors.tiny_qwen2_vl()

    def said(text, *before):
        return [*before, {"type": "text", "text": text}] if placed else text

    row = {"messages": [user(said("What?", {"type": "image"})), assistant(said("A cat"))], "image": image(1)}
    text = {"messages": [user(said("Say")), assistant(said("So"))], "image": None}
    files = [write(tmp_path / f"{number}.parquet", [each]) for number, each in enumerate((row, text))]
    item, plain = SFTChatDataset(files, qwen.tokenizer, {"max_length": 64}, qwen)
    ids = item["input_ids"]
    assert trained(qwen.tokenizer, item) == f"A cat{END}"
    assert item["mm_token_type_ids"].tolist() == (ids == qwen.image_token_id).long().tolist()
    assert int((ids == qwen.image_token_id).sum()) == int(item["multi_modal_inputs"]["image_grid_thw"].prod()) // 4
    assert (item["position_ids"].shape, plain["position_ids"].shape) == ((3, 64), (3, 64))
    assert set(item) == set(plain)
    assert plain["multi_modal_inputs"] == {}
    assert not plain["mm_token_type_ids"].any()


def test_a_cut_that_meets_an_image_is_an_error(tmp_path):
    """Of half an image nobody can learn."""
    qwen = tiny_processors.tiny_qwen2_vl()
    rows = [{"messages": [user("<image>What?"), assistant("A cat")], "images": [image(1)]}]
    config = {"max_length": 16, "truncation": "left"}
    with pytest.raises(ValueError, match=r"meets image 0 of the row\n  Raise max_length"):
        SFTChatDataset(write(tmp_path / "a.parquet", rows), qwen.tokenizer, config, qwen)[0]


def test_pairs_may_have_images(tmp_path):
    """Both sides have them, and what a processor made."""
    qwen = tiny_processors.tiny_qwen2_vl()
    row = {
        "prompt": [user("What?")],
        "chosen": [assistant("A cat")],
        "rejected": [assistant("No")],
        "images": [image(1)],
    }
    (item,) = PreferenceDataset(write(tmp_path / "a.parquet", [row]), qwen.tokenizer, UNPADDED, qwen)
    for side, said in (("chosen_", "A cat"), ("rejected_", "No")):
        assert trained(qwen.tokenizer, item, side) == f"{said}{END}"
        assert item[f"{side}multi_modal_inputs"]["pixel_values"].ndim == 2


def test_masks_are_those_of_the_tokenizer_that_gives_the_ids(tmp_path):
    """With a processor its own, though the dataset was given another one: one that knows more words."""
    qwen = tiny_processors.tiny_qwen2_vl()
    other = copy.deepcopy(qwen.tokenizer)
    other.add_tokens(["What is the", "this picture", "answer"])
    row = {"messages": [user("What is the size of this picture?"), assistant("The answer is a cat")], "images": None}
    file = write(tmp_path / "a.parquet", [row])
    alone, given = (SFTChatDataset(file, one, {"max_length": 64}, qwen)[0] for one in (qwen.tokenizer, other))
    assert trained(qwen.tokenizer, given) == f"The answer is a cat{END}"
    assert given["input_ids"].tolist() == alone["input_ids"].tolist()


def test_a_text_where_messages_are_expected_is_that_row_alone(tmp_path):
    """Also in the first row: the format of the others does not follow from it."""
    rows = [{"messages": json.dumps("no messages")}, {"messages": json.dumps([ASK, ANSWER])}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"messages": {row["messages"]}}}\n' for row in rows))
    dataset = SFTChatDataset(str(path), tiny_processors.tiny_tokenizer(), UNPADDED)
    with pytest.raises(ValueError, match="messages"):
        dataset[0]
    assert dataset[1]["loss_mask"].any()
