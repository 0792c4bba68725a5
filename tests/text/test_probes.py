from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.text.masks import ChatEncoder
from streamdata.text.probes import find_turns
from streamdata.text.templates import ChatRenderer, Conversation
from tests.text.chat_templates import QWEN3, TEMPLATES, chat_tokenizer

CALL = {"function": {"name": "look", "arguments": {}}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def turns(count, answer="good {}"):
    """A conversation of so many turns."""
    roles = ("user", "assistant")
    return [{"role": role, "content": answer.format(turn)} for turn in range(count) for role in roles]


def encoded_one_by_one(tokenizer, messages):
    """The mask without this module."""
    with patch("streamdata.text.spans.find_turns", return_value={}):
        return ChatEncoder(tokenizer).encode(messages)


words = st.text(st.sampled_from("ab \n<>"), max_size=4)
thoughts = st.sampled_from(["", "", "", "<think>\nso\n</think>\n\n", "<think>\n"])
answers = st.tuples(thoughts, words).map("".join)


@given(
    st.lists(st.tuples(words, answers, st.integers(0, 5)), min_size=4, max_size=7), st.sampled_from(sorted(TEMPLATES))
)
def test_turns_found_together_are_those_found_one_by_one(tokenizer, drawn, name):
    """For all templates, with equal contents, empty ones, thoughts and calls of tools."""
    tokenizer.chat_template = TEMPLATES[name]
    messages = []
    for question, answer, kind in drawn:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if kind == 0 and name in ("llama", "qwen3"):
            messages[-1]["tool_calls"] = [CALL]
        if kind == 1 and name == "qwen3":
            messages[-1]["reasoning_content"] = "so"
    got, expected = ChatEncoder(tokenizer).encode(messages), encoded_one_by_one(tokenizer, messages)
    assert got.train.tolist() == expected.train.tolist()
    assert got.train.sum() > 0


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_long_conversation_is_rendered_few_times(tokenizer, name):
    """However many turns it has."""
    tokenizer.chat_template = TEMPLATES[name]
    encoder = ChatEncoder(tokenizer)
    render = Conversation.render
    with patch.object(Conversation, "render", autospec=True, side_effect=render) as counted:
        encoder.encode(turns(40))
    assert counted.call_count <= 20


def test_contents_that_look_like_what_is_between_them_are_not_found(tokenizer):
    """There would be two ways."""
    between = "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    messages = [{**message, "content": "x"} for message in turns(5)]
    conversation = ChatRenderer(tokenizer).conversation(messages)
    assert len(find_turns(conversation, conversation.render(conversation.messages))) == 4
    messages[3]["content"] = f"x{between}x"
    conversation = ChatRenderer(tokenizer).conversation(messages)
    assert find_turns(conversation, conversation.render(conversation.messages)) == {}


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content if m.role == 'user' }}|{% endfor %}",  # without the assistant
        "{% for m in messages %}{{ m.content }}{{ m.content }}|{% endfor %}",  # twice
        "{% for m in messages %}{{ raise_exception('no') if '\ue0f1' in m.content }}|{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",  # nothing between
        QWEN3.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant ' ~ content | length"),
    ],
)
def test_templates_that_do_more_with_contents_are_left_to_the_other_way(tokenizer, template):
    """Contents that are absent, repeated, refused, adjoining or looked into."""
    tokenizer.chat_template = template
    conversation = ChatRenderer(tokenizer).conversation([{**message, "content": "a b c d"} for message in turns(5)])
    assert find_turns(conversation, conversation.render(conversation.messages)) == {}
