"""From a row's columns to messages: `prompt, images, videos, tools → messages, media in their order, schemas of tools`.

A stored message has `role` and `content`, or `from` and `value`, as ShareGPT has it; its content is a text or typed
parts.
"""

import copy
import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml

from streamdata.errors import names_text, shown
from streamdata.recipe.limits import open_regular
from streamdata.shards.parquet.values import JsonObject

Message = dict[str, Any]
TRAIN_KEY: Final = "train"
"""The key of a message that overrides its role's action."""
MEDIA_KINDS: Final = ("image", "video")
_ROLES: Final = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_PLACEHOLDERS: Final = {"<image>": {"type": "image"}, "<video>": {"type": "video"}}
_PLACEHOLDER = re.compile("(<image>|<video>)")
_MEDIA_KEY = re.compile("(image|video|audio)s?")
_MEDIUM = re.compile("(input_)?(image|video|audio)(_url)?")
_OWN_KEYS: Final = {"image": ("image", "url", "path", "bytes"), "video": ("video", "url", "path", "bytes")}


class Medium(NamedTuple):
    """An image or video as the row has it, not opened yet, with what its part says of it beside, such as a size."""

    kind: str
    value: Any
    options: dict[str, Any] | None = None


class MediaChat(NamedTuple):
    """Messages, and the media of their parts in order of appearance."""

    messages: list[Message]
    media: list[Medium]


def read_chat(row: Mapping[str, Any], prompt_key: str, media_keys: Mapping[str, str], *, typed: bool) -> MediaChat:
    """The messages of a row, as copies.

    Args:
        row: The row.
        prompt_key: The column of messages.
        media_keys: The columns of `image` and `video`.
        typed: Whether text becomes typed parts, and `<image>` and `<video>` in it parts of media, as a processor's
            template wants it.

    Raises:
        ValueError: There are no messages, or media and their parts differ in number.
    """
    messages = messages_of(row, prompt_key, "prompt")
    if not typed:
        if given := [key for key in media_keys.values() if row.get(key)] + media_types(messages):
            raise ValueError(
                f"prompt: expected text alone, got a row with media: {given}\n  Give the dataset a processor."
            )
        return MediaChat(messages, [])
    columns = {kind: _listed(row.get(key), key) for kind, key in media_keys.items()}
    for message in messages:
        if isinstance(content := message.get("content"), str) and content:
            texts = filter(None, _PLACEHOLDER.split(content))
            message["content"] = [dict(_PLACEHOLDERS.get(text) or {"type": "text", "text": text}) for text in texts]
    # A template would pass over them, and the answer be about what is missing.
    if others := media_types(messages, but=columns):
        raise ValueError(
            f"prompt: expected parts with media of type {' or '.join(columns)}, got {others}\n"
            "  Write {'type': 'image', 'image': …} or {'type': 'video', 'video': …}; other media are not read."
        )
    # The media of all parts, their own or the next of their columns; nothing but the type stays in a part.
    places = [(part, own_medium(part)) for part in typed_parts(messages) if part.get("type") in columns]
    for kind, values in columns.items():
        if (count := sum(part["type"] == kind and own is None for part, own in places)) != len(values):
            raise ValueError(
                f"prompt: expected as many {kind}s as parts for them, got {len(values)} for {count}\n"
                f"  Each <{kind}> in the text stands for one {kind} of the row, in order."
            )
    waiting, media = {kind: iter(values) for kind, values in columns.items()}, []
    for part, own in places:
        kind = part.pop("type")
        media.append(own or Medium(kind, next(waiting[kind]), dict(part) or None))
        part.clear()  # templates take such keys for the medium itself, and would print it
        part["type"] = kind
    return MediaChat(messages, media)


def messages_of(row: Mapping[str, Any], key: str, who: str) -> list[Message]:
    """Copies of the messages in a column, without Arrow's padding; those of ShareGPT get roles.

    Args:
        row: The row.
        key: The column.
        who: Who asks, for the error.

    Raises:
        ValueError: There are none.
    """
    messages = row.get(key)
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        have = "" if key in row else f"; the row has {names_text(row)}"
        raise ValueError(
            f"{who}: expected a list of messages in {shown(key)}, got {shown(messages)}{have}\n"
            "  A message is a dict with role and content; the config names their column."
        )
    return [_with_role(without_nulls(dict(message))) for message in messages]


def _with_role(message: dict[str, Any]) -> dict[str, Any]:
    """The message with role and content; one that has a role already is returned unchanged.

    Raises:
        ValueError: Nobody is known by that name, or a call of a function is not JSON.
    """
    if "role" in message or "from" not in message:
        return message
    rest = {key: value for key, value in message.items() if key not in ("from", "value")}
    speaker, value = message["from"], message.get("value")
    if speaker not in _ROLES:
        raise ValueError(f"chat: expected `from` among {', '.join(_ROLES)}, got {shown(speaker)}\n  Rename who speaks.")
    if speaker != "function_call":
        return {**rest, "role": _ROLES[speaker], "content": value}
    try:
        calls = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        calls = None
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, Mapping) and "name" in call for call in calls):
        raise ValueError(
            f"chat: expected a function_call to be JSON with a name and arguments, got {shown(value)}\n"
            "  Correct the row."
        )
    made = [{"type": "function", "function": call} for call in calls]
    return {**rest, "role": "assistant", "content": "", "tool_calls": made}


def media_beside_text(row: Mapping[str, Any], messages: Sequence[Any]) -> list[str]:
    """The media of a conversation: columns and keys of messages that hold some, and types of their parts."""
    holders = (row, *messages)
    keys = [key for holder in holders for key in holder if _MEDIA_KEY.fullmatch(key) and is_given(holder[key])]
    return keys + media_types(messages)


def check_text_alone(row: Mapping[str, Any], messages: Sequence[Any], who: str) -> None:
    """Raises ValueError where a conversation or a text has media, which would be missing from its tokens.

    Refused even where messages have no placeholder: the answers were written about what is missing.
    """
    if media := media_beside_text(row, messages):
        raise ValueError(
            f"{who}: expected text alone, got a row with media: {media}\n"
            "  Give the dataset a processor for conversations with images; drop others, by max_bad or before."
        )


def with_images_first(messages: Sequence[Message], count: int) -> list[Message]:
    """The messages with places for `count` images before what a user says first, unless they have places already."""
    parts = {part.get("type") for part in typed_parts(messages)}
    texts = [content for message in messages if isinstance(content := message.get("content"), str)]
    if not count or "image" in parts or any("<image>" in text for text in texts):
        return list(messages)
    first = next((number for number, message in enumerate(messages) if message.get("role") == "user"), None)
    if first is None:
        return list(messages)  # refused where media and their places are counted
    content = messages[first].get("content")
    more = content if isinstance(content, list) else [{"type": "text", "text": content}]
    asked = {**messages[first], "content": [*({"type": "image"} for _ in range(count)), *more]}
    return [*messages[:first], asked, *messages[first + 1 :]]


def is_empty(row: Mapping[str, Any], prompt_key: str) -> bool:
    """Whether a prompt says nothing: it has no messages, or none with a content or a call."""
    if prompt_key not in row:
        return False  # not an empty prompt but a wrong setting, which the reader reports
    for message in row[prompt_key] or ():
        said = message if isinstance(message, dict) else {"content": message}
        content = said.get("content")
        if said.get("tool_calls") or (content.strip() if isinstance(content, str) else content):
            return False
    return True


def without_nulls(value: Any) -> Any:
    """A copy without the keys that are None: Arrow gives each dict of a column the keys of all the others.

    What is a null of a list stays, and so does all that came as JSON text or in a column of JSON.
    """
    if isinstance(value, JsonObject):
        return copy.deepcopy(value)
    if isinstance(value, dict):
        return {
            key: without_nulls(part) if isinstance(part, dict | list) else part
            for key, part in value.items()
            if part is not None
        }
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def typed_parts(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The typed parts of all messages."""
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    return [part for content in contents for part in content if isinstance(part, dict)]


def media_types(messages: Sequence[Any], but: Container[Any] = ()) -> list[str]:
    """The types of parts that stand for media, as `image`, `image_url` or `input_audio`; templates take their keys."""
    found: list[str] = []
    for part in typed_parts(messages):
        if part.get("type") not in but:
            keys = [part.get("type"), *(key for key, value in part.items() if value is not None)]
            found += [key for key in keys if isinstance(key, str) and _MEDIUM.fullmatch(key)][:1]
    return found


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message: its content, or the texts among its typed parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def is_given(value: Any) -> bool:
    """Whether a medium, or any of a list, is there: Arrow has dicts of nulls where it is not."""
    parts = value.values() if isinstance(value, dict) else value
    return any(map(is_given, parts)) if isinstance(value, dict | list) else bool(value)


def own_medium(part: Mapping[str, Any]) -> Medium | None:
    """The medium that a typed part holds; None if it is of text, or a place for the next of a column."""
    kind, options = part.get("type"), dict(part)
    if kind not in MEDIA_KINDS:
        return None
    del options["type"]
    own = [options.pop(key) for key in _OWN_KEYS[kind] if key in options]
    return Medium(kind, own[0], options or None) if own else None


def _listed(value: Any, key: str) -> list[Any]:
    if value is None or isinstance(value, list):
        return list(value or ())
    raise ValueError(f"prompt: expected a list of media in {shown(key)}, got {type(value).__name__}\n  Store a list.")


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Tool schemas from a column: dicts of Arrow's, or JSON text, of one tool each or of all; None without any.

    Raises:
        ValueError: They are not schemas.
    """
    try:
        tools = json.loads(value) if isinstance(value, str) else without_nulls(value)
        if not tools:
            return None
        tools = tools if isinstance(tools, list) else [tools]
        # A null in JSON is what its writer meant, and stays; only Arrow pads its dicts with nulls.
        read = [json.loads(tool) if isinstance(tool, str) else tool for tool in tools]
    except json.JSONDecodeError:
        read = [None]
    if not all(isinstance(tool, dict) for tool in read):
        raise ValueError(
            f"tools: expected JSON schemas, got {shown(value)}\n  Store a list of dicts, or its JSON text."
        )
    return read


def read_tool_file(path: str) -> list[dict[str, Any]]:
    """Tool schemas from YAML: a list of them, or `tools:` with a `tool_schema` each, beside what runs the tool.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no schemas.
    """
    with open_regular(path, ValueError) as file:
        content = yaml.safe_load(file)
    tools = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(tools, list):
        tools = []
    schemas = [tool.get("tool_schema", tool) if isinstance(tool, dict) else tool for tool in tools]
    if not schemas or not all(isinstance(schema, dict) and "function" in schema for schema in schemas):
        raise ValueError(
            f"tools: expected tool schemas in '{path}', got {str(content)[:200]}\n"
            "  Write a list of `{type: function, function: …}`, or `tools:` with such a `tool_schema` each."
        )
    return schemas
