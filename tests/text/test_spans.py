import pytest

from tests.text.chat_templates import QWEN3, chat_tokenizer, encode_chat
from tests.text.test_masks import AGAIN, ASK, CALLS, RESULT, SAY, trained_pieces


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_a_header_without_generation_prompt_is_not_trained(tokenizer):
    """The space before the answer belongs to its first word; a call of tools without content is trained whole."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ':' }}"
        "{{ ' [CALL]' if m.tool_calls else ' ' + m.content }}{{ '<|eot|>' }}{% endfor %}"
    )
    encoded = encode_chat(tokenizer, [ASK, SAY, AGAIN, SAY])
    assert trained_pieces(tokenizer, encoded) == [" a cat<|eot|>"] * 2
    encoded = encode_chat(tokenizer, [ASK, CALLS])
    assert trained_pieces(tokenizer, encoded) == ["assistant: [CALL]<|eot|>"]


def test_a_call_before_the_place_of_the_content_is_trained(tokenizer):
    """Though no message begins as the generation prompt does, and both go on with the same character."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|Assistant|>' if m.role == 'assistant' else '<|User|>' }}"
        "{{ '<tool_call>look</tool_call>' if m.tool_calls }}{{ m.content + '<|eos|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
    )
    encoded = encode_chat(tokenizer, [ASK, CALLS, RESULT, SAY])
    assert trained_pieces(tokenizer, encoded) == ["<tool_call>look</tool_call><|eos|>", "a cat<|eos|>"]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content + m.content }}{{ loop.last }}{% endfor %}",  # twice, unlike as the last
        "{% for m in messages %}{{ m.content }}{{ '<|eot|>' if loop.last else '<|im_end|>' }}{% endfor %}",
    ],
)
def test_a_message_that_cannot_be_found_is_an_error(tokenizer, template):
    """A mask is never guessed."""
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"expected to find what message 1 \(assistant\) says"):
        encode_chat(tokenizer, [ASK, SAY, AGAIN, SAY])


def test_typed_parts_of_text_are_found(tokenizer):
    """A content may be a list of parts."""
    tokenizer.chat_template = QWEN3.replace(
        "{{- '<|im_start|>' + message.role + '\\n' + message.content",
        "{{- '<|im_start|>' + message.role + '\\n' + message.content[0].text",
    )
    parts = [{"type": "text", "text": "what is it"}]
    encoded = encode_chat(tokenizer, [{"role": "user", "content": parts, "train": True}, SAY])
    assert trained_pieces(tokenizer, encoded)[0] == "what is it<|im_end|>"


def test_a_message_that_is_not_trained_need_not_be_found(tokenizer):
    """Here the first answer ends as no other does."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}"
        "{{ '<|eos|>' if loop.last else '<|eot|>' if loop.index0 > 1 }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    chat = [ASK, {**SAY, "train": False}, *[{**ASK, "train": False}, {**SAY, "train": False}] * 4, ASK, SAY]
    assert trained_pieces(tokenizer, encode_chat(tokenizer, chat)) == ["a cat<|eos|>"]
    with pytest.raises(ValueError, match=r"message 1 \(assistant\) .* it ends differently when others follow"):
        encode_chat(tokenizer, [ASK, SAY, *chat[2:]])


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("text", ["\ue000", "\ue000\ue001 \ue0f10\ue0f2", "\ue0f1\ue0f2"])
def test_data_that_looks_like_a_probe_is_text(tokenizer, place, text):
    """It is trained or masked as any other, at the end of a message or at its beginning."""
    tokenizer.chat_template = QWEN3
    messages = [dict(message) for message in (ASK, SAY, {**AGAIN, "train": True}, SAY)]
    messages[place]["content"] = text + messages[place]["content"] + text
    thought = "<think>\n\n</think>\n\n"
    expected = [
        f"{before}{messages[number]['content']}<|im_end|>" for number, before in ((1, ""), (2, ""), (3, thought))
    ]
    assert trained_pieces(tokenizer, encode_chat(tokenizer, messages)) == expected


def test_thoughts_are_trained_where_no_prefix_holds(tokenizer):
    """The template says first how many messages there are, so that no part is rendered as in the whole."""
    tokenizer.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ '<think>' + m.reasoning_content + '</think>' if m.reasoning_content }}{{ m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    encoded = encode_chat(tokenizer, [ASK, {**SAY, "reasoning_content": "so"}, AGAIN, SAY, AGAIN])
    assert trained_pieces(tokenizer, encoded) == ["<think>so</think>a cat<|im_end|>", "a cat<|im_end|>"]


def test_a_content_may_be_marked_twice(tokenizer):
    """Both are its own, trained or not."""
    mark = "{% generation %}{{ m.content }}{% endgeneration %}"
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{{% if m.role == 'user' %}}{{{{ m.content }}}}{{% else %}}{mark}-{mark}{{% endif %}}"
        "<|eot|>{% endfor %}"
    )
    assert trained_pieces(tokenizer, encode_chat(tokenizer, [ASK, SAY, AGAIN, SAY])) == ["a cat"] * 4
    encoded = encode_chat(tokenizer, [ASK, SAY, AGAIN, {**SAY, "train": False}])
    assert trained_pieces(tokenizer, encoded) == ["a cat"] * 2
