"""Which characters of a rendered conversation are what one message says.

The text up to an assistant's message is the rendering of the messages before it with the generation prompt, and its end
is that of the rendering up to and with it, as long as these are *prefixes* of the whole:

whole      <user> Hi <end> <assistant> Hello <end> <user> …
before     <user> Hi <end> <assistant>
with it    <user> Hi <end> <assistant> Hello <end>

Many templates render a message otherwise when others follow (they remove the "thinking" of earlier turns), or give a
generation prompt that no rendered message begins with, or refuse a conversation that ends there. Then the message is
found by a *probe*: the same conversation with another content in its place differs from the whole in that place only.

whole      <user> Hi <end> <assistant> Hello <end> <user> …
probe      <user> Hi <end> <assistant> ***** <end> <user> …
"""

from bisect import bisect
from functools import cached_property
from typing import Final

from streamdata.text.templates import Conversation, Message
from streamdata.text.turns import Span, Turn, find_turns

_PROBES: Final = (*range(0xE000, 0xF900), *range(0xF0000, 0x110000))
"""Characters for private use. A probe must begin as no content does."""
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")


class MessageSpans:
    """Finds messages in a rendered conversation.

    Args:
        conversation: with its messages.
        text: these, rendered without a generation prompt.
        turn_ends: the tokenizer's added tokens; where one ends a message, the space after it is the template's.
    """

    def __init__(self, conversation: Conversation, text: str, turn_ends: tuple[str, ...]) -> None:
        self._conversation = conversation
        self._messages = conversation.messages
        self._text = text
        self._turn_ends = turn_ends
        self._probe = next(probe for probe in map(chr, _PROBES) if probe not in text)

    def span(self, number: int) -> Span:
        """Returns [begin, end) of what a message says, its end of turn included, its header not.

        Raises:
            ValueError: the template renders it in a way in which its part cannot be told from the others'.
        """
        return self._known.get(number) or self._span(number)

    @cached_property
    def _known(self) -> dict[int, Span]:
        """Turns that were found together; the first one, found by itself, says how a turn begins and ends."""
        turns = find_turns(self._conversation, self._text)
        if not turns:
            return {}
        number, first = next(iter(turns.items()))
        try:
            begin, end = self._span(number)
        except ValueError:  # perhaps nobody asks for that one
            return {}
        header = self._generation_prompt(number)
        end_of_turn = self._text[first.content[1] : end]
        found = {number: self._extended(turn, header, end_of_turn) for number, turn in turns.items()}
        if found[number] != (begin, end):
            return {}
        return {number: span for number, span in found.items() if span is not None}

    def _extended(self, turn: Turn, header: str, end_of_turn: str) -> Span | None:
        """The span of a turn, from its header on and with its end."""
        begin, end = turn.content
        if not self._text.startswith(end_of_turn, end):
            return None
        if not header:
            begin = self._without_header(begin)
        elif not turn.before.endswith(header) and header in turn.before + self._text[begin : begin + len(header)]:
            return None  # something stands between header and content, or they overlap
        return begin, end + len(end_of_turn)

    def _span(self, number: int) -> Span:
        begin, end = self._begin_by_prefix(number), self._end_by_prefix(number)
        if begin is None:
            begin = self._begin_by_probe(number)
        if end is None or end < begin:
            end = self._end_by_probe(number)
        if end < begin:
            raise self._lost(number, "its end comes before its beginning")
        return begin, begin + len(self._without_space(self._text[begin:end]))

    def _begin_by_prefix(self, number: int) -> int | None:
        if self._messages[number]["role"] != "assistant":
            return None  # the generation prompt is the assistant's header alone
        begin = self._length_of_prefix(number, add_generation_prompt=True)
        if begin is None or begin != self._length_of_prefix(number):
            return begin
        try:
            return self._without_header(self._content_begin(number))
        except ValueError:
            return begin  # a message without content, such as a call of tools

    def _without_header(self, content: int) -> int:
        """A template without generation prompt may have a header all the same: the text before the content.

        A space at its end belongs to the word that follows, as tokenizers have it.
        """
        return len(self._text[:content].rstrip(" "))

    def _end_by_prefix(self, number: int) -> int | None:
        if number + 1 == len(self._messages):
            return len(self._text)
        return self._length_of_prefix(number + 1)

    def _length_of_prefix(self, count: int, *, add_generation_prompt: bool = False) -> int | None:
        """How long the rendering of the first messages is, if the whole begins with it."""
        prefix = self._rendered(self._messages[:count], add_generation_prompt=add_generation_prompt)
        return len(prefix) if prefix is not None and self._text.startswith(prefix) else None

    def _rendered(self, messages: list[Message], *, add_generation_prompt: bool = False) -> str | None:
        """A part of the conversation; None if the template refuses it, as many do without a user."""
        try:
            return self._conversation.render(messages, add_generation_prompt=add_generation_prompt)
        except ValueError:
            return None

    def _begin_by_probe(self, number: int) -> int:
        content = self._content_begin(number)
        if self._messages[number]["role"] != "assistant":
            return content
        header = self._generation_prompt(number)
        if not header:
            return self._without_header(content)
        start = None if self._messages[number].get("content") else self._length_of_prefix(number)
        if start is not None:
            # A call of tools, which a template may put before the place of the content.
            return self._token_begin(start + _shared_length(self._text[start:content], header))
        after = self._content_begin(number - 1) if number else 0
        # Between header and content the template may have put "thinking", which the assistant says too.
        found = self._text.rfind(header, after, content + len(header))
        return content if found < 0 else found + len(header)

    def _token_begin(self, place: int) -> int:
        """The place, or where an added token begins that it lies in."""
        for token in self._turn_ends:
            inside = self._text.rfind(token, max(0, place - len(token) + 1), place + len(token) - 1)
            if inside >= 0:
                return min(place, inside)
        return place

    def _content_begin(self, number: int) -> int:
        """Where the content of a message begins, or something in the message before it."""
        return _shared_length(self._text, self._probed(number, len(self._messages)))

    def _generation_prompt(self, number: int) -> str:
        """What the template adds for the assistant to go on, before this message or else at the end."""
        for count in (number, len(self._messages)):
            bare = self._rendered(self._messages[:count])
            prompted = self._rendered(self._messages[:count], add_generation_prompt=True)
            if bare is not None and prompted is not None and prompted.startswith(bare):
                return prompted[len(bare) :]
        return ""

    def _end_by_probe(self, number: int) -> int:
        alone, whole = (
            self._probed(number, count).split(self._probe)[1] for count in (number + 1, len(self._messages))
        )
        end_of_turn = self._without_space(alone)
        rest = whole[len(end_of_turn) :]
        if not whole.startswith(end_of_turn) or not self._text.endswith(rest):
            raise self._lost(number, "it ends in another way when others follow")
        return len(self._text) - len(rest)

    def _probed(self, number: int, count: int) -> str:
        """The first messages, with another content in one of them."""
        message = {key: value for key, value in self._messages[number].items() if key not in _REASONING}
        typed = isinstance(message.get("content"), list)
        message["content"] = [{"type": "text", "text": self._probe}] if typed else self._probe
        messages = [*self._messages[:number], message, *self._messages[number + 1 : count]]
        text = self._rendered(messages)
        if text is None or text.count(self._probe) != 1:
            raise self._lost(number, "its content is not rendered as it is, exactly once")
        return text

    def _without_space(self, text: str) -> str:
        """The text up to its end of turn, if only space follows on that."""
        bare = text.rstrip()
        return bare if bare.endswith(self._turn_ends) else text

    def _lost(self, number: int, why: str) -> ValueError:
        return ValueError(
            f"chat template of {self._conversation.name!r}: expected to find what message {number} "
            f"({self._messages[number]['role']}) says in the rendered conversation, but {why}\n"
            "  Mark in the template what the assistant says, by {% generation %} and {% endgeneration %}."
        )


def _shared_length(one: str, other: str) -> int:
    """How many characters both begin with."""
    sizes = range(1, min(len(one), len(other)) + 1)
    return bisect(sizes, False, key=lambda size: not one.startswith(other[:size]))
