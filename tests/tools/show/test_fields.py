"""FieldRenderer of samples and records, by what they hold."""

import io
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from streamdata.tools.show.fields import FieldRenderer
from streamdata.tools.show.model import IN_TERMINAL, WHOLE, ShownField, ShownImage

PIXELS = np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)


def png(image: Image.Image) -> bytes:
    """The bytes of a file."""
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def view(value: object, name: str = "field") -> ShownField:
    """The view of a field."""
    (field,) = FieldRenderer(IN_TERMINAL).of({name: value})
    return field


def picture(value: object) -> ShownImage:
    """The only image of a field."""
    (image,) = view(value).images
    return image


def test_a_list_of_arrays_is_shown_array_by_array() -> None:
    """As masks of responses are stored."""
    masks = [np.array([True, False]), np.array([True])]
    fields = FieldRenderer(IN_TERMINAL).of({"masks": masks})
    assert [(field.name, field.text) for field in fields] == [("masks[0]", "1 0"), ("masks[1]", "1")]


@pytest.mark.parametrize(
    ("value", "kind", "about"),
    [
        ("words", "text", "str"),
        (b"words", "text", "bytes"),
        (b"\xff\x00", "numbers", "bytes"),
        (7, "numbers", "int"),
        (None, "numbers", "NoneType"),
        (torch.zeros(3, dtype=torch.bool), "numbers", "bool (3)"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "numbers", "bfloat16 (2, 3)"),
        (np.array(["a"]), "text", "<U1 (1)"),
        (torch.from_numpy(PIXELS).permute(2, 0, 1), "image", "uint8 (3, 8, 12)"),
        (torch.rand(3, 8, 12), "image", "float32 (3, 8, 12)"),
        (PIXELS, "image", "uint8 (8, 12, 3)"),
        (png(Image.fromarray(PIXELS)), "image", "bytes"),
        (Image.fromarray(PIXELS), "image", "Image"),
        (np.stack([PIXELS] * 5), "frames", "uint8 (5, 8, 12, 3)"),
        ([Image.fromarray(PIXELS)] * 5, "frames", "list"),
        ([{"role": "user", "content": "hi"}], "chat", "list"),
        ([{"from": "gpt", "value": "hi"}], "chat", "list"),
        ({"a": [1, {"b": b"xx"}], 3: {1, 2}}, "json", "dict"),
        (object(), "json", "object"),
    ],
)
def test_each_kind_of_value_has_its_view(value, kind, about):
    """With its type, or its dtype and shape."""
    field = view(value)
    assert (field.kind, field.about) == (kind, about)


def test_images_have_their_size_and_are_at_most_as_large_as_is_shown():
    """Tensors with channels first, floats, transparency, and what has deep pixels."""
    assert (picture(torch.from_numpy(PIXELS).permute(2, 0, 1)).width, picture(PIXELS).height) == (12, 8)
    large = picture(Image.new("RGB", (1600, 400)))
    assert (large.width, large.image.size) == (1600, (320, 80))
    for mode in ("L", "P", "RGBA", "I;16", "F", "CMYK", "1"):
        assert picture(Image.new(mode, (20, 20))).data_uri.startswith("data:image/")


def test_a_large_array_is_not_converted_whole():
    """A thumbnail is made of every n-th pixel, of which alone there are floats."""
    pixels = np.broadcast_to(np.float64(0.5), (3000, 3000, 3))  # of no memory
    tracemalloc.start()
    try:
        assert picture(pixels).image.getpixel((0, 0)) == (127, 127, 127)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < pixels.size  # a byte for each


def test_what_is_damaged_says_so():
    """A file that is cut short, one that only begins like an image, and a drawing, which is text."""
    cut = picture(png(Image.fromarray(PIXELS))[:60])
    assert cut.image is None
    assert "damaged image" in cut.alt
    assert "not shown" in picture(b"\x89PNG\r\n\x1a\n" + b"x" * 40).alt
    assert view(b"<svg onload='x()'></svg>").kind == "text"


def test_what_is_long_is_cut_in_its_middle():
    """Texts, messages, frames, numbers; each says how much there is, and has its end."""
    text = view("x" * 1000 + "end")
    assert (text.counts, text.text[-3:]) == ({"characters": 1003, "cut": 203}, "end")
    assert " … 203 more characters … " in text.text
    chat = view([{"role": "user", "content": str(number)} for number in range(30)])
    assert chat.counts == {"num_messages": 30}
    assert [each.text or each.more for each in chat.segments][5:8] == ["5", "… 18 more messages …", "24"]
    frames = view(np.stack([PIXELS] * 9))
    assert (len(frames.images), frames.counts) == (4, {"num_frames": 9})
    assert view(torch.arange(1000.0)).text == "0 1 2 3 4 5 … 994 995 996 997 998 999"


def test_nothing_is_cut_where_all_is_wanted():
    """Texts, messages and what they say, frames, numbers, sequences."""
    chat = [{"role": "user", "content": "x" * 5000}] * 60
    sample = {"text": "y" * 9999, "chat": chat, "video": np.stack([PIXELS] * 9), "numbers": torch.arange(1000.0)}
    sample["responses"] = torch.ones(50, 2000, dtype=torch.int64)
    text, said, video, numbers, *responses = FieldRenderer(WHOLE).of(sample)
    assert (text.text, len(video.images)) == (sample["text"], 9)
    assert [len(each.text) for each in said.segments] == [5000] * 60
    assert len(numbers.text.split()) == 1000
    assert [len(run.ids) for each in responses for segment in each.segments for run in segment.runs] == [2000] * 50


def test_long_names_are_cut():
    """Of fields, of parts of them and of tokens, whose masks are still found; and of who says a message."""
    long = "x" * 1_000_000
    sample = {
        long: 1,
        "media": {long: PIXELS},
        f"{long}_input_ids": torch.arange(4),
        f"{long}_loss_mask": torch.tensor([1, 0, 1, 1]),
        "chat": [{"role": long, "content": "y"}],
    }
    fields = FieldRenderer(IN_TERMINAL).of(sample)
    assert fields[0].name == f"{'x' * 100}… 999,900 more characters"
    assert fields[2].counts["trained"] == 3
    assert len(repr(fields)) < 5000


def test_responses_and_media_are_fields_of_their_own():
    """Rows of tokens with their masks, lists of them, images in a dict; what streamdata adds is left out."""
    sample = {
        "responses": torch.ones(2, 3, dtype=torch.int64),
        "masks": torch.tensor([[True, False, True]] * 2),
        "multi_modal_data": {"image": [Image.fromarray(PIXELS)]},
        "__url__": "a.tar",
    }
    fields = {field.name: field for field in FieldRenderer(IN_TERMINAL).of(sample)}
    assert list(fields) == ["responses[0]", "responses[1]", "masks", "multi_modal_data.image"]
    assert fields["responses[1]"].counts["trained"] == 2
