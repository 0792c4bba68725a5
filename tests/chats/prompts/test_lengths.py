import logging
import os

import numpy as np
import pytest

from streamdata.chats import lengths
from streamdata.chats.prompt_reader import PromptReader
from streamdata.chats.prompts import RLHFDataset
from streamdata.errors import SourceError
from tests.chats.prompts.prompt_files import image, mixed, sums, user, write
from tests.sources.tiny_processors import CHATML, tiny_llava, tiny_qwen2_vl, tiny_tokenizer


def forbid_measuring(monkeypatch):
    """From now on nothing may be measured."""
    monkeypatch.setattr(PromptReader, "measure", lambda *_: pytest.fail("measured again"))


def prompts_of(dataset):
    """The token ids of all items."""
    return [dataset[number]["raw_prompt_ids"] for number in range(len(dataset))]


@pytest.mark.parametrize("limit", [20, 30, 45, 400])
def test_the_filter_counts_what_would_be_emitted(limit, tokenizer, tmp_path, caplog):
    """As transformers' own template and tokenizer count it, row by row."""
    path = sums(tmp_path / "a.parquet", 12, words=2)
    every = RLHFDataset(path, tokenizer, {"filter_overlong_prompts": False, "max_prompt_length": 1000})
    texts = [
        tokenizer.apply_chat_template(user(question(number)), add_generation_prompt=True, tokenize=False)
        for number in range(12)
    ]
    counts = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    assert [len(ids) for ids in prompts_of(every)] == counts
    expected = [ids for ids in prompts_of(every) if len(ids) <= limit]
    if not expected:
        with pytest.raises(SourceError, match="none of 12: 12 overlong"):
            RLHFDataset(path, tokenizer, {"max_prompt_length": limit})
        return
    dataset = RLHFDataset(path, tokenizer, {"max_prompt_length": limit})
    assert prompts_of(dataset) == expected
    assert dataset.dropped == ({"overlong": 12 - len(expected)} if len(expected) < 12 else {})


def question(number):
    """The text of `sums`."""
    return f"What is the sum of {number} and {number}?" + " and more" * 2 * number


@pytest.mark.parametrize("limit", [24, 28, 32, 36, 40, 60])
def test_images_and_videos_count_expanded(limit, qwen, tmp_path):
    """The rows that stay are those whose expanded ids fit."""
    path = mixed(tmp_path / "a.parquet")
    every = RLHFDataset(path, qwen.tokenizer, {"max_prompt_length": 60, "filter_overlong_prompts": False}, qwen)
    sizes = [int(every[number]["attention_mask"].sum()) for number in range(4)]
    expected = [every[number]["uid"] for number in range(4) if sizes[number] <= limit]
    dataset = RLHFDataset(path, qwen.tokenizer, {"max_prompt_length": limit}, qwen)
    assert [dataset[number]["uid"] for number in range(len(dataset))] == expected


def test_empty_prompts_are_dropped_and_counted(tokenizer, tmp_path, caplog):
    """Apart from those that are too long; it is logged."""
    path = write(tmp_path / "a.parquet", [{"prompt": user("")}, {"prompt": user("hi")}, {"prompt": user("long " * 99)}])
    with caplog.at_level(logging.WARNING, "streamdata"):
        dataset = RLHFDataset(path, tokenizer, {"max_prompt_length": 40})
    assert dataset.dropped == {"empty": 1, "overlong": 1}
    assert "dropped 2 of 3 rows: 1 empty, 1 overlong" in caplog.text
    kept = RLHFDataset(path, tokenizer, {"filter_prompts": False, "filter_overlong_prompts": False})
    assert (len(kept), kept.dropped) == (3, {})


def test_a_second_start_measures_nothing(tokenizer, tmp_path, monkeypatch):
    """Nor does another limit, a part of the file, or the file under another name."""
    path = sums(tmp_path / "a.parquet", 12, words=2)
    first = RLHFDataset(path, tokenizer, {"max_prompt_length": 45})
    forbid_measuring(monkeypatch)
    assert prompts_of(RLHFDataset(path, tokenizer, {"max_prompt_length": 45})) == prompts_of(first)
    assert len(RLHFDataset(path, tokenizer, {"max_prompt_length": 60})) > len(first)
    assert len(RLHFDataset(path, tokenizer, {"max_prompt_length": 400, "max_samples": 3})) == 3
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    assert len(RLHFDataset(str(tmp_path / "b.parquet"), tokenizer, {"max_prompt_length": 45})) == len(first)


@pytest.mark.parametrize(
    "change",
    [
        {"apply_chat_template_kwargs": {"add_generation_prompt": False}},
        {"prompt_key": "data_source"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_lengths_depend_on_is_noticed(change, tokenizer, tmp_path, monkeypatch):
    """Settings of the template, another column."""
    path = sums(tmp_path / "a.parquet", 3)
    RLHFDataset(path, tokenizer, {})
    monkeypatch.setattr(lengths, "measure_rows", lambda *_: pytest.fail("measured"))
    with pytest.raises(pytest.fail.Exception, match="measured"):
        RLHFDataset(path, tokenizer, change)


SAID = {"text": "short"}
"""What the code below depends on, and no look at that code tells."""


def says(messages, **_):
    """A template as a function."""
    return SAID["text"]


class Saying(RLHFDataset):
    """A class of one's own."""

    def _build_messages(self, example, key):
        return user(SAID["text"])


@pytest.mark.parametrize(
    ("dataset", "config", "name"),
    [(RLHFDataset, {"chat_template_func": says}, "chat_template_func"), (Saying, {}, "_build_messages")],
)
def test_lengths_that_own_code_decides_are_measured_at_each_start(
    dataset, config, name, tokenizer, tmp_path, monkeypatch, caplog
):
    """They are not kept, and the log says so."""
    path, config = sums(tmp_path / "a.parquet", 3), {"max_prompt_length": 20, **config}
    assert dataset(path, tokenizer, config).dropped == {}
    monkeypatch.setitem(SAID, "text", "longer " * 30)
    with caplog.at_level(logging.INFO, "streamdata"), pytest.raises(SourceError, match="3 overlong"):
        dataset(path, tokenizer, config)
    assert caplog.text.count(f"measured at each start, since their lengths depend on {name}\n") == 1
    assert not list((tmp_path / "cache").rglob("*.i32"))


@pytest.mark.parametrize("part", ["tokenizer", "image_processor", "video_processor", None])
def test_a_class_of_ones_own_may_count_otherwise_at_each_start(part, tmp_path, monkeypatch):
    """A tokenizer, a processor, or a part of it that is not from transformers."""
    path, other = mixed(tmp_path / "a.parquet"), tiny_qwen2_vl()
    own = getattr(other, part) if part else other
    own.__class__ = type("Own", (type(own),), {})
    expected = prompts_of(RLHFDataset(path, other.tokenizer, {}, other))
    assert not list((tmp_path / "cache").rglob("*.i32"))
    assert prompts_of(RLHFDataset(path, other.tokenizer, {}, other)) == expected


def test_rows_that_stay_whatever_their_length_are_chosen_once(tokenizer, tmp_path, monkeypatch):
    """A function that renders does not decide which of them are empty."""
    path = sums(tmp_path / "a.parquet", 3)
    config = {"filter_overlong_prompts": False, "chat_template_func": says}
    RLHFDataset(path, tokenizer, config)
    forbid_measuring(monkeypatch)
    assert len(RLHFDataset(path, tokenizer, config)) == 3


def test_a_changed_template_or_file_is_noticed(tmp_path):
    """Though its name is the same."""
    path, tokenizer = sums(tmp_path / "a.parquet", 3), tiny_tokenizer()
    config = {"max_prompt_length": 22}
    assert RLHFDataset(path, tokenizer, config).dropped == {}
    tokenizer.chat_template = "something much longer " * 5 + CHATML
    with pytest.raises(SourceError, match="3 overlong"):
        RLHFDataset(path, tokenizer, config)
    tokenizer.chat_template = CHATML
    sums(tmp_path / "a.parquet", 4, words=9)
    assert RLHFDataset(path, tokenizer, config).dropped == {"overlong": 3}


def test_what_was_measured_before_a_failure_is_kept(tokenizer, tmp_path, monkeypatch):
    """The next start goes on from there."""
    path = sums(tmp_path / "a.parquet", 6)
    measure, calls = PromptReader.measure, []

    def fails_at_four(self, index):
        calls.append(index)
        if index == 4 and calls.count(4) == 1:
            raise OSError("disk")
        return measure(self, index)

    monkeypatch.setattr(PromptReader, "measure", fails_at_four)
    with pytest.raises(OSError, match="disk"):
        RLHFDataset(path, tokenizer, {})
    RLHFDataset(path, tokenizer, {})
    assert calls == [0, 1, 2, 3, 4, 4, 5]


def test_a_row_that_is_no_prompt_stops_the_filter(tokenizer, tmp_path):
    """With its place, instead of being dropped as too long."""
    path = write(tmp_path / "a.parquet", [{"prompt": user("x")}, {"prompt": user("<|image_pad|>")}])
    with pytest.raises(KeyError, match="oops") as caught:
        RLHFDataset(path, tokenizer, {"chat_template_func": fails_at_image})
    assert any("a.parquet', row 1" in note for note in caught.value.__notes__)


def fails_at_image(messages, **_):
    """A template that cannot render everything."""
    if "image" in messages[0]["content"]:
        raise KeyError("oops")
    return "x"


def test_a_changed_processor_is_noticed(tmp_path, monkeypatch):
    """An image may have more tokens for it."""
    path, other = mixed(tmp_path / "a.parquet"), tiny_qwen2_vl()
    RLHFDataset(path, other.tokenizer, {}, other)
    other.image_processor.merge_size = 1
    monkeypatch.setattr(lengths, "measure_rows", lambda *_: pytest.fail("measured"))
    with pytest.raises(pytest.fail.Exception, match="measured"):
        RLHFDataset(path, other.tokenizer, {}, other)


@pytest.mark.parametrize(
    "setting", [{"patch_size": 4}, {"num_additional_image_tokens": 1}, {"vision_feature_select_strategy": "default"}]
)
def test_a_setting_of_the_processor_itself_is_noticed(setting, tmp_path, monkeypatch):
    """An image may have more tokens for it; another processor of the same settings measures nothing."""
    path, other = write(tmp_path / "a.parquet", [{"prompt": user("<image>"), "images": [image(1)]}]), tiny_llava()
    RLHFDataset(path, other.tokenizer, {}, other)
    monkeypatch.setattr(lengths, "measure_rows", lambda *_: pytest.fail("measured"))
    RLHFDataset(path, other.tokenizer, {}, tiny_llava())
    for name, value in setting.items():
        setattr(other, name, value)
    with pytest.raises(pytest.fail.Exception, match="measured"):
        RLHFDataset(path, other.tokenizer, {}, other)


def test_tools_of_a_file_are_noticed(tokenizer, tmp_path):
    """Another file under the same name, too."""
    path, tools = sums(tmp_path / "a.parquet", 3), tmp_path / "tools.yaml"
    config = {"max_prompt_length": 80, "tool_config_path": str(tools)}
    tools.write_text("[{type: function, function: {name: f}}]")
    assert RLHFDataset(path, tokenizer, config).dropped == {}
    tools.write_text(f"[{{type: function, function: {{name: f, description: {'long ' * 30}}}}}]")
    with pytest.raises(SourceError, match="3 overlong"):
        RLHFDataset(path, tokenizer, config)


def test_as_many_processes_measure_as_the_config_says(tokenizer, tmp_path, monkeypatch):
    """The number reaches who starts them."""
    asked = []
    monkeypatch.setattr(lengths, "measure_rows", lambda _, __, values, workers: (asked.append(workers), values.fill(1)))
    RLHFDataset(sums(tmp_path / "a.parquet", 3), tokenizer, {"filter_overlong_prompts_workers": 7})
    assert asked == [7]


@pytest.mark.parametrize("shuffle", [False, True])
def test_max_samples_takes_a_part(shuffle, tokenizer, tmp_path):
    """The first rows, or a choice that the seed decides, in its order."""
    path = sums(tmp_path / "a.parquet", 40)

    def chosen(seed):
        config = {"max_samples": 7, "shuffle": shuffle, "seed": seed}
        dataset = RLHFDataset(path, tokenizer, config)
        return [dataset[number]["index"] - 100 for number in range(len(dataset))]

    assert len(chosen(1)) == len(set(chosen(1))) == 7
    assert (chosen(1) == sorted(chosen(1))) is (not shuffle)
    assert (chosen(1) == chosen(2)) is (not shuffle)
    assert (chosen(1) == list(range(7))) is (not shuffle)


VERLS_ROWS = {(True, 512): [13, 15, 4, 14, 9, 8, 10, 12], (False, 512): [*range(8)], (True, 50): [4]}
"""By `shuffle` and limit, of 20 rows: what RLHFDataset of verl 0.6.1 and 0.9.1 chose with seed 7, max_samples 8."""


@pytest.mark.parametrize(("shuffle", "limit"), VERLS_ROWS)
def test_max_samples_takes_verls_rows(shuffle, limit, tokenizer, tmp_path):
    """In their order, before the filter; given as verl's trainer gives it."""
    path = sums(tmp_path / "a.parquet", 20, words=1)
    config = {"shuffle": shuffle, "seed": 7, "max_prompt_length": limit}
    dataset = RLHFDataset(path, tokenizer, config, None, 8)
    assert [dataset[number]["index"] - 100 for number in range(len(dataset))] == VERLS_ROWS[shuffle, limit]
    with pytest.raises(ValueError, match="max_samples 8 beside 3 in the config"):
        RLHFDataset(path, tokenizer, {"max_samples": 3}, None, 8)


def test_only_the_part_is_measured(tokenizer, tmp_path, monkeypatch):
    """A short try on a large file is short."""
    path = sums(tmp_path / "a.parquet", 40)
    measured = []
    measure = PromptReader.measure
    monkeypatch.setattr(PromptReader, "measure", lambda self, index: measured.append(index) or measure(self, index))
    RLHFDataset(path, tokenizer, {"max_samples": 3})
    RLHFDataset(path, tokenizer, {"max_samples": 5})
    assert measured == [0, 1, 2, 3, 4]


def test_samples_whose_media_would_be_cut_are_dropped(qwen, tmp_path):
    """Where asked, before training; text that is cut stays."""
    path = mixed(tmp_path / "a.parquet")
    config = {"max_prompt_length": 20, "truncation": "right", "filter_overlong_prompts": False}
    dataset = RLHFDataset(path, qwen.tokenizer, {**config, "truncation_media": "drop_sample"}, qwen)
    assert dataset.dropped["media cut"] >= 1
    assert len(dataset) + dataset.dropped["media cut"] == 4
    assert all(dataset[number]["input_ids"].shape == (20,) for number in range(len(dataset)))
    config = {**config, "max_prompt_length": 60, "truncation_media": "drop_sample"}
    assert len(RLHFDataset(path, qwen.tokenizer, config, qwen)) == 4


def test_no_rows_at_all_is_an_error(tokenizer, tmp_path):
    """A file may be empty; a source may not."""
    path = write(tmp_path / "a.parquet", [{"prompt": user("x")}])
    empty = write(tmp_path / "empty.parquet", [{"prompt": user("x")}])
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(path).slice(0, 0), empty)
    with pytest.raises(SourceError, match="expected rows"):
        RLHFDataset(empty, tokenizer, {})
    assert len(RLHFDataset([path, empty], tokenizer, {})) == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-8], lambda data: b"\xff" * len(data), lambda _: b""])
def test_damaged_numbers_of_kept_rows_are_written_again(damage, tokenizer, tmp_path):
    """A file cut short would end the dataset in the middle, others would give other rows."""
    path = sums(tmp_path / "a.parquet", 12, words=2)
    expected = prompts_of(RLHFDataset(path, tokenizer, {"max_prompt_length": 45}))
    (numbers,) = (tmp_path / "cache").rglob("*.i64")
    numbers.write_bytes(damage(numbers.read_bytes()))
    assert prompts_of(RLHFDataset(path, tokenizer, {"max_prompt_length": 45})) == expected


@pytest.mark.parametrize("length", [-9, -1, 0, 1, 10**9, None])
def test_damaged_lengths_are_measured_again(length, tokenizer, tmp_path):
    """Whatever they say now: rows would be dropped, or kept, in silence."""
    path = sums(tmp_path / "a.parquet", 12, words=2)
    config = {"max_prompt_length": 45}
    expected = prompts_of(RLHFDataset(path, tokenizer, config))
    (stored,) = (tmp_path / "cache").rglob("*.i32")
    values = np.fromfile(stored, np.int32)
    values[2] = 0 if length is None else length
    (values[:-1] if length is None else values).tofile(stored)
    dataset = RLHFDataset(path, tokenizer, config)
    assert (prompts_of(dataset), dataset.dropped) == (expected, {"overlong": 9})


def test_the_numbers_of_kept_rows_are_not_in_the_heap(tokenizer, tmp_path):
    """Each is read where it lies, and none is pickled; a file cut short meanwhile is an error, never a dead process."""
    dataset = RLHFDataset(sums(tmp_path / "a.parquet", 12, words=2), tokenizer, {"max_prompt_length": 45})
    assert [dataset[number]["index"] for number in range(len(dataset))] == [100, 101, 102]
    (stored,) = (tmp_path / "cache").rglob("*.i64")
    os.truncate(stored, 12)
    with pytest.raises(SourceError, match=f"'{stored}': expected the number of row 1 .*\n.*Start again"):
        dataset[1]
