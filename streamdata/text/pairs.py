"""Pairs of conversations, one preferred: the prompt that both answer, and what of them is trained.

prompt     Hi                        chosen     Hi | Hello     trained   ^^^^^
chosen        Hello            →     rejected   Hi | What?     trained   ^^^^^
rejected      What?

Offline and online, pairs are put together here.
"""

from collections.abc import Sequence
from itertools import takewhile

from streamdata.errors import shown
from streamdata.text.masks import TRAIN_KEY
from streamdata.text.messages import Message, text_of


def with_prompt(prompt: Sequence[Message] | str, messages: Sequence[Message]) -> list[Message]:
    """The conversation that begins with a prompt.

    Args:
        prompt: Messages, which go first unless the conversation begins with them already; or a text, which some data
            sets have beside whole conversations: it has to be what their first user says.
        messages: The conversation, or the end of it.

    Raises:
        ValueError: It is a text, and no user of the conversation begins with it; or messages, and the conversation
            begins with the last of them, but not with all.
    """
    if not isinstance(prompt, str):
        if _all_said(messages[: len(prompt)]) == _all_said(prompt):
            return list(messages)
        _check_not_repeated(prompt, messages)
        return [*prompt, *messages]
    asked = next((text_of(message) for message in messages if message.get("role") == "user"), None)
    if asked is None or asked.strip() != prompt.strip():
        raise ValueError(
            f"prompt: expected messages, or the text that the first user says, {shown(asked)}, "
            f"got the text {shown(prompt)}\n"
            "  Store the prompt as messages, or name no field of prompts (prompt_key: null in a dataset)."
        )
    return list(messages)


def _check_not_repeated(prompt: Sequence[Message], messages: Sequence[Message]) -> None:
    """Refuse a conversation in which the prompt's last message would stand twice before the first answer."""
    asked = takewhile(lambda message: message.get("role") != "assistant", messages)
    if prompt and any(_gist(message) == _gist(prompt[-1]) for message in asked):
        raise ValueError(
            f"prompt: expected the conversation to begin with all of it or to answer it, got its last message again, "
            f"{shown(text_of(prompt[-1]))}\n"
            "  Store whole conversations, and name no field of prompts (prompt_key: null in a dataset), "
            "or leave the prompt out of them."
        )


def mask_shared(chosen: Sequence[Message], rejected: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Both conversations, where the messages that both begin with are a prompt, and not trained."""
    pairs = zip(_all_said(chosen), _all_said(rejected), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return _masked(chosen, shared), _masked(rejected, shared)


def _masked(messages: Sequence[Message], count: int) -> list[Message]:
    return [*({**message, TRAIN_KEY: False} for message in messages[:count]), *messages[count:]]


def _all_said(messages: Sequence[Message]) -> list[Message]:
    """The messages without what they do not say: nulls, and whether they are trained."""
    return [
        {key: value for key, value in message.items() if value is not None and key != TRAIN_KEY} for message in messages
    ]


def _gist(message: Message) -> tuple[object, str]:
    return message.get("role"), text_of(message).strip()
