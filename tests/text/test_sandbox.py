import traceback

import pytest

from streamdata.text import ChatRenderer
from streamdata.text.sandbox import compile_template
from tests.text.chat_templates import CHATML, CHATML_MARKED, chat_tokenizer, render_chat

CHAT = [{"role": "user", "content": "what is it"}, {"role": "assistant", "content": "a cat"}]


@pytest.fixture
def tokenizer(tmp_path):
    return chat_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "longer than 5,000 characters"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 1,000,000 steps"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
            "more than 268,435,456 bytes",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 'a' * 10**10 }}", "repeats a value to 10,000,000,000 items"),
        ("{{ 10**10 * [1] }}", "repeats a value to 10,000,000,000 items"),
        ("{{ 9 ** 999 }}", "raises 9 to the power of 999"),
        ("{{ 9 ** 60 ** 60 }}", "to the power of 60"),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "joins a value to",
        ),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "joins a value to",
        ),
        (
            "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "joins a value to",
        ),
        ("{{ messages | random }}", "No filter named 'random'"),
        ("{{ (')' * 20000 ~ 'x)') | urlize }}", "No filter named 'urlize'"),
        ("{{ ('www.a.com ' * 90000) | urlize(target='x' * 10000) }}", "No filter named 'urlize'"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ ''.format.args[0] }}{{ ''.format_map.func }}", "UndefinedError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[7].role }}", "UndefinedError"),
        ("{% if %}", "TemplateSyntaxError"),
    ],
)
def test_a_template_that_fails_or_passes_a_limit_is_an_error(tokenizer, template, problem):
    """Within a second or so, in bounded memory, with the tokenizer's name."""
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=rf"chat template of '.*{problem}.*\n  ") as caught:
        render_chat(tokenizer, CHAT, max_chars=5000)
    assert tokenizer.name_or_path in str(caught.value)


@pytest.mark.parametrize("reason", ["'x' * 60000000", "'\\x1b]0;title\\x07\\nerror: all is well'"])
def test_what_a_template_says_is_cut_and_printable(tokenizer, reason):
    """In the message and in the traceback."""
    tokenizer.chat_template = f"{{{{ raise_exception({reason}) }}}}"
    with pytest.raises(ValueError, match="TemplateError: ") as caught:
        render_chat(tokenizer, CHAT)
    told = "".join(traceback.format_exception(caught.value))
    assert len(str(caught.value)) < 800
    assert len(told) < 20000
    assert not {"\x1b", "\x07"} & set(told)
    assert str(caught.value).count("\n") == 1


@pytest.mark.parametrize("parts", ["'a' ~ 1 ~ none ~ messages[0].role ~ true", "('<' | e) ~ '&' ~ ['x'] ~ ('a' ~ 2.5)"])
def test_joining_gives_the_text_of_transformers(tokenizer, parts):
    """Of whatever is joined."""
    tokenizer.chat_template = f"{{{{ {parts} }}}}{{% set x = {parts} %}}{{{{ x + x | upper }}}}"
    assert render_chat(tokenizer, CHAT) == tokenizer.apply_chat_template(CHAT, tokenize=False)


def test_limits_are_each_renderings_own(tokenizer):
    """Many renderings together may pass what one may not."""
    renderer = ChatRenderer(tokenizer, max_chars=len(render_chat(tokenizer, CHAT)))
    assert len({renderer.render(CHAT) for _ in range(3)}) == 1
    with pytest.raises(ValueError, match="max_chars"):
        renderer.render(CHAT, add_generation_prompt=True)


@pytest.mark.parametrize("content", ["\ue0b1\ue0b2x\ue0b3\ue0b4", "\ue0b1\ue0b2", "\ue0b3\ue0b4"])
def test_a_message_cannot_forge_a_mark(tokenizer, content):
    """What looks like one in the data is an error, not a span."""
    tokenizer.chat_template = CHATML_MARKED
    with pytest.raises(ValueError, match="generation blocks"):
        ChatRenderer(tokenizer).conversation([*CHAT, {"role": "user", "content": content}]).render_marked()


def test_templates_are_compiled_once():
    """A renderer costs nothing that grows with the template."""
    assert compile_template(CHATML) is compile_template(CHATML)
