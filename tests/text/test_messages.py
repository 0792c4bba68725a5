import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.text.messages import Medium, is_empty, read_chat, read_tools, without_nulls
from tests.chats.prompts.prompt_files import user

KEYS = {"image": "images", "video": "videos"}
TEXT, IMAGE, VIDEO = {"type": "text", "text": "x"}, {"type": "image"}, {"type": "video"}


def read(row, *, typed=True):
    """The chat of a row."""
    return read_chat(row, "prompt", KEYS, typed=typed)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x", [TEXT]),
        ("<image>x", [IMAGE, TEXT]),
        ("x<image>", [TEXT, IMAGE]),
        ("<image><image>", [IMAGE, IMAGE]),
        ("x<image>x<video>x", [TEXT, IMAGE, TEXT, VIDEO, TEXT]),
    ],
)
def test_places_in_text_become_typed_parts(text, parts):
    """In order; empty text between them is no part."""
    row = {"prompt": user(text), "images": [b"i"] * text.count("<image>"), "videos": [b"v"] * text.count("<video>")}
    chat = read(row)
    assert chat.messages == [{"role": "user", "content": parts}]
    assert [medium.kind for medium in chat.media] == [part["type"] for part in parts if part is not TEXT]


def test_media_are_taken_in_order_over_messages():
    """Each place takes the next of its kind."""
    prompt = [*user("<image> a <video>"), {"role": "assistant", "content": "b"}, *user("<image>")]
    chat = read({"prompt": prompt, "images": ["1", "2"], "videos": ["v"]})
    assert chat.media == [Medium("image", "1"), Medium("video", "v"), Medium("image", "2")]


def test_parts_may_be_typed_already():
    """With media of their own, or of the columns."""
    content = [
        {"type": "image", "image": "own.png", "text": None},
        {"type": "image"},
        {"type": "text", "text": "<image>"},
    ]
    chat = read({"prompt": [{"role": "user", "content": content}], "images": ["next.png"]})
    assert chat.media == [Medium("image", "own.png"), Medium("image", "next.png")]
    assert chat.messages[0]["content"] == [IMAGE, IMAGE, {"type": "text", "text": "<image>"}]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("x", {"images": ["1"]}, "got 1 for 0"),
        ("<image>", {"images": []}, "got 0 for 1"),
        ("<image>", {}, "got 0 for 1"),
        ("<image><image>", {"images": ["1", "2", "3"]}, "got 3 for 2"),
        ("<video>", {"videos": ["1", "2"]}, "videos as parts for them, got 2 for 1"),
    ],
)
def test_a_count_that_does_not_match_is_an_error(text, columns, message):
    """Too few and too many, of either kind."""
    with pytest.raises(ValueError, match=message):
        read({"prompt": user(text), **columns})


def test_without_a_processor_text_is_text():
    """What looks like a place is none, and media are refused."""
    assert read({"prompt": user("the <image> tag"), "images": None}, typed=False).messages == user("the <image> tag")
    with pytest.raises(ValueError, match="Give the dataset a processor"):
        read({"prompt": user("<image>"), "images": ["1"]}, typed=False)


def test_without_a_processor_typed_media_are_refused():
    """The template would write their places, and the model would see nothing there; typed text is text."""
    content = [TEXT, {"type": "image", "image": "1"}]
    with pytest.raises(ValueError, match=r"a row with media: \['image'\]"):
        read({"prompt": [{"role": "user", "content": content}]}, typed=False)
    assert read({"prompt": [{"role": "user", "content": [TEXT]}]}, typed=False).messages[0]["content"] == [TEXT]


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize(
    "part", [{"type": "audio", "audio": "a.wav"}, {"type": "imag", "image": "a.png"}, {"image": "a"}]
)
def test_parts_with_other_media_are_refused_rather_than_passed_over(part, typed):
    """Of a misspelt type, of none, or of what nobody reads."""
    with pytest.raises(ValueError, match=r"expected parts with media of type image or video, got|expected text alone"):
        read({"prompt": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]}, typed=typed)


@given(st.lists(st.sampled_from(["a", "<image>", "<video>", " b "])), st.booleans())
def test_the_row_stays_as_it_is(pieces, typed):
    """Whatever is read from it."""
    row = {"prompt": user("".join(pieces)), "images": ["i"] * pieces.count("<image>"), "tools": [{"a": None}]}
    before = json.dumps(row)
    if typed and "<video>" not in pieces:
        read(row)
    read_tools(row["tools"])
    assert json.dumps(row) == before


@pytest.mark.parametrize(
    ("prompt", "empty"),
    [
        (None, True),
        ([], True),
        (user(""), True),
        (user("  \n"), True),
        (user(None), True),
        ([*user(""), *user("x")], False),
        ([{"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}], False),
        ([{"role": "user", "content": [TEXT]}], False),
    ],
)
def test_an_empty_prompt_says_nothing(prompt, empty):
    """No message with a content or a call."""
    assert is_empty({"prompt": prompt}, "prompt") is empty


def test_a_row_without_the_column_is_not_empty():
    """A wrong `prompt_key` would drop all rows as empty; so it is told as what it is."""
    assert not is_empty({"question": user("x")}, "prompt")


@pytest.mark.parametrize("prompt", [None, [], "text", ["text"], {"role": "user"}])
def test_what_is_no_list_of_messages_is_refused(prompt):
    """With the column's name."""
    with pytest.raises(ValueError, match="expected a list of messages in 'prompt'"):
        read({"prompt": prompt})


def test_arrows_padding_goes_and_nothing_else():
    """Keys of dicts that are None; not items of lists, and not what was written as JSON."""
    padded = {"name": "f", "enum": ["a", None], "parameters": {"x": {"type": "int"}, "y": None}, "strict": None}
    stripped = {"name": "f", "enum": ["a", None], "parameters": {"x": {"type": "int"}}}
    assert without_nulls(padded) == stripped
    assert read_tools([padded]) == [stripped]
    assert read_tools(json.dumps([padded])) == [padded]
    assert read_tools([json.dumps(padded)]) == [padded]
    assert read_tools(json.dumps(padded)) == [padded]


@pytest.mark.parametrize("column", [None, [], "[]"])
def test_a_row_may_have_no_tools(column):
    """In each way to say so."""
    assert read_tools(column) is None


@pytest.mark.parametrize("column", [[3], "[3]", ["[3]"], "3", "{no JSON", ["{no JSON"]])
def test_what_is_no_schema_is_refused(column):
    """With what to store."""
    with pytest.raises(ValueError, match="expected JSON schemas"):
        read_tools(column)
