"""All of an assistant's turns at once, in long conversations: one more rendering, not two for each turn.

The contents of all turns are replaced by probes. What stands between the probes then stands between the contents too:

full       <user> Hi <end> <assistant> Hello <end> <user> Why? <end> <assistant> Because <end> …
probed     <user> Hi <end> <assistant> ***** <end> <user> Why? <end> <assistant> ***** <end> …

This says where contents lie, for most messages of most templates; where it does not, `spans` looks at one message.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from streamdata.text.templates import Conversation

Span = tuple[int, int]

MIN_TURNS: Final = 3
"""Below, looking at one message after the other is as quick."""
_PROBE: Final = "\ue0f1{}\ue0f2"
_PROBES = re.compile("\ue0f1(\\d+)\ue0f2")


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
    if len(numbers) < MIN_TURNS:
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
    """What lies in the text between these, if there is exactly one way to find it."""
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
