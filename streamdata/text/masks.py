"""A conversation → token ids, and which of them are trained.

text     <|start|> user: Hi <|end|> <|start|> assistant: Hello <|end|>
trained                                                  ^^^^^ ^^^^^^^

The conversation is rendered once and tokenized once, as the model will meet it. A message's tokens are those that begin
in its characters; these are found by the template's own `{% generation %}` marks, or by `MessageSpans`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.recipe.places import did_you_mean
from streamdata.text.sandbox import MAX_CHARS
from streamdata.text.spans import MessageSpans
from streamdata.text.templates import ChatRenderer, Conversation
from streamdata.text.tokenizer import tokenizer_of
from streamdata.text.turns import Span

DEFAULT_ACTIONS: Final[Mapping[str, str]] = {"assistant": "train"}
TRAIN_KEY: Final = "train"
"""The key of a message that overrides its role's action."""


class EncodedChat(NamedTuple):
    """A conversation in tokens.

    Attributes:
        input_ids: int64, shape (n,).
        train: which of them are trained, shape (n,).
        text: what was tokenized.
    """

    input_ids: npt.NDArray[np.int64]
    train: npt.NDArray[np.bool_]
    text: str

    @property
    def num_trained(self) -> int:
        """How many tokens are trained; a sample where it is 0 teaches nothing."""
        return int(np.count_nonzero(self.train))


class ChatEncoder:
    """Encodes conversations, with the mask of what is trained.

    Trained is what a role says, with its end-of-turn token and without its header; of the assistant, the header is the
    generation prompt. A token is trained if it begins there. Where a template has generation marks, they say what of
    the assistant's messages is trained.

    Args:
        tokenizer: a fast tokenizer, or a processor for chats without media.
        actions: role → "train" or "mask"; a role that is not named is masked. By default the assistant is trained.
        template_kwargs: as `ChatRenderer` takes them.
        max_chars: the longest text allowed.

    Raises:
        ValueError: the tokenizer has no offsets of tokens, or a setting is none.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        actions: Mapping[str, str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._tokenizer = tokenizer_of(tokenizer)
        if not getattr(self._tokenizer, "is_fast", False):
            raise ValueError(
                f"ChatEncoder: expected a fast tokenizer, got {type(self._tokenizer).__name__}, which does not say "
                "where its tokens lie in the text\n  Load it with use_fast=True, or convert it to a tokenizer.json."
            )
        self._actions = _checked_actions(DEFAULT_ACTIONS if actions is None else actions)
        self._renderer = ChatRenderer(tokenizer, template_kwargs=template_kwargs, max_chars=max_chars)
        self._turn_ends = tuple(token for token in self._tokenizer.added_tokens_encoder if token.strip())

    def encode(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None) -> EncodedChat:
        """Encodes a conversation.

        Args:
            messages: each with `role`, most often `content`, and maybe `train`, a bool that overrides its role's
                action and that the template does not see.
            tools: as `ChatRenderer.render` takes them.

        Raises:
            ValueError: the template fails, a message is none, or the template renders one in a way in which its part
                cannot be told from the others'.
        """
        conversation = self._renderer.conversation(_without_key(messages), tools)
        trained = [number for number, message in enumerate(messages) if self._is_trained(number, message)]
        text, spans = self._spans(conversation, trained)
        return self._encoded(text, spans)

    def _is_trained(self, number: int, message: Mapping[str, Any]) -> bool:
        train = message.get(TRAIN_KEY)
        if train is None:
            return self._actions.get(message["role"], "mask") == "train"
        if not isinstance(train, bool):
            raise ValueError(
                f"chat: expected {TRAIN_KEY} of message {number} to be true or false, got {train!r}\n"
                "  Leave it out to follow the action of the message's role."
            )
        return train

    def _spans(self, conversation: Conversation, trained: list[int]) -> tuple[str, list[Span]]:
        """The text of a conversation, and the spans that are trained."""
        if not conversation.template.has_marks:
            text = conversation.render(conversation.messages)
            messages = MessageSpans(conversation, text, self._turn_ends)
            return text, [messages.span(number) for number in trained]
        text, marks = conversation.render_marked()
        messages = MessageSpans(conversation, text, self._turn_ends)
        roles = [message["role"] for message in conversation.messages]
        assistants = [number for number, role in enumerate(roles) if role == "assistant"]
        others = [messages.span(number) for number in trained if number not in assistants]
        if set(assistants) <= set(trained):
            return text, others + marks
        # A message may have several blocks, or none: those that touch what it says are its own.
        own = [messages.span(number) for number in trained if number in assistants]
        return text, others + [mark for mark in marks if any(mark[0] < end and begin < mark[1] for begin, end in own)]

    def _encoded(self, text: str, spans: list[Span]) -> EncodedChat:
        encoded = self._tokenizer(
            text, add_special_tokens=False, return_attention_mask=False, return_offsets_mapping=True, verbose=False
        )
        trained = np.zeros(len(text) + 1, dtype=np.bool_)  # by character
        for begin, end in spans:
            trained[begin:end] = True
        begins = np.array([begin for begin, _ in encoded["offset_mapping"]], dtype=np.int64)
        return EncodedChat(np.array(encoded["input_ids"], dtype=np.int64), trained[begins], text)


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None = None,
    actions: Mapping[str, str] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    max_chars: int = MAX_CHARS,
) -> EncodedChat:
    """Encodes one conversation: see `ChatEncoder`, which encodes many."""
    encoder = ChatEncoder(tokenizer, actions=actions, template_kwargs=template_kwargs, max_chars=max_chars)
    return encoder.encode(messages, tools=tools)


def _checked_actions(actions: Mapping[str, str]) -> dict[str, str]:
    for role, action in actions.items():
        if action not in {"train", "mask"}:
            hint = did_you_mean(str(action), ("train", "mask"))
            raise ValueError(f"actions: role {role!r} has {action!r}{hint}\n  Give train or mask for each role.")
    return dict(actions)


def _without_key(messages: Sequence[Mapping[str, Any]]) -> Any:
    if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
        return messages  # refused where messages are checked
    return [{key: value for key, value in message.items() if key != TRAIN_KEY} for message in messages]
