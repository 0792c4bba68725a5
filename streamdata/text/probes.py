"""Renderings of a conversation with other content: what a chat template writes around answers, and where contents lie.

The text around an answer is learned once, from a small conversation:

asked       <user> ? <end>
prompted    <user> ? <end> <assistant>                            what prompted has more is the header
answered    <user> ? <end> <assistant> ! <end>                    what follows on the answer is its ending
again       <user> ? <end> <assistant> ! <end> <user> ? <end>

Some templates end the last turn in a way of their own, so that `answered` is not how `again` begins; and some write the
assistant's next header at the end though nobody asked for it.

full       <user> Hi <end> <assistant> Hello <end> <user> Why? <end> <assistant> Because <end> …
probe      <user> Hi <end> <assistant> ***** <end> <user> Why? <end> <assistant> Because <end> …
turns      <user> Hi <end> <assistant> ***** <end> <user> Why? <end> <assistant> ***** <end> …

A probe says where one content lies; the second way finds most contents of a long conversation by one more rendering,
not two for each turn: what stands between the probes stands between the contents too. Where it does not, `spans` looks
at one message after the other.
"""

import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from streamdata.text.messages import Message
from streamdata.text.templates import Conversation

# Characters for private use: no tokenizer's rule and no template treats them in a way of its own.
_ASKED, _SAID, _AGAIN = "\ue0e1", "\ue0e2", "\ue0e3"
_ASK: Final[Message] = {"role": "user", "content": _ASKED}
_SAY: Final[Message] = {"role": "assistant", "content": _SAID}
_ASK_AGAIN: Final[Message] = {"role": "user", "content": _AGAIN}
_CALL_ID: Final = "probe0000"  # Mistral's templates want nine letters
_CALL: Final[Message] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": _CALL_ID, "type": "function", "function": {"name": "probe", "arguments": {}}}],
}
_RESULT: Final[Message] = {"role": "tool", "name": "probe", "tool_call_id": _CALL_ID, "content": _AGAIN}
_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {"name": "probe", "description": "probe", "parameters": {"type": "object", "properties": {}}},
}


class AddedTokens:
    """The tokens that a tokenizer finds in a text before all others, such as `<|im_end|>`.

    Args:
        tokens: As text; those of spaces alone do not count.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = frozenset(token for token in tokens if token.strip())
        self._sizes = sorted({len(token) for token in self._tokens}, reverse=True)  # few, however many tokens

    def at(self, text: str, position: int) -> str:
        """The longest one that begins at a position in a text; empty if none does."""
        found = (text[position : position + size] for size in self._sizes)
        return next((token for token in found if token in self._tokens), "")

    def first(self, text: str) -> str:
        """The first one in a text; empty without one."""
        return next(filter(None, (self.at(text, position) for position in range(len(text)))), "")

    def end(self, text: str) -> bool:
        """Whether the text ends with one."""
        return any(text[-size:] in self._tokens for size in self._sizes)

    def begin(self, text: str, position: int) -> int:
        """Where the token begins that a position lies in; the position itself if it lies in none."""
        longest = self._sizes[0] if self._sizes else 0
        begins = range(max(0, position - longest + 1), position)
        return next((begin for begin in begins if begin + len(self.at(text, begin)) > position), position)

    def shared(self, one: str, other: str) -> int:
        """How many characters both begin with, without cutting a token in two."""
        sizes = range(1, min(len(one), len(other)) + 1)
        length = bisect(sizes, False, key=lambda size: not one.startswith(other[:size]))
        return min(self.begin(text, length) for text in (one, other))

    def border(self, text: str, position: int) -> bool:
        """Whether one ends or begins at the position."""
        return bool(self.at(text, position)) or self.end(text[:position])

    def opening(self, text: str) -> list[str]:
        """The added tokens that the text begins with, one after the other."""
        found, position = [], 0
        while token := self.at(text, position):
            found.append(token)
            position += len(token)
        return found


@dataclass(frozen=True)
class Frame:
    """The text that a template writes around an answer.

    Attributes:
        header: The assistant's, as in the generation prompt; empty where there is none.
        stem: The part of it that stands before every answer: some prompts go on, such as with `<think>`.
        dangling: A header, or its beginning, that stands at the end of every conversation.
        endings: Texts that follow on an answer, as the last one or before a user's message.
        has_stop: Whether an answer that is trained ends with an added token.
        next_user: The token with which a user's message begins directly after an answer; empty without one.
        next_tool: The token with which a tool's result begins directly after a call; empty without one.
    """

    header: str = ""
    stem: str = ""
    dangling: str = ""
    endings: tuple[str, ...] = ()
    has_stop: bool = True
    next_user: str = ""
    next_tool: str = ""


def learn_frame(conversation: Conversation, tokens: AddedTokens) -> Frame | None:
    """Learns what a template writes around an answer; None if it takes no small conversation.

    Args:
        conversation: Any of the template's; only what the template sees beside messages is used.
        tokens: The tokenizer's.
    """
    has_tools = conversation.variables.get("tools") is not None
    variables = {**conversation.variables, "tools": [_TOOL] if has_tools else None}
    small = replace(conversation, variables=variables)
    # Texts first: a template that expects texts may take typed parts too, and print them as a list.
    return _Lesson(small, tokens, typed=False).frame() or _Lesson(small, tokens, typed=True).frame()


class _Lesson:
    """One small conversation, its contents texts or typed parts."""

    def __init__(self, conversation: Conversation, tokens: AddedTokens, *, typed: bool) -> None:
        self._conversation, self._tokens, self._typed = conversation, tokens, typed

    def frame(self) -> Frame | None:
        asked, prompted = self._rendered(_ASK), self._rendered(_ASK, prompt=True)
        answered, again = self._rendered(_ASK, _SAY), self._rendered(_ASK, _SAY, _ASK_AGAIN)
        if not asked or not prompted or not answered or not again:
            return None
        last, between = answered.split(_SAID)[1], again.split(_SAID)[1].split(_AGAIN)[0]
        dangling = self._dangling(last, between, asked, answered)
        body = self._tokens.shared(prompted, asked) - len(dangling)
        header = prompted[body:].lstrip()  # a header at the start of a text may lack the space
        called = self._rendered(_ASK, _CALL)
        result = self._rendered(_ASK, _CALL, _RESULT) if called else None
        # The stem stands before all answers, empty ones too, as far after the question as the header does.
        offset = len(prompted) - len(header) - prompted.index(_ASKED)
        answers = filter(None, (answered, again, self._rendered(_ASK, {**_SAY, "content": ""}), called))
        shared = [self._tokens.shared(text[text.index(_ASKED) + offset :], header) for text in answers]
        endings = [last.removesuffix(dangling)]
        if header and (after := self._rendered(_ASK, _SAY, prompt=True)) and after.endswith(header):
            endings.append(after.split(_SAID)[1].removesuffix(header))
        begin, end = answered.index(_SAID) + 1, len(answered) - len(dangling)
        said = [(begin, end)]
        if self._conversation.template.has_marks:
            _, marks = replace(self._conversation, messages=self._messages(_ASK, _SAY)).render_marked()
            said = [(max(begin, mark), stop) for mark, stop in marks]
        next_tool = ""
        if called and result and result.startswith(called):
            next_tool = self._tokens.at(result[len(called) :].lstrip(), 0)
        return Frame(
            header=header,
            stem=header[: min(filter(None, shared), default=0)],
            dangling=dangling,
            endings=tuple(sorted({ending for ending in endings if ending}, key=len, reverse=True)),
            has_stop=any(self._tokens.first(answered[first:stop]) for first, stop in said),
            next_user=self._tokens.at(between.lstrip(), 0),
            next_tool=next_tool,
        )

    def _dangling(self, last: str, between: str, asked: str, answered: str) -> str:
        """Text that the template writes after the last message, whoever's it is, and that an answer begins with.

        A token that opens the text opens a message too: it does not end one.
        """
        if between.startswith(last):
            return ""
        size = self._tokens.shared(last, between)
        opened = [last.find(token, 0, size) for token in self._tokens.opening(answered)]
        rest = last[min([size, *(position for position in opened if position >= 0)]) :]
        return rest if asked.endswith(rest) and answered.startswith(asked) else ""

    def _rendered(self, *messages: Message, prompt: bool = False) -> str | None:
        """The messages as text; None if the template refuses them, or has not each content once."""
        try:
            text = self._conversation.render(self._messages(*messages), add_generation_prompt=prompt)
        except ValueError:
            return None
        contents = [message["content"] for message in messages if message["content"]]
        return text if all(text.count(content) == 1 for content in contents) else None

    def _messages(self, *messages: Message) -> list[Message]:
        if not self._typed:
            return list(messages)
        return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


Span = tuple[int, int]
_PRIVATE: Final = (*range(0xE000, 0xF900), *range(0xF0000, 0x110000))
"""Characters for private use; the first that the text lacks is the probe, which must begin as no content does."""
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
_MIN_TURNS: Final = 3
"""Below, looking at one message after the other is as quick."""
_PROBE: Final = "\ue0f1{}\ue0f2"
_PROBES = re.compile("\ue0f1(\\d+)\ue0f2")


class Around(NamedTuple):
    """The text before and after a content."""

    before: str
    after: str


class Probes:
    """Renderings of one conversation's parts.

    Args:
        conversation: With its messages.
        text: These, rendered without a generation prompt.
        dangling: Text that the template writes at the end of every conversation, and that is not of its last message.
        tokens: The tokenizer's added tokens, which are not halved.

    Attributes:
        messages: The conversation's.
        text: Without what is dangling.
        probe: The content that stands for another one.
    """

    def __init__(self, conversation: Conversation, text: str, dangling: str, tokens: AddedTokens) -> None:
        self._conversation, self._dangling, self._tokens = conversation, dangling, tokens
        self.messages = conversation.messages
        self.text = text.removesuffix(dangling)
        self.probe = next(probe for probe in map(chr, _PRIVATE) if probe not in text)
        self._full: dict[int, Around | None] = {}

    def rendered(self, messages: list[Message], *, add_generation_prompt: bool = False) -> str | None:
        """Messages as text, without what is dangling; None if the template refuses them, as many do without a user."""
        try:
            text = self._conversation.render(messages, add_generation_prompt=add_generation_prompt)
        except ValueError:
            return None
        return text if add_generation_prompt else text.removesuffix(self._dangling)

    def length_of_prefix(self, count: int, *, add_generation_prompt: bool = False) -> int | None:
        """How long the rendering of the first messages is, if the full text begins with it."""
        prefix = self.rendered(self.messages[:count], add_generation_prompt=add_generation_prompt)
        return len(prefix) if prefix is not None and self.text.startswith(prefix) else None

    def around(self, messages: list[Message], *, add_generation_prompt: bool = False) -> Around | None:
        """The text around the probe; None if it is not there exactly once."""
        pieces = (self.rendered(messages, add_generation_prompt=add_generation_prompt) or "").split(self.probe)
        return Around(*pieces) if len(pieces) == len(Around._fields) else None

    def around_full(self, number: int) -> Around | None:
        """The text around the content of a message in the full conversation."""
        if number not in self._full:
            self._full[number] = self.around(self.with_message(number, self.probed(number)))
        return self._full[number]

    def content_begin(self, number: int) -> int | None:
        """Where the content of a message begins, or its thinking; None if that is not rendered as it is, once."""
        around = self.around_full(number)
        return None if around is None else self._tokens.shared(self.text, around.before + self.probe)

    def is_left_out(self, number: int) -> bool:
        """Whether the full text has the message without its content."""
        text = self.rendered(self.with_message(number, self.probed(number)))
        return text is not None and self.probe not in text

    def probed(self, number: int) -> Message:
        """A message that says something else, without thinking."""
        return self.with_content(number, self.probe)

    def with_content(self, number: int, content: str) -> Message:
        """A message with another content, without thinking."""
        message = without_thinking(self.messages[number])
        typed = isinstance(message.get("content"), list)
        return {**message, "content": [{"type": "text", "text": content}] if typed else content}

    def with_message(self, number: int, message: Message) -> list[Message]:
        """All messages, one of them replaced."""
        return [*self.messages[:number], message, *self.messages[number + 1 :]]

    def before(self, number: int) -> list[list[Message]]:
        """The messages before one, and the same without thinking, which many templates leave out if others follow."""
        messages = self.messages[:number]
        return [messages, list(map(without_thinking, messages))]


def without_thinking(message: Message) -> Message:
    """The message without what it thought."""
    return {key: value for key, value in message.items() if key not in _REASONING}


class Turn(NamedTuple):
    """Where the content of one message lies.

    Attributes:
        content: [begin, end) in the text.
        before: The text between the content of the turn before, or the start, and this one.
    """

    content: Span
    before: str


def find_turns(conversation: Conversation, text: str) -> dict[int, Turn]:
    """Finds the contents of the assistant's messages but the last one.

    Args:
        conversation: With its messages.
        text: These, rendered.

    Returns:
        By number of the message; nothing if contents cannot be distinguished from what is around them.
    """
    # The last one is not probed: it may be rendered unlike those before it.
    earlier = enumerate(conversation.messages[:-1])
    said = [(number, message.get("content")) for number, message in earlier if message["role"] == "assistant"]
    numbers = [number for number, content in said if isinstance(content, str) and content.strip()]
    if len(numbers) < _MIN_TURNS:
        return {}
    messages = list(conversation.messages)
    for turn, number in enumerate(numbers):
        messages[number] = {**messages[number], "content": _PROBE.format(turn)}
    try:
        pieces = _PROBES.split(conversation.render(messages))
    except ValueError:  # the template wants other contents there
        return {}
    if pieces[1::2] != list(map(str, range(len(numbers)))):
        return {}
    between = pieces[::2]
    contents = _contents(text, between)
    before = zip(numbers, contents, between[:-1], strict=True) if contents else ()
    return {number: Turn(content, glue) for number, content, glue in before}


def _contents(text: str, between: Sequence[str]) -> list[Span] | None:
    """The spans of the text between these pieces, if there is exactly one way to find them."""
    if not text.startswith(between[0]) or not text.endswith(between[-1]) or not all(between):
        return None
    first, last = len(between[0]), len(text) - len(between[-1])
    earliest, latest = [], []
    position = first
    for glue in between[1:-1]:
        earliest.append(text.find(glue, position, last))
        position = earliest[-1] + len(glue)
    position = last
    for glue in between[-2:0:-1]:
        latest.append(text.rfind(glue, first, position))
        position = latest[-1]
    # A piece may stand in a content too: it is certain which is which only if the first and the last way to fit all
    # pieces agree.
    if earliest != latest[::-1] or min(earliest, default=0) < 0:
        return None
    begins = [first, *(position + len(glue) for position, glue in zip(earliest, between[1:-1], strict=True))]
    return list(zip(begins, [*earliest, last], strict=True))
