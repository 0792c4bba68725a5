"""Finding the characters of a rendered conversation that are what one message says.

The text up to an assistant's message is the rendering of the messages before it with the generation prompt, and its end
is that of the rendering up to and with it, as long as these are *prefixes* of the rendered
conversation:

full       <user> Hi <end> <assistant> Hello <end> <user> …
before     <user> Hi <end> <assistant>
with it    <user> Hi <end> <assistant> Hello <end>

Many templates render a message differently when others follow (they remove the "thinking" of earlier turns), or have a
generation prompt that no rendered message begins with, or refuse a conversation that ends there. Then the message is
found by a *probe*: the same conversation with other content in this message differs from the full text there only. What
follows the content there must be what follows it elsewhere: as the last message, or before an answer.

full       <user> Hi <end> <assistant> Hello <end> <user> …
probe      <user> Hi <end> <assistant> ***** <end> <user> …

What the assistant says begins where the text leaves the generation prompt, whatever it says: of the prompt
`<assistant> <think>` and the text `<assistant> <think> </think> Hello <end>`, that is `</think> Hello <end>`.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import takewhile
from typing import Final

from streamdata.errors import shown
from streamdata.text.messages import Message
from streamdata.text.probes import AddedTokens, Frame, Probes, Span, Turn, find_turns, without_thinking
from streamdata.text.templates import Conversation

_SAME_TURN: Final = ("assistant", "tool")
"""Roles that may come before a message of the assistant that has no header of its own."""
_NOT_ONCE: Final = "its content is not rendered as it is, exactly once"
_NEARBY: Final = 256
"""Characters in which an added token, or the space before a header, ends."""


class MessageSpans:
    """Finds messages in a rendered conversation.

    Args:
        conversation: With its messages.
        text: These, rendered without a generation prompt.
        tokens: The tokenizer's added tokens; where one ends a message, the space after it is the template's.
        frame: The text that the template writes around answers.
    """

    def __init__(self, conversation: Conversation, text: str, tokens: AddedTokens, frame: Frame) -> None:
        self._conversation, self._rendering = conversation, text
        self._tokens, self._frame = tokens, frame
        self._probes = Probes(conversation, text, frame.dangling, tokens)
        self._messages, self._text = self._probes.messages, self._probes.text

    def spans(self, number: int) -> list[Span]:
        """Returns each [begin, end) of what a message says, its end of turn included, its header not.

        There is one, except where a template puts the results of tools between a call and the content beside it.

        Raises:
            ValueError: The template renders it in such a way that its part cannot be distinguished from the others.
        """
        # Probing renders the conversation again for each message, so that long ones would take quadratic time.
        known = self._known.get(number)
        return self._spans(number) if known is None else [known]

    @cached_property
    def _known(self) -> dict[int, Span]:
        """Turns that were found together; the first one, found by itself, says how a turn begins and ends."""
        turns = find_turns(self._conversation, self._rendering)
        if not turns:
            return {}
        number, first = next(iter(turns.items()))
        try:
            spans = self._spans(number)
        except ValueError:  # perhaps nobody asks for this message
            return {}
        begin, end = spans[0]
        header = self._text[max(0, self._text.rfind(self._frame.stem, 0, begin)) : begin]
        lead, end_of_turn = self._text[begin : first.content[0]], self._text[first.content[1] : end]
        found = {number: self._extended(turn, header, lead, end_of_turn) for number, turn in turns.items()}
        # The first turn is known both ways. If they differ, what holds around it need not hold around the others.
        if [found[number]] != spans:
            return {}
        return {
            number: span
            for number, span in found.items()
            if span is not None and "tool_calls" not in self._messages[number]
        }

    def _extended(self, turn: Turn, header: str, lead: str, end_of_turn: str) -> Span | None:
        """The span of a turn, from its header on and with its end; None if something else stands around the content."""
        begin, end = turn.content
        if not self._text.startswith(end_of_turn, end):
            return None
        if not self._frame.header:
            return self._without_header(begin), end + len(end_of_turn)
        opening, said = header + lead, begin - len(lead)
        first = turn.before.find(self._frame.stem)
        if not turn.before.endswith(opening) or first != len(turn.before) - len(opening):
            return None
        more = self._frame.header[len(header) :][:1]
        is_longer = bool(more) and self._text.startswith(more, said)  # perhaps it goes on as the prompt does
        return None if is_longer else (said, end + len(end_of_turn))

    def _spans(self, number: int) -> list[Span]:
        begin = self._begin(number)
        end = self._end(number, begin)
        if end < begin:
            raise self._lost(number, "its end comes before its beginning")
        end = begin + len(self._without_space(self._text[begin:end]))
        pause = self._pause(number, begin, end)
        return [(begin, end)] if pause is None else [(begin, pause[0]), (pause[1], end)]

    def _begin(self, number: int) -> int:
        if self._messages[number]["role"] != "assistant":
            begin = self._probes.content_begin(number)  # the generation prompt is the assistant's header alone
            if begin is None:
                raise self._lost(number, _NOT_ONCE)
            return begin
        start = self._probes.length_of_prefix(number)
        prompted = self._probes.length_of_prefix(number, add_generation_prompt=True)
        if prompted is not None and prompted != start:
            return prompted
        start = self._end_before(number) if start is None else start
        content = self._probes.content_begin(number)
        if content is None and start is None:
            raise self._lost(number, _NOT_ONCE)
        if not self._frame.stem:
            return start if content is None and start is not None else self._without_header(content or 0)
        position = self._header(number, start, content)
        return self._after_header(self._text, position, self._limit(number, content))

    def _header(self, number: int, start: int | None, content: int | None) -> int:
        """Where the header of an assistant's message begins; without one, where the message does.

        Args:
            number: The message.
            start: Where the message before it ends, if that is known.
            content: Where its content begins, if that is rendered.
        """
        limit, stem = self._limit(number, content), self._frame.stem
        goes_on = number > 0 and self._messages[number - 1]["role"] in _SAME_TURN
        if start is None:
            content_end = len(self._text) - len(self._after(number - 1)) if number else 0
            position = self._text.rfind(stem, content_end, min(limit, (content or 0) + len(stem)))
        else:
            nearby = self._text[start : start + _NEARBY]
            position = start + len(nearby) - len(nearby.lstrip())
            if not self._text.startswith(stem, position) or position + len(stem) > limit:
                position = start if goes_on else self._text.find(stem, start, content)
        if position >= 0:
            return position
        # After a call or a tool's result some templates go on in the same turn, without another header.
        if content is not None and goes_on and "tool_calls" not in self._messages[number]:
            return content
        if content is not None and start is not None and start + self._shared(self._text, start) == content:
            return content
        raise self._lost(number, "it does not begin with the assistant's header")

    def _limit(self, number: int, content: int | None) -> int:
        """Up to where a header may reach: the content may begin as headers do."""
        message = self._messages[number]
        is_exact = content is not None and message.get("content") and without_thinking(message) == message
        return content if is_exact and content is not None else len(self._text)

    def _after(self, number: int) -> str:
        """The text that follows on the content of a message where a probe stands in its place."""
        around = self._probes.around_full(number)
        if around is None:
            raise self._lost(number, _NOT_ONCE)
        return around.after

    def _after_header(self, text: str, position: int, limit: int | None = None) -> int:
        """Where the text leaves the generation prompt, if that begins at the position; else the position."""
        stem = self._frame.stem
        if not stem or not text.startswith(stem, position) or (limit is not None and position + len(stem) > limit):
            return position
        end = position + max(len(stem), self._shared(text, position))
        return end if limit is None else min(end, limit)

    def _shared(self, text: str, position: int) -> int:
        """How much of the generation prompt stands at the position, up to where it or an added token begins or ends."""
        header = self._frame.header
        size = self._tokens.shared(text[position : position + len(header) + _NEARBY], header)
        while 0 < size < len(header) and not self._tokens.border(header, size):
            size -= 1  # what is said may happen to begin as the prompt goes on
        return size

    def _without_header(self, content: int) -> int:
        """A template without generation prompt may have a header all the same: the text before the content.

        A space at its end belongs to the word that follows, as tokenizers have it.
        """
        return len(self._text[:content].rstrip(" "))

    def _end(self, number: int, begin: int) -> int:
        if number + 1 == len(self._messages):
            return len(self._text)
        end = self._probes.length_of_prefix(number + 1)
        if end is not None and end >= begin:
            return end
        if not self._messages[number].get("content") and (end := self._end_by_addition(number, begin)) is not None:
            return end
        # Last resorts: a probe has other content, so that templates which look at contents may render it differently.
        try:
            return self._end_by_probe(number)
        except ValueError:
            if (end := self._end_by_addition(number, begin)) is None:
                raise
            return end

    def _end_before(self, number: int) -> int | None:
        """Where the messages before this one end, the space after them included; None if that is not known."""
        for earlier in reversed(range(number)):
            try:
                end = self._end_by_probe(earlier)
            except ValueError:
                end = 0
            between = [self._probes.content_begin(later) for later in range(earlier + 1, number)]
            if end and all(begin is not None and begin < end for begin in between):
                return end
            if self._messages[earlier]["role"] != "tool":  # whose results may stand inside the message with the call
                break
        return None

    def _end_by_probe(self, number: int) -> int:
        after = self._after(number)
        for ending in self._endings(number):
            rest = after[len(ending) :]
            if after.startswith(ending) and self._text.endswith(rest):
                return len(self._text) - len(rest)
        end = len(self._text) - len(after)
        later = range(number + 1, len(self._messages))
        following = next((each for each in later if self._messages[each]["role"] == "assistant"), None)
        if following is not None and self._text.endswith(after):
            # Right too if the assistant's next message would begin there, at once or with its header.
            probes = self._probes
            begins = tuple(start for start in (probes.probe, self._frame.stem) if start)
            answer = {"role": "assistant", "content": probes.probe}
            texts = [probes.rendered([*messages, answer]) or "" for messages in probes.before(following)]
            if any(text.startswith(self._text[:end]) and text.startswith(begins, end) for text in texts):
                return end
        raise self._lost(number, "it ends differently when others follow")

    def _endings(self, number: int) -> Iterator[str]:
        """Texts that follow the content of a message where it is the last one, or comes before an answer."""
        header, is_refused = self._frame.header, True
        probed = self._probes.with_message(number, self._probes.probed(number))
        results = takewhile(lambda message: message["role"] == "tool", self._messages[number + 1 :])
        for count in dict.fromkeys((1, 1 + len(list(results)))):  # with what tools answered
            if (alone := self._probes.around(probed[: number + count])) is not None:
                is_refused = False
                yield alone.after
                yield self._without_space(alone.after)
        prompted = self._probes.around(probed[: number + 1], add_generation_prompt=True)
        if prompted is not None and header and prompted.after.endswith(header):
            is_refused = False
            yield prompted.after.removesuffix(header)
        if is_refused and self._messages[number]["role"] == "assistant":
            yield from self._frame.endings

    def _end_by_addition(self, number: int, begin: int) -> int | None:
        """The end of a message that is rendered as where it is the last one, though what is before it is not.

        When others follow, it may be without its thinking, or without its content, such as a plan beside a call.
        """
        variants = [self._messages[number]]
        if not self._messages[number].get("content") or self._probes.is_left_out(number):
            variants.append(self._probes.with_content(number, ""))
        for variant in variants:
            added = self._added(number, variant, begin)
            if added and self._text.startswith(added, begin):
                return begin + len(added)
        return None

    def _added(self, number: int, message: Message, begin: int) -> str | None:
        """The text that a message adds to those before it as the last one; it begins in the full text at `begin`."""
        probes = self._probes
        for before in probes.before(number):
            text = probes.rendered([*before, message])
            if text is None:
                continue
            bare, prompted = probes.rendered(before), probes.rendered(before, add_generation_prompt=True)
            for start in (self._text[:begin], prompted if prompted != bare else None):
                if start is not None and text.startswith(start):
                    return text[len(start) :]
            if bare is not None and text.startswith(bare):
                return text[self._after_header(text, len(bare)) :]
        around = probes.around([*self._messages[: number - 1], probes.probed(number - 1), message]) if number else None
        if around is None:
            return None
        fitting = (ending for ending in self._endings(number - 1) if around.after.startswith(ending))
        return next((around.after[self._after_header(around.after, len(ending)) :] for ending in fitting), None)

    def _pause(self, number: int, begin: int, end: int) -> Span | None:
        """The span of what tools say inside of a message, between its call and the content beside it."""
        message, following = self._messages[number], self._messages[number + 1 : number + 2]
        if not message.get("tool_calls") or not following or following[0]["role"] != "tool":
            return None
        probes = self._probes
        position = probes.content_begin(number + 1)
        if position is None or not begin <= position < end:
            return None
        bare = probes.probed(number)
        variants = [{**message, "content": bare["content"]}, bare]  # its thinking may be left out
        for probed in variants if message.get("content") else ():
            before, found, after = (self._added(number, probed, begin) or "").partition(probes.probe)
            full = probes.around(probes.with_message(number, probed))
            if not found or full is None or not self._text.startswith(full.before):
                continue
            stop, resumed = begin + len(before), len(full.before)
            if self._text.startswith(after, stop):  # the call's end
                stop += len(after)
            if self._text.startswith(before, begin) and stop <= position < resumed:
                return stop, resumed
        raise self._lost(number, "what a tool says stands in the middle of it")

    def _without_space(self, text: str) -> str:
        """The text up to its end of turn, if only space follows on that."""
        bare = text.rstrip()
        return bare if self._tokens.end(bare) else text

    def _lost(self, number: int, why: str) -> ValueError:
        return ValueError(
            f"chat template of {shown(self._conversation.name)}: expected to find what message {number} "
            f"({self._messages[number]['role']}) says in the rendered conversation, but {why}\n"
            "  Mark in the template what the assistant says, by {% generation %} and {% endgeneration %}."
        )
