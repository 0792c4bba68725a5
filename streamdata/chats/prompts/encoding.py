"""The one function that encodes: `messages → text → token ids, with media expanded`, to measure and to emit alike.

The text is tokenized once, with one placeholder per image or video: these are the ids that an inference engine wants.
The processor is given the media and a text of their placeholders alone, each ended by the pad token, so that what it
made of each lies between two pads. Each placeholder is then replaced by that: whatever the processor, ids with and
without expansion agree in every other token, and where each medium lies is known.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.chats.prompts.config import WHO
from streamdata.errors import shown
from streamdata.text.tokenizer import token_ids

Int64s = npt.NDArray[np.int64]
_PER_TOKEN = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
_FOR_POSITIONS_ALONE = ("second_per_grid_ts", "video_metadata")


class Expanded(NamedTuple):
    """What a processor makes of media: the tokens of each, and the features of all."""

    tokens: list[Int64s]
    features: dict[str, Any]


class Encoded(NamedTuple):
    """A prompt as token ids.

    Attributes:
        text: Rendered, with one placeholder per medium.
        raw_ids: Of the text, shape (m,).
        input_ids: The same with media expanded, shape (n,).
        origin: For each of the input ids its position in the raw ids, shape (n,).
        spans: Where in the input ids each medium lies, half open.
        kinds: image or video, of each.
        features: The processor's tensors, of all media together.
    """

    text: str
    raw_ids: Int64s
    input_ids: Int64s
    origin: Int64s
    spans: list[tuple[int, int]]
    kinds: list[str]
    features: dict[str, Any]


class Encoder:
    """Tokenizes rendered prompts, with the media that a processor knows.

    Args:
        tokenizer: Of transformers.
        processor: Of transformers; None for text alone.
        processor_kwargs: Further arguments of the processor's call.

    Raises:
        ValueError: The tokenizer has no pad token.
    """

    def __init__(
        self, tokenizer: Any, processor: Any = None, processor_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer, self._processor = tokenizer, processor
        self._kwargs = dict(processor_kwargs or {})
        if tokenizer.pad_token_id is None:
            raise ValueError(
                f"{WHO}: expected a tokenizer with a pad token, got one without\n"
                "  Set tokenizer.pad_token, for instance to its eos_token."
            )
        self._placeholders = {
            kind: (token, self._single_id(token))
            for kind in ("image", "video")
            if (token := getattr(processor, f"{kind}_token", None)) is not None
        }

    def encode(self, text: str, kinds: Sequence[str] = (), media: Sequence[Any] = ()) -> Encoded:
        """Tokenize a rendered text and expand its placeholders.

        Args:
            text: As the template rendered it.
            kinds: image or video, of each medium.
            media: In the order of their placeholders in the text, opened.

        Raises:
            ValueError: The text does not have a placeholder for each, or the processor refused one.
        """
        # By the tokenizer, even with media: the processor's ids cannot be mapped back to the text's.
        raw_ids = token_ids(self._tokenizer, text)
        positions = self._positions(raw_ids, kinds)
        if not kinds:
            return Encoded(text, raw_ids, raw_ids, np.arange(len(raw_ids)), [], [], {})
        tokens, features = self.expand(kinds, media)
        counts = np.ones(len(raw_ids), dtype=np.int64)
        counts[positions] = [len(part) for part in tokens]
        origin = np.repeat(np.arange(len(raw_ids)), counts)
        input_ids = raw_ids[origin]
        ends = np.cumsum(counts)[positions].tolist()
        spans = [(end - len(part), end) for end, part in zip(ends, tokens, strict=True)]
        for (begin, end), part in zip(spans, tokens, strict=True):
            input_ids[begin:end] = part
        return Encoded(text, raw_ids, input_ids, origin, spans, list(kinds), features)

    def encode_text(self, text: str) -> Encoded:
        """Tokenize a text that no template rendered, with the tokenizer's own special tokens."""
        ids = np.array(self._tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"], np.int64)
        return Encoded(text, ids, ids, np.arange(len(ids)), [], [], {})

    def expand(self, kinds: Sequence[str], media: Sequence[Any]) -> Expanded:
        """Let the processor turn media into tokens and features; without media there are none."""
        if not kinds:
            return Expanded([], {})
        # Pads separate the media: no processor replaces them, and one among a medium's own tokens is found below.
        pad, pad_id = self._tokenizer.pad_token, self._tokenizer.pad_token_id
        text = "".join(self._placeholders[kind][0] + pad for kind in kinds)
        given = {f"{kind}s": values for kind, values in media_by_kind(kinds, media).items()}
        kwargs = {**self._kwargs, **_videos_kwargs(given.get("videos", ()), self._kwargs)}
        made = dict(self._processor(text=[text], **given, **kwargs, add_special_tokens=False, return_tensors="pt"))
        ids = np.asarray(made["input_ids"])[0].astype(np.int64)
        ends = np.flatnonzero(ids == pad_id)
        *ended, rest = np.split(ids, ends + 1)
        tokens = [part[:-1] for part in ended]
        # A pad among a medium's tokens, or none after the last, would give each medium the tokens of another.
        if len(tokens) != len(kinds) or not all(map(len, tokens)) or len(rest):
            raise ValueError(
                f"processor {type(self._processor).__name__}: expected tokens for each of {len(kinds)} media, got "
                f"{[len(part) for part in tokens]}\n  It must replace each placeholder by tokens, none of them the pad."
            )
        return Expanded(tokens, {name: value for name, value in made.items() if name not in _PER_TOKEN})

    def media_types(self, input_ids: Int64s) -> Int64s:
        """What each token is of: 0 text, 1 an image, 2 a video; as processors of transformers number them."""
        types = np.zeros(len(input_ids), dtype=np.int64)
        for number, kind in enumerate(("image", "video"), 1):
            if kind in self._placeholders:
                own = getattr(self._processor, f"{kind}_token_ids", None) or [self._placeholders[kind][1]]
                types[np.isin(input_ids, own)] = number
        return types

    def _positions(self, raw_ids: Int64s, kinds: Sequence[str]) -> Int64s:
        """Where the placeholders are; a text that spells one itself is refused."""
        # Compared with all placeholders in the text: one that a message spells itself would take another's medium.
        expected = [self._id_of(kind) for kind in kinds]
        is_placeholder = np.zeros(len(raw_ids), dtype=np.bool_)
        for _, token_id in self._placeholders.values():
            is_placeholder |= raw_ids == token_id
        positions = np.flatnonzero(is_placeholder)
        if raw_ids[positions].tolist() != expected:
            names = [token for token, _ in self._placeholders.values()]
            raise ValueError(
                f"prompt: expected {len(kinds)} of the tokens {names} in the rendered text, got {len(positions)}\n"
                "  The template must write one for each image and video, and messages may not spell them."
            )
        return positions

    def _id_of(self, kind: str) -> int:
        if kind not in self._placeholders:
            raise ValueError(
                f"processor {type(self._processor).__name__}: expected one that knows a {kind}, got none\n"
                f"  Remove the {kind}s, or use the processor of a model that does."
            )
        return self._placeholders[kind][1]

    def _single_id(self, token: str) -> int:
        ids = token_ids(self._tokenizer, token).tolist()
        if len(ids) != 1:
            raise ValueError(
                f"{WHO}: expected one id for the processor's token {shown(token)}, got {ids}\n"
                "  Give the tokenizer that belongs to the processor."
            )
        return int(ids[0])


def _videos_kwargs(videos: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a processor that the frames were chosen already, and when they are; it would choose among them."""
    # All or none: a processor that has times for some of a row's videos only would refuse the row.
    metadata = [getattr(video, "metadata", None) for video in videos]
    if not metadata or not all(metadata):
        return {}
    return {"videos_kwargs": {"video_metadata": metadata, "do_sample_frames": False, **given.get("videos_kwargs", {})}}


def training_features(features: Mapping[str, Any]) -> dict[str, Any]:
    """The features that a model's forward pass takes: it refuses those that only positions are computed from."""
    return {name: value for name, value in features.items() if name not in _FOR_POSITIONS_ALONE}


def media_by_kind(kinds: Sequence[str], media: Sequence[Any]) -> dict[str, list[Any]]:
    """Opened media under `image` and `video`."""
    return {kind: [m for k, m in zip(kinds, media, strict=True) if k == kind] for kind in dict.fromkeys(kinds)}
