"""Parts of a conversation, rendered, and the same with another content in one message.

full       <user> Hi <end> <assistant> Hello <end> <user> …
probe      <user> Hi <end> <assistant> ***** <end> <user> …
"""

from typing import Final, NamedTuple

from streamdata.text.frame import AddedTokens
from streamdata.text.messages import Message
from streamdata.text.templates import Conversation

_PROBES: Final = (*range(0xE000, 0xF900), *range(0xF0000, 0x110000))
"""Characters for private use; the first that the text lacks is the probe, which must begin as no content does."""
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")


class Around(NamedTuple):
    """What stands around a content."""

    before: str
    after: str


class Probes:
    """Renderings of one conversation's parts.

    Args:
        conversation: With its messages.
        text: These, rendered without a generation prompt.
        dangling: What the template writes at the end of every conversation, and that is not of its last message.
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
        self.probe = next(probe for probe in map(chr, _PROBES) if probe not in text)
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
        """What is around the probe; None if it is not there exactly once."""
        pieces = (self.rendered(messages, add_generation_prompt=add_generation_prompt) or "").split(self.probe)
        return Around(*pieces) if len(pieces) == len(Around._fields) else None

    def around_last(self, number: int, count: int, *, add_generation_prompt: bool = False) -> Around | None:
        """What is around the content of a message where only the first ones are there."""
        return self.around(
            self.with_message(number, self.probed(number))[:count], add_generation_prompt=add_generation_prompt
        )

    def around_full(self, number: int) -> Around | None:
        """What is around the content of a message in the full conversation."""
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
