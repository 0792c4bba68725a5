import json
import logging

import pytest

from streamdata.chats.prompts import RLHFDataset
from tests.chats.prompts.prompt_files import image, user, write
from tests.sources import tiny_processors

CONFIG = {"max_prompt_length": 64, "return_full_prompt": True, "return_raw_chat": True}
HEADER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        ("prompt-only, standard", {"prompt": "The sky is"}, "The sky is"),
        ("prompt-only, conversational", {"prompt": user("Why?")}, HEADER.format("Why?")),
        ("alpaca, conversational", {"instruction": "Add", "input": "1", "output": "2"}, HEADER.format("Add\n1")),
        (
            "sharegpt, conversational",
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
            HEADER.format("Hi"),
        ),
    ],
)
def test_rows_are_recognised_by_their_fields(tokenizer, tmp_path, name, row, text, caplog):
    """A text is encoded as it is; an answer that a row has already is no part of its prompt."""
    caplog.set_level(logging.INFO, "streamdata")
    dataset = RLHFDataset(write(tmp_path / "a.parquet", [row]), tokenizer, CONFIG)
    assert f"RLHFDataset: recognised as {name}" in [record.getMessage() for record in caplog.records]
    assert dataset[0]["full_prompts"] == text
    assert dataset[0]["raw_prompt_ids"] == tokenizer(text)["input_ids"]
    assert dataset[0]["raw_prompt"] == (
        text if name.endswith("standard") else user(text.split("\n", 1)[1].split("<")[0])
    )


def test_a_prompt_of_nulls_leaves_the_row_to_another_format(tokenizer, tmp_path):
    """Where a file was merged from several."""
    row = {"prompt": None, "conversations": [{"from": "human", "value": "Who?"}]}
    item = RLHFDataset(write(tmp_path / "a.parquet", [row]), tokenizer, {})[0]
    assert "Who?" in tokenizer.decode(item["raw_prompt_ids"])


def test_fields_of_no_prompt_are_an_error(tokenizer, tmp_path):
    """With the fields seen; so is a row of another kind than the first."""
    with pytest.raises(ValueError, match=r"among prompt-only, sharegpt, alpaca, got the fields \['question'\]"):
        RLHFDataset(write(tmp_path / "a.parquet", [{"question": "x"}]), tokenizer, CONFIG)
    text = write(tmp_path / "text.parquet", [{"prompt": "x"}])
    chat = write(tmp_path / "chat.parquet", [{"prompt": user("x")}])
    with pytest.raises(ValueError, match="expected a list of messages in 'prompt'"):
        RLHFDataset([chat, text], tokenizer, CONFIG)
    (tmp_path / "chat.parquet").rename(tmp_path / "z.parquet")
    with pytest.raises(ValueError, match="expected a text in 'prompt'"):
        RLHFDataset([text, str(tmp_path / "z.parquet")], tokenizer, CONFIG)


def test_rows_bring_variables_of_their_template(tokenizer, tmp_path):
    """Beside those of the config."""
    template = "{{ messages[0].content }}{{ mark }}"
    rows = [{"prompt": user("x"), "chat_template_kwargs": json.dumps({"mark": "!"})}, {"prompt": user("x")}]
    config = {**CONFIG, "apply_chat_template_kwargs": {"chat_template": template, "mark": "?"}}
    dataset = RLHFDataset(write(tmp_path / "a.parquet", rows), tokenizer, config)
    assert [dataset[number]["full_prompts"] for number in range(2)] == ["x!", "x?"]


def test_a_single_image_is_looked_for_in_each_row(tmp_path):
    """Files may differ in their columns: one has `images`, another `image` alone."""
    qwen = tiny_processors.tiny_qwen2_vl()
    said = {"conversations": [{"from": "human", "value": "<image>What?"}]}
    rows = {
        "a": said | {"images": [image(1)]},
        "b": {"conversations": [{"from": "human", "value": "What?"}], "image": image(2)},
    }
    files = [write(tmp_path / f"{name}.parquet", [row]) for name, row in rows.items()]
    items = list(RLHFDataset(files, qwen.tokenizer, {"max_prompt_length": 64}, qwen))
    assert [len(item["multi_modal_data"]["image"]) for item in items] == [1, 1]
