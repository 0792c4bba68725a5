from dataclasses import replace

import pytest

from streamdata.text.probes import AddedTokens, Frame, learn_frame
from streamdata.text.templates import ChatRenderer
from tests.text.chat_templates import ADDED, CHATML, CHATML_MARKED, DEEPSEEK, MISTRAL, SPECIAL, chat_tokenizer

EACH = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}<|eot|>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TYPED = CHATML.replace("message.content +", "message.content[0].text +")
TOKENS = AddedTokens(["<|assistant|>", "<|user|>", *SPECIAL, *ADDED])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def frame(tokenizer, template, tools=None):
    """What is learned of a template."""
    tokenizer.chat_template = template
    return learn_frame(ChatRenderer(tokenizer).conversation([{"role": "user", "content": "x"}], tools), TOKENS)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, Frame("<|im_start|>assistant\n", "<|im_start|>assistant\n", "", ("<|im_end|>\n",))),
        (TYPED, Frame("<|im_start|>assistant\n", "<|im_start|>assistant\n", "", ("<|im_end|>\n",))),
        (DEEPSEEK, Frame("<|Assistant|><think>\n", "<|Assistant|>", "", ("<|eos|>",))),
        (MISTRAL, Frame(endings=("</s>",))),
        # The last turn ends in a way of its own.
        (f"{EACH}{PROMPT}{{{{ '</s>' if not add_generation_prompt }}}}",
         Frame("<|assistant|>", "<|assistant|>", "", ("<|eot|></s>", "<|eot|>"))),
        # The header of the next turn stands at the end, in part.
        (f"<s>{EACH}<|{{{{ 'assistant|>' }}}}", Frame("<|assistant|>", "<|assistant|>", "<|assistant|>", ("<|eot|>",))),
        # Nothing but the next role ends an answer.
        (EACH.replace("<|eot|>", "") + PROMPT, Frame("<|assistant|>", "<|assistant|>", has_stop=False)),
    ],
)  # fmt: skip
def test_what_stands_around_answers_is_learned(tokenizer, template, expected):
    """Of templates with a prompt, a longer one, none, an end of their own, and a header that nobody asked for."""
    assert replace(frame(tokenizer, template), next_user="", next_tool="") == expected


def test_what_begins_the_next_message_is_learned(tokenizer):
    """After an answer that is a user's, after a call of tools a result's."""
    template = EACH.replace("<|eot|>", "").replace("'<|' + m.role", "'<|' + ('eot' if m.role == 'tool' else m.role)")
    for tools in (None, [{"type": "function", "function": {"name": "look"}}]):
        found = frame(tokenizer, template + PROMPT, tools)
        assert (found.next_user, found.next_tool) == ("<|user|>", "<|eot|>")


def test_marks_say_whether_an_answer_ends(tokenizer):
    """Its end may be outside of them."""
    assert frame(tokenizer, CHATML_MARKED).has_stop
    outside = "{{ message.content }}{% endgeneration %}{{ '<|im_end|>' }}"
    assert not frame(
        tokenizer, CHATML_MARKED.replace("{{ message.content + '<|im_end|>' }}{% endgeneration %}", outside)
    ).has_stop


def test_a_template_that_takes_no_small_conversation_teaches_nothing(tokenizer):
    """Here it wants a system message first."""
    assert frame(tokenizer, "{{ raise_exception('no') if messages[0].role != 'system' }}" + EACH) is None


def test_tokens_are_found_as_the_tokenizer_finds_them():
    """The longest at a place; one that a place lies in; none halved."""
    tokens = AddedTokens(["<a>", "<a><b>", " ", "<end>"])
    assert (tokens.at("x<a><b>", 1), tokens.at("x<a>", 0), tokens.at(" ", 0)) == ("<a><b>", "", "")
    assert [tokens.begin("x<end>y", place) for place in range(8)] == [0, 1, 1, 1, 1, 1, 6, 7]
    assert (tokens.shared("x<end>", "x<en"), tokens.shared("xy<end>", "xy<a>"), tokens.shared("ab", "abc")) == (1, 2, 2)
    assert (tokens.first("say <a>!<end>"), tokens.first("say"), tokens.opening("<a><end>x<a>")) == (
        "<a>",
        "",
        ["<a>", "<end>"],
    )
    assert (tokens.end("x<end>"), tokens.end("x"), AddedTokens([]).begin("abc", 2)) == (True, False, 2)
