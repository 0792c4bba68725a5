"""Renderings of a conversation with other content in one of its messages, or in all turns of the assistant at once.

full       <user> Hi <end> <assistant> Hello <end> <user> Why? <end> <assistant> Because <end> …
probe      <user> Hi <end> <assistant> ***** <end> <user> Why? <end> <assistant> Because <end> …
turns      <user> Hi <end> <assistant> ***** <end> <user> Why? <end> <assistant> ***** <end> …

A probe says where one content lies; the second way finds most contents of a long conversation by one more rendering,
not two for each turn: what stands between the probes stands between the contents too. Where it does not, `spans` looks
at one message after the other.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from streamdata.text.frame import AddedTokens
from streamdata.text.messages import Message
from streamdata.text.templates import Conversation

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

    def around_last(self, number: int, count: int, *, add_generation_prompt: bool = False) -> Around | None:
        """The text around the content of a message where only the first ones are there."""
        return self.around(
            self.with_message(number, self.probed(number))[:count], add_generation_prompt=add_generation_prompt
        )

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
    numbers = _probed_messages(conversation)
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


def _probed_messages(conversation: Conversation) -> list[int]:
    """The last one is not probed: it may be rendered unlike those before it."""
    return [
        number
        for number, message in enumerate(conversation.messages[:-1])
        if message["role"] == "assistant" and isinstance(message.get("content"), str) and message["content"].strip()
    ]


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
