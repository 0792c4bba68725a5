"""Turns records into tokens: `records → texts and chats → ids and masks → documents`, or why there is none."""

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.prepare.config import PrepareConfig, Section
from streamdata.prepare.encode import Backend, Ids, special_finder, vocabulary_size
from streamdata.prepare.extract import ChatPart, Extract, Extractor, Part, Record, TextPart
from streamdata.prepare.inputs import BadRecordError, DroppedRecordError
from streamdata.stores.dtypes import SOURCES
from streamdata.text.masks import ChatEncoder, shared_ids
from streamdata.text.templates import ChatRenderer
from streamdata.text.tokenizer import token_ids
from streamdata.text.truncation import OverlongError, fit_length, train_from

Mask = npt.NDArray[np.bool_]
Failed = Callable[[int, BadRecordError | DroppedRecordError], None]
_ENCODERS = 16  # one for each of the template variables that records bring
_SHORTENED = {"too_long": "more than max_seq_len", "nothing_to_train": "nothing to train"}


class Tokens(NamedTuple):
    """A sequence: its ids, uint32 (n,), which of them are trained, bool (n,), and how much they count in the loss."""

    ids: Ids
    train: Mask
    weight: float = 1.0


class TokenizedDocument(NamedTuple):
    """The tokens and numbers of one record.

    Attributes:
        domain: The directory of its domain, empty without one.
        sequences: The sequences of each source.
        values: The numbers of each source of numbers.
        num_truncated: How many of the sequences were longer than max_seq_len, and lost an end.
    """

    domain: str
    sequences: dict[str, list[Tokens]]
    values: dict[str, list[float]]
    num_truncated: int


class DocumentMaker:
    """Turns records into documents as a config says.

    Args:
        config: What to take of a record, and how long it may be.
        tokenizer: One of transformers, fast.
        backend: Encodes its texts.

    Raises:
        PrepareError: The tokenizer is not fast, or lacks the end token that the config asks for.
    """

    def __init__(self, config: PrepareConfig, tokenizer: Any, backend: Backend) -> None:
        self._config, self._tokenizer, self._backend = config, tokenizer, backend
        # The TextTokenizer of other records has no text of its end token.
        end = tokenizer.eos_token if config.has_known_records() else None
        self._extract = Extractor(config, special_finder(tokenizer), end)
        self._end = np.array([tokenizer.eos_token_id], np.uint32) if config.end_of_document else None
        self._vocabulary = vocabulary_size(tokenizer)
        self._keys = SOURCES[config.train_type]
        chats = [section for section in config.all_sections() if section.action == "$role"]
        self._chats = {id(section): _chat_encoder(tokenizer, section) for section in chats}

    def make(self, records: Sequence[tuple[int, Record]], failed: Failed) -> Iterator[TokenizedDocument]:
        """The documents of a batch of numbered records; for each that becomes none, `failed` is called with the reason.

        The texts of all records are encoded together, which is why they are extracted first.
        """
        extracts: list[tuple[int, Extract]] = []
        for number, record in records:
            try:
                extracts.append((number, self._extract(record)))
            except (BadRecordError, DroppedRecordError) as error:
                failed(number, error)
        encoded: dict[int, Ids] = {}
        kinds = defaultdict[tuple[bool, bool], list[TextPart]](list)
        for part in (part for _, extract in extracts for part in extract.parts()):
            if isinstance(part, TextPart):
                kinds[part.is_data, part.add_special_tokens].append(part)
        for (is_data, special), parts in kinds.items():
            found_ids = self._backend([part.text for part in parts], is_data=is_data, add_special_tokens=special)
            encoded.update(zip(map(id, parts), found_ids, strict=True))
        for number, extract in extracts:
            try:
                found = {
                    name: [_joined([self._tokens(part, encoded) for part in row]) for row in rows]
                    for name, rows in extract.sequences.items()
                }
                if extract.has_shared_beginning:
                    (one,), (other,) = found.values()
                    shared = shared_ids(one.ids, other.ids)
                    one.train[:shared] = other.train[:shared] = False
                sequences = {
                    name: [self._fitted(tokens, name)._replace(weight=extract.weight) for tokens in rows]
                    for name, rows in found.items()
                }
            except (BadRecordError, DroppedRecordError) as error:
                failed(number, error)
            else:
                end = 0 if self._end is None else 1
                pairs = (
                    (one, whole)
                    for name, rows in found.items()
                    for one, whole in zip(sequences[name], rows, strict=True)
                )
                num_truncated = sum(len(one.ids) - end < len(whole.ids) for one, whole in pairs)
                yield TokenizedDocument(extract.domain, sequences, extract.values, num_truncated)

    def _tokens(self, part: Part, encoded: Mapping[int, Ids]) -> Tokens:
        if isinstance(part, TextPart):
            ids = encoded[id(part)]
            return Tokens(ids, np.full(len(ids), part.train))
        try:
            return self._chats[id(part.section)](part)
        except ValueError as error:
            raise BadRecordError("chat template", part.section.field, str(error)) from error

    def _fitted(self, tokens: Tokens, name: str) -> Tokens:
        """The sequence within max_seq_len, with its end token."""
        if not len(tokens.ids):
            raise DroppedRecordError("no tokens")
        if (largest := int(tokens.ids.max())) >= self._vocabulary:
            expected = f"expected ids below the vocabulary's size {self._vocabulary}, got {largest}"
            raise BadRecordError("id outside the vocabulary", name, expected)
        max_length, is_masked = self._config.max_seq_len, self._keys[name].mask is not None
        part: slice | str = slice(0, len(tokens.ids))
        if max_length is not None or is_masked:
            end = int(self._end is not None)
            train = tokens.train if is_masked else np.ones(len(tokens.ids), np.bool_)
            try:
                part = fit_length(train, None if max_length is None else max_length - end, self._config.too_long)
            except OverlongError as error:
                expected = f"expected at most {max_length} tokens, got {len(train) + end}"
                raise BadRecordError("more than max_seq_len", name, expected) from error
        if isinstance(part, str):
            raise DroppedRecordError(_SHORTENED[part])
        cut = Tokens(tokens.ids[part], train_from(tokens.train, part.start)[part])
        if self._end is None:
            return cut
        # Where the end was cut off, the end token is not trained: a model would learn to stop in mid-sentence.
        ends = np.array([cut.train[-1] and part.stop == len(tokens.ids)])
        return Tokens(np.concatenate((cut.ids, self._end)), np.concatenate((cut.train, ends)))


def _joined(parts: list[Tokens]) -> Tokens:
    if len(parts) == 1:
        return parts[0]
    empty = Tokens(np.zeros(0, np.uint32), np.zeros(0, np.bool_))
    parts = parts or [empty]
    return Tokens(np.concatenate([part.ids for part in parts]), np.concatenate([part.train for part in parts]))


def _chat_encoder(tokenizer: Any, section: Section) -> Callable[[ChatPart], Tokens]:
    """A function that turns the chats of a section into ids and a mask."""
    settings = dict(section.template_kwargs)
    if section.template is not None:
        settings["chat_template"] = section.template
    renderer = ChatRenderer(tokenizer, template_kwargs=settings) if section.add_generation_prompt else None

    @functools.lru_cache(_ENCODERS)
    def encoder_of(row_kwargs: str) -> ChatEncoder:
        kwargs = settings | json.loads(row_kwargs)
        return ChatEncoder(tokenizer, actions=section.roles, template_kwargs=kwargs, append_stop=section.append_stop)

    if renderer is None:
        encoder_of("{}")  # what is wrong with the tokenizer is said at once

    def encode(chat: ChatPart) -> Tokens:
        if renderer is not None:
            text = renderer.render(chat.messages, tools=chat.tools, add_generation_prompt=True)
            ids = token_ids(tokenizer, text).astype(np.uint32)
            return Tokens(ids, np.zeros(len(ids), np.bool_))
        encoder = encoder_of(json.dumps(chat.template_kwargs, sort_keys=True))
        found = encoder.encode(chat.messages, tools=chat.tools)
        return Tokens(found.input_ids.astype(np.uint32), found.train)

    return encode
