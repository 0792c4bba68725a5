import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from streamdata import MergedDataset, SFTChatDataset, StateError, instantiate_from_yaml, to_state
from streamdata.text.truncation import OverlongError
from tests.chats.chat_files import assistant, chats, user, write
from tests.streams import assert_exact_resume, plain
from tests.text.chat_templates import encode_chat

TURNS = [user("what is it"), assistant("a cat"), user("so"), assistant("good")]


def trained_text(tokenizer, item):
    """What is trained, decoded."""
    return tokenizer.decode(item["input_ids"][item["loss_mask"]])


def test_a_conversation_becomes_tensors_padded_on_the_right(tmp_path, tokenizer):
    """Token ids, attention, positions and loss mask; the assistant's turns are trained."""
    (item,) = SFTChatDataset(write(tmp_path / "a.parquet", [{"messages": TURNS}]), tokenizer, {"max_length": 128})
    encoded = encode_chat(tokenizer, TURNS)
    n = len(encoded.input_ids)
    assert {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in item.items()} == {
        "input_ids": (torch.int64, (128,)),
        "attention_mask": (torch.int64, (128,)),
        "position_ids": (torch.int64, (128,)),
        "loss_mask": (torch.bool, (128,)),
    }
    assert item["input_ids"].tolist() == [*encoded.input_ids, *[tokenizer.pad_token_id] * (128 - n)]
    assert item["attention_mask"].tolist() == [1] * n + [0] * (128 - n)
    assert item["position_ids"].tolist() == [*range(n), *[n - 1] * (128 - n)]
    assert item["loss_mask"].tolist() == [*encoded.train.tolist(), *[False] * (128 - n)]
    assert trained_text(tokenizer, item) == "a cat<|im_end|>good<|im_end|>"


def test_unpadded_items_have_their_own_length(tmp_path, tokenizer):
    """For packing; no pad token is needed."""
    path = write(tmp_path / "a.parquet", [{"messages": TURNS}, {"messages": TURNS[:2]}])
    dataset = SFTChatDataset(path, tokenizer, {"pad_mode": "no_padding"})
    for item, messages in zip(dataset, (TURNS, TURNS[:2]), strict=True):
        assert item["input_ids"].tolist() == encode_chat(tokenizer, messages).input_ids.tolist()
        assert item["position_ids"].tolist() == list(range(len(item["input_ids"])))
        assert item["attention_mask"].all()


@pytest.mark.parametrize(("settings", "stop"), [({}, "<|User|>"), ({"append_stop": False}, "")])
def test_answers_learn_to_stop_where_the_template_has_no_end(tmp_path, tokenizer, settings, stop):
    """By the next role's token, unless the config says otherwise."""
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|User|>' if m.role == 'user' else '<|Assistant|>' }}{{ m.content }}{% endfor %}"
    )
    path = write(tmp_path / "a.parquet", [{"messages": TURNS}])
    (item,) = SFTChatDataset(path, tokenizer, {"pad_mode": "no_padding", **settings})
    assert trained_text(tokenizer, item) == f"a cat{stop}good{stop}"


@pytest.mark.parametrize("masks", [(None, 0, None, 1), (0, 0, 0, 1), (None, False, None, None)])
def test_a_message_has_its_own_loss_mask(tmp_path, tokenizer, masks):
    """It goes before its role's action; the template does not see it, nor Arrow's nulls."""
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.chat_template = "{% for m in messages %}{{ m | tojson + '<|eot|>' }}{% endfor %}"
    messages = [{**turn, "loss_mask": mask} for turn, mask in zip(TURNS, masks, strict=True)]
    path = write(tmp_path / "a.parquet", [{"messages": messages}])
    (item,) = SFTChatDataset(path, tokenizer, {"pad_mode": "no_padding"})
    assert "loss_mask" not in tokenizer.decode(item["input_ids"])
    assert trained_text(tokenizer, item).startswith('good"')


def test_a_loss_mask_that_is_neither_is_an_error(tmp_path, tokenizer):
    """Weights are not masks."""
    path = write(tmp_path / "a.parquet", [{"messages": [user("x"), assistant("y", loss_mask=0.5)]}])
    with pytest.raises(ValueError, match=r"loss_mask of message 1 to be 0 or 1, got 0\.5") as caught:
        SFTChatDataset(path, tokenizer)[0]
    assert "a.parquet', row 0" in caught.value.__notes__[0]


def test_roles_are_trained_as_the_config_says(tmp_path, tokenizer):
    """Here the user alone."""
    path = write(tmp_path / "a.parquet", [{"messages": TURNS}])
    (item,) = SFTChatDataset(path, tokenizer, OmegaConf.create({"actions": {"user": "train"}}))
    assert trained_text(tokenizer, item) == "what is it<|im_end|>so<|im_end|>"


@pytest.mark.parametrize("form", [lambda tools: tools, json.dumps, lambda tools: [json.dumps(tools[0])]])
def test_tools_reach_the_template(tmp_path, tokenizer, form):
    """As Arrow's dicts or as JSON text."""
    tools = [{"function": {"name": "look"}, "type": "function"}]  # older Arrows sort the keys
    path = write(tmp_path / "a.parquet", [{"messages": TURNS, "tools": form(tools)}])
    (item,) = SFTChatDataset(path, tokenizer, {"pad_mode": "no_padding"})
    assert item["input_ids"].tolist() == encode_chat(tokenizer, TURNS, tools=tools).input_ids.tolist()


def test_columns_of_json_are_no_text(tmp_path, tokenizer):
    """HF's `Json()`: messages, what calls pass, and tools; their nulls stay."""
    call = {"function": {"name": "look", "arguments": {"at": None, "n": 1}}}
    columns = {"messages": [user("so"), {**assistant("I see"), "tool_calls": [call]}], "tools": [{"default": None}]}
    for name, values in columns.items():
        column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(map(json.dumps, values)))
        columns[name] = pa.ListArray.from_arrays([0, len(values)], column)
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    template = (
        "{% if tools %}{{ tools | tojson + '<|eot|>' }}{% endif %}{% for m in messages %}{{ m.content }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{{ '<|eot|>' }}{% endfor %}"
    )
    config = {"apply_chat_template_kwargs": {"chat_template": template}, "pad_mode": "no_padding"}
    (item,) = SFTChatDataset(str(tmp_path / "a.parquet"), tokenizer, config)
    said = '[{"default": null}]<|eot|>so<|eot|>I see{"at": null, "n": 1}<|eot|>'
    assert tokenizer.decode(item["input_ids"]) == said


def test_settings_reach_the_template(tmp_path, tokenizer):
    """Such as another template."""
    path = write(tmp_path / "a.parquet", [{"messages": TURNS[:2]}])
    template = "{% for m in messages %}{{ m.content + mark }}{% endfor %}"
    config = {"apply_chat_template_kwargs": {"chat_template": template, "mark": "<|eot|>"}, "pad_mode": "no_padding"}
    (item,) = SFTChatDataset(path, tokenizer, config)
    assert tokenizer.decode(item["input_ids"]) == "what is it<|eot|>a cat<|eot|>"


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_a_long_conversation_is_cut_as_asked(tmp_path, tokenizer, truncation):
    """Ids and mask together."""
    encoded = encode_chat(tokenizer, TURNS)
    config = {"max_length": len(encoded.input_ids) - 3, "truncation": truncation}
    (item,) = SFTChatDataset(write(tmp_path / "a.parquet", [{"messages": TURNS}]), tokenizer, config)
    n, limit = len(encoded.input_ids), config["max_length"]
    kept = {"left": range(3, n), "right": range(n - 3)}.get(truncation, [*range(limit // 2), *range(limit // 2 + 3, n)])
    assert item["input_ids"].tolist() == encoded.input_ids[list(kept)].tolist()
    assert item["loss_mask"].tolist() == encoded.train[list(kept)].tolist()


def test_what_cannot_be_trained_is_an_error_with_its_place(tmp_path, tokenizer):
    """Too long, cut to nothing, nothing from the start, no messages; a source's max_bad counts them."""
    rows = [{"messages": TURNS}, {"messages": [user("so")]}, {"messages": None}]
    path = write(tmp_path / "a.parquet", rows)
    with pytest.raises(OverlongError, match="at most 4 tokens"):
        SFTChatDataset(path, tokenizer, {"max_length": 4})[0]
    with pytest.raises(ValueError, match="none of what truncation left"):
        SFTChatDataset(path, tokenizer, {"max_length": 4, "truncation": "right"})[0]
    with pytest.raises(ValueError, match="with nothing: none of it") as caught:
        SFTChatDataset(path, tokenizer)[1]
    assert "a.parquet', row 1" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="list of messages in 'messages', got None"):
        SFTChatDataset(path, tokenizer)[2]
    with pytest.raises(ValueError, match=r"in 'chat', .*the row has \['messages'\]"):
        SFTChatDataset(path, tokenizer, {"messages_key": "chat"})[0]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"max_lenght": 4}, "'max_lenght', did you mean 'max_length'"),
        ({"max_length": 0}, "at least 1 as max_length, got 0"),
        ({"truncation": "rihgt"}, "'rihgt', did you mean 'right'"),
        ({"pad_mode": "left"}, "right, no_padding as pad_mode, got 'left'"),
        ({"cache_dir": 3}, "a text as cache_dir, got 3"),
        ({"apply_chat_template_kwargs": {"tokenize": False}}, "what the template takes"),
        ({"use_shm": "no"}, "true or false as use_shm, got 'no'"),
        ({"messages_key": 3}, "a text as messages_key, got 3"),
        ({"actions": ["assistant"]}, "a mapping as actions"),
        ({"actions": {"tool": "mask", "assistant": "last"}}, "one of train, mask as actions.assistant, got 'last'"),
        ({"actions": {"assistant": True}}, "one of train, mask as actions.assistant, got True"),
        (["max_length"], "a mapping as config"),
    ],
)
def test_a_wrong_config_is_an_error(tmp_path, tokenizer, config, problem):
    """At once, with the nearest key; null is the default."""
    path = write(tmp_path / "a.parquet", [{"messages": TURNS}])
    with pytest.raises(ValueError, match=problem):
        SFTChatDataset(path, tokenizer, config)
    assert SFTChatDataset(path, tokenizer, {"max_length": None}).config.max_length == 1024


@pytest.mark.parametrize("value", [True, None, "no"])
def test_a_generation_prompt_is_refused_whatever_its_value(tmp_path, tokenizer, value):
    """Nobody is told to write true or false, which is refused next."""
    path = write(tmp_path / "a.parquet", [{"messages": TURNS}])
    with pytest.raises(ValueError, match=r"what the template takes, not \['add_generation_prompt'\], as apply_chat"):
        SFTChatDataset(path, tokenizer, {"apply_chat_template_kwargs": {"add_generation_prompt": value}})


def test_padding_needs_a_pad_token(tmp_path, tokenizer):
    """Another token is not taken in its place."""
    tokenizer = pickle.loads(pickle.dumps(tokenizer))
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="pad token"):
        SFTChatDataset(write(tmp_path / "a.parquet", [{"messages": TURNS}]), tokenizer)[0]


def test_an_index_outside_is_an_error(tmp_path, tokenizer):
    """Negative ones count from the end, as everywhere."""
    dataset = SFTChatDataset(chats(tmp_path / "a.parquet", 3), tokenizer)
    assert plain(dataset[-1]) == plain(dataset[2])
    for item in (3, -4):
        with pytest.raises(IndexError, match=f"item {item} of 3"):
            dataset[item]


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_workers_give_the_same_items(tmp_path, tokenizer_path, start):
    """It pickles as paths and a tokenizer's name, after it was used too."""
    dataset = SFTChatDataset(chats(tmp_path / "a.parquet"), tokenizer_path, {"max_length": 128})
    expected = [plain(item) for item in dataset]
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=start)
    assert [plain(item) for item in loader] == expected


def test_a_mixture_resumes_exactly(tmp_path, tokenizer_path):
    """From every step, as any map-style source; what trains nothing is counted and left out."""
    path = chats(tmp_path / "a.parquet", 5)
    bad = write(tmp_path / "b.parquet", [{"messages": TURNS}, {"messages": [user("so")]}])

    def make():
        config = {"pad_mode": "no_padding"}
        one = SFTChatDataset(path, tokenizer_path, config, name="chats", percent=1.0)
        two = SFTChatDataset(bad, tokenizer_path, config, name="bad", percent=1.0)
        two.max_bad = 1000
        return MergedDataset([one, two])

    assert_exact_resume(make)


def test_changed_files_are_not_resumed(tmp_path, tokenizer_path):
    """Of as many rows; the same content elsewhere is."""

    def make(path):
        dataset = SFTChatDataset(path, tokenizer_path)
        dataset.name, dataset.percent = "chats", 1.0
        return MergedDataset([dataset])

    states = to_state(next(iter(make(chats(tmp_path / "a.parquet", 5)))))
    moved = make(chats(tmp_path / "moved.parquet", 5))
    moved.set_dataloader_states(states)
    assert next(iter(moved))["input_ids"].shape == (1024,)
    changed = make(write(tmp_path / "b.parquet", [{"messages": TURNS}] * 5))
    with pytest.raises(StateError, match="source 'chats' has another order"):
        changed.set_dataloader_states(states)


def test_a_recipe_names_it_by_target(tmp_path, tokenizer_path):
    """With its config below it."""
    path = chats(tmp_path / "a.parquet", 3)
    (tmp_path / "recipe.yaml").write_text(f"""
target: streamdata.MergedDataset
params:
  datasets:
    - target: streamdata.SFTChatDataset
      name: chats
      percent: 1
      params:
        data_files: {path}
        tokenizer: {tokenizer_path}
        config: {{max_length: 64, truncation: right}}
""")
    sample = next(iter(instantiate_from_yaml(str(tmp_path / "recipe.yaml"))))
    assert sample["input_ids"].shape == (64,)
    assert sample["__datasetname__"] == "chats"


def test_a_cut_conversation_does_not_train_its_first_token(tmp_path, tokenizer):
    """Nothing before it is left to predict it from; where it is all that was trained, the row is an error."""
    messages = [*TURNS[:2], user("so")]
    path, encoded = write(tmp_path / "a.parquet", [{"messages": messages}]), encode_chat(tokenizer, messages)
    last = int(encoded.train.nonzero()[0][-1])
    config = {"max_length": len(encoded.train) - last + 1, "truncation": "left", "pad_mode": "no_padding"}
    (item,) = SFTChatDataset(path, tokenizer, config)
    assert item["loss_mask"].tolist() == [False, True, *[False] * (config["max_length"] - 2)]
    with pytest.raises(ValueError, match="none of what truncation left"):
        SFTChatDataset(path, tokenizer, config | {"max_length": config["max_length"] - 1})[0]


MEDIA = [
    {"images": ["a.png"]},
    {"images": [{"bytes": b"x", "path": None}]},
    {"videos": [["a.png"]]},
    {"image": "a.png"},
    {"messages": [user("x") | {"images": ["a.png"]}]},
    {"messages": [user([{"type": "image", "text": None}])]},
    {"messages": [user([{"type": "input_audio", "input_audio": "x"}])]},
    {"messages": [user([{"type": None, "image": "a.png"}])]},
]


@pytest.mark.parametrize("row", MEDIA, ids=str)
def test_media_are_refused(row, tmp_path, tokenizer):
    """Nothing would be encoded of them, and `<image>` would be a text."""
    path = write(tmp_path / "a.parquet", [{"messages": TURNS} | row])
    with pytest.raises(ValueError, match="expected text alone, got a row with media") as caught:
        SFTChatDataset(path, tokenizer)[0]
    assert "a.parquet', row 0" in caught.value.__notes__[0]


def test_columns_without_media_are_none(tmp_path, tokenizer):
    """Nulls and empty lists, as a file has them whose other rows have media."""
    empty = [{"images": None}, {"images": []}, {"images": [{"bytes": None, "path": None}], "videos": [None]}]
    path = write(tmp_path / "a.parquet", [{"messages": TURNS, **columns} for columns in empty])
    assert [trained_text(tokenizer, item) for item in SFTChatDataset(path, tokenizer)] == [
        "a cat<|im_end|>good<|im_end|>"
    ] * 3
