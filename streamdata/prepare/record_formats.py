"""Records of a known format, without sections: `the first record → that format; a record → its texts and chats`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from streamdata.prepare.config import RECORD_FORMATS, WHOLE_CHAT, PrepareConfig
from streamdata.prepare.errors import BadRecordError, PrepareError
from streamdata.prepare.inputs import Task, TaskInput
from streamdata.prepare.records import parse
from streamdata.prepare.sections import ChatPart, Extract, Extractor, Part, Record, TextPart
from streamdata.text.formats import (
    RowFormat,
    Said,
    Texts,
    has_own_prompt,
    mask_shared,
    pair_said,
    recognise,
    training_said,
    with_prompt,
)
from streamdata.text.messages import media_beside_text, messages_of, read_tools
from streamdata.text.templates import row_template_kwargs

logger = logging.getLogger("streamdata")
_SIDES: Final = ("chosen", "rejected")


def with_record_format(config: PrepareConfig, tasks: Sequence[Task]) -> PrepareConfig:
    """The config with the format of its records: that which the fields of the first say, unless it is named.

    Raises:
        PrepareError: The first record is of no format that the train type takes, or of several.
    """
    if not config.has_known_records() or config.records != "auto":
        return config
    try:
        found = recognise(_first_record(tasks), RECORD_FORMATS[config.train_type], "prepare")
    except ValueError as error:
        raise PrepareError(str(error)) from error
    logger.info("prepare: recognised as %s", found)
    return config.model_copy(update={"records": found.name})


def _first_record(tasks: Sequence[Task]) -> Mapping[str, Any]:
    for task in tasks:
        for batch in TaskInput(task).batches():
            for raw in batch.records:
                with suppress(BadRecordError):  # it is counted when it is its turn
                    record = parse(raw, task.url) if isinstance(raw, bytes) else raw
                    if record is not None:
                        return record
    raise PrepareError("prepare: expected a record whose fields say what it is, got none\n  Look at the inputs.")


class FormatExtractor(Extractor):
    """Takes records of a known format apart. What is a text ends with the tokenizer's end token.

    Args:
        config: Which format.
        has_special: Whether a text holds what looks like a special token.
        end: The end token; None where the tokenizer has none.
    """

    def __init__(self, config: PrepareConfig, has_special: Callable[[str], bool], end: str | None) -> None:
        super().__init__(config, has_special)
        self._choices = RECORD_FORMATS[config.train_type] if config.records == "auto" else (config.records,)
        self._end = None if config.end_of_document else end  # which puts it behind the sequence

    def __call__(self, record: Record) -> Extract:
        """What the record says.

        Raises:
            BadRecordError: It is not of the format.
            DroppedRecordError: It has too few or too many characters.
        """
        try:
            said = self._said(record)
            sequences = {name: [self._said_parts(record, each)] for name, each in said.items()}
        except ValueError as error:
            raise BadRecordError("unknown format", "", str(error)) from error
        self._check_chars(sequences)
        is_implicit = len(said) > 1 and all(isinstance(each, Texts) and not each.prompt for each in said.values())
        return Extract(self._domain(record), sequences, frozenset(), {}, has_shared_beginning=is_implicit)

    def _said(self, record: Record) -> dict[str, Said]:
        """What a record says, by source."""
        found = recognise(record, self._choices, "record")
        if self._config.train_type != "dpo":
            return {"sequence": training_said(record, found, "record")}
        return dict(zip(_SIDES, _pair(record, found), strict=True))

    def _said_parts(self, record: Record, said: Said) -> list[Part]:
        if media := media_beside_text(record, [] if isinstance(said, Texts) else said):
            raise BadRecordError("media", "", f"expected text alone, got {', '.join(media)}")
        if not isinstance(said, Texts):
            return [ChatPart(said, read_tools(record.get("tools")), WHOLE_CHAT, row_template_kwargs(record))]
        texts = [(text, train) for text, train in ((said.prompt, False), (said.completion, True)) if text]
        parts: list[Part] = [
            TextPart(text, train, is_data=True, add_special_tokens=number == 0)
            for number, (text, train) in enumerate(texts)
        ]
        if self._end is not None and not said.completion.endswith(self._end):
            parts.append(TextPart(self._end, train=True, is_data=False, add_special_tokens=False))
        return parts


def _pair(record: Record, found: RowFormat) -> Sequence[Said]:
    if found.style == "standard" or has_own_prompt(record):
        return pair_said(record, found, "record")
    prompt = record.get("prompt") or []
    if prompt and not isinstance(prompt, str):
        prompt = messages_of(record, "prompt", "record")
    return mask_shared(*(with_prompt(prompt, messages_of(record, side, "record")) for side in _SIDES))
