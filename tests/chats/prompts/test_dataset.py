import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from streamdata.chats.prompts import RLHFDataset, prompt_collate
from streamdata.errors import StateError
from streamdata.shards.parquet import rows as parquet_rows
from streamdata.text.truncation import compute_position_id_with_mask, postprocess_data
from tests.chats.prompts.prompt_files import IMAGES, image, mixed, sums, user, write
from tests.sources.tiny_processors import tiny_llava, tiny_llava_model, tiny_qwen2_vl_model, tiny_tokenizer
from tests.streams import plain

CONFIG = {"max_prompt_length": 64}
VERLS_POSITIONS = [
    [*range(8), 8, 8, 8, 8, *range(10, 24)],
    [*range(8), 8, 8, 9, 9, *range(10, 24)],
    [*range(8), 8, 9, 8, 9, *range(10, 24)],
]
"""Of eight tokens of text, an image of two times two, and text."""


def build(path, processor=None, tokenizer=None, **config):
    """A dataset with 64 tokens, unless the config says otherwise."""
    return RLHFDataset(path, tokenizer or processor.tokenizer, {**CONFIG, **config}, processor)


def unpacked(batches):
    """What is in batches, comparable with ==."""
    return plain([{key: list(column) for key, column in batch.items()} for batch in batches])


def test_tensors_have_their_dtypes_and_shapes(tokenizer, tmp_path):
    """Padded on the left; positions count the tokens."""
    item = build(sums(tmp_path / "a.parquet"), tokenizer=tokenizer)[3]
    ids, mask, positions = item["input_ids"], item["attention_mask"], item["position_ids"]
    assert [(x.dtype, x.shape) for x in (ids, mask, positions)] == [(torch.int64, (64,))] * 3
    length = int(mask.sum())
    assert mask.tolist() == [0] * (64 - length) + [1] * length
    assert positions.tolist() == [0] * (64 - length) + list(range(length))
    assert ids.tolist() == [tokenizer.pad_token_id] * (64 - length) + item["raw_prompt_ids"]
    text = tokenizer.apply_chat_template(
        user("What is the sum of 3 and 3?"), add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.decode(item["raw_prompt_ids"]) == text
    assert {type(token) for token in item["raw_prompt_ids"]} == {int}
    given = torch.tensor([item["raw_prompt_ids"]])
    padded = postprocess_data(given, torch.ones_like(given), 64, tokenizer.pad_token_id)
    assert plain([ids, mask, positions]) == plain(
        [*(x[0] for x in padded), compute_position_id_with_mask(padded[1])[0]]
    )


def test_a_text_item_has_just_these_keys(tokenizer, tmp_path):
    """The row's other columns as they are; the prompt's own only on request."""
    path = sums(tmp_path / "a.parquet")
    item = build(path, tokenizer=tokenizer)[2]
    tensors = {"input_ids", "attention_mask", "position_ids", "raw_prompt_ids"}
    about = {"index", "tools_kwargs", "interaction_kwargs", "uid"}
    assert set(item) == tensors | about | {"data_source", "reward_model", "extra_info"}
    assert item["reward_model"] == {"style": "rule", "ground_truth": "4"}
    more = build(path, tokenizer=tokenizer, return_raw_chat=True, return_full_prompt=True)[2]
    assert set(more) - set(item) == {"raw_prompt", "full_prompts"}
    assert more["raw_prompt"] == user("What is the sum of 2 and 2?")
    assert more["full_prompts"] == tokenizer.decode(item["raw_prompt_ids"])


def test_image_items_have_media_and_their_tensors(qwen, tmp_path):
    """Of each row those that it has; a row of text has none of either, and the same keys."""
    items = [build(mixed(tmp_path / "a.parquet"), qwen)[number] for number in range(4)]
    assert len({frozenset(item) for item in items}) == 1
    assert not {"images", "videos", "prompt"} & set(items[0])
    data = [item["multi_modal_data"] for item in items]
    assert [{kind: len(values) for kind, values in media.items()} for media in data] == [
        {},
        {"image": 1},
        {"image": 2},
        {"video": 1, "image": 1},
    ]
    assert all(isinstance(found, Image.Image) and found.mode == "RGB" for found in data[2]["image"])
    assert isinstance(data[3]["video"][0], np.ndarray)
    inputs = [item["multi_modal_inputs"] for item in items]
    assert [set(made) for made in inputs[:3]] == [set(), *[{"pixel_values", "image_grid_thw"}] * 2]
    assert type(inputs[1]) is dict
    assert "multi_modal_inputs" not in build(str(tmp_path / "a.parquet"), qwen, return_multi_modal_inputs=False)[1]


def test_media_have_the_types_of_their_tokens(qwen, tmp_path):
    """As the processor numbers them, cut and padded as the token ids are; text beside media has them too."""
    dataset = build(mixed(tmp_path / "a.parquet"), qwen)
    for number in range(4):
        item = dataset[number]
        (types,) = qwen.create_mm_token_type_ids([item["input_ids"].tolist()])
        assert item["mm_token_type_ids"].tolist() == types
        assert item["mm_token_type_ids"].dtype == torch.int64
    assert set(item["mm_token_type_ids"].tolist()) == {0, 1, 2}


def test_positions_may_have_a_fourth_row(qwen, tmp_path):
    """Of the tokens' numbers, first, 1 at padding; recorded from RLHFDataset of verl 0.6.1 for the row of one image."""
    path = mixed(tmp_path / "a.parquet")
    four, three = (build(path, qwen, position_rows=rows)[1]["position_ids"] for rows in (4, 3))
    assert (four.dtype, four.shape) == (torch.int64, (4, 64))
    assert plain(four[1:]) == plain(three)
    length = int(build(path, qwen)[1]["attention_mask"].sum())
    assert four[0].tolist() == [1] * (64 - length) + list(range(length))
    assert four[1:, 64 - length :].tolist() == VERLS_POSITIONS


def test_media_may_be_in_other_columns(qwen, tmp_path):
    """The config names them, and they do not stay in the item."""
    path, renamed = mixed(tmp_path / "a.parquet"), str(tmp_path / "renamed.parquet")
    pq.write_table(pq.read_table(path).rename_columns({"images": "pictures", "videos": "films"}), renamed)
    found = build(renamed, qwen, image_key="pictures", video_key="films")[3]
    expected = build(path, qwen)[3]
    assert {**plain(found), "uid": expected["uid"]} == plain(expected)


def test_encoding_leaves_the_row_as_it_is(qwen, tmp_path):
    """The same rows are measured and emitted."""
    reader = build(mixed(tmp_path / "a.parquet"), qwen)._reader
    for number in range(4):
        row = reader.rows[number]
        reader.encode(row, number)
        assert row == reader.rows[number]


def test_rows_and_lengths_are_kept_where_the_config_says(tokenizer, tmp_path, monkeypatch):
    """Lengths in `cache_dir`; with `use_shm` the rows in shared memory."""
    monkeypatch.setattr(parquet_rows, "SHARED_MEMORY", str(tmp_path))
    path = sums(tmp_path / "a.parquet")
    dataset = build(path, tokenizer=tokenizer, cache_dir=str(tmp_path / "mine"), use_shm=True)
    assert {folder.name for folder in (tmp_path / "mine").iterdir()} == {"lengths"}
    assert not (tmp_path / "cache").exists()
    assert f"streamdata-{os.getuid()}" in dataset._reader.rows.files[0].stored.parts
    assert dataset[3]["index"] == 103


def test_a_model_like_llava_takes_the_batch(llava, tmp_path):
    """A row of text beside rows of images."""
    rows = [{"prompt": user("<image>" * number + "What?"), "images": [image(1)] * number} for number in range(3)]
    dataset = build(write(tmp_path / "a.parquet", rows, images=IMAGES), llava)
    batch = prompt_collate([dataset[number] for number in range(3)])
    pixels = torch.cat([one["pixel_values"] for one in batch["multi_modal_inputs"] if one])
    names = ("input_ids", "attention_mask", "position_ids")
    with torch.no_grad():
        output = tiny_llava_model(llava)(pixel_values=pixels, **{name: batch[name] for name in names})
    assert output.last_hidden_state.isfinite().all()


def test_raw_ids_have_one_placeholder_for_an_image(qwen, tmp_path):
    """All other tokens are those of the expanded ids, in their order."""
    item = build(mixed(tmp_path / "a.parquet"), qwen)[2]
    ids = item["input_ids"][item["attention_mask"].bool()].tolist()
    raw = item["raw_prompt_ids"]
    assert raw.count(qwen.image_token_id) == 2
    assert ids.count(qwen.image_token_id) == item["multi_modal_inputs"]["image_grid_thw"].prod(1).sum() // 4
    assert [token for token in raw if token != qwen.image_token_id] == [
        token for token in ids if token != qwen.image_token_id
    ]


def test_a_model_takes_the_batch_and_agrees_on_positions(qwen, tmp_path):
    """Images, videos and text in one batch, padded on the left; 1 at padding."""
    dataset = build(mixed(tmp_path / "a.parquet"), qwen)
    batch = prompt_collate([dataset[number] for number in range(4)])
    made = [inputs for inputs in batch["multi_modal_inputs"] if inputs]
    inputs = {key: torch.cat([one[key] for one in made if key in one]) for key in {key for one in made for key in one}}
    model, ids, mask = tiny_qwen2_vl_model(qwen), batch["input_ids"], batch["attention_mask"]
    grids = {key: value for key, value in inputs.items() if key.endswith("grid_thw")}
    types = torch.tensor(qwen.create_mm_token_type_ids(ids.tolist()))
    expected, _ = model.get_rope_index(ids, types, **grids, attention_mask=mask)
    positions = batch["position_ids"]
    assert (positions.dtype, positions.shape) == (torch.int64, (4, 3, 64))
    assert positions.transpose(0, 1)[:, mask.bool()].equal(expected[:, mask.bool()])
    assert positions.transpose(0, 1)[:, ~mask.bool()].unique().tolist() == [1]
    with torch.no_grad():
        output = model(ids, attention_mask=mask, position_ids=positions.transpose(0, 1), **inputs)
    assert output.last_hidden_state.isfinite().all()


def test_another_processor_counts_tokens(tmp_path):
    """One like LLaVA's, whose placeholder is spelt as ours."""
    llava = tiny_llava()
    rows = [
        {"prompt": user("<image><image>What?"), "images": [image(1), image(2)]},
        {"prompt": user("x"), "images": []},
    ]
    item = build(write(tmp_path / "a.parquet", rows, images=IMAGES), llava)[0]
    assert item["position_ids"].shape == (64,)
    assert item["raw_prompt_ids"].count(llava.image_token_id) == 2
    assert item["input_ids"].tolist().count(llava.image_token_id) == 8
    assert item["multi_modal_inputs"]["pixel_values"].shape == (2, 3, 16, 16)


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
@pytest.mark.parametrize("limit", [1, 7, 20, 21, 22, 64])
def test_truncation_cuts_both_ids(truncation, limit, tokenizer, tmp_path):
    """One token, odd limits, equal and shorter."""
    path = sums(tmp_path / "a.parquet", 1)
    whole = build(path, tokenizer=tokenizer)[0]["raw_prompt_ids"]
    half = {"left": 0, "right": limit, "middle": limit // 2}[truncation]
    expected = whole if len(whole) <= limit else whole[:half] + whole[len(whole) - (limit - half) :]
    config = {"max_prompt_length": limit, "truncation": truncation, "filter_overlong_prompts": False}
    item = build(path, tokenizer=tokenizer, **config)[0]
    assert item["raw_prompt_ids"] == expected == item["input_ids"][item["attention_mask"].bool()].tolist()
    assert item["input_ids"].shape == (limit,)


def test_too_long_is_an_error_with_its_row(tokenizer, tmp_path):
    """Length, limit, file and row."""
    path = sums(tmp_path / "a.parquet", 3)
    dataset = build(path, tokenizer=tokenizer, max_prompt_length=5, filter_overlong_prompts=False)
    with pytest.raises(ValueError, match=r"at most 5 tokens, got \d+") as caught:
        _ = dataset[2]
    assert any("a.parquet', row 2" in note for note in caught.value.__notes__)


def test_media_that_a_cut_meets_are_dropped_on_request(qwen, tmp_path):
    """A whole batch of what is left passes the model."""
    path = mixed(tmp_path / "a.parquet")
    config = {"max_prompt_length": 22, "truncation": "right", "filter_overlong_prompts": False}
    with pytest.raises(ValueError, match="drop_sample or drop_media") as caught:
        _ = build(path, qwen, **config)[3]
    assert any("row 3" in note for note in caught.value.__notes__)
    item = build(path, qwen, **config, truncation_media="drop_media")[3]
    counts = [item["raw_prompt_ids"].count(token) for token in (qwen.image_token_id, qwen.video_token_id)]
    assert counts == [len(item["multi_modal_data"].get(kind, ())) for kind in ("image", "video")] == [0, 1]
    assert set(item["multi_modal_inputs"]) == {"pixel_values_videos", "video_grid_thw"}
    assert item["position_ids"].shape == (3, 22)


EXTRA = pa.struct(
    [
        ("index", pa.int64()),
        ("tools_kwargs", pa.struct([("calc", pa.struct([("x", pa.int64())])), ("search", pa.int64())])),
        ("interaction_kwargs", pa.struct([("name", pa.string()), ("level", pa.int64())])),
        ("need_tools_kwargs", pa.bool_()),
    ]
)


def test_extra_info_may_be_missing_or_none(tokenizer, tmp_path, caplog):
    """Then the index is the row's number; what Arrow padded in kwargs is gone."""
    extra = {"index": 7, "tools_kwargs": {"calc": {"x": 1}}, "interaction_kwargs": {"name": "g"}}
    rows = [{"prompt": user("a"), "extra_info": extra}, {"prompt": user("b")}, {"prompt": user("c"), "extra_info": {}}]
    dataset = build(write(tmp_path / "a.parquet", rows, extra_info=EXTRA), tokenizer=tokenizer)
    items = [dataset[number] for number in range(3)]
    assert [item["index"] for item in items] == [7, 1, 2]
    assert [item["tools_kwargs"] for item in items] == [{"calc": {"x": 1}}, {}, {}]
    assert [item["interaction_kwargs"] for item in items] == [{"name": "g"}, {}, {}]
    bare = build(write(tmp_path / "b.parquet", [{"prompt": user("a")}] * 2), tokenizer=tokenizer)[1]
    assert (bare["index"], bare["extra_info"]) == (1, {})


def test_extra_info_is_a_struct(tokenizer, tmp_path):
    """Its JSON text would have no index and no kwargs."""
    dataset = build(write(tmp_path / "a.parquet", [{"prompt": user("a"), "extra_info": "{}"}]), tokenizer=tokenizer)
    with pytest.raises(ValueError, match="extra_info: expected a dict") as caught:
        _ = dataset[0]
    assert any("a.parquet', row 0" in note for note in caught.value.__notes__)


def test_a_wrong_prompt_key_names_the_columns(tokenizer, tmp_path):
    """Instead of all rows being empty."""
    with pytest.raises(ValueError, match=r"messages in 'question'.*the row has \['data_source', .*'prompt'"):
        build(sums(tmp_path / "a.parquet"), tokenizer=tokenizer, prompt_key="question")


def test_a_processor_may_be_named_by_its_directory(llava, tmp_path):
    """As in a recipe; each process that reads loads it."""
    path = write(tmp_path / "a.parquet", [{"prompt": user("<image>What?"), "images": [image(1)]}], images=IMAGES)
    llava.save_pretrained(tmp_path / "llava")
    named = RLHFDataset(path, str(tmp_path / "llava"), CONFIG, str(tmp_path / "llava"))
    assert plain(pickle.loads(pickle.dumps(named))[0]) == plain(named[0]) == plain(build(path, llava)[0])


def test_missing_tools_kwargs_are_told(tokenizer, tmp_path, caplog):
    """Where the config or the row needs them."""
    rows = [{"prompt": user("a"), "extra_info": {"need_tools_kwargs": need}} for need in (None, False, True)]
    path = write(tmp_path / "a.parquet", rows, extra_info=EXTRA)
    for needed, expected in ((False, [2]), (True, [0, 2])):
        caplog.clear()
        dataset = build(path, tokenizer=tokenizer, need_tools_kwargs=needed)
        _ = [dataset[number] for number in range(3)]
        told = [record.getMessage() for record in caplog.records if "no tools_kwargs" in record.getMessage()]
        assert [int(message[-1]) for message in told] == expected


SCHEMA = {  # in the order of its keys, in which older Arrows put them
    "function": {"name": "add", "parameters": {"properties": {"x": {"type": "number"}}, "type": "object"}},
    "type": "function",
}


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_of_a_row_reach_the_template(as_text, tokenizer, tmp_path):
    """As Arrow's dicts without its padding, or as JSON text."""
    other = {"type": "function", "function": {"name": "find", "description": "finds", "strict": True}}
    rows = [{"prompt": user("a"), "tools": [tool]} for tool in (SCHEMA, other)]
    if as_text:
        rows = [{**row, "tools": json.dumps(row["tools"])} for row in rows]
    dataset = build(
        write(tmp_path / "a.parquet", rows), tokenizer=tokenizer, max_prompt_length=300, return_full_prompt=True
    )
    assert [dataset[number]["tools"] for number in range(2)] == [[SCHEMA], [other]]
    expected = tokenizer.apply_chat_template(user("a"), tools=[SCHEMA], add_generation_prompt=True, tokenize=False)
    assert dataset[0]["full_prompts"] == expected


def test_tools_may_come_from_a_file(tokenizer, tmp_path):
    """In a list, or as those who run the tools write them; a row's own go first."""
    path = sums(tmp_path / "a.parquet", 1)
    tokenizer_text = tokenizer.apply_chat_template(
        user("What is the sum of 0 and 0?"), tools=[SCHEMA], add_generation_prompt=True, tokenize=False
    )
    for content in ([SCHEMA], {"tools": [{"class_name": "x.Add", "config": {}, "tool_schema": SCHEMA}]}):
        (tmp_path / "tools.yaml").write_text(json.dumps(content))
        config = {
            "tool_config_path": str(tmp_path / "tools.yaml"),
            "return_full_prompt": True,
            "max_prompt_length": 300,
        }
        assert build(path, tokenizer=tokenizer, **config)[0]["full_prompts"] == tokenizer_text
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: x}]")
    with pytest.raises(ValueError, match="expected tool schemas"):
        build(path, tokenizer=tokenizer, tool_config_path=str(tmp_path / "tools.yaml"))


def shout(messages, *, tools, add_generation_prompt):
    """A template as a function."""
    return messages[0]["content"].upper() + str(add_generation_prompt)


def test_a_function_may_render(tokenizer, tmp_path):
    """With what the template would be given."""
    path = sums(tmp_path / "a.parquet", 1)
    dataset = build(path, tokenizer=tokenizer, chat_template_func=shout, return_full_prompt=True)
    assert dataset[0]["full_prompts"] == "WHAT IS THE SUM OF 0 AND 0?True"


def test_mode_raw_gives_messages_for_later(qwen, tokenizer, tmp_path):
    """With media in their parts, and nothing that is made of tokens."""
    item = build(mixed(tmp_path / "a.parquet"), qwen, mode="raw")[1]
    assert set(item) == {"raw_prompt", "prompt", "index", "uid", "tools_kwargs", "interaction_kwargs", "extra_info"}
    texts_and_image = item["raw_prompt"][0]["content"]
    assert [part["type"] for part in texts_and_image] == ["text", "image", "text"]
    assert texts_and_image[1]["image"].size == (16, 16)
    text = build(sums(tmp_path / "b.parquet"), tokenizer=tokenizer, mode="raw")[1]
    assert text["raw_prompt"] == text["prompt"] == user("What is the sum of 1 and 1?")
    assert set(text) - set(item) == {"data_source", "reward_model"}


def test_copies_of_a_prompt_follow_each_other(tokenizer, tmp_path):
    """Equal, with one uid, and sharing nothing that a trainer could change."""
    dataset = build(sums(tmp_path / "a.parquet", 3), tokenizer=tokenizer, repeat=4, return_raw_chat=True)
    items = dataset.__getitems__(list(range(12)))
    assert [item["index"] for item in items] == [100] * 4 + [101] * 4 + [102] * 4
    assert plain(items) == plain([dataset[number] for number in range(12)])
    assert len({item["uid"] for item in items}) == 3
    items[0]["input_ids"][:] = 0
    items[0]["raw_prompt"][0]["content"] = ""
    assert plain(items[1]) == plain(dataset[1])


def test_identity_is_content_and_the_rows_that_stay(tokenizer, tmp_path):
    """Not the place of the files: a mixture resumes where they were moved, and not where others were chosen."""

    def identity(path, **config):
        return build(path, tokenizer=tokenizer, shuffle=True, **config).source_identity

    first = sums(tmp_path / "a.parquet", 9)
    found = identity(first, max_samples=4, seed=1)
    assert identity(sums(tmp_path / "moved.parquet", 9), max_samples=4, seed=1) == found
    assert (
        len({found, identity(first, max_samples=4, seed=2), identity(first), identity(sums(tmp_path / "b.parquet", 8))})
        == 4
    )


@pytest.mark.parametrize("number", [-13, 12])
def test_items_are_those_of_a_list(number, tokenizer, tmp_path):
    """Negative ones count from the end, and it ends."""
    dataset = build(sums(tmp_path / "a.parquet", 12), tokenizer=tokenizer)
    assert plain(dataset[-1]) == plain(dataset[11])
    with pytest.raises(IndexError, match=rf"item {number} of 12"):
        _ = dataset[number]
    with pytest.raises(IndexError, match=rf"item {number} of 12"):
        dataset.__getitems__([0, number])


def test_a_column_named_like_a_result_is_refused(tokenizer, tmp_path):
    """Instead of being overwritten."""
    with pytest.raises(ValueError, match="'uid'"):
        build(write(tmp_path / "a.parquet", [{"prompt": user("x"), "uid": "mine"}]), tokenizer=tokenizer)


def test_a_tokenizer_without_padding_is_refused_at_once(tmp_path):
    """Not by a worker, later."""
    bare = tiny_tokenizer()
    bare.pad_token = None
    with pytest.raises(ValueError, match="a pad token"):
        build(sums(tmp_path / "a.parquet"), tokenizer=bare, filter_overlong_prompts=False)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.long)])
def test_it_works_in_workers_of_each_start_method(method, qwen, tmp_path):
    """What they send is what there is."""
    dataset = build(mixed(tmp_path / "a.parquet"), qwen)
    options = {"num_workers": 2, "multiprocessing_context": method, "batch_size": 2}
    batches = list(DataLoader(dataset, collate_fn=prompt_collate, **options))
    assert unpacked(batches) == unpacked([prompt_collate([dataset[n], dataset[n + 1]]) for n in (0, 2)])


def test_it_pickles_whole_and_small(tokenizer, tmp_path):
    """Beside the tokenizer, whose name is enough."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    dataset = build(sums(tmp_path / "a.parquet", 800), tokenizer=str(tmp_path / "tokenizer"))
    data = pickle.dumps(dataset)
    assert len(data) < 3000
    assert plain(pickle.loads(data)[700]) == plain(dataset[700])


def test_a_resumed_dataset_reads_its_files_again(tokenizer, tmp_path, monkeypatch):
    """Also where the cache is another; changed files are refused."""
    path = sums(tmp_path / "a.parquet", 12, words=2)
    dataset = build(path, tokenizer=tokenizer, max_prompt_length=45)
    expected, data = plain([dataset[number] for number in range(len(dataset))]), pickle.dumps(dataset)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "other"))
    (tmp_path / "cache").rename(tmp_path / "gone")
    again = pickle.loads(data)
    with pytest.raises(FileNotFoundError) as caught:
        _ = again[0]
    assert any("resume_dataset_state()" in note for note in caught.value.__notes__)
    again.resume_dataset_state()
    assert plain([again[number] for number in range(len(again))]) == expected
    sums(tmp_path / "a.parquet", 13, words=2)
    with pytest.raises(StateError, match="expected the files as they were"):
        pickle.loads(data).resume_dataset_state()
