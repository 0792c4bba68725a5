import pytest

from streamdata.text.formats import mask_shared, with_prompt

ASK, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "g"), ("system", "b"))
)


@pytest.mark.parametrize(
    ("prompt", "messages", "expected"),
    [
        ([BAD, ASK], [GOOD], [BAD, ASK, GOOD]),
        ([ASK], [ASK, GOOD], [ASK, GOOD]),
        ([ASK], [ASK | {"name": None, "train": True}, GOOD], [ASK | {"name": None, "train": True}, GOOD]),
        ([ASK, GOOD], [ASK], [ASK, GOOD, ASK]),
        ([], [GOOD], [GOOD]),
        ("q ", [BAD, ASK, GOOD], [BAD, ASK, GOOD]),
        ("qr", [{"role": "user", "content": [{"text": "q"}, {"text": "r"}]}], None),
    ],
)
def test_a_conversation_has_its_prompt_once(prompt, messages, expected):
    """Before it, or as what it begins with."""
    assert with_prompt(prompt, messages) == (expected or messages)


@pytest.mark.parametrize("messages", [[GOOD], [ASK, GOOD], [GOOD, ASK | {"content": None}]])
def test_a_text_that_no_user_begins_with_is_no_prompt(messages):
    """It would be lost."""
    with pytest.raises(ValueError, match="expected messages, or the text that the first user says"):
        with_prompt("else", messages)


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        ([ASK], [BAD, ASK, GOOD]),
        ([BAD, ASK], [ASK, GOOD]),
        ([ASK], [ASK | {"content": [{"type": "text", "text": "q "}]}, GOOD]),
    ],
)
def test_a_question_is_not_asked_twice(prompt, messages):
    """Where the conversation has it already, but not all of the prompt as its beginning."""
    with pytest.raises(ValueError, match="got its last message again, 'q'"):
        with_prompt(prompt, messages)


def test_what_a_pair_shares_is_not_trained():
    """Whatever the messages themselves say of it; nulls make no difference, and nothing given is changed."""
    chosen, rejected = [ASK, GOOD | {"train": True}, GOOD], [ASK | {"name": None}, GOOD, BAD, GOOD]
    first, second = mask_shared(chosen, rejected)
    assert first == [ASK | {"train": False}, GOOD | {"train": False}, GOOD]
    assert second == [ASK | {"name": None, "train": False}, GOOD | {"train": False}, BAD, GOOD]
    assert chosen[1]["train"] is True
    assert mask_shared([ASK], [ASK, GOOD]) == ([ASK | {"train": False}], [ASK | {"train": False}, GOOD])
