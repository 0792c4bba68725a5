"""Formats of rows: `fields and what they hold → a name and a style → messages or texts, and what is trained`.

language-modeling     text, or messages                       all of a text, the assistant of messages
prompt-only           prompt                                  nothing: an answer is sampled
prompt-completion     prompt, completion                      the completion
preference            chosen, rejected, maybe prompt          what both do not begin with
unpaired-preference   prompt, completion, label               the completion, wanted or not
sharegpt              conversations, maybe system             the assistant
alpaca                instruction, output, maybe input …      the output

The first five are TRL's names for its formats. Each is standard (texts) or conversational (lists of messages); the last
two are conversational. Online and offline, rows are recognised here, and pairs put together: of a prompt and two
answers, or of two conversations, what both begin with is a prompt.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple

from streamdata.errors import names_text, shown
from streamdata.text.messages import TRAIN_KEY, Message, messages_of, text_of

Style = Literal["standard", "conversational"]
Row = Mapping[str, Any]


class RowFormat(NamedTuple):
    """A format's name, and whether it has texts (standard) or messages (conversational)."""

    name: str
    style: Style

    def __str__(self) -> str:
        return f"{self.name}, {self.style}"


class Texts(NamedTuple):
    """A text in two parts; the first, which may be empty, is not trained."""

    prompt: str
    completion: str


Said = Texts | list[Message]
"""The part of a row that is trained: texts, or a conversation whose prompt has `train: False` in its messages."""
_SPEAKER: Final = frozenset({"role", "from"})
_TURN: Final = ("user", "assistant")
_FORMATS: Final = (
    "language-modeling", "prompt-only", "prompt-completion", "preference", "unpaired-preference", "sharegpt", "alpaca",
)  # fmt: skip
SIDES: Final = ("chosen", "rejected")


def recognise(row: Row, choices: Sequence[str], who: str) -> RowFormat:
    """The one format that a row has.

    Args:
        row: Any of the rows.
        choices: The names that may be.
        who: Who asks, for the error.

    Raises:
        ValueError: None of these fits the row's fields, or several do.
    """
    found = fitting(row, choices)
    if len(found) == 1:
        return found[0]
    fields = ", ".join(repr(key) if row[key] is not None else f"{shown(key)} (null)" for key in sorted(row))
    if found:
        fits = " and ".join(map(str, found))
        raise ValueError(
            f"{who}: expected rows of one format, got the fields [{fields}], which fit {fits}\n"
            "  Name one as format in the config, or drop the fields of the others."
        )
    others = [str(other) for other in fitting(row, _FORMATS) if other.name not in choices]
    hint = f"; they are of {' and '.join(others)}" if others else ""
    raise ValueError(
        f"{who}: expected rows of a format among {', '.join(choices)}, got the fields [{fields}]{hint}\n"
        "  Rename them as the format has them, or name them in the config."
    )


def fitting(row: Row, choices: Sequence[str]) -> list[RowFormat]:
    """All formats among these that the row's fields fit."""
    found: list[RowFormat] = []
    sides = (row.get("chosen"), row.get("rejected"))
    for name in choices:
        fields: list[tuple[Any, ...]] = []
        match name:
            case "language-modeling":
                fields = [(row.get("messages"),), (row.get("text"),)]
            case "prompt-only" if sides == (None, None) and row.get("completion") is None:
                fields = [(row.get("prompt"),)]
            # What has a label may be an example of what not to say.
            case "prompt-completion" | "unpaired-preference" if (row.get("label") is None) is (
                name == "prompt-completion"
            ):
                fields = [(row.get("prompt"), row.get("completion"))]
            case "preference" if not has_own_prompt(row):
                fields = [sides]
            case "preference" if None not in sides:
                found.append(RowFormat(name, "conversational"))
            # With two answers to choose from it is a preference.
            case "sharegpt" if is_chat(row.get("conversations")) and row.get("rejected") is None:
                found.append(RowFormat(name, "conversational"))
            case "alpaca" if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
                found.append(RowFormat(name, "conversational"))
        found += [RowFormat(name, "conversational") for values in fields if all(map(is_chat, values))]
        found += [RowFormat(name, "standard") for values in fields if set(map(type, values)) == {str}]
    return found


def is_chat(value: Any) -> bool:
    """Whether it is a list of messages, by role and content or by from and value."""
    return isinstance(value, list) and value != [] and isinstance(value[0], dict) and not _SPEAKER.isdisjoint(value[0])


def training_said(row: Row, found: RowFormat, who: str, messages_key: str = "messages") -> Said:
    """Reads the texts or messages of a row whose format has no pairs.

    Raises:
        ValueError: A field is missing or of another kind.
    """
    match found:
        case ("language-modeling", "standard"):
            return Texts("", text_in(row, "text", who))
        case ("prompt-completion" | "unpaired-preference", "standard"):
            return Texts(text_in(row, "prompt", who), text_in(row, "completion", who))
        case ("prompt-completion" | "unpaired-preference", _):
            return [*as_prompt(messages_of(row, "prompt", who)), *messages_of(row, "completion", who)]
        case ("sharegpt", _):
            return _conversation(row, who)
        case ("alpaca", _):
            return [*_instruction(row, who), {"role": "assistant", "content": text_in(row, "output", who)}]
        case _:
            return messages_of(row, messages_key, who)


def prompt_said(row: Row, found: RowFormat, who: str) -> list[Message]:
    """The messages of a row's prompt, of a format of conversations: what stands before the last answer."""
    if found.name == "alpaca":
        return _instruction(row, who)
    messages = _conversation(row, who)
    while len(messages) > 1 and messages[-1].get("role") == "assistant":
        messages.pop()
    return messages


def pair_said(
    row: Row, found: RowFormat, who: str, prompt_key: str | None = "prompt", sides: tuple[str, str] = SIDES
) -> tuple[Said, Said]:
    """Reads the preferred and the rejected side of a row.

    Args:
        row: Has texts, a prompt of ShareGPT's or Alpaca's and two answers, or two conversations.
        found: Its format.
        who: Who asks, for the error.
        prompt_key: The column that both conversations begin with, before a prompt of ShareGPT's or Alpaca's; rows may
            lack the column "prompt", no other. None where both have the prompt already.
        sides: The columns of both.

    Raises:
        ValueError: A field is missing or of another kind.
    """
    if found.style == "standard":
        before = "" if row.get("prompt") is None else text_in(row, "prompt", who)
        return Texts(before, text_in(row, "chosen", who)), Texts(before, text_in(row, "rejected", who))
    if has_own_prompt(row) and prompt_key not in row:
        said = as_prompt(_conversation(row, who) if "conversations" in row else _instruction(row, who))
        pair = []
        for key in SIDES:
            value = row.get(key)
            answer = {"role": "assistant", "content": value} if isinstance(value, str) else value
            answers = [answer] if isinstance(answer, dict) else answer
            pair.append([*said, *messages_of({**row, key: answers}, key, who)])
        return pair[0], pair[1]
    # The prompt goes before both first: what they share is compared over complete conversations.
    prompt: str | Sequence[Message] = []
    if prompt_key is not None and (row.get(prompt_key) or (prompt_key not in row and prompt_key != "prompt")):
        value = row.get(prompt_key)
        prompt = value if isinstance(value, str) else messages_of(row, prompt_key, who)
    return mask_shared(*(with_prompt(prompt, messages_of(row, side, who)) for side in sides))


def has_own_prompt(row: Row) -> bool:
    """Whether a pair's prompt is in the fields of ShareGPT or Alpaca."""
    return "conversations" in row or "instruction" in row


def as_prompt(messages: Sequence[Message]) -> list[Message]:
    """The messages, none of them trained."""
    return [{**message, TRAIN_KEY: False} for message in messages]


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
        # The prompt's last message would stand twice before the first answer.
        before = takewhile(lambda message: message.get("role") != "assistant", messages)
        last, said = (
            [(message.get("role"), text_of(message).strip()) for message in some] for some in (prompt[-1:], before)
        )
        if any(gist in said for gist in last):
            raise ValueError(
                f"prompt: expected the conversation to begin with all of it or to answer it, got its last message "
                f"again, {shown(text_of(prompt[-1]))}\n"
                "  Store whole conversations, and name no field of prompts (prompt_key: null in a dataset), "
                "or leave the prompt out of them."
            )
        return [*prompt, *messages]
    asked = next((text_of(message) for message in messages if message.get("role") == "user"), None)
    if asked is None or asked.strip() != prompt.strip():
        raise ValueError(
            f"prompt: expected messages, or the text that the first user says, {shown(asked)}, "
            f"got the text {shown(prompt)}\n"
            "  Store the prompt as messages, or name no field of prompts (prompt_key: null in a dataset)."
        )
    return list(messages)


def mask_shared(chosen: Sequence[Message], rejected: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Both conversations, where the messages that both begin with are a prompt, and not trained."""
    pairs = zip(_all_said(chosen), _all_said(rejected), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    one, other = ([*as_prompt(side[:shared]), *side[shared:]] for side in (chosen, rejected))
    return one, other


def text_in(row: Row, key: str, who: str) -> str:
    """The text in a field.

    Raises:
        ValueError: There is none.
    """
    value = row.get(key)
    if not isinstance(value, str):
        have = "" if key in row else f"; the row has {names_text(row)}"
        raise ValueError(
            f"{who}: expected a text in {shown(key)}, got {shown(value)}{have}\n  All rows are of one format."
        )
    return value


def _system(row: Row, who: str) -> list[Message]:
    return [{"role": "system", "content": text_in(row, "system", who)}] if row.get("system") else []


def _conversation(row: Row, who: str) -> list[Message]:
    return [*_system(row, who), *messages_of(row, "conversations", who)]


def _instruction(row: Row, who: str) -> list[Message]:
    """Alpaca's prompt: an instruction, its input in the lines below, and the turns before."""
    given = "" if row.get("input") is None else text_in(row, "input", who)
    asked = "\n".join(filter(None, (text_in(row, "instruction", who), given)))
    history = row.get("history") or ()
    if wrong := [
        pair for pair in (history if isinstance(history, Sequence) else [[history]]) if len(pair) != len(_TURN)
    ]:
        raise ValueError(f"{who}: expected pairs of a question and its answer in 'history', got {shown(wrong[0])}")
    turns = [turn for pair in history for turn in zip(_TURN, pair, strict=True)]
    messages = [{"role": role, "content": content} for role, content in [*turns, ("user", asked)]]
    return [*_system(row, who), *messages]


def _all_said(messages: Sequence[Message]) -> list[Message]:
    """The messages without what they do not say: nulls, and whether they are trained."""
    return [
        {key: value for key, value in message.items() if value is not None and key != TRAIN_KEY} for message in messages
    ]
