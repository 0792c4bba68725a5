import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.chats.encoding import Encoder, MediaCutError, fit
from streamdata.text.truncation import OverlongError, cut
from tests.sources.tiny_processors import picture, tiny_tokenizer

TEXT = Encoder(tiny_tokenizer())
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
MEDIA = [picture(16, 16, 1), picture(8, 24, 2)]  # 4 and 3 tokens


@pytest.fixture(scope="module")
def images(qwen):
    """Of texts with images."""
    return Encoder(qwen.tokenizer, qwen)


@pytest.fixture(scope="module")
def encoded(images):
    """A text with both images in it."""
    return images.encode(f"What {IMAGE} is {IMAGE} the sum", ["image", "image"], MEDIA)


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
@pytest.mark.parametrize("limit", [1, 5, 7, 10, 11, 30])
def test_both_ids_of_a_text_are_cut_alike(truncation, limit):
    """Shorter, equal, longer, one, and odd."""
    encoded = TEXT.encode("abcdefghij")
    assert len(encoded.input_ids) == 10
    fitted = fit(encoded, [], TEXT, limit, truncation, "error")
    expected = encoded.input_ids[cut(10, limit, truncation).kept].tolist()
    assert fitted.input_ids.tolist() == fitted.raw_ids.tolist() == expected
    assert len(expected) == min(limit, 10)


def test_too_long_is_an_error_where_asked():
    """With length and limit, whatever it holds."""
    with pytest.raises(OverlongError, match="at most 5 tokens, got 10"):
        fit(TEXT.encode("abcdefghij"), [], TEXT, 5, "error", "drop_media")
    assert len(fit(TEXT.encode("abcdefghij"), [], TEXT, 10, "error", "error").input_ids) == 10


@given(st.integers(1, 40), st.sampled_from(["left", "right", "middle"]))
def test_media_stay_whole_or_go_with_their_features(qwen, images, encoded, limit, truncation):
    """Ids with and without expansion, media and features tell of the same images."""
    fitted = fit(encoded, MEDIA, images, limit, truncation, "drop_media")
    grids = fitted.features["image_grid_thw"].prod(1).tolist() if fitted.media else []
    assert fitted.input_ids.tolist().count(qwen.image_token_id) == sum(grids) // 4
    assert fitted.raw_ids.tolist().count(qwen.image_token_id) == len(fitted.media) == len(fitted.kinds)
    assert len(fitted.features.get("pixel_values", ())) == sum(grids)
    assert len(fitted.input_ids) <= limit
    _, again = images.expand(fitted.kinds, fitted.media)
    assert all(again[name].equal(value) for name, value in fitted.features.items())


@given(st.integers(1, 40), st.sampled_from(["left", "right", "middle"]))
def test_text_is_cut_as_if_media_were_text(qwen, images, encoded, limit, truncation):
    """Of what the cut keeps, the remains of a medium go and nothing else."""
    fitted = fit(encoded, MEDIA, images, limit, truncation, "drop_media")
    kept = cut(len(encoded.input_ids), limit, truncation).kept
    texts = [token for token in encoded.input_ids[kept].tolist() if token != qwen.image_token_id]
    assert [token for token in fitted.input_ids.tolist() if token != qwen.image_token_id] == texts
    assert [token for token in fitted.raw_ids.tolist() if token != qwen.image_token_id] == texts


@pytest.mark.parametrize("policy", ["error", "drop_sample"])
def test_a_cut_that_meets_an_image_is_an_error(images, encoded, policy):
    """Unless the image may be dropped; one that meets text alone is none."""
    end = encoded.spans[1][1]
    assert len(fit(encoded, MEDIA, images, end, "right", policy).media) == 2
    with pytest.raises(MediaCutError, match="meets image 1"):
        fit(encoded, MEDIA, images, end - 1, "right", policy)


def test_images_of_other_processors_go_whole_too(llava):
    """Where features are one row for each image."""
    encoder = Encoder(llava.tokenizer, llava)
    encoded = encoder.encode("x<image>y<image>", ["image", "image"], MEDIA)
    fitted = fit(encoded, MEDIA, encoder, 8, "right", "drop_media")
    assert fitted.features["pixel_values"].equal(encoded.features["pixel_values"][:1])
    assert fitted.media == MEDIA[:1]
