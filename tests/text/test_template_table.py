"""Every template that trl and axolotl ship, with conversations of many kinds: right, or refused by the template."""

import json
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from tokenizers import AddedToken

from streamdata.text.masks import ChatEncoder
from tests.text.chat_templates import chat_tokenizer
from tests.text.template_table import OWN, TOKEN, installed_templates, said
from tests.text.template_table import ROWS as TABLE

INSTALLED = installed_templates()
TEMPLATES = {name: source for name, (source, _) in OWN.items()} | INSTALLED
ROWS = {name: row for name, (_, row) in OWN.items()} | {name: row for name, row in TABLE.items() if INSTALLED}
MARKED = sorted(name for name, source in TEMPLATES.items() if re.search(r"\{%-? ?generation", source))


def ask(number):
    return {"role": "user", "content": f"Q{number} asks"}


def say(number, **more):
    return {"role": "assistant", "content": f"A{number} says", **more}


def call(number, content="", **more):
    function = {"name": f"look{number}", "arguments": {"at": f"there {number}"}}
    calls = [{"id": f"call0000{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def result(number):
    return {"role": "tool", "content": f"R{number} is", "name": f"look{number}", "tool_call_id": f"call0000{number}"}


PARAMETERS = {"type": "object", "properties": {"at": {"type": "string", "description": "where"}}, "required": ["at"]}
TOOLS = [
    {"type": "function", "function": {"name": f"look{number}", "description": "looks", "parameters": PARAMETERS}}
    for number in (1, 2, 3)
]
ROUND = [ask(1), call(1), result(1), call(2), result(2), say(1), ask(2)]
CHATS = {
    "one": [ask(1), say(1)],
    "system": [{"role": "system", "content": "S is"}, ask(1), say(1), ask(2), say(2)],
    "long": [message for number in range(6) for message in (ask(number), say(number))],
    "open": [ask(1), say(1), ask(2)],
    "assistant first": [say(1), ask(1), say(2)],
    "thoughts": [ask(1), say(1, reasoning_content="T1 thinks"), ask(2), say(2, reasoning_content="T2 thinks")],
    "rounds of tools": [*ROUND, call(3), result(3), say(2)],
    "content beside calls": [ask(1), call(1, "P1 plans"), result(1), call(2, "P2 plans"), *ROUND[4:], say(2)],
    "thoughts before calls": [ask(1), call(1, reasoning_content="T1 thinks"), *ROUND[2:3], say(1), ask(2), say(2)],
    "call": [ask(1), call(1)],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """One that knows the tokens of all these formats."""
    tokenizer = chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    known = sorted({token for source in TEMPLATES.values() for token in TOKEN.findall(source)} | {"<|endoftext|>"})
    tokenizer.add_tokens([AddedToken(token) for token in known])
    tokenizer.bos_token = "<s>"
    return tokenizer


def suited(messages, row):
    """A conversation as a format wants it."""
    text = json.dumps(messages)
    if row.arguments_as_text:
        text = re.sub(r'"arguments": (\{.*?\})', lambda found: f'"arguments": {json.dumps(found[1])}', text)
    if row.typed:
        text = re.sub(r'"content": ("[^"]*")', r'"content": [{"type": "text", "text": \1}]', text)
    return json.loads(text)


def transformers_refusal(tokenizer, messages, tools):
    """Why transformers cannot render them, if so."""
    try:
        tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    except Exception as error:  # whatever the template raises
        return str(error)
    return None


def masked_text(text, mask):
    """What is trained of a text, piece by piece: easier to compare than numbers."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(mask, dtype=int), [0]])))
    return [text[begin:end] for begin, end in edges.reshape(-1, 2)]


def by_character(tokenizer, text, train):
    """A mask of tokens as one of characters."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    found = [False] * len(text)
    for (begin, end), is_trained in zip(encoded["offset_mapping"], train, strict=True):
        found[begin:end] = [bool(is_trained)] * (end - begin)
    return found


@pytest.mark.parametrize("name", ROWS)
def test_what_the_assistant_says_is_trained(tokenizer, name):
    """As the format's own words say it; what is refused, the template refuses."""
    row, refused = ROWS[name], set()
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATES[name], row.eos
    encoder = ChatEncoder(tokenizer, template_kwargs={"strftime_now": datetime.now(tz=UTC).date().isoformat()})
    for kind, chat in CHATS.items():
        messages, tools = suited(chat, row), TOOLS if "call" in kind or "tools" in kind else None
        if (refusal := transformers_refusal(tokenizer, messages, tools)) is not None:
            with pytest.raises(ValueError, match="(?s)chat template of .*" + re.escape(refusal)):
                encoder.encode(messages, tools=tools)
            refused.add(next(reason for reason in row.refuses if re.search(reason, refusal)))
            continue
        if kind in row.lost:
            with pytest.raises(ValueError, match="expected to find what message"):
                encoder.encode(messages, tools=tools)
            continue
        encoded = encoder.encode(messages, tools=tools)
        got = by_character(tokenizer, encoded.text, encoded.train)
        assert masked_text(encoded.text, got) == masked_text(encoded.text, said(encoded.text, row)), kind
    assert refused == set(row.refuses)


@pytest.mark.parametrize("name", MARKED)
def test_marks_are_followed_as_transformers_does(tokenizer, name):
    """Token by token."""
    tokenizer.chat_template, tokenizer.eos_token = TEMPLATES[name], "</s>"
    row = ROWS.get(name.removesuffix("_training"), ROWS["axolotl/chatml"])
    encoder = ChatEncoder(tokenizer, template_kwargs={"strftime_now": datetime.now(tz=UTC).date().isoformat()})
    compared = 0
    for kind, chat in CHATS.items():
        messages, tools = suited(chat, row), TOOLS if "call" in kind or "tools" in kind else None
        if transformers_refusal(tokenizer, messages, tools) is not None:
            continue
        compared += 1
        expected = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        encoded = encoder.encode(messages, tools=tools)
        assert encoded.input_ids.tolist() == expected["input_ids"]
        assert encoded.train.tolist() == list(map(bool, expected["assistant_masks"])), kind
    assert compared > len(CHATS) // 3


def test_the_table_has_a_row_for_every_template():
    """So that none is left out when the packages change."""
    if not INSTALLED:
        pytest.skip("trl and axolotl are not installed: see the Makefile")
    assert sorted(TEMPLATES) == sorted([*ROWS, *MARKED])
