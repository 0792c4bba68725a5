from pathlib import Path

import numpy as np
import pytest

from streamdata.chats.encoding import Encoder, media_by_kind, training_features
from streamdata.text.tokenizer import load_tokenizer, token_ids
from tests.sources.tiny_processors import picture, tiny_tokenizer
from tests.text.tiny_tokenizer import save_tiny_tokenizer

QWEN_IMAGE, QWEN_VIDEO = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
VIDEO = np.stack([np.asarray(picture(16, 16, shade)) for shade in range(4)])
CASES = {
    "no media": ("Only text<|im_end|>", [], []),
    "one": (f"See {QWEN_IMAGE} there", ["image"], [picture(16, 8)]),
    "two of different size": (f"{QWEN_IMAGE}{QWEN_IMAGE}", ["image", "image"], [picture(24, 24), picture(8, 8)]),
    "a video between": (
        f"{QWEN_IMAGE} {QWEN_VIDEO} {QWEN_IMAGE}",
        ["image", "video", "image"],
        [picture(8, 8), VIDEO, picture(40, 24)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_the_processor_itself(case, qwen):
    """Given the whole text with all its media, as users of transformers do."""
    text, kinds, media = CASES[case]
    given = {f"{kind}s": values for kind, values in media_by_kind(kinds, media).items()}
    expected = qwen(text=[text], **given, add_special_tokens=False, return_tensors="pt")
    encoded = Encoder(qwen.tokenizer, qwen).encode(text, kinds, media)
    assert encoded.input_ids.tolist() == expected["input_ids"][0].tolist()
    assert encoded.raw_ids.tolist() == qwen.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert set(encoded.features) == set(expected) - {"input_ids", "attention_mask", "mm_token_type_ids"}
    for name, value in encoded.features.items():
        assert value.equal(expected[name])


def left_truncating(tokenizer):
    """An earlier call left its settings in the backend."""
    tokenizer("a text that is cut", truncation=True, max_length=3, padding="max_length")


def left_splitting(tokenizer):
    """An earlier call took special tokens for text."""
    tokenizer.encode("<|im_end|>", split_special_tokens=True)


def splitting(tokenizer):
    """The tokenizer always does."""
    tokenizer.split_special_tokens = True


@pytest.mark.parametrize("prepare", [left_truncating, left_splitting, splitting, str])
def test_token_ids_are_those_of_transformers(prepare):
    """Whatever was called before, and whatever the tokenizer is set to."""
    text = "What is the sum?<|im_end|>\n<|im_start|>x" * 3
    tokenizer, fresh = tiny_tokenizer(), tiny_tokenizer()
    prepare(tokenizer)
    if prepare is splitting:
        prepare(fresh)
    for special in (False, True):
        ids = token_ids(tokenizer, text, with_special_tokens=special)
        assert ids.tolist() == fresh(text, add_special_tokens=special)["input_ids"]


def test_a_tokenizer_is_given_as_object_or_by_name(tmp_path):
    """A name or path is loaded once in this process."""
    name = save_tiny_tokenizer(tmp_path)
    tokenizer = Encoder(name).tokenizer
    assert Encoder(Path(name)).tokenizer is tokenizer is Encoder(tokenizer).tokenizer is load_tokenizer(name)


def test_a_tokenizer_with_its_own_call_is_asked():
    """What a subclass does to a text counts."""

    class Shouting(type(tiny_tokenizer())):
        def __call__(self, text, **kwargs):
            return super().__call__(text.upper(), **kwargs)

    tokenizer = tiny_tokenizer()
    tokenizer.__class__ = Shouting
    assert token_ids(tokenizer, "abc").tolist() == token_ids(tiny_tokenizer(), "ABC").tolist()


@pytest.mark.parametrize("case", CASES)
def test_spans_and_origins_tell_media_from_text(case, qwen):
    """A medium's tokens come from its one placeholder; all else from its own token."""
    text, kinds, media = CASES[case]
    encoded = Encoder(qwen.tokenizer, qwen).encode(text, kinds, media)
    ids = {"image": qwen.image_token_id, "video": qwen.video_token_id}
    assert [set(encoded.input_ids[slice(*span)].tolist()) for span in encoded.spans] == [{ids[kind]} for kind in kinds]
    assert encoded.raw_ids[encoded.origin].tolist() == encoded.input_ids.tolist()
    assert [len(np.unique(encoded.origin[slice(*span)])) for span in encoded.spans] == [1] * len(kinds)


def test_images_side_by_side_are_told_apart(llava):
    """Where nothing lies between their tokens."""
    encoded = Encoder(llava.tokenizer, llava).encode("<image><image>x", ["image"] * 2, [picture(9, 9), picture(30, 9)])
    assert encoded.spans == [(0, 4), (4, 8)]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("none", ["image"]), ("<|image_pad|>", []), ("<|video_pad|>", ["image"]), ("<|image_pad|>" * 2, ["image"])],
)
def test_a_text_with_other_placeholders_is_refused(text, kinds, qwen):
    """A message that spells one would take another's image."""
    with pytest.raises(ValueError, match="in the rendered text"):
        Encoder(qwen.tokenizer, qwen).encode(text, kinds, [picture(8, 8)] * len(kinds))


def test_a_kind_that_the_processor_does_not_know_is_refused(llava):
    """By name."""
    with pytest.raises(ValueError, match="one that knows a video"):
        Encoder(llava.tokenizer, llava).encode("x", ["video"], [VIDEO])


def test_a_tokenizer_needs_a_pad_token():
    """And says how to give it one."""
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match=r"Set tokenizer.pad_token"):
        _ = Encoder(tokenizer).pad_token_id


def test_a_tokenizer_of_another_model_is_refused(qwen):
    """It has no one token for an image."""
    with pytest.raises(ValueError, match="expected one id for the processor's token"):
        Encoder(tiny_tokenizer(), qwen).encode("x")


def test_seconds_are_for_positions_alone():
    """A model's forward pass does not take them."""
    assert training_features({"pixel_values": 1, "second_per_grid_ts": 2}) == {"pixel_values": 1}
