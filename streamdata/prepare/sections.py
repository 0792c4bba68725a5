"""What a record says: `record → for each source its sequences of texts, chats or numbers`.

A text field that is a list gives one sequence per item, with all the other sections in each: lists keep their
boundaries. A chat is one sequence, though its field is a list of messages.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from streamdata.prepare.config import PrepareConfig, Section
from streamdata.prepare.errors import BadRecordError, DroppedRecordError, shown
from streamdata.text.formats import mask_shared, with_prompt
from streamdata.text.messages import Message, media_beside_text, read_tools, text_of

Record = Mapping[str, Any]
_MISSING = object()
_MAX_NUMBER = 3.4028234e38  # of float32, in which numbers are stored
_MAX_NAME_BYTES = 200  # of a domain's directory; file systems stop at 255
_ROLES = ("system", "developer", "user", "assistant", "tool")


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
    add_special_tokens: bool


class ChatPart(NamedTuple):
    """A chat to render and encode, with its section, which says how, and variables of its own for the template."""

    messages: Sequence[Message]
    tools: list[Any] | None
    section: Section
    template_kwargs: Mapping[str, Any] = {}


Part = TextPart | ChatPart


class Extract(NamedTuple):
    """What one record says.

    Attributes:
        domain: The directory of its domain, empty without one.
        sequences: The sequences of each source, each a list of parts.
        lists: The sources whose sequences come from a list.
        values: The numbers of each source of numbers.
        has_shared_beginning: Whether the tokens that both sides of a pair begin with are its prompt.
    """

    domain: str
    sequences: dict[str, list[list[Part]]]
    lists: frozenset[str]
    values: dict[str, list[float]]
    has_shared_beginning: bool = False

    def parts(self) -> Iterator[Part]:
        """The parts of all sequences."""
        return _all_parts(self.sequences)


class Extractor:
    """Takes records apart as a config says.

    Args:
        config: What to take.
        has_special: Whether a text holds what looks like a special token.
    """

    def __init__(self, config: PrepareConfig, has_special: Callable[[str], bool]) -> None:
        self._config, self._has_special = config, has_special
        self._sources = config.sources_by_name()

    def __call__(self, record: Record) -> Extract:
        """What the record says.

        Raises:
            BadRecordError: A field is missing or not what its section takes.
            DroppedRecordError: It has too few or too many characters, or too many items.
        """
        sequences: dict[str, list[list[Part]]] = {}
        values: dict[str, list[float]] = {}
        lists = set()
        for name, sections in self._sources.items():
            if sections[0].action == "value":
                values[name] = [number for section in sections for number in self._numbers(record, section)]
                continue
            sequences[name], is_list = self._sequences(record, sections)
            if is_list:
                lists.add(name)
        if self._config.train_type == "dpo" and all(len(rows) == 1 for rows in sequences.values()):
            (chosen,), (rejected,) = sequences["chosen"], sequences["rejected"]
            for name, side in zip(("chosen", "rejected"), _mask_shared(chosen, rejected), strict=True):
                sequences[name] = [side]
        self._check_chars(sequences)
        return Extract(self._domain(record), sequences, frozenset(lists), values)

    def _sequences(self, record: Record, sections: Sequence[Section]) -> tuple[list[list[Part]], bool]:
        found = [self._parts(record, section) for section in sections]
        columns = [parts for parts in found if parts is not None]
        lengths = {len(column) for column in columns if isinstance(column, tuple)}
        if len(lengths) > 1:
            names = ", ".join(section.field for section in sections)
            raise BadRecordError("wrong type", names, f"expected lists of one length, got {sorted(lengths)}")
        if not lengths:
            return [[part for column in columns if isinstance(column, list) for part in column]], False
        count = lengths.pop()
        rows: list[list[Part]] = [[] for _ in range(count)]
        for column in columns:
            for number, row in enumerate(rows):
                row.extend(column[number] if isinstance(column, tuple) else column)
        return rows, True

    def _parts(self, record: Record, section: Section) -> list[Part] | tuple[list[Part], ...] | None:
        """The parts of one section; a tuple of them where the field is a list; None where it is left out."""
        value = field_of(record, section.field)
        if section.optional and (value is _MISSING or value is None or value in ("", [])):
            return None
        if value is _MISSING:
            raise BadRecordError("missing field", section.field, f"expected it, got {_names(record)}")
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
            parts = [_template(before), TextPart(value, train, is_data=True, add_special_tokens=False)]
            parts.append(_template(after, train=train))
        elif train:
            parts = [_template(before), _template(value + after, train=True)]
        else:
            parts = [_template(before + value + after)]
        found = [part for part in parts if part.text]
        return [part._replace(add_special_tokens=special and number == 0) for number, part in enumerate(found)]

    def _numbers(self, record: Record, section: Section) -> list[float]:
        value = field_of(record, section.field)
        if value is _MISSING:
            raise BadRecordError("missing field", section.field, f"expected numbers, got {_names(record)}")
        items = value if isinstance(value, list) else [value]
        self._check_items(len(items))
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int | float) or not abs(item) <= _MAX_NUMBER:
                raise BadRecordError("wrong type", section.field, f"expected numbers of float32, got {shown(item)}")
        return [float(item) for item in items]

    def _check_items(self, count: int) -> None:
        if self._config.max_items is not None and count > self._config.max_items:
            raise DroppedRecordError("more than max_items")

    def _check_chars(self, sequences: dict[str, list[list[Part]]]) -> None:
        min_chars, max_chars = self._config.min_chars, self._config.max_chars
        if not min_chars and max_chars is None:
            return
        count = sum(map(_chars, _all_parts(sequences)))
        if count < min_chars:
            raise DroppedRecordError("fewer than min_chars")
        if max_chars is not None and count > max_chars:
            raise DroppedRecordError("more than max_chars")

    def _domain(self, record: Record) -> str:
        key = self._config.domain_key
        if key is None:
            return ""
        value = field_of(record, key)
        if value is _MISSING or not isinstance(value, str | int) or value == "":
            got = _names(record) if value is _MISSING else shown(value)
            raise BadRecordError("missing field", key, f"expected the name of a domain, got {got}")
        return _directory_name(str(value))


def _directory_name(domain: str) -> str:
    """The name of a domain's directory, quoted so that no value of a record leads elsewhere, or is hidden."""
    name = quote(domain, safe=" ")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if len(name) > _MAX_NAME_BYTES:
        expected = f"expected a name of at most {_MAX_NAME_BYTES} bytes, got {len(name)}"
        raise BadRecordError("wrong type", "domain_key", expected)
    return name


def _all_parts(sequences: Mapping[str, list[list[Part]]]) -> Iterator[Part]:
    return (part for rows in sequences.values() for row in rows for part in row)


def _template(text: str, *, train: bool = False) -> TextPart:
    return TextPart(text, train, is_data=False, add_special_tokens=False)


def field_of(record: Record, path: str) -> Any:
    """The value of a field, whose dots lead into nested objects unless a name has them itself."""
    if path in record:
        return record[path]
    value: Any = record
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _names(record: Record) -> str:
    return f"the fields {', '.join(map(str, record)) or 'none'}"


def _chars(part: Part) -> int:
    texts = [part.text] if isinstance(part, TextPart) else map(text_of, part.messages)
    return sum(map(len, texts))


def _chat(record: Record, section: Section, value: Any) -> ChatPart:
    messages = _messages(record, section.field, value, section)
    if section.prompt is not None:
        messages = _with_prompt(record, section.prompt, messages, section)
    system = field_of(record, section.system) if section.system else None
    if isinstance(system, str) and system:
        messages.insert(0, {"role": "system", "content": system})
    tools = _tools(field_of(record, section.tools), section.tools) if section.tools else None
    return ChatPart(messages, tools, section)


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


def _with_prompt(record: Record, field: str, messages: list[Message], section: Section) -> list[Message]:
    value = field_of(record, field)
    if value is _MISSING or value in (None, "", []):
        return messages
    prompt = value if isinstance(value, str) else _messages(record, field, value, section)
    try:
        return with_prompt(prompt, messages)
    except ValueError as error:
        raise BadRecordError("wrong type", field, str(error)) from error


def _tools(value: Any, field: str) -> list[Any] | None:
    """Tools as a list, or as JSON text of all or of one each."""
    if value is _MISSING or value is None:
        return None
    try:
        if isinstance(value, str):
            return read_tools(value)
        if isinstance(value, list):
            return [json.loads(tool) if isinstance(tool, str) else tool for tool in value] or None
    except ValueError as error:
        raise _no_tools(value, field) from error
    raise _no_tools(value, field)


def _no_tools(value: Any, field: str) -> BadRecordError:
    return BadRecordError("wrong type", field, f"expected a list of tools or its JSON text, got {shown(value)}")


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
