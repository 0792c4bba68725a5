import asyncio

import numpy as np
import pytest

from streamdata.chats.prompts import RLHFDataset
from tests.chats.prompts.prompt_files import IMAGES, image, mixed, sums, user, write
from tests.sources.tiny_processors import picture, png

CONFIG = {"max_prompt_length": 64, "return_full_prompt": True}


class Shouting(RLHFDataset):
    """A class of one's own, at the top of a module."""

    def _build_messages(self, example, key):
        messages = super()._build_messages(example, key)
        return [{"role": "system", "content": "LOUD"}, *messages]


class Older(RLHFDataset):
    """As written for verl 0.6.1, where the row alone is given."""

    def _build_messages(self, example):
        return user(example.pop("prompt")[0]["content"].upper())


class Counting(RLHFDataset):
    """Its items have a field more."""

    def __getitem__(self, item):
        return {**super().__getitem__(item), "dummy_tensor": item}


def test_messages_are_built_by_the_subclass(tokenizer, tmp_path):
    """Where they are emitted."""
    path = sums(tmp_path / "a.parquet", 2)
    assert Shouting(path, tokenizer, CONFIG)[1]["full_prompts"].startswith("<|im_start|>system\nLOUD")
    assert "WHAT IS THE SUM OF 1 AND 1?" in Older(path, tokenizer, CONFIG)[1]["full_prompts"]


def test_rows_are_measured_as_the_subclass_builds_them(tokenizer, tmp_path):
    """The same file, measured without it before, has other lengths."""
    path = sums(tmp_path / "a.parquet", 4)
    length = len(RLHFDataset(path, tokenizer, CONFIG)[0]["raw_prompt_ids"])
    config = {"max_prompt_length": length}
    assert len(RLHFDataset(path, tokenizer, config)) == 4
    with pytest.raises(RuntimeError, match="4 overlong"):
        Shouting(path, tokenizer, config)


def test_media_stay_with_the_messages_that_a_subclass_builds(qwen, tmp_path):
    """Those of the columns are in their parts."""
    path = mixed(tmp_path / "a.parquet")
    found, expected = (
        Shouting(path, qwen.tokenizer, CONFIG, qwen)[3],
        RLHFDataset(path, qwen.tokenizer, CONFIG, qwen)[3],
    )
    assert found["multi_modal_data"].keys() == expected["multi_modal_data"].keys()
    assert np.array_equal(found["multi_modal_data"]["video"][0], expected["multi_modal_data"]["video"][0])
    assert found["raw_prompt_ids"][-20:] == expected["raw_prompt_ids"][-20:]


def test_items_are_those_of_the_subclass_in_batches_too(tokenizer, tmp_path):
    """A DataLoader asks for a batch at once."""
    dataset = Counting(sums(tmp_path / "a.parquet", 3), tokenizer, CONFIG)
    assert [item["dummy_tensor"] for item in dataset.__getitems__([0, 2])] == [0, 2]


def test_a_hook_that_nothing_calls_is_refused():
    """Its class would be written for nothing."""
    with pytest.raises(ValueError, match=r"Filtering: expected to override .*got \['maybe_filter_out_long_prompts'\]"):

        class Filtering(RLHFDataset):
            def maybe_filter_out_long_prompts(self, dataframe=None):
                return dataframe


def test_agent_loops_get_the_media_of_messages(qwen, tmp_path):
    """Images, and videos with their times, of messages in mode raw; a subclass may open them otherwise."""
    item = RLHFDataset(mixed(tmp_path / "a.parquet"), qwen.tokenizer, {"mode": "raw"}, qwen)[3]
    images, videos = asyncio.run(RLHFDataset.process_vision_info(item["raw_prompt"], image_patch_size=4, config={}))
    assert [image.size for image in images] == [(32, 16)]
    ((frames, metadata),) = videos
    assert tuple(frames.shape) == (4, 3, 16, 16)
    assert metadata["fps"] == 2.0
    nothing = asyncio.run(RLHFDataset.process_vision_info(user("x"), image_patch_size=4, config={}))
    assert nothing == (None, None)


def test_typed_parts_have_sizes_of_their_own(qwen, tmp_path):
    """In the messages or beside the image in its column."""
    big = {"bytes": png(picture(64, 64)), "path": None}
    parts = [{"type": "image", "image": big, "min_pixels": 64, "max_pixels": 256}, {"type": "text", "text": "What?"}]
    path = write(tmp_path / "a.parquet", [{"prompt": user(parts)}])
    beside = {"prompt": user("<image>What?"), "images": [{**big, "min_pixels": 64, "max_pixels": 256}]}
    items = [RLHFDataset(path, qwen.tokenizer, CONFIG, qwen)[0]]
    items.append(RLHFDataset(write(tmp_path / "b.parquet", [beside]), qwen.tokenizer, CONFIG, qwen)[0])
    sizes = [item["multi_modal_data"]["image"][0].size for item in items]
    assert sizes[0] == sizes[1]
    assert sizes[0][0] * sizes[0][1] <= 256
    patches = RLHFDataset(path, qwen.tokenizer, {**CONFIG, "image_patch_size": 8}, qwen)[0]
    assert all(side % 16 == 0 for side in patches["multi_modal_data"]["image"][0].size)


def test_a_single_image_may_stand_in_image(qwen, tmp_path):
    """As TRL has it, without a place in the text."""
    kinds = {"image": IMAGES.value_type}
    path = write(tmp_path / "a.parquet", [{"prompt": user("What?"), "image": image(1)}], **kinds)
    item = RLHFDataset(path, qwen.tokenizer, CONFIG, qwen)[0]
    assert item["full_prompts"].endswith("<|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n")
    assert "image" not in item
