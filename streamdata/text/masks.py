"""A conversation, or a text that a prompt begins → token ids, and which of them are trained.

text     <|start|> user: Hi <|end|> <|start|> assistant: Hello <|end|>
trained                                                  ^^^^^ ^^^^^^^

The conversation is rendered once and tokenized once, as the model will meet it. A message's tokens are those that begin
in its characters; these are found by the template's own `{% generation %}` marks, or by `MessageSpans`.

text     The sky is blue.<end>
trained             ^^^^^^^^^^

A prompt and its completion are one text too, with the tokenizer's own special tokens and its end token last. The prompt
is what the ids of the whole begin with and those of the prompt alone too.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.errors import shown
from streamdata.text.formats import Texts
from streamdata.text.messages import TRAIN_KEY
from streamdata.text.probes import AddedTokens, Frame, Span, learn_frame
from streamdata.text.spans import MessageSpans
from streamdata.text.templates import ChatRenderer, Conversation
from streamdata.text.tokenizer import token_ids, tokenizer_of
from streamdata.text.truncation import check_choice

logger = logging.getLogger("streamdata")
Int64s = npt.NDArray[np.int64]


class EncodedChat(NamedTuple):
    """A conversation, or a text that a prompt begins, in tokens.

    Attributes:
        input_ids: int64, shape (n,).
        train: Which of them are trained, shape (n,).
        text: The rendered conversation, or the text, which was tokenized.
    """

    input_ids: npt.NDArray[np.int64]
    train: npt.NDArray[np.bool_]
    text: str


class ChatEncoder:
    """Encodes conversations, with the mask of what is trained.

    Trained is what a role says, with its end-of-turn token and without its header; of the assistant, the header is the
    generation prompt, as far as it stands there. A token is trained if it begins there. Where a template has generation
    marks, they say what of the assistant's messages is trained.

    Some templates have no end of turn: there an answer ends where the next message begins, such as GLM-4.5's with
    `<|user|>`. Without a token at its end a model does not learn to stop, so that is logged at the start.

    Args:
        tokenizer: A fast tokenizer, or a processor for chats without media.
        actions: Role → "train" or "mask"; a role that is not named is masked. By default the assistant is trained.
        template_kwargs: Variables for the template; see `ChatRenderer`.
        append_stop: Whether, in such a template, the next role's token is put after the last answer, and is trained
            there and after each earlier answer that is trained.

    Raises:
        ValueError: The tokenizer has no offsets of tokens, or a setting is invalid.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        actions: Mapping[str, str] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        append_stop: bool = False,
    ) -> None:
        self._tokenizer = tokenizer_of(tokenizer)
        if not getattr(self._tokenizer, "is_fast", False):
            raise ValueError(
                f"ChatEncoder: expected a fast tokenizer, got {type(self._tokenizer).__name__}, which does not say "
                "where its tokens lie in the text\n  Load it with use_fast=True, or convert it to a tokenizer.json."
            )
        self._actions = dict({"assistant": "train"} if actions is None else actions)
        for role, action in self._actions.items():
            check_choice(f"actions: that of role {shown(role)}", action, ("train", "mask"))
        self._renderer = ChatRenderer(tokenizer, template_kwargs=template_kwargs)
        self._tokens = AddedTokens(self._tokenizer.added_tokens_encoder)
        self._frames: dict[bool, Frame] = {}
        self._append_stop = append_stop
        self._check_stop()

    def encode(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None) -> EncodedChat:
        """Encodes a conversation.

        Args:
            messages: Each with `role`, most often `content`, and maybe `train`, a bool that overrides its role's
                action and that the template does not see.
            tools: JSON schemas or functions; see `ChatRenderer.render`.

        Raises:
            ValueError: The template fails, a message is invalid, or the template renders one in such a way that
                its part cannot be distinguished from the others.
        """
        conversation = self._conversation(messages, tools)
        trained = [number for number, message in enumerate(messages) if self._is_trained(number, message)]
        text, spans = self._spans(conversation, trained)
        encoded = self._tokenizer(
            text, add_special_tokens=False, return_attention_mask=False, return_offsets_mapping=True, verbose=False
        )
        begins = np.array([begin for begin, _ in encoded["offset_mapping"]], dtype=np.int64)  # of tokens, by character
        said = np.zeros(len(text) + 1, dtype=np.bool_)  # by character
        for begin, end in spans:
            said[begin:end] = True
        return EncodedChat(np.array(encoded["input_ids"], dtype=np.int64), said[begins], text)

    def _conversation(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> Conversation:
        """The conversation as the template sees it, without what only says what is trained."""
        conversation = self._renderer.conversation(messages, tools)
        for message in conversation.messages:  # copies
            message.pop(TRAIN_KEY, None)
        return conversation

    def _is_trained(self, number: int, message: Mapping[str, Any]) -> bool:
        train = message.get(TRAIN_KEY)
        if train is None:
            return self._actions.get(message["role"], "mask") == "train"
        if not isinstance(train, bool):
            raise ValueError(
                f"chat: expected {TRAIN_KEY} of message {number} to be true or false, got {shown(train)}\n"
                "  Leave it out to follow the action of the message's role."
            )
        return train

    def _spans(self, conversation: Conversation, trained: list[int]) -> tuple[str, list[Span]]:
        """The text of a conversation, and the spans that are trained."""
        if conversation.template.has_marks:
            return self._marked_spans(conversation, trained)
        text, frame = conversation.render(conversation.messages), self._frame(conversation)
        messages = MessageSpans(conversation, text, self._tokens, frame)
        found = {number: messages.spans(number) for number in trained}
        spans = [span for each in found.values() for span in each]
        if not self._append_stop or frame.has_stop:
            return text, spans
        # Trained too is the token at which an answer stops: that of the next role, which is put after the last message.
        for number, each in found.items():
            role, *later = (message["role"] for message in conversation.messages[number:])
            if role != "assistant" or later[:1] == ["assistant"]:
                continue
            end = each[-1][1]
            if not later and not text[end:].strip():
                text += frame.next_tool if conversation.messages[number].get("tool_calls") else frame.next_user
            begin = len(text) - len(text[end:].lstrip())
            if token := self._tokens.at(text, begin):
                spans.append((end, begin + len(token)))
        return text, spans

    def _marked_spans(self, conversation: Conversation, trained: list[int]) -> tuple[str, list[Span]]:
        """The text and its trained spans where the template marks which parts of answers are trained."""
        text, marks = conversation.render_marked()
        messages = MessageSpans(conversation, text, self._tokens, self._frame(conversation))
        roles = [message["role"] for message in conversation.messages]
        assistants = [number for number, role in enumerate(roles) if role == "assistant"]
        others = [span for number in trained if number not in assistants for span in messages.spans(number)]
        if set(assistants) <= set(trained):
            return text, others + marks
        # A message may have several blocks, or none: those that touch what it says are its own.
        own = [span for number in trained if number in assistants for span in messages.spans(number)]
        return text, others + [mark for mark in marks if any(mark[0] < end and begin < mark[1] for begin, end in own)]

    def _check_stop(self) -> None:
        """Logs a warning if the template ends no answer."""
        try:
            conversation = self._renderer.conversation([{"role": "user", "content": ""}])
        except ValueError:  # said with the first conversation
            return
        frame, has_marks = self._frame(conversation), conversation.template.has_marks
        if frame.has_stop or (self._append_stop and frame.next_user and not has_marks):
            return
        where = "the generation marks of the template" if has_marks else "the template"
        remedy = f"Write an end-of-turn token into {where}."
        if frame.next_user and not has_marks:
            remedy = f"Set append_stop, for {shown(frame.next_user)}, with which the next message begins, to be one."
        logger.warning(
            "chat template of %r: expected answers that are trained to end with an added token, got none there: "
            "a model does not learn to stop\n  %s",
            conversation.name,
            remedy,
        )

    def _frame(self, conversation: Conversation) -> Frame:
        """The template's frame of answers, learned once with tools and once without."""
        has_tools = conversation.variables["tools"] is not None
        if has_tools not in self._frames:
            self._frames[has_tools] = learn_frame(conversation, self._tokens) or Frame()
        return self._frames[has_tools]


def encode_completions(tokenizer: Any, sides: Sequence[Texts]) -> list[EncodedChat]:
    """Encodes a completion of a prompt, or two of one prompt, which is not trained.

    All of a text without a prompt is trained; of two, what the ids of both begin with is a prompt.

    Raises:
        ValueError: The tokenizer has no end token.
    """
    end = tokenizer_of(tokenizer).eos_token
    if end is None:
        raise ValueError("text: expected a tokenizer with an end token, got one without\n  Set its eos_token.")
    texts = [side.prompt + side.completion for side in sides]
    texts = [text if text.endswith(end) else text + end for text in texts]
    ids = [token_ids(tokenizer_of(tokenizer), text, with_special_tokens=True) for text in texts]
    shared = shared_ids(ids[0], ids[1]) if len(ids) > 1 else 0
    if sides[0].prompt:
        alone = token_ids(tokenizer_of(tokenizer), sides[0].prompt, with_special_tokens=True)
        shared = min(shared_ids(each, alone) for each in ids)
    return [EncodedChat(each, np.arange(len(each)) >= shared, text) for each, text in zip(ids, texts, strict=True)]


def shared_ids(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> int:
    """How many ids both begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
