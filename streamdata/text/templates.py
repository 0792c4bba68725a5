"""Messages → text, by the chat template of a tokenizer or processor."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from typing import Any, Final

from streamdata.errors import one_line, shown, without_secrets
from streamdata.text.messages import Message
from streamdata.text.sandbox import MARK_BEGIN, MARK_END, MAX_CHARS, SandboxedTemplate, compile_template
from streamdata.text.template_budget import OPERATION_BYTES, budget_of_rendering
from streamdata.text.tokenizer import tokenizer_of

_DATE: Final = "strftime_now"
_SHORT: Final = 80
_MAX_REASON: Final = 500  # characters of what a template says itself
_MEDIA: Final = frozenset(
    "image images image_url input_image video videos video_url audio audios audio_url input_audio".split()  # noqa: SIM905
)
_MAX_DATE_CHARS: Final = 1000  # of a format of the day
_DIRECTIVE = re.compile(r"%[-_^#+]*(.?)", re.DOTALL)
_MARKS = re.compile(f"({MARK_BEGIN}|{MARK_END})")


class ChatRenderer:
    """Renders conversations by the template of one tokenizer.

    The text is that of `apply_chat_template(messages, tokenize=False)`, but bounded, and it never depends on the day:
    a template has `strftime_now` only if `template_kwargs` says which day it is, such as "2025-06-01".

    Args:
        tokenizer: One of transformers, or a processor; a processor's own template goes before its tokenizer's.
        template_kwargs: Variables for the template, such as `enable_thinking`; `chat_template` for another template,
            by name or as its source.
        max_chars: The longest text that it may give.

    Raises:
        ValueError: A setting is invalid.
    """

    def __init__(
        self, tokenizer: Any, *, template_kwargs: Mapping[str, Any] | None = None, max_chars: int = MAX_CHARS
    ) -> None:
        kwargs = dict(template_kwargs or {})
        if reserved := sorted(kwargs.keys() & {"messages", "tools", "add_generation_prompt"}):
            raise ValueError(f"template_kwargs: expected variables of the template, got {reserved}\n  Give them apart.")
        self._tokenizer = tokenizer
        self._name = tokenizer_of(tokenizer).name_or_path or type(tokenizer).__name__
        self._compiled: dict[bool, SandboxedTemplate] = {}
        self._max_chars = max_chars
        self._template_name = kwargs.pop("chat_template", None)
        # A template that asks for the day fails without one: the same data would become other tokens tomorrow.
        day = kwargs.pop(_DATE, None)
        self._variables = _plain({**tokenizer_of(tokenizer).special_tokens_map, "documents": None, **kwargs}, None)
        if day is not None:
            self._variables[_DATE] = _formatter(day)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: Each with `role` and most often `content`, a text or typed parts; they are not changed.
            tools: JSON schemas or functions, as transformers takes them.
            add_generation_prompt: Whether the header follows with which the assistant's next message begins.

        Raises:
            ValueError: There is no template, the messages are invalid, or the template fails or passes a limit.
        """
        conversation = self.conversation(messages, tools)
        return conversation.render(conversation.messages, add_generation_prompt=add_generation_prompt)

    def conversation(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> "Conversation":
        """Prepares a conversation to be rendered in several ways; see `render`."""
        schemas = (
            None if tools is None else [_plain(_schema(tool), f"tool {number}") for number, tool in enumerate(tools)]
        )
        variables = {**self._variables, "tools": schemas}
        return Conversation(_plain_messages(messages), self._template(schemas), variables, self._name, self._max_chars)

    def _template(self, tools: list[Any] | None) -> SandboxedTemplate:
        """The template with tools or without; the tokenizer is asked once."""
        with_tools = tools is not None
        if with_tools not in self._compiled:
            source = template_source(self._tokenizer, self._template_name, tools)
            try:
                self._compiled[with_tools] = compile_template(source)
            except Exception as error:  # jinja's own
                raise _failure(self._name, error) from _cause(error)
        return self._compiled[with_tools]


@dataclass(frozen=True)
class Conversation:
    """A conversation with the template and variables that render it.

    Attributes:
        messages: Plain copies, without keys that are None.
        template: Compiled.
        variables: All that the template sees but messages and `add_generation_prompt`.
        name: The tokenizer's, for errors.
        max_chars: The longest text allowed.
    """

    messages: list[Message]
    template: SandboxedTemplate
    variables: dict[str, Any]
    name: str
    max_chars: int

    def render(self, messages: list[Message], *, add_generation_prompt: bool = False) -> str:
        """Renders these messages instead of its own; the list may be empty.

        Raises:
            ValueError: The template fails or passes a limit.
        """
        try:
            return self.template.render(self._all(messages, add_generation_prompt), self.max_chars)
        except Exception as error:  # a template may raise anything
            raise _failure(self.name, error) from _cause(error)

    def render_marked(self) -> tuple[str, list[tuple[int, int]]]:
        """Renders its messages; returns the text and the spans [begin, end) of its generation blocks.

        Raises:
            ValueError: The template fails or passes a limit, or its blocks are nested.
        """
        try:
            marked, count = self.template.render_marked(self._all(self.messages, False), self.max_chars)
        except Exception as error:
            raise _failure(self.name, error) from _cause(error)
        pieces = _MARKS.split(marked)  # text, mark, text, mark … text
        if pieces[1::2] != [MARK_BEGIN, MARK_END] * count:
            raise _failure(self.name, ValueError("its generation blocks are nested, or their text was cut or repeated"))
        edges = list(accumulate(map(len, pieces[::2])))[:-1]
        return "".join(pieces[::2]), list(zip(edges[::2], edges[1::2], strict=True))

    def _all(self, messages: list[Message], add_generation_prompt: bool) -> dict[str, Any]:
        return {"messages": messages, "add_generation_prompt": add_generation_prompt, **self.variables}


def _failure(name: str, error: Exception) -> ValueError:
    remedy = "Change the messages or the tokenizer's chat_template."
    if _DATE in str(error):
        remedy = f'Give the day in template_kwargs, such as {_DATE}: "2025-06-01"; the text must not depend on it.'
    return ValueError(f"chat template of {shown(name)}: {type(error).__name__}: {_reason(error)}\n  {remedy}")


def _reason(error: Exception) -> str:
    """What a template, or jinja, says: on one line, without what a terminal would obey, and not without end."""
    text = str(error)
    reason = one_line(without_secrets(text[:_MAX_REASON]))
    return reason if len(text) <= _MAX_REASON else f"{reason}…"


def _cause(error: Exception) -> Exception | None:
    """The error itself, for the traceback, unless it says more than its reason does."""
    return error if str(error).replace("\n", "\\n") == _reason(error) else None


def _formatter(day: Any) -> Callable[[str], str]:
    """Writes the day by a format without widths: those of the C library fill the memory."""
    try:
        formatted = date.fromisoformat(day).strftime
    except (TypeError, ValueError) as error:
        raise ValueError(f'template_kwargs: {_DATE} is {shown(day)}\n  Give a day such as "2025-06-01".') from error

    def bounded(form: str) -> str:
        if len(form) > _MAX_DATE_CHARS:
            raise OverflowError(f"it formats the day by more than {_MAX_DATE_CHARS:,} characters")
        directives = _DIRECTIVE.findall(form)
        if any(map(str.isdigit, directives)):
            raise OverflowError("it formats the day with a width")
        budget_of_rendering.get().spend(OPERATION_BYTES * len(directives))
        return formatted(form)

    return bounded


def template_source(tokenizer: Any, name: str | None = None, tools: Sequence[Any] | None = None) -> str:
    """Returns the source of the template that a tokenizer or processor renders with.

    Args:
        tokenizer: Either.
        name: Of one of several templates; or a source, which is returned as it is.
        tools: None or not; a tokenizer may have a template of its own for tools.

    Raises:
        ValueError: There is none.
    """
    own = getattr(tokenizer, "chat_template", None)
    if tokenizer_of(tokenizer) is tokenizer or own is None:
        # transformers wants a list for tools, and looks only at whether there is one
        source: str = tokenizer_of(tokenizer).get_chat_template(name, None if tools is None else list(tools))
        return source
    if not isinstance(own, dict):
        return str(own) if name is None else name
    chosen = own.get(name or "default", name)
    if chosen is None:
        raise ValueError(
            f"chat template of {type(tokenizer).__name__}: expected one named 'default' among {sorted(own)}\n"
            "  Name one of them in template_kwargs as chat_template."
        )
    return str(chosen)


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    if not isinstance(messages, list | tuple) or not messages:
        raise _no_message("a list of messages, at least one", messages)
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _no_message(f"message {number} to be a dict with a role", message)
    return _with_reasoning([_plain_message(number, message) for number, message in enumerate(messages)])


def _no_message(expected: str, got: Any) -> ValueError:
    return ValueError(
        f"chat: expected {expected}, got {_shortened(got)}\n"
        "  A message is a dict such as {'role': 'user', 'content': 'Hello'}."
    )


def _plain_message(number: int, message: Mapping[str, Any]) -> Message:
    return {
        key: _plain(value, None if _is_medium(key) else f"message {number}, key {shown(key)}")
        for key, value in message.items()
        if value is not None
    }


def _with_reasoning(messages: list[Message]) -> list[Message]:
    """Newer transformers give a message's reasoning under the names that templates use for it."""
    from transformers.utils import chat_template_utils

    alias = getattr(chat_template_utils, "_alias_reasoning_fields", None)
    return messages if alias is None else alias(messages)


def _plain(value: Any, where: str | None) -> Any:
    """Data without methods that a template could call; what else a medium is made of becomes its type's name.

    `where` names the value for the error if it is not plain data; in a medium, and in variables, there is no error.
    """
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if isinstance(value, Mapping):
        inside = None if _is_medium(value.get("type")) else where
        return {_plain(key, inside): _plain(item, None if _is_medium(key) else inside) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if getattr(value, "shape", None) == ():
        return _plain(value.item(), where)
    if where is not None:
        raise ValueError(f"chat: {where}: expected text, got {type(value).__name__}\n  Write the column as text.")
    return f"<{type(value).__name__}>"


def _is_medium(name: Any) -> bool:
    """Whether a key, or the type of a part, is that of a medium."""
    return isinstance(name, str) and name in _MEDIA


def _schema(tool: Any) -> Any:
    from transformers.utils.chat_template_utils import get_json_schema

    if isinstance(tool, Mapping):
        return tool
    if callable(tool):
        return get_json_schema(tool)
    raise ValueError(
        f"chat: expected each tool as a JSON schema (a dict) or a function, got {_shortened(tool)}\n"
        "  Decode tools that are JSON text before."
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."
