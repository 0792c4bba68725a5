"""Messages → text, by the chat template of a tokenizer or processor.

A template runs in the sandbox of transformers, as `apply_chat_template` runs it, which keeps it from the interpreter
and from changing the data. It comes with the tokenizer that you train: nothing but the length of its text is bounded.
"""

import functools
import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from typing import Any, Final, NamedTuple

from streamdata.errors import one_line, shown, without_secrets
from streamdata.text.messages import Message, without_nulls
from streamdata.text.tokenizer import tokenizer_of

MAX_CHARS: Final = 1 << 26
"""Characters that one rendering may give; the longest contexts of models have a few million."""
_DATE: Final = "strftime_now"
_MAX_REASON: Final = 500  # characters of what a template says itself
_MEDIA: Final = frozenset(
    "image images image_url input_image video videos video_url audio audios audio_url input_audio".split()  # noqa: SIM905
)
_NOT_OF_THE_TEMPLATE: Final = {
    "add_generation_prompt", "continue_final_message", "conversation", "max_length", "messages", "padding",
    "processor_kwargs", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs",
    "tools", "truncation",
}  # fmt: skip
"""Arguments of `apply_chat_template`: no template would see them, or we say them ourselves."""
_A_MESSAGE: Final = "  A message is a dict such as {'role': 'user', 'content': 'Hello'}."
_MARK_BEGIN, _MARK_END = "\ue0b1\ue0b2", "\ue0b3\ue0b4"
_MARK = re.compile(f"({_MARK_BEGIN}|{_MARK_END})")
_BLOCKS: Final = "(generation blocks)"  # a variable that no template can name: the text of each, if they are marked


class ChatRenderer:
    """Renders conversations by the template of one tokenizer.

    The text is that of `apply_chat_template(messages, tokenize=False)`, of at most `MAX_CHARS` characters, and it never
    depends on the day: a template has `strftime_now` only if `template_kwargs` says which day it is, such as
    "2025-06-01".

    Args:
        tokenizer: One of transformers, or a processor; a processor's own template goes before its tokenizer's.
        template_kwargs: Variables for the template, such as `enable_thinking`; `chat_template` for another template,
            by name or as its source.

    Raises:
        ValueError: A setting is invalid.
    """

    def __init__(self, tokenizer: Any, *, template_kwargs: Mapping[str, Any] | None = None) -> None:
        kwargs = dict(template_kwargs or {})
        if reserved := sorted(kwargs.keys() & {"messages", "tools", "add_generation_prompt"}):
            raise ValueError(f"template_kwargs: expected variables of the template, got {reserved}\n  Give them apart.")
        self._tokenizer = tokenizer
        self._name = tokenizer_of(tokenizer).name_or_path or type(tokenizer).__name__
        self._compiled: dict[bool, CompiledTemplate] = {}
        self._template_name = kwargs.pop("chat_template", None)
        # A template that asks for the day fails without one: the same data would become other tokens tomorrow.
        day = kwargs.pop(_DATE, None)
        self._variables = _plain({**tokenizer_of(tokenizer).special_tokens_map, "documents": None, **kwargs}, None)
        if day is not None:
            try:
                self._variables[_DATE] = date.fromisoformat(day).strftime
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f'template_kwargs: {_DATE} is {shown(day)}\n  Give a day such as "2025-06-01".'
                ) from error

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
            ValueError: There is no template, the messages are invalid, or the template fails, or its text is too long.
        """
        conversation = self.conversation(messages, tools)
        return conversation.render(conversation.messages, add_generation_prompt=add_generation_prompt)

    def conversation(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> "Conversation":
        """Prepares a conversation to be rendered in several ways; see `render`."""
        from transformers.utils.chat_template_utils import get_json_schema

        schemas: list[Any] = []
        for number, tool in enumerate(tools or ()):
            if not isinstance(tool, Mapping) and not callable(tool):
                raise ValueError(
                    f"chat: expected each tool as a JSON schema (a dict) or a function, got {shown(tool)}\n"
                    "  Decode tools that are JSON text before."
                )
            schema = tool if isinstance(tool, Mapping) else get_json_schema(tool)
            schemas.append(_plain(schema, f"tool {number}"))
        plain, with_tools = _plain_messages(messages), tools is not None
        if with_tools not in self._compiled:  # the tokenizer is asked once
            try:
                source = template_source(self._tokenizer, self._template_name, tools)
                self._compiled[with_tools] = _compile(source)
            except Exception as error:  # of transformers where there is none, or jinja's own
                raise _failure(self._name, error) from error
        variables = {**self._variables, "tools": schemas if with_tools else None}
        return Conversation(plain, self._compiled[with_tools], variables, self._name)


class CompiledTemplate(NamedTuple):
    """A chat template, compiled.

    Attributes:
        jinja: The `jinja2.Template`.
        has_marks: Whether it has `{% generation %}` blocks.
    """

    jinja: Any
    has_marks: bool


@dataclass(frozen=True)
class Conversation:
    """A conversation with the template and variables that render it.

    Attributes:
        messages: Plain copies, without keys that are None.
        template: The template.
        variables: All that the template sees but messages and `add_generation_prompt`.
        name: The tokenizer's, for errors.
    """

    messages: list[Message]
    template: CompiledTemplate
    variables: dict[str, Any]
    name: str

    def render(self, messages: list[Message], *, add_generation_prompt: bool = False) -> str:
        """Renders these messages instead of its own; the list may be empty.

        Raises:
            ValueError: The template fails, or its text is longer than `MAX_CHARS`.
        """
        return self._text({"messages": messages, "add_generation_prompt": add_generation_prompt})

    def render_marked(self) -> tuple[str, list[tuple[int, int]]]:
        """Renders its messages; returns the text and the spans [begin, end) of its generation blocks.

        Raises:
            ValueError: The template fails, its text is too long, or its blocks are nested.
        """
        blocks: list[str] = []
        marked = self._text({"messages": self.messages, "add_generation_prompt": False, _BLOCKS: blocks})
        pieces = _MARK.split(marked)  # text, mark, text, mark … text
        if pieces[1::2] != [_MARK_BEGIN, _MARK_END] * len(blocks):
            raise _failure(self.name, ValueError("its generation blocks are nested, or their text was cut or repeated"))
        edges = list(accumulate(map(len, pieces[::2])))[:-1]
        return "".join(pieces[::2]), list(zip(edges[::2], edges[1::2], strict=True))

    def _text(self, variables: dict[str, Any]) -> str:
        pieces, left = [], MAX_CHARS
        try:
            for piece in self.template.jinja.generate(variables | self.variables):
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    raise OverflowError(f"its text is longer than {MAX_CHARS:,} characters")
        except Exception as error:  # a template may raise anything
            raise _failure(self.name, error) from error
        return "".join(pieces)


@functools.lru_cache(maxsize=64)
def _compile(source: str) -> CompiledTemplate:
    from jinja2 import nodes

    environment = _environment()
    tree = environment.parse(source)
    has_marks = any(node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute))
    return CompiledTemplate(environment.from_string(tree), has_marks)


@functools.cache
def _environment() -> Any:
    """The environment in which transformers renders, with generation marks of ours, and without what is not steady."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from transformers.utils.chat_template_utils import _compile_jinja_template

    class GenerationMarks(Extension):
        """`{% generation %}text{% endgeneration %}`, whose marks travel with the text, through macros and captures."""

        tags: Any = frozenset({"generation"})
        priority = 101  # later than the extension of transformers, whose place it takes

        def parse(self, parser: Any) -> nodes.Node:
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("mark", [nodes.ContextReference()])
            return nodes.CallBlock(call, [], [], body).set_lineno(lineno)

        def mark(self, context: Any, caller: Callable[[], str]) -> str:
            blocks, text = context.get(_BLOCKS), caller()
            if blocks is None:
                return text
            blocks.append(text)
            return f"{_MARK_BEGIN}{text}{_MARK_END}"

    # transformers makes its environment in there only, with filters and extensions that differ between its versions.
    environment = _compile_jinja_template("").environment.overlay(extensions=[GenerationMarks])
    # The same conversation is the same text, always; for the day see `ChatRenderer`.
    for names, unsteady in (("globals", (_DATE, "lipsum")), ("filters", ("random",))):
        kept = {name: value for name, value in getattr(environment, names).items() if name not in unsteady}
        setattr(environment, names, kept)
    return environment


def _failure(name: str, error: Exception) -> ValueError:
    """The error that names the template and its line, with what it says itself: on one line, cut."""
    remedy = "Change the messages, or give the tokenizer a chat_template that takes them."
    if _DATE in str(error):
        remedy = f'Give the day in template_kwargs, such as {_DATE}: "2025-06-01"; the text must not depend on it.'
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename in ("<template>", "<unknown>")]
    where = f", line {lines[-1]}" if lines else ""
    text = str(error)
    reason = one_line(without_secrets(text[:_MAX_REASON])) + "…" * (len(text) > _MAX_REASON)
    return ValueError(f"chat template of {shown(name)}{where}: {type(error).__name__}: {reason}\n  {remedy}")


def template_source(tokenizer: Any, name: str | None = None, tools: Sequence[Any] | None = None) -> str:
    """Returns the source of the template that a tokenizer or processor renders with.

    Args:
        tokenizer: Either.
        name: The name of one of several templates; or a source, which is returned as it is.
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


def not_variables(kwargs: Mapping[Any, Any]) -> list[Any]:
    """The keys that are not variables of a template."""
    return [key for key in kwargs if not isinstance(key, str) or key in _NOT_OF_THE_TEMPLATE]


def row_template_kwargs(row: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that a row brings in `chat_template_kwargs`, as a mapping or its JSON text; most often none.

    They go before those of the settings.

    Raises:
        ValueError: They are not a mapping, or the template would not see them.
    """
    given = row.get("chat_template_kwargs")
    if not given:
        return {}
    try:
        kwargs = json.loads(given) if isinstance(given, str) else without_nulls(given)
    except json.JSONDecodeError:
        kwargs = None
    if not isinstance(kwargs, dict) or not_variables(kwargs):
        raise ValueError(
            f"chat_template_kwargs: expected variables of the chat template by name, got {shown(given)}\n"
            "  Store a mapping, or its JSON text, of what the template reads."
        )
    return kwargs


def _plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    from transformers.utils.chat_template_utils import _alias_reasoning_fields

    if not isinstance(messages, list | tuple) or not messages:
        raise ValueError(f"chat: expected a list of messages, at least one, got {shown(messages)}\n{_A_MESSAGE}")
    plain: list[Message] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(
                f"chat: expected message {number} to be a dict with a role, got {shown(message)}\n{_A_MESSAGE}"
            )
        plain.append(
            {
                key: _plain(value, None if _is_medium(key) else f"message {number}, key {shown(key)}")
                for key, value in message.items()
                if value is not None
            }
        )
    # A message's reasoning goes by each of the names that templates use for it.
    aliased: list[Message] = _alias_reasoning_fields(plain)
    return aliased


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
