"""Reads what a record says: `record → for each source its sequences of texts, chats or numbers`.

With sections, a text field that is a list gives one sequence per item, with all the other sections in each: lists keep
their boundaries. A chat is one sequence, though its field is a list of messages. Without sections, records are of a
known format, which the fields of the first one say: `streamdata.text.formats` reads them.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from streamdata.errors import PrepareError, shown
from streamdata.prepare.config import RECORD_FORMATS, WHOLE_CHAT, PrepareConfig, Section
from streamdata.prepare.inputs import BadRecordError, DroppedRecordError, Task, TaskInput
from streamdata.text.formats import (
    SIDES,
    Said,
    Texts,
    has_own_prompt,
    mask_shared,
    pair_said,
    recognise,
    training_said,
    with_prompt,
)
from streamdata.text.messages import Message, media_beside_text, read_tools, text_of
from streamdata.text.templates import row_template_kwargs

logger = logging.getLogger("streamdata")

Record = Mapping[str, Any]
_MISSING: Final = object()
_MAX_NUMBER: Final = 3.4028234e38  # of float32, in which numbers are stored
_MAX_NAME_BYTES: Final = 200  # of a domain's directory; file systems stop at 255
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


class TextPart(NamedTuple):
    """A text to encode.

    Attributes:
        text: What it says.
        train: Whether its tokens are trained.
        is_data: Whether what looks like a special token in it is text: data cannot end a document.
        add_special_tokens: Whether the tokenizer adds those of its own format.
    """

    text: str
    train: bool
    is_data: bool
    add_special_tokens: bool = False


class ChatPart(NamedTuple):
    """A chat to render and encode, with its section, which says how, and variables of its own for the template."""

    messages: Sequence[Message]
    tools: list[Any] | None
    section: Section
    template_kwargs: Mapping[str, Any] = {}


Part = TextPart | ChatPart
Sequences = dict[str, list[list[Part]]]
"""The sequences of each source, each a list of parts."""


class Extract(NamedTuple):
    """The content of one record.

    Attributes:
        domain: The directory of its domain, empty without one.
        sequences: The texts and chats of each source that has tokens.
        values: The numbers of each source of numbers.
        has_shared_beginning: Whether the tokens that both sides of a pair begin with are its prompt.
        weight: How much its tokens count in the loss.
    """

    domain: str
    sequences: Sequences
    values: dict[str, list[float]]
    has_shared_beginning: bool = False
    weight: float = 1.0

    def parts(self) -> Iterator[Part]:
        """The parts of all sequences."""
        return (part for rows in self.sequences.values() for row in rows for part in row)


def with_record_format(config: PrepareConfig, tasks: Sequence[Task]) -> PrepareConfig:
    """The config with the format of its records: that which the fields of the first say, unless it is named.

    Raises:
        PrepareError: The first record is of no format that the train type takes, or of several.
    """
    if not config.has_known_records() or config.records != "auto":
        return config
    first = next((record for task in tasks for _, record in TaskInput(task).records()), None)
    if first is None:
        raise PrepareError("prepare: expected a record whose fields say what it is, got none\n  Look at the inputs.")
    try:
        found = recognise(first, RECORD_FORMATS[config.train_type], "prepare")
    except ValueError as error:
        raise PrepareError(str(error)) from error
    logger.info("prepare: recognised as %s", found)
    return config.model_copy(update={"records": found.name})


class Extractor:
    """Takes records apart as the sections of a config say, or the format of its records.

    Args:
        config: What to take.
        has_special: Whether a text holds what looks like a special token.
        end: The end token, with which a text of a known format ends; None where the tokenizer has none.
    """

    def __init__(self, config: PrepareConfig, has_special: Callable[[str], bool], end: str | None = None) -> None:
        self._config, self._has_special = config, has_special
        self._sources = config.sources_by_name()
        self._choices = RECORD_FORMATS[config.train_type] if config.records == "auto" else (config.records,)
        self._end = None if config.end_of_document else end  # which puts it behind the sequence
        self._read = self._of_format if config.has_known_records() else self._of_sections

    def __call__(self, record: Record) -> Extract:
        """Reads one record.

        Raises:
            BadRecordError: A field is missing, or not what its section or format takes.
            DroppedRecordError: It has too few or too many characters, too many items, or an empty list of texts.
        """
        extract, min_chars, max_chars = self._read(record), self._config.min_chars, self._config.max_chars
        if min_chars or max_chars is not None:
            texts = (
                [part.text] if isinstance(part, TextPart) else map(text_of, part.messages) for part in extract.parts()
            )
            count = sum(len(text) for some in texts for text in some)
            if count < min_chars:
                raise DroppedRecordError("fewer than min_chars")
            if max_chars is not None and count > max_chars:
                raise DroppedRecordError("more than max_chars")
        if self._config.domain_key is not None:
            extract = extract._replace(domain=_domain(record, self._config.domain_key))
        if self._config.weight_field is not None:
            extract = extract._replace(weight=_weight(record, self._config.weight_field))
        for name, reason in (("sequence", "no tokens"), ("responses", "no responses")):
            if extract.sequences.get(name) == []:
                raise DroppedRecordError(reason)
        return extract

    def _of_format(self, record: Record) -> Extract:
        try:
            found = recognise(record, self._choices, "record")
            if self._config.train_type == "dpo":
                prompt_key = None if has_own_prompt(record) else "prompt"
                said = dict(zip(SIDES, pair_said(record, found, "record", prompt_key), strict=True))
            else:
                said = {"sequence": training_said(record, found, "record")}
            sequences = {name: [self._said_parts(record, each)] for name, each in said.items()}
        except ValueError as error:
            raise BadRecordError("unknown format", "", str(error)) from error
        is_implicit = len(said) > 1 and all(isinstance(each, Texts) and not each.prompt for each in said.values())
        return Extract("", sequences, {}, has_shared_beginning=is_implicit)

    def _said_parts(self, record: Record, said: Said) -> list[Part]:
        if media := media_beside_text(record, [] if isinstance(said, Texts) else said):
            raise BadRecordError("media", "", f"expected text alone, got {', '.join(media)}")
        if not isinstance(said, Texts):
            return [ChatPart(said, read_tools(record.get("tools")), WHOLE_CHAT, row_template_kwargs(record))]
        parts: list[Part] = []
        for text, train in ((said.prompt, False), (said.completion, True)):
            if text:
                parts.append(TextPart(text, train, is_data=True, add_special_tokens=not parts))
        if self._end is not None and not said.completion.endswith(self._end):
            parts.append(TextPart(self._end, train=True, is_data=False))
        return parts

    def _of_sections(self, record: Record) -> Extract:
        sequences: Sequences = {}
        values: dict[str, list[float]] = {}
        for name, sections in self._sources.items():
            if sections[0].action == "value":
                values[name] = [number for section in sections for number in self._numbers(record, section)]
            else:
                sequences[name] = self._sequences(record, name, sections)
        if self._config.train_type == "dpo":
            sides = _mask_shared(*(sequences[name][0] for name in SIDES))
            sequences = {name: [side] for name, side in zip(SIDES, sides, strict=True)}
        if self._config.train_type == "grpo" and len(sequences["responses"]) != len(values["rewards"]):
            got = f"{len(sequences['responses'])} responses and {len(values['rewards'])} rewards"
            raise BadRecordError("wrong number", "rewards", f"expected one reward per response, got {got}")
        return Extract("", sequences, values)

    def _sequences(self, record: Record, name: str, sections: Sequence[Section]) -> list[list[Part]]:
        found = [self._parts(record, section) for section in sections]
        columns = [parts for parts in found if parts is not None]
        lengths = {len(column) for column in columns if isinstance(column, tuple)}
        if len(lengths) > 1:
            names = ", ".join(section.field for section in sections)
            raise BadRecordError("wrong type", names, f"expected lists of one length, got {sorted(lengths)}")
        if not lengths:
            return [[part for column in columns if isinstance(column, list) for part in column]]
        count = lengths.pop()
        if name not in ("sequence", "responses"):
            raise BadRecordError("wrong type", name, f"expected one text, got a list of {count}")
        rows: list[list[Part]] = [[] for _ in range(count)]
        for column in columns:
            for number, row in enumerate(rows):
                row.extend(column[number] if isinstance(column, tuple) else column)
        return rows

    def _parts(self, record: Record, section: Section) -> list[Part] | tuple[list[Part], ...] | None:
        """The parts of one section; a tuple of them where the field is a list; None where it is left out."""
        if section.optional and field_of(record, section.field) in (None, "", []):
            return None
        value = _required(record, section.field, "it")
        if isinstance(value, list):
            self._check_items(len(value))
        if section.action == "$role":
            return [_chat(record, section, value)]
        if isinstance(value, list):
            return tuple(self._texts(section, item) for item in value)
        return self._texts(section, value)

    def _texts(self, section: Section, value: Any) -> list[Part]:
        if not isinstance(value, str):
            raise BadRecordError("wrong type", section.field, f"expected a text, got {shown(value)}")
        train, special = section.action == "train", section.add_special_tokens
        if section.template is None:
            return [TextPart(value, train, is_data=True, add_special_tokens=special)]
        before, _, after = section.template.partition("{value}")
        # Special tokens of the template are meant, those of the value are text. One call of the tokenizer takes all or
        # none of them for text, so that such a value is encoded apart.
        if self._has_special(value):
            parts = [(before, False, False), (value, train, True), (after, train, False)]
        elif train:
            parts = [(before, False, False), (value + after, True, False)]
        else:
            parts = [(before + value + after, False, False)]
        found = [TextPart(*part) for part in parts if part[0]]
        return [part._replace(add_special_tokens=special and number == 0) for number, part in enumerate(found)]

    def _numbers(self, record: Record, section: Section) -> list[float]:
        value = _required(record, section.field, "numbers")
        items = value if isinstance(value, list) else [value]
        self._check_items(len(items))
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int | float) or not abs(item) <= _MAX_NUMBER:
                raise BadRecordError("wrong type", section.field, f"expected numbers of float32, got {shown(item)}")
        return [float(item) for item in items]

    def _check_items(self, count: int) -> None:
        if self._config.max_items is not None and count > self._config.max_items:
            raise DroppedRecordError("more than max_items")


def field_of(record: Record, path: str, default: Any = None) -> Any:
    """The value of a field, whose dots lead into nested objects unless a name has them itself."""
    if path in record:
        return record[path]
    value: Any = record
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


def _required(record: Record, path: str, expected: str) -> Any:
    value = field_of(record, path, _MISSING)
    if value is _MISSING:
        names = ", ".join(map(str, record)) or "none"
        raise BadRecordError("missing field", path, f"expected {expected}, got the fields {names}")
    return value


def _domain(record: Record, key: str) -> str:
    """The name of a domain's directory, quoted so that no value of a record leads elsewhere, or is hidden."""
    expected = "the name of a domain"
    value = _required(record, key, expected)
    if not isinstance(value, str | int) or value == "":
        raise BadRecordError("missing field", key, f"expected {expected}, got {shown(value)}")
    name = quote(str(value), safe=" ")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > _MAX_NAME_BYTES:
        expected = f"expected a name of at most {_MAX_NAME_BYTES} bytes, got {len(name)}"
        raise BadRecordError("wrong type", "domain_key", expected)
    return name


def _weight(record: Record, field: str) -> float:
    value = field_of(record, field)
    value = 1.0 if value is None else value  # a row of parquet lacks a value by null
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_NUMBER:
        raise BadRecordError("wrong type", field, f"expected a number of float32 from 0 on, got {shown(value)}")
    return float(value)


def _chat(record: Record, section: Section, value: Any) -> ChatPart:
    messages = _messages(record, section.field, value, section)
    if section.prompt and (prompt := field_of(record, section.prompt)) not in (None, "", []):
        if not isinstance(prompt, str):
            prompt = _messages(record, section.prompt, prompt, section)
        try:
            messages = with_prompt(prompt, messages)
        except ValueError as error:
            raise BadRecordError("wrong type", section.prompt, str(error)) from error
    system = field_of(record, section.system) if section.system else None
    if isinstance(system, str) and system:
        messages.insert(0, {"role": "system", "content": system})
    return ChatPart(messages, _tools(record, section.tools) if section.tools else None, section)


def _messages(record: Record, field: str, value: Any, section: Section) -> list[Message]:
    """The messages in a field, each of a known role; in which order is up to the template."""
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise BadRecordError("wrong type", field, f"expected a list of messages, got {shown(value)}")
    if media := media_beside_text(record, value):
        raise BadRecordError("media", field, f"expected text alone, got {', '.join(media)}")
    for number, message in enumerate(value):
        role, path = message.get("role"), f"{field}[{number}].role"
        if not isinstance(role, str):
            raise BadRecordError("unknown role", path, f"expected a name, got {shown(role)}")
        if role not in _ROLES and role not in section.roles:  # it would be masked without a word
            expected = f"expected {', '.join(_ROLES)}, or one of the section's roles, got {shown(role)}"
            raise BadRecordError("unknown role", path, expected)
    return list(value)


def _tools(record: Record, field: str) -> list[Any] | None:
    """Tools as a list, or as JSON text of all or of one each. Nulls in a list stay, which `read_tools` would drop."""
    value = field_of(record, field)
    with suppress(ValueError):
        if value is None or isinstance(value, str):
            return read_tools(value)
        if isinstance(value, list):
            return [json.loads(tool) if isinstance(tool, str) else tool for tool in value] or None
    raise BadRecordError("wrong type", field, f"expected a list of tools or its JSON text, got {shown(value)}")


def _mask_shared(chosen: list[Part], rejected: list[Part]) -> tuple[list[Part], list[Part]]:
    """Both sides of a pair, where what both begin with is not trained: whole texts, and messages of a chat."""
    sides: tuple[list[Part], list[Part]] = ([*chosen], [*rejected])
    for index, (one, other) in enumerate(zip(chosen, rejected, strict=False)):
        if isinstance(one, ChatPart) and isinstance(other, ChatPart):
            messages = mask_shared(one.messages, other.messages)
            for side, chat, own in zip(sides, (one, other), messages, strict=True):
                side[index] = chat._replace(messages=own)
            if messages[0] != messages[1]:
                break
        elif isinstance(one, TextPart) and isinstance(other, TextPart) and one.text == other.text:
            for side, text in zip(sides, (one, other), strict=True):
                side[index] = text._replace(train=False)
        else:
            break
    return sides
