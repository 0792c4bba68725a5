import subprocess
import sys
from datetime import date
from decimal import Decimal

import numpy as np
import pytest

from streamdata.text.templates import ChatRenderer, template_source
from streamdata.text.tokenizer import token_ids
from tests.text.chat_templates import CHATML_MARKED, QWEN3, TEMPLATES, chat_tokenizer, render_chat

CHAT = [
    {"role": "user", "content": "what is  a cat"},
    {"role": "assistant", "content": "a na\u00efve answer \u732b"},
    {"role": "user", "content": "so\n"},
    {"role": "assistant", "content": "good"},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture
def tokenizer(tmp_path):
    return chat_tokenizer(tmp_path)


def reference(tokenizer, messages, **kwargs):
    """The text of transformers itself."""
    return tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_the_text_is_that_of_transformers(tokenizer, template, prompt, tools):
    """With tools and without, with the generation prompt and without, in the manner of each family."""
    tokenizer.chat_template = TEMPLATES[template]
    got = render_chat(tokenizer, CHAT, tools=tools, add_generation_prompt=prompt)
    assert got == reference(tokenizer, CHAT, tools=tools, add_generation_prompt=prompt)


def test_the_tokens_are_those_of_transformers(tokenizer):
    """Special tokens of the template are special, and none is added; a dict is asked for, whatever the version."""
    expected = tokenizer.apply_chat_template(CHAT, tokenize=True, return_dict=True)["input_ids"]
    ids = token_ids(tokenizer, render_chat(tokenizer, CHAT))
    assert ids.dtype == np.int64
    assert ids.tolist() == expected


def test_a_templates_own_variables_pass_through(tokenizer):
    """Such as `enable_thinking`; special tokens are there by name."""
    tokenizer.chat_template = QWEN3
    kwargs = {"enable_thinking": False}
    got = render_chat(tokenizer, CHAT, add_generation_prompt=True, template_kwargs=kwargs)
    assert got == reference(tokenizer, CHAT, add_generation_prompt=True, **kwargs)
    assert got.endswith("<think>\n\n</think>\n\n")
    assert render_chat(tokenizer, CHAT, template_kwargs={"chat_template": "{{ eos_token }}"}) == "<|end|>"


def test_messages_are_shown_as_transformers_shows_them(tokenizer):
    """Keys that are None are absent, reasoning goes by its newer name, and the caller's messages stay as they are."""
    tokenizer.chat_template = "{% for m in messages %}{{ m | tojson }}{{ m.reasoning_content }}{% endfor %}"
    messages = [{"role": "assistant", "content": None, "reasoning": "so", "score": np.float32(0.5), "image": object()}]
    before = [dict(message) for message in messages]
    assert render_chat(tokenizer, messages) == reference(tokenizer, messages)
    assert messages == before


def test_content_may_have_typed_parts(tokenizer):
    """Text and places of media in their order."""
    tokenizer.chat_template = (
        "{% for m in messages %}{% for part in m.content %}"
        "{{ part.text if part.type == 'text' else '<' + part.type + '>' }}{% endfor %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "see "}, {"type": "image"}, {"type": "text", "text": "?"}]
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]) == "see <image>?"


def test_functions_become_schemas_of_tools(tokenizer):
    """As in transformers."""

    def look(where: str) -> str:
        """Look somewhere.

        Args:
            where: the place
        """
        return where

    assert render_chat(tokenizer, CHAT, tools=[look]) == reference(tokenizer, CHAT, tools=[look])
    with pytest.raises(ValueError, match=r"JSON schema .* or a function, got '\{\}'"):
        render_chat(tokenizer, CHAT, tools=["{}"])


class Processor:
    """As one of transformers: with a tokenizer, and maybe a template of its own."""

    def __init__(self, tokenizer, chat_template):
        self.tokenizer, self.chat_template = tokenizer, chat_template


def test_a_processors_own_template_goes_first(tokenizer):
    """Its tokenizer's is taken where it has none."""
    assert render_chat(Processor(tokenizer, "own {{ eos_token }}"), CHAT) == "own <|end|>"
    assert render_chat(Processor(tokenizer, None), CHAT) == render_chat(tokenizer, CHAT)


def test_one_of_several_templates_is_chosen_by_name_or_tools(tokenizer):
    """`default`, `tool_use` where there are tools, or the one that is named."""
    tokenizer.chat_template = {"default": "plain", "tool_use": "tools", "other": "other"}
    assert render_chat(tokenizer, CHAT) == "plain"
    assert render_chat(tokenizer, CHAT, tools=[]) == "tools"
    assert render_chat(tokenizer, CHAT, template_kwargs={"chat_template": "other"}) == "other"
    processor = Processor(None, {"a": "A", "default": "D"})
    assert [template_source(processor), template_source(processor, "a")] == ["D", "A"]
    with pytest.raises(ValueError, match="one named 'default' among"):
        template_source(Processor(tokenizer, {"a": "A"}))


def test_a_tokenizer_without_template_is_an_error(tokenizer):
    """No other format is guessed; the error names the tokenizer, and says what to do."""
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"^chat template of '.*not set(.|\n)*give the tokenizer a chat_template"):
        render_chat(tokenizer, CHAT)


def test_a_text_does_not_depend_on_the_day(tokenizer):
    """A template takes its own default, or the day that it is told, or says that it needs one."""
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'none' }}"
    assert render_chat(tokenizer, CHAT) == "none"
    assert render_chat(tokenizer, CHAT, template_kwargs={"strftime_now": "2025-06-01"}) == "01 Jun 2025"
    tokenizer.chat_template = "{{ strftime_now('%-d.%-m. %%5 %H %') }}"
    assert render_chat(tokenizer, CHAT, template_kwargs={"strftime_now": "2025-06-01"}) == "1.6. %5 00 %"
    with pytest.raises(ValueError, match="strftime_now is 'today'"):
        render_chat(tokenizer, CHAT, template_kwargs={"strftime_now": "today"})
    tokenizer.chat_template = "{{ strftime_now('%d') }}"
    with pytest.raises(ValueError, match="Give the day in template_kwargs"):
        render_chat(tokenizer, CHAT)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], r"at least one, got \[\]"),
        ("hello", "at least one, got 'hello'"),
        (None, "at least one, got None"),
        ([{"content": "x"}], "message 0 to be a dict with a role"),
        ([CHAT[0], "hello"], "message 1 to be a dict with a role, got 'hello'"),
    ],
)
def test_what_is_no_conversation_is_an_error(tokenizer, messages, problem):
    """It says what a message is."""
    with pytest.raises(ValueError, match=problem):
        render_chat(tokenizer, messages)


def test_arguments_have_one_way_in(tokenizer):
    """`add_generation_prompt` among the template's variables would be a second."""
    with pytest.raises(ValueError, match="add_generation_prompt"):
        ChatRenderer(tokenizer, template_kwargs={"add_generation_prompt": True})


def test_generation_blocks_are_found_where_transformers_finds_them(tokenizer):
    """The spans of the text without marks, which is the same text as without asking for them."""
    tokenizer.chat_template = CHATML_MARKED
    conversation = ChatRenderer(tokenizer).conversation(CHAT)
    text, spans = conversation.render_marked()
    assert text == render_chat(tokenizer, CHAT) == reference(tokenizer, CHAT)
    assert [text[begin:end] for begin, end in spans] == ["a na\u00efve answer \u732b<|im_end|>", "good<|im_end|>"]


def test_importing_the_room_imports_nothing_heavy():
    """Neither torch nor transformers nor jinja2, before they are needed."""
    modules = ", ".join(f"streamdata.text.{name}" for name in ("masks", "packing", "plan", "truncation"))
    code = f"import sys, {modules}; print({{'torch', 'transformers', 'jinja2'}} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("value", [b"Hello", Decimal("1.5"), date(2025, 6, 1), np.zeros(2), [b"Hello"], {"a": b"x"}])
@pytest.mark.parametrize("key", ["content", "price"])
def test_what_is_neither_text_nor_a_medium_is_an_error(tokenizer, value, key):
    """Its type's name would be rendered, and trained, in its place."""
    messages = [CHAT[0], {"role": "assistant", "content": "x", key: value}]
    with pytest.raises(
        ValueError, match=rf"message 1, key '{key}': expected text, got \w+\n  Write the column as text"
    ):
        render_chat(tokenizer, messages)
    with pytest.raises(ValueError, match=r"tool 1: expected text, got \w+\n"):
        render_chat(tokenizer, CHAT, tools=[TOOLS[0], {"name": value}])


def test_media_are_shown_by_the_name_of_their_type(tokenizer):
    """Whatever they are made of; a template has no methods of theirs to call."""
    tokenizer.chat_template = "{% for part in messages[0].content %}{{ part | tojson }}{% endfor %}"
    parts = [{"type": "image", "image": object()}, {"type": "audio", "bytes": b"x"}, {"image_url": {"raw": b"x"}}]
    expected = ['{"type": "image", "image": "<object>"}', '{"type": "audio", "bytes": "<bytes>"}']
    expected.append('{"image_url": {"raw": "<bytes>"}}')
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]) == "".join(expected)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("Hi\n{{ raise_exception('Roles must alternate') }}", "line 2: TemplateError: Roles must alternate"),
        ("{{ messages[7].role }}", "line 1: UndefinedError: list object has no element 7"),
        ("{{ messages[0].name + '!' }}", "line 1: UndefinedError: 'dict object' has no attribute 'name'"),
        ("\n\n{% if %}", "line 3: TemplateSyntaxError: Expected an expression"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% include 'other' %}", "no loader for this environment"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages | random }}", "No filter named 'random'"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
    ],
)
def test_a_template_that_fails_is_an_error_with_its_line(tokenizer, template, problem):
    """The tokenizer's name is in it, and a remedy below."""
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=rf"chat template of '.*{problem}.*\n  ") as caught:
        render_chat(tokenizer, CHAT)
    assert tokenizer.name_or_path in str(caught.value)


def test_a_text_that_is_too_long_is_an_error(tokenizer):
    """It ends where the bound is reached."""
    tokenizer.chat_template = "{% for i in range(99999) %}{{ 'x' * 10000000 }}{% endfor %}"
    with pytest.raises(ValueError, match=r"chat template of '.*longer than 67,108,864 characters\n"):
        render_chat(tokenizer, CHAT)


@pytest.mark.parametrize("reason", ["'x' * 10000", "'\\x1b]0;title\\x07\\nerror: all is well'"])
def test_what_a_template_says_is_cut_and_printable(tokenizer, reason):
    """It may quote data."""
    tokenizer.chat_template = f"{{{{ raise_exception({reason}) }}}}"
    with pytest.raises(ValueError, match="TemplateError: ") as caught:
        render_chat(tokenizer, CHAT)
    told = str(caught.value)
    assert len(told) < 800
    assert (told.count("\n"), {"\x1b", "\x07"} & set(told)) == (1, set())


def test_generation_blocks_are_found_in_macros_and_captures(tokenizer):
    """Where transformers counts from the beginning of either."""
    block = "{% generation %}{{ m.content }}{% endgeneration %}"
    tokenizer.chat_template = (
        f"{{% macro say(m) %}}<{block}>{{% endmacro %}}{{% set m = messages[1] %}}"
        f"{{{{ say(messages[0]) }}}}{{% set y %}}({block}){{% endset %}}{{{{ y }}}}"
    )
    text, spans = ChatRenderer(tokenizer).conversation(CHAT[:2]).render_marked()
    assert text == f"<{CHAT[0]['content']}>({CHAT[1]['content']})"
    assert [text[begin:end] for begin, end in spans] == [message["content"] for message in CHAT[:2]]


@pytest.mark.parametrize(
    "template",
    [
        CHATML_MARKED,
        "{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}",
        "{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x }}{{ x }}",
    ],
)
def test_blocks_that_give_no_spans_are_an_error(tokenizer, template):
    """One within another, one whose text is repeated, and data that looks like a mark."""
    tokenizer.chat_template = template
    chat = [*CHAT, {"role": "user", "content": "\ue0b1\ue0b2x\ue0b3\ue0b4"}]
    with pytest.raises(ValueError, match="generation blocks are nested, or their text was cut or repeated"):
        ChatRenderer(tokenizer).conversation(chat).render_marked()


def test_a_template_is_compiled_once(tokenizer):
    """Another renderer costs nothing that grows with the template."""
    one, other = (ChatRenderer(tokenizer).conversation(CHAT) for _ in range(2))
    assert one.template is other.template
