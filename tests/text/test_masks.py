"""Masks token by token: a case lists the whole text of a conversation, piece by piece, and which are trained."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.text.masks import ChatEncoder
from tests.text.chat_templates import CHATML_MARKED, DEEPSEEK, LLAMA, MISTRAL, TEMPLATES, chat_tokenizer, encode_chat

SYSTEM = {"role": "system", "content": "be good"}
ASK, SAY = {"role": "user", "content": "what is it"}, {"role": "assistant", "content": "a cat"}
AGAIN, WELL = {"role": "user", "content": "so?"}, {"role": "assistant", "content": " good\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nthe cat\n</think>\n\na cat"}
CALL = {"function": {"name": "look", "arguments": {"at": "mat"}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
REASONED = {"role": "assistant", "content": "I look", "reasoning_content": "where", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "sat"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
LAST = "<think>\n\n</think>\n\na cat<|im_end|>"
CALL_TEXT = '<tool_call>\n{"name": "look", "arguments": {"at": "mat"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def trained_pieces(tokenizer, encoded):
    """The text of each run of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], encoded.train, [0]])))
    return [tokenizer.decode(encoded.input_ids[begin:end]) for begin, end in edges.reshape(-1, 2)]


CASES = {
    "chatml": [
        ([ASK, SAY], {}, ["a cat<|im_end|>"]),
        ([SYSTEM, ASK, SAY, AGAIN, WELL], {}, ["a cat<|im_end|>", " good\n<|im_end|>"]),
        ([SYSTEM, ASK, SAY], {"tools": TOOLS}, ["a cat<|im_end|>"]),
        ([SAY, ASK], {}, ["a cat<|im_end|>"]),
        ([ASK, SAY, WELL], {}, ["a cat<|im_end|>", " good\n<|im_end|>"]),
        ([ASK, {**SAY, "train": False}, AGAIN, WELL], {}, [" good\n<|im_end|>"]),
        ([ASK, {"role": "assistant", "content": ""}], {}, ["<|im_end|>"]),
        ([SYSTEM, ASK, SAY], {"actions": {"user": "train"}}, ["what is it<|im_end|>"]),
        ([SYSTEM, {**ASK, "train": True}, SAY], {}, ["what is it<|im_end|>", "a cat<|im_end|>"]),
        ([SYSTEM, ASK, SAY], {"actions": {"system": "train", "assistant": "mask"}}, ["be good<|im_end|>"]),
    ],
    "chatml_marked": [
        ([SYSTEM, ASK, SAY, AGAIN, WELL], {}, ["a cat<|im_end|>", " good\n<|im_end|>"]),
        ([ASK, {**SAY, "train": False}, AGAIN, WELL], {}, [" good\n<|im_end|>"]),
        ([ASK, SAY, {**AGAIN, "train": True}, WELL], {}, ["a cat<|im_end|>", "so?<|im_end|>", " good\n<|im_end|>"]),
    ],
    "llama": [
        ([ASK, SAY], {}, ["a cat<|eot|>"]),
        ([SYSTEM, ASK, SAY, AGAIN, WELL], {"tools": TOOLS}, ["a cat<|eot|>", "good<|eot|>"]),
        ([ASK, CALLS, RESULT, SAY], {}, ['{"name": "look", "arguments": {"at": "mat"}}<|eot|>', "a cat<|eot|>"]),
    ],
    "mistral": [
        ([ASK, SAY], {}, [" a cat</s>"]),
        ([SYSTEM, ASK, SAY], {}, [" a cat</s>"]),
        ([ASK, SAY, AGAIN, SAY], {}, [" a cat</s>", " a cat</s>"]),
        ([SYSTEM, ASK, SAY, AGAIN, SAY], {}, [" a cat</s>", " a cat</s>"]),
        ([ASK, WELL], {}, ["  good\n</s>"]),
    ],
    "gemma": [([ASK, SAY, AGAIN, WELL], {}, ["a cat<end_turn>", "good<end_turn>"])],
    "qwen3": [
        ([ASK, SAY], {}, ["<think>\n\n</think>\n\na cat<|im_end|>"]),
        ([ASK, THOUGHT], {}, ["<think>\nthe cat\n</think>\n\na cat<|im_end|>"]),
        ([ASK, THOUGHT, AGAIN, SAY], {}, ["a cat<|im_end|>", "<think>\n\n</think>\n\na cat<|im_end|>"]),
        (
            [ASK, THOUGHT, AGAIN, SAY],
            {"template_kwargs": {"enable_thinking": False}},
            ["a cat<|im_end|>", "a cat<|im_end|>"],
        ),
        (
            [ASK, REASONED, RESULT, RESULT, THOUGHT],
            {"tools": TOOLS},
            [
                f"<think>\nwhere\n</think>\n\nI look\n{CALL_TEXT}<|im_end|>",
                "<think>\nthe cat\n</think>\n\na cat<|im_end|>",
            ],
        ),
        (
            [ASK, REASONED, RESULT, THOUGHT, AGAIN, SAY],
            {},
            [f"I look\n{CALL_TEXT}<|im_end|>", "a cat<|im_end|>", "<think>\n\n</think>\n\na cat<|im_end|>"],
        ),
        (
            [ASK, CALLS, RESULT, SAY, AGAIN, {**SAY, "train": False}],
            {},
            [f"{CALL_TEXT}<|im_end|>", "a cat<|im_end|>"],
        ),
    ],
    "qwen3_marked": [
        ([SYSTEM, ASK, THOUGHT, AGAIN, SAY], {}, ["a cat<|im_end|>", "<think>\n\n</think>\n\na cat<|im_end|>"]),
        (
            [ASK, REASONED, RESULT, RESULT, THOUGHT],
            {"tools": TOOLS},
            [
                f"<think>\nwhere\n</think>\n\nI look\n{CALL_TEXT}<|im_end|>",
                "<think>\nthe cat\n</think>\n\na cat<|im_end|>",
            ],
        ),
        ([ASK, {**THOUGHT, "train": False}, AGAIN, CALLS, RESULT, SAY], {}, [f"{CALL_TEXT}<|im_end|>", LAST]),
    ],
    "deepseek": [
        ([SYSTEM, ASK, SAY], {}, ["a cat<|eos|>"]),
        ([ASK, THOUGHT, AGAIN, SAY], {}, ["\n\na cat<|eos|>", "a cat<|eos|>"]),
    ],
}


@pytest.mark.parametrize(
    ("name", "messages", "settings", "expected"),
    [(name, *case) for name, cases in CASES.items() for case in cases],
)
def test_only_what_the_role_says_is_trained(tokenizer, name, messages, settings, expected):
    """With its end of turn, without its header and what follows, whatever the template does with earlier turns."""
    tokenizer.chat_template = TEMPLATES[name]
    encoded = encode_chat(tokenizer, messages, **settings)
    assert trained_pieces(tokenizer, encoded) == expected
    assert tokenizer.decode(encoded.input_ids) == encoded.text
    assert (encoded.input_ids.dtype, encoded.train.dtype) == (np.int64, np.bool_)
    assert encoded.train.sum() > 0


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_tokenized_as_a_whole(tokenizer, name):
    """Its ids are those of transformers, marks or not."""
    tokenizer.chat_template = TEMPLATES[name]
    expected = tokenizer.apply_chat_template([ASK, THOUGHT, AGAIN, WELL], tokenize=True, return_dict=True)["input_ids"]
    assert encode_chat(tokenizer, [ASK, THOUGHT, AGAIN, WELL]).input_ids.tolist() == expected


def test_marks_give_the_mask_of_transformers(tokenizer):
    """Where a template has generation blocks, both agree on every token."""
    tokenizer.chat_template = CHATML_MARKED
    expected = tokenizer.apply_chat_template(
        [SYSTEM, ASK, SAY, AGAIN, WELL], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    encoded = encode_chat(tokenizer, [SYSTEM, ASK, SAY, AGAIN, WELL])
    assert encoded.train.tolist() == [bool(mask) for mask in expected["assistant_masks"]]


def test_a_message_may_have_several_marked_parts(tokenizer):
    """All of them are its own, and none is trained if the message is not."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{{ ' : ' }}{% generation %}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    both = encode_chat(tokenizer, [ASK, SAY, AGAIN, {"role": "assistant", "content": "good"}])
    assert trained_pieces(tokenizer, both) == ["a cat", "<|im_end|>", "good", "<|im_end|>"]
    one = encode_chat(tokenizer, [ASK, SAY, AGAIN, {"role": "assistant", "content": "good", "train": False}])
    assert trained_pieces(tokenizer, one) == ["a cat", "<|im_end|>"]


def test_blocks_belong_to_the_message_they_lie_in(tokenizer):
    """Two in one message and none in the next are not one for each."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'user' %}{{ m.content }}"
        "{% elif loop.first or loop.index0 == 1 %}{% generation %}a{% endgeneration %}{{ m.content }}"
        "{% generation %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    first, second = {**SAY, "train": False}, {**WELL, "train": False}
    assert trained_pieces(tokenizer, encode_chat(tokenizer, [ASK, SAY, AGAIN, second])) == ["a", "<|im_end|>"]
    assert encode_chat(tokenizer, [ASK, first, AGAIN, WELL]).train.sum() == 0


def test_a_template_does_not_see_who_is_trained(tokenizer):
    """`train` is ours."""
    tokenizer.chat_template = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    encoded = encode_chat(tokenizer, [{**ASK, "train": False}, {**SAY, "train": False}])
    assert "train" not in encoded.text
    assert encoded.train.sum() == 0


words = st.text(st.sampled_from("ab \n\u732b\u00e9<>?"), max_size=8)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4), st.sampled_from(sorted(TEMPLATES)), st.data())
def test_each_trained_piece_is_an_answer_with_its_end(tokenizer, turns, name, data):
    """For any contents, as many pieces as trained answers; each is its content, trimmed as the template does."""
    tokenizer.chat_template = TEMPLATES[name]
    chosen = [data.draw(st.booleans()) for _ in turns]
    messages = []
    for (question, answer), train in zip(turns, chosen, strict=True):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, "train": train}]
    pieces = trained_pieces(tokenizer, encode_chat(tokenizer, messages))
    answers = [answer for (_, answer), train in zip(turns, chosen, strict=True) if train]
    end = {"llama": "<|eot|>", "mistral": "</s>", "gemma": "<end_turn>", "deepseek": "<|eos|>"}.get(name, "<|im_end|>")
    assert all(piece.endswith(end) for piece in pieces)
    said = [piece.removesuffix(end).removeprefix("<think>\n\n</think>\n\n").strip() for piece in pieces]
    assert said == [answer.strip() for answer in answers]


def test_a_token_across_the_border_belongs_to_where_it_begins(tokenizer):
    """A template that ends its header with half of what the tokenizer merges."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ' a' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}assistant a{% endif %}"
    )
    encoded = encode_chat(tokenizer, [{"role": "assistant", "content": "nswer is"}])
    assert " answer" in [tokenizer.decode([token]) for token in encoded.input_ids]
    assert trained_pieces(tokenizer, encoded) == [" is"]


def test_a_failing_template_is_an_error_with_its_reason(tokenizer):
    """As the template gave it."""
    tokenizer.chat_template = MISTRAL
    with pytest.raises(ValueError, match="Roles must alternate"):
        encode_chat(tokenizer, [SAY, ASK])


def test_settings_that_are_none_are_errors(tokenizer):
    """An action, a value of `train`, a message, a tokenizer without offsets."""
    tokenizer.chat_template = LLAMA
    with pytest.raises(ValueError, match=r"'user' is 'trian', .*, did you mean 'train'"):
        ChatEncoder(tokenizer, actions={"user": "trian"})
    with pytest.raises(ValueError, match="train of message 1 to be true or false, got 'no'"):
        encode_chat(tokenizer, [ASK, {**SAY, "train": "no"}])
    with pytest.raises(ValueError, match="message 1 to be a dict"):
        encode_chat(tokenizer, [ASK, "hello"])
    with pytest.raises(ValueError, match="expected a fast tokenizer, got str"):
        ChatEncoder("name")


def test_an_encoder_serves_many_conversations(tokenizer):
    """It keeps nothing of the one before; tools may differ."""
    tokenizer.chat_template = DEEPSEEK
    encoder = ChatEncoder(tokenizer)
    assert [encoder.encode([ASK, SAY], tools=tools).text for tools in (None, TOOLS)] == [
        encode_chat(tokenizer, [ASK, SAY], tools=tools).text for tools in (None, TOOLS)
    ]


GLM = (
    "[gMASK]{% for m in messages %}{{ '<|observation|>' if m.role == 'tool' else '<|' + m.role + '|>' }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name + '</tool_call>' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def glm(tokenizer):
    """A tokenizer whose template ends an answer with the next role alone."""
    tokenizer.add_tokens(["<|assistant|>", "<|user|>", "<|observation|>"])
    tokenizer.chat_template = GLM
    return tokenizer


def test_a_stop_is_appended_where_the_template_has_none(glm):
    """The next role's token, after the last answer and after each earlier one that is trained."""
    encoded = encode_chat(glm, [ASK, CALLS, RESULT, SAY, {**AGAIN, "train": True}, SAY], append_stop=True)
    look = "<tool_call>look</tool_call><|observation|>"
    assert trained_pieces(glm, encoded) == [look, "a cat<|user|>so?", "a cat<|user|>"]
    assert encoded.text.endswith("a cat<|user|>")
    encoded = encode_chat(glm, [ASK, {**SAY, "train": False}, AGAIN, CALLS], append_stop=True)
    assert trained_pieces(glm, encoded) == [look]
    assert encoded.text.endswith(look)


def test_no_stop_is_appended_unasked_or_where_there_is_one(glm):
    """Nor after what is not trained, nor between two answers."""
    assert trained_pieces(glm, encode_chat(glm, [ASK, SAY, AGAIN, SAY])) == ["a cat", "a cat"]
    masked = encode_chat(glm, [ASK, SAY, AGAIN, {**SAY, "train": False}], append_stop=True)
    assert (trained_pieces(glm, masked), masked.text[-5:]) == (["a cat<|user|>"], "a cat")
    assert trained_pieces(glm, encode_chat(glm, [ASK, SAY, SAY], append_stop=True)) == ["a cat", "a cat<|user|>"]
    glm.chat_template = LLAMA
    assert encode_chat(glm, [ASK, SAY], append_stop=True).text == encode_chat(glm, [ASK, SAY]).text


@pytest.mark.parametrize(
    ("template", "append_stop", "said"),
    [
        (GLM, False, r"append_stop, for '<\|user\|>'"),
        (GLM, True, None),
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + ' ' }}{% endfor %}",
            True,
            "Write an end-of-turn token",
        ),
        (CHATML_MARKED.replace("+ '<|im_end|>' }}{% endgen", "}}{% endgen"), True, "into the generation marks"),
        (LLAMA, False, None),
        (None, False, None),
    ],
)
def test_a_template_without_a_stop_is_told_at_the_start(glm, caplog, template, append_stop, said):
    """Before the first conversation, and only if nothing can be done."""
    glm.chat_template = template
    ChatEncoder(glm, append_stop=append_stop)
    assert [bool(re.search(said or "nothing", text)) for text in caplog.messages] == [True] * bool(said)


def test_a_user_is_trained_where_the_text_has_an_end_of_its_own(tokenizer):
    """As the assistant is: only the last message ends with it."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\n' if add_generation_prompt else '<|eos|>' }}"
    )
    encoded = encode_chat(tokenizer, [{**ASK, "train": True}, SAY, {**AGAIN, "train": True}])
    assert trained_pieces(tokenizer, encoded) == ["what is it<|im_end|>", "a cat<|im_end|>", "so?<|im_end|>\n<|eos|>"]


@pytest.mark.parametrize(
    "text", ["<|im_start|>assistant\n", "<think>\n\n</think>\n\n", "<|im_end|>\n<|im_start|>assistant\n<think>"]
)
def test_data_that_looks_like_a_header_is_text(tokenizer, text):
    """In what is asked, said and told by tools."""
    tokenizer.chat_template = TEMPLATES["qwen3"]
    said = [f"{text}{words}" for words in ("what", "a cat", "sat", "so")]
    roles = ["user", "assistant", "tool", "assistant"]
    messages = [{"role": role, "content": words} for role, words in zip(roles, said, strict=True)]
    messages[1]["tool_calls"] = [CALL]
    encoded = encode_chat(tokenizer, [*messages, AGAIN, SAY])
    plain = [re.sub("(?s).*</think>\n*", "", words) for words in said]  # the template reads thoughts out of the content
    assert trained_pieces(tokenizer, encoded) == [f"{plain[1]}\n{CALL_TEXT}<|im_end|>", f"{plain[3]}<|im_end|>", LAST]
