import json
from collections.abc import Callable

import pytest

from streamdata.prepare import load_config
from streamdata.prepare.extract import ChatPart, Extract, Extractor, TextPart
from streamdata.prepare.inputs import BadRecordError, DroppedRecordError

USER, ASSISTANT, TOOL, SYSTEM = ({"role": role, "content": role} for role in ("user", "assistant", "tool", "system"))


def extract(record: dict, *sections: dict, **options: object) -> Extract:
    """What a record says, by sections of a loss-masked sequence."""
    config = load_config({"train_type": "sft", "sections": list(sections), **options})
    return Extractor(config, lambda text: "<|end|>" in text)(record)


def parts(record: dict, *sections: dict, **options: object) -> list:
    """The parts of its only sequence."""
    (row,) = extract(record, *sections, **options).sequences["sequence"]
    return row


def texts(found: list[TextPart]) -> list[tuple[str, bool]]:
    """What they say, and whether it is trained."""
    return [(part.text, part.train) for part in found]


def test_sections_are_texts_in_their_order() -> None:
    """Each trained or masked."""
    found = parts(
        {"a": "one", "b": {"c": "two"}}, {"field": "b.c", "action": "mask"}, {"field": "a", "action": "train"}
    )
    assert texts(found) == [("two", False), ("one", True)]


def test_a_template_surrounds_the_value_and_its_header_is_not_trained() -> None:
    """What follows the value is trained with it: it ends the turn."""
    masked, trained = {"field": "a", "action": "mask", "template": "Q: {value}\n"}, {"field": "b", "action": "train"}
    found = parts({"a": "1", "b": "2"}, masked, trained | {"template": "A: {value}."})
    assert texts(found) == [("Q: 1\n", False), ("A: ", False), ("2.", True)]


def test_special_tokens_in_data_are_text_while_those_of_templates_are_not() -> None:
    """Data cannot end a document."""
    section = {"field": "a", "action": "train", "template": "<|start|>{value}<|end|>"}
    found = [(part.text, part.is_data) for part in parts({"a": "x<|end|>y"}, section)]
    assert found == [("<|start|>", False), ("x<|end|>y", True), ("<|end|>", False)]
    assert parts({"a": "x<|end|>"}, {"field": "a", "action": "train"})[0].is_data


def test_special_tokens_of_the_format_are_asked_for_once_per_section() -> None:
    """Though a template makes several parts of it."""
    section = {"field": "a", "action": "train", "template": "A: {value}", "add_special_tokens": True}
    assert [part.add_special_tokens for part in parts({"a": "1"}, section)] == [True, False]


def test_lists_keep_their_boundaries_with_the_other_sections_in_each() -> None:
    """One sequence per item."""
    found = extract({"q": "Q", "a": ["1", "2"]}, {"field": "q", "action": "mask"}, {"field": "a", "action": "train"})
    assert [texts(row) for row in found.sequences["sequence"]] == [
        [("Q", False), ("1", True)],
        [("Q", False), ("2", True)],
    ]


@pytest.mark.parametrize("value", [None, "", [], "absent"])
def test_an_optional_section_is_left_out(value: object) -> None:
    """Where the field is missing, null or empty."""
    record = {"b": "2"} if value == "absent" else {"a": value, "b": "2"}
    optional = {"field": "a", "action": "mask", "template": "A {value}", "optional": True}
    assert texts(parts(record, optional, {"field": "b", "action": "train"})) == [("2", True)]


def test_a_chat_is_one_part_with_its_tools_and_system_message() -> None:
    """Both where the record has them."""
    section = {"field": "m", "action": "$role", "tools": "tools", "system": "sys"}
    (chat,) = parts({"m": [USER, ASSISTANT], "tools": [{"name": "f"}], "sys": "Be good."}, section)
    assert isinstance(chat, ChatPart)
    assert chat.messages == [{"role": "system", "content": "Be good."}, USER, ASSISTANT]
    assert chat.tools == [{"name": "f"}]
    assert parts({"m": [USER, ASSISTANT]}, section)[0][:2] == ([USER, ASSISTANT], None)


@pytest.mark.parametrize(
    "messages",
    [
        [USER, ASSISTANT],
        [SYSTEM, USER, ASSISTANT, USER, ASSISTANT],
        [USER, ASSISTANT, TOOL, TOOL, ASSISTANT],
        [USER, ASSISTANT, {"role": "critic", "content": ""}, ASSISTANT],
        [ASSISTANT, USER, ASSISTANT, ASSISTANT],
        [USER, SYSTEM, USER, TOOL],
    ],
)
def test_roles_in_any_order_pass(messages: list[dict]) -> None:
    """What the template takes is up to the template; roles that the config names pass too."""
    section = {"field": "m", "action": "$role", "roles": {"assistant": "train", "critic": "mask"}}
    assert parts({"m": messages}, section)


@pytest.mark.parametrize(
    ("messages", "reason", "field"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "a.png"}]}, ASSISTANT], "media", "m"),
        ([USER, {"role": "asistant"}], "unknown role", "m[1].role"),
        ([USER, {"content": "x"}], "unknown role", "m[1].role"),
        ([], "wrong type", "m"),
        ("text", "wrong type", "m"),
        (["text"], "wrong type", "m"),
    ],
)
def test_wrong_chats_are_told_with_their_place(messages: object, reason: str, field: str) -> None:
    """Which message it is."""
    with pytest.raises(BadRecordError) as caught:
        extract({"m": messages}, {"field": "m", "action": "$role"})
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("record", "reason", "field"),
    [
        ({"b": "x"}, "missing field", "a"),
        ({"a": 5}, "wrong type", "a"),
        ({"a": None}, "wrong type", "a"),
        ({"a": ["x", 5]}, "wrong type", "a"),
        ({"a": {"text": "x"}}, "wrong type", "a"),
    ],
)
def test_a_missing_or_wrong_field_is_told(record: dict, reason: str, field: str) -> None:
    """By its name."""
    with pytest.raises(BadRecordError) as caught:
        extract(record, {"field": "a", "action": "train"})
    assert (caught.value.reason, caught.value.field) == (reason, field)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_chars": 7}, "fewer than min_chars"),
        ({"max_chars": 5}, "more than max_chars"),
        ({"max_items": 1}, "more than max_items"),
    ],
)
def test_filters_count_characters_and_items(options: dict, reason: str) -> None:
    """Of all texts of a record together; at the limit it stays."""
    sections = [{"field": "a", "action": "mask"}, {"field": "b", "action": "train"}]
    record = {"a": "abc", "b": ["d", "e"]}  # abcd, abce: with the first text twice
    record = record if "max_items" in options else {"a": "abc", "b": "def"}
    with pytest.raises(DroppedRecordError, match=reason):
        extract(record, *sections, **options)
    step = -1 if "min_chars" in options else 1
    assert extract(record, *sections, **{name: limit + step for name, limit in options.items()})


@pytest.mark.parametrize(
    ("value", "name"), [("web", "web"), (5, "5"), ("a/b", "a%2Fb"), ("..", "%2E."), (".x", "%2Ex"), ("ä", "%C3%A4")]
)
def test_a_domain_is_a_directory_and_leads_nowhere_else(value: object, name: str) -> None:
    """Whatever the data says."""
    section = {"field": "a", "action": "train"}
    assert extract({"a": "x", "d": value}, section, domain_key="d").domain == name


@pytest.mark.parametrize("record", [{"a": "x"}, {"a": "x", "d": None}, {"a": "x", "d": ""}, {"a": "x", "d": "y" * 300}])
def test_a_record_without_a_usable_domain_is_bad(record: dict) -> None:
    """It has no place in the output."""
    with pytest.raises(BadRecordError):
        extract(record, {"field": "a", "action": "train"}, domain_key="d")


@pytest.mark.parametrize("role", [["user"], {"a": 1}, None, 5], ids=str)
def test_a_role_that_is_no_name_is_a_bad_record(role: object) -> None:
    """Not an error of ours, whatever its type."""
    section = {"field": "m", "action": "$role"}
    with pytest.raises(BadRecordError, match=r"expected a name, got") as caught:
        extract({"m": [{"role": role, "content": "x"}, ASSISTANT]}, section)
    assert (caught.value.reason, caught.value.field) == ("unknown role", "m[0].role")


@pytest.mark.parametrize("value", [1e39, -1e300, float("nan"), float("inf")], ids=str)
def test_numbers_that_float32_does_not_hold_are_bad_records(value: float) -> None:
    """They would be stored as infinity."""
    sources = {name: [{"field": name, "action": "mask"}] for name in ("prompts", "responses")}
    sources["responses"][0]["action"] = "train"
    config = load_config({"train_type": "grpo", "sources": sources | {"rewards": [{"field": "w", "action": "value"}]}})
    with pytest.raises(BadRecordError, match="expected numbers of float32"):
        Extractor(config, lambda _: False)({"prompts": "p", "responses": ["r"], "w": [0.5, value]})


@pytest.mark.parametrize("form", [json.dumps, lambda tools: [json.dumps(tool) for tool in tools], lambda tools: tools])
def test_tools_may_be_json_text(form: Callable[[list], object]) -> None:
    """Of all or of one each, as online; a null is what the record says."""
    tools = [{"name": "f", "default": None}, {"name": "g"}]
    section = {"field": "m", "action": "$role", "tools": "tools"}
    assert parts({"m": [USER, ASSISTANT], "tools": form(tools)}, section)[0].tools == tools
    assert parts({"m": [USER, ASSISTANT], "tools": form([])}, section)[0].tools is None


@pytest.mark.parametrize("tools", ["{", ["{"], 5, "5", {"name": "f"}], ids=str)
def test_tools_that_are_no_list_of_schemas_are_a_bad_record(tools: object) -> None:
    """By the name of their field."""
    section = {"field": "m", "action": "$role", "tools": "tools"}
    with pytest.raises(BadRecordError, match="expected a list of tools or its JSON text, got") as caught:
        extract({"m": [USER, ASSISTANT], "tools": tools}, section)
    assert (caught.value.reason, caught.value.field) == ("wrong type", "tools")


def test_characters_of_typed_parts_are_counted() -> None:
    """As those of a content that is a text."""
    typed = USER | {"content": [{"type": "text", "text": "abc"}, {"type": "pause"}, "de"]}
    section, record = {"field": "m", "action": "$role"}, {"m": [typed, ASSISTANT | {"content": "f"}]}
    assert extract(record, section, min_chars=6, max_chars=6)
    for options in ({"min_chars": 7}, {"max_chars": 5}):
        with pytest.raises(DroppedRecordError):
            extract(record, section, **options)


SAID, OTHER = ({"role": "assistant", "content": text} for text in ("said", "other"))


def pair(record: dict, *more: dict) -> dict[str, list]:
    """The parts of both sides, after those of other sections."""
    sources = {name: [*more, {"field": name, "prompt": "prompt", "action": "$role"}] for name in ("chosen", "rejected")}
    found = Extractor(load_config({"train_type": "dpo", "sources": sources}), lambda _: False)(record)
    return {name: rows[0] for name, rows in found.sequences.items()}


@pytest.mark.parametrize("prompt", [[USER], None, "", [], "absent", "user"], ids=str)
def test_a_prompt_goes_before_both_sides_of_a_pair(prompt: object) -> None:
    """Messages do, once; a text beside whole chats says what their user says. None of it is trained."""
    begin = [] if prompt == [USER] else [USER]
    record = {"prompt": prompt, "chosen": [*begin, SAID], "rejected": [*begin, OTHER]}
    found = pair({key: value for key, value in record.items() if value != "absent"})
    for name, answer in (("chosen", SAID), ("rejected", OTHER)):
        assert [part.messages for part in found[name]] == [[USER | {"train": False}, answer]]


@pytest.mark.parametrize("prompt", ["another text", 5, [{"role": "usr", "content": ""}]])
def test_a_prompt_without_use_is_a_bad_record(prompt: object) -> None:
    """It would be lost without a word."""
    with pytest.raises(BadRecordError) as caught:
        pair({"prompt": prompt, "chosen": [USER, SAID], "rejected": [USER, OTHER]})
    assert caught.value.field.startswith("prompt")


def test_answers_that_both_sides_share_are_not_trained() -> None:
    """Whole texts before the chats too; from where the sides part, all is as the config says."""
    text = {"field": "t", "action": "train"}
    record = {"t": "x", "chosen": [USER, SAID, USER, SAID, SAID], "rejected": [USER, SAID, USER, OTHER, SAID]}
    for name, parts_of_side in pair(record, text).items():
        head, chat = parts_of_side
        assert (head.text, head.train) == ("x", False)
        assert [message.get("train") for message in chat.messages] == [False, False, False, None, None], name
    same = pair({"t": "x", "chosen": [USER, SAID], "rejected": [USER, SAID | {"train": True}]}, text)
    assert all(message["train"] is False for message in same["rejected"][1].messages)
