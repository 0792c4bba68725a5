"""The one function that encodes: `messages → text → token ids, with media expanded`, to measure and to emit alike.

The text is tokenized once, with one placeholder per image or video: these are the ids that an inference engine wants.
The processor is given the media and a text of their placeholders alone, each ended by the pad token, so that what it
made of each lies between two pads. Each placeholder is then replaced by that: whatever the processor, ids with and
without expansion agree in every other token, and where each medium lies is known.

Multimodal rope positions are time, height and width of each token, as Qwen2-VL counts them. A text token has the same
number three times. The tokens of an image or video start from the number after the text before them, and count frames,
rows and columns from there; the text after it goes on beyond its larger side. Qwen2.5-VL spaces frames by seconds,
Qwen3-VL writes each frame as an image of its own. See "Qwen2-VL: Enhancing Vision-Language Model's Perception of the
World at Any Resolution" (2024), section 2.1.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from streamdata.chats.media import DEFAULT_PATCH, open_media
from streamdata.errors import shown
from streamdata.run.per_process import Recent
from streamdata.text.messages import MEDIA_KINDS, Medium
from streamdata.text.templates import row_template_kwargs
from streamdata.text.tokenizer import load_tokenizer, load_without_code, token_ids, tokenizer_of
from streamdata.text.truncation import Cut, cut

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
_PER_TOKEN = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
_FOR_POSITIONS_ALONE = ("second_per_grid_ts", "video_metadata")
_TOKENS_PER_SECOND: Final = 2
"""`vision_config.tokens_per_second` of the published Qwen2.5-VL checkpoints, where a processor reports seconds."""
_VARIABLES: Final = 16  # renderers or encoders kept: one for each of the template variables that rows bring


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


def without_media(text: str, ids: Int64s) -> Encoded:
    """Returns the encoding of a text alone."""
    return Encoded(text, ids, ids, np.arange(len(ids)), [], [], {})


class Encoder:
    """Tokenizes rendered texts, with the media that a processor knows.

    It pickles with tokenizer and processor as they were given; each process loads those that are named.

    Args:
        tokenizer: Of transformers, or what its `AutoTokenizer` takes; None for the processor's own.
        processor: Of transformers, or what its `AutoProcessor` takes; None for text alone.
        processor_kwargs: Further arguments of the processor's call.
        patch_size: Pixels of a patch's side, for media with sizes of their own; None for the processor's.
    """

    def __init__(
        self,
        tokenizer: Any,
        processor: Any = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        patch_size: int | None = None,
    ) -> None:
        self._given = (tokenizer, processor, dict(processor_kwargs or {}), patch_size)
        self._made: Recent[str, Any] = Recent(_VARIABLES)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Any, ...]]:
        # What is made of these may be large, or fail to pickle, as compiled templates do.
        return Encoder, self._given

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer itself."""
        tokenizer = tokenizer_of(self.processor) if self._given[0] is None else self._given[0]
        # Loaded once in this process, whoever names it.
        return load_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, str | os.PathLike) else tokenizer

    @cached_property
    def processor(self) -> Any:
        """The processor itself, if there is one."""
        processor = self._given[1]
        if not isinstance(processor, str | os.PathLike):
            return processor
        # Imported here: who reads text alone does not wait for it.
        from transformers import AutoProcessor

        return load_without_code(AutoProcessor, processor)

    @property
    def has_processor(self) -> bool:
        """Whether there is a processor; it is not loaded to know that."""
        return self._given[1] is not None

    @cached_property
    def pad_token_id(self) -> int:
        """The id of the pad token.

        Raises:
            ValueError: The tokenizer has none.
        """
        token: int | None = self.tokenizer.pad_token_id
        if token is None:
            raise ValueError(
                "tokenizer: expected one with a pad token, got one without\n"
                "  Set tokenizer.pad_token, for instance to its eos_token; chats of text alone also go without, by "
                "pad_mode: no_padding."
            )
        return token

    @cached_property
    def placeholders(self) -> dict[str, tuple[str, int]]:
        """By kind the token that stands for a medium in a text, and its id.

        Raises:
            ValueError: It is several tokens to the tokenizer.
        """
        found = {}
        for kind in MEDIA_KINDS:
            token = getattr(self.processor, f"{kind}_token", None)
            if token is None:
                continue
            ids = token_ids(self.tokenizer, token).tolist()
            if len(ids) != 1:
                raise ValueError(
                    f"tokenizer: expected one id for the processor's token {shown(token)}, got {ids}\n"
                    "  Give the tokenizer that belongs to the processor."
                )
            found[kind] = (token, int(ids[0]))
        return found

    def for_variables(self, row: Mapping[str, Any], make: Callable[[dict[str, Any]], T]) -> T:
        """Returns what `make` makes of the variables that a row brings for the template; the last ones are kept."""
        variables = row_template_kwargs(row)
        made: T = self._made.get(json.dumps(variables, sort_keys=True), lambda _: make(variables))
        return made

    def open(self, media: Sequence[Medium], folder: str) -> list[Any]:
        """Opens media, whose relative paths begin in a folder, in the sizes that the processor's patches ask for."""
        if not media:
            return []
        size = self._given[3] or getattr(getattr(self.processor, "image_processor", None), "patch_size", None)
        return open_media(media, folder, size if isinstance(size, int) else DEFAULT_PATCH)

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
        raw_ids = token_ids(self.tokenizer, text)
        positions = self._positions(raw_ids, kinds)
        if not kinds:
            return without_media(text, raw_ids)
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

    def expand(self, kinds: Sequence[str], media: Sequence[Any]) -> tuple[list[Int64s], dict[str, Any]]:
        """Let the processor turn media into the tokens of each and the features of all; without media none."""
        if not kinds:
            return [], {}
        # Pads separate the media: no processor replaces them, and one among a medium's own tokens is found below.
        pad, pad_id = self.tokenizer.pad_token, self.pad_token_id
        text = "".join(self.placeholders[kind][0] + pad for kind in kinds)
        given = {f"{kind}s": values for kind, values in media_by_kind(kinds, media).items()}
        kwargs, metadata = dict(self._given[2]), [getattr(video, "metadata", None) for video in given.get("videos", ())]
        # Frames were chosen already, and known is when they are. All or none: a processor that has times for some of a
        # row's videos only would refuse the row.
        if metadata and all(metadata):
            chosen = {"video_metadata": metadata, "do_sample_frames": False}
            kwargs["videos_kwargs"] = chosen | kwargs.get("videos_kwargs", {})
        made = dict(self.processor(text=[text], **given, **kwargs, add_special_tokens=False, return_tensors="pt"))
        ids = np.asarray(made["input_ids"])[0].astype(np.int64)
        ends = np.flatnonzero(ids == pad_id)
        *ended, rest = np.split(ids, ends + 1)
        tokens = [part[:-1] for part in ended]
        # A pad among a medium's tokens, or none after the last, would give each medium the tokens of another.
        if len(tokens) != len(kinds) or not all(map(len, tokens)) or len(rest):
            raise ValueError(
                f"processor {type(self.processor).__name__}: expected tokens for each of {len(kinds)} media, got "
                f"{[len(part) for part in tokens]}\n  It must replace each placeholder by tokens, none of them the pad."
            )
        return tokens, {name: value for name, value in made.items() if name not in _PER_TOKEN}

    def media_types(self, input_ids: Int64s) -> Int64s:
        """Returns what each token is of: 0 text, 1 an image, 2 a video; as processors of transformers number them."""
        types = np.zeros(len(input_ids), dtype=np.int64)
        for number, kind in enumerate(MEDIA_KINDS, 1):
            if kind in self.placeholders:
                own = getattr(self.processor, f"{kind}_token_ids", None) or [self.placeholders[kind][1]]
                types[np.isin(input_ids, own)] = number
        return types

    def rope_positions(self, input_ids: Int64s, kinds: Sequence[str], features: Mapping[str, Any]) -> Int64s | None:
        """Returns the rope positions of a sequence, shape (3, n); None where the processor is not like Qwen2-VL's.

        Args:
            input_ids: Unpadded, shape (n,).
            kinds: image or video, of each medium in them.
            features: What the processor made of these media.

        Raises:
            ValueError: The tokens of images and videos do not fit their grids.
        """
        rule = rope_rule(self.processor)
        return None if rule is None else rule.positions(input_ids, read_grids(kinds, features))

    def _positions(self, raw_ids: Int64s, kinds: Sequence[str]) -> Int64s:
        """The positions of the placeholders; a text that spells one itself is refused."""
        if unknown := [kind for kind in kinds if kind not in self.placeholders]:
            raise ValueError(
                f"processor {type(self.processor).__name__}: expected one that knows a {unknown[0]}, got none\n"
                f"  Remove the {unknown[0]}s, or use the processor of a model that does."
            )
        # Compared with all placeholders in the text: one that a message spells itself would take another's medium.
        is_placeholder = np.zeros(len(raw_ids), dtype=np.bool_)
        for _, token_id in self.placeholders.values():
            is_placeholder |= raw_ids == token_id
        positions = np.flatnonzero(is_placeholder)
        if raw_ids[positions].tolist() != [self.placeholders[kind][1] for kind in kinds]:
            names = [token for token, _ in self.placeholders.values()]
            raise ValueError(
                f"prompt: expected {len(kinds)} of the tokens {names} in the rendered text, got {len(positions)}\n"
                "  The template must write one for each image and video, and messages may not spell them."
            )
        return positions


def training_features(features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the features that a model's forward pass takes: not those that only positions are computed from."""
    return {name: value for name, value in features.items() if name not in _FOR_POSITIONS_ALONE}


def media_by_kind(kinds: Sequence[str], media: Sequence[Any]) -> dict[str, list[Any]]:
    """Returns opened media under `image` and `video`."""
    return {kind: [m for k, m in zip(kinds, media, strict=True) if k == kind] for kind in dict.fromkeys(kinds)}


class MediaCutError(ValueError):
    """A cut meets an image or video that is not to be dropped."""


def cut_around_media(encoded: Encoded, limit: int, truncation: str, *, drops_media: bool = False) -> Cut:
    """Chooses which tokens stay; a medium that the cut meets goes entirely.

    Args:
        encoded: The tokens.
        limit: How many may stay.
        truncation: left, right, middle or error.
        drops_media: Whether a medium may go.

    Raises:
        OverlongError: They are too many, and `truncation` is error.
        MediaCutError: The cut meets a medium that may not go.
    """
    found = cut(len(encoded.input_ids), limit, truncation, encoded.spans)
    if found.lost and not drops_media:
        raise MediaCutError(
            f"truncation: expected to keep all media, got a cut of {len(encoded.input_ids)} tokens to {limit} that "
            f"meets {encoded.kinds[found.lost[0]]} {found.lost[0]} of the row\n"
            "  Raise max_length or max_prompt_length, or drop such rows, by max_bad or before; of prompts, "
            "truncation_media may be drop_sample or drop_media."
        )
    return found


class Fitted(NamedTuple):
    """A prompt that fits: ids without and with expansion, and the media that stay, with their features."""

    raw_ids: Int64s
    input_ids: Int64s
    kinds: list[str]
    media: list[Any]
    features: dict[str, Any]


def fit(
    encoded: Encoded, media: Sequence[Any], encoder: Encoder, limit: int, truncation: str, truncation_media: str
) -> Fitted:
    """Cuts a prompt to `limit` tokens, no medium in two; ids without expansion are cut alike.

    Args:
        encoded: The prompt.
        media: Its opened media.
        encoder: The one that encoded it, for the features of the media that stay.
        limit: Tokens that may stay, expanded; fewer may, where a medium was met.
        truncation: left, right, middle or error.
        truncation_media: error, drop_sample or drop_media.

    Raises:
        OverlongError: It is too long, and `truncation` is error.
        MediaCutError: The cut meets a medium, and `truncation_media` is not drop_media.
    """
    kept, lost = cut_around_media(encoded, limit, truncation, drops_media=truncation_media == "drop_media")
    if len(kept) == len(encoded.input_ids):
        return Fitted(encoded.raw_ids, encoded.input_ids, encoded.kinds, list(media), encoded.features)
    # Unique: each token of an expanded medium points to the same placeholder.
    raw_ids = encoded.raw_ids[np.unique(encoded.origin[kept])]
    stay = [number for number in range(len(encoded.kinds)) if number not in lost]
    kinds, left = [encoded.kinds[number] for number in stay], [media[number] for number in stay]
    # Made again rather than cut: how features of several media lie in one tensor is the processor's own affair.
    features = encoder.expand(kinds, left)[1] if lost else encoded.features
    return Fitted(raw_ids, encoded.input_ids[kept], kinds, left, features)


class VisualGrid(NamedTuple):
    """An image or video, as the language model sees it.

    Attributes:
        kind: image or video.
        grid: Frames, rows and columns of patches, before `merge_size` of them a side become one token.
        frame_step: How far apart in time two frames are.
    """

    kind: str
    grid: tuple[int, int, int]
    frame_step: float = 1.0


class RopeRule(NamedTuple):
    """The rule of rope positions, beside the grids.

    Attributes:
        token_ids: The id of an image's and of a video's tokens, by kind.
        merge_size: Patches a side that become one token.
    """

    token_ids: dict[str, int]
    merge_size: int

    def positions(self, input_ids: Int64s, grids: Sequence[VisualGrid]) -> Int64s:
        """Computes the positions of one unpadded sequence.

        Args:
            input_ids: Shape (n,).
            grids: Of its images and videos, in their order.

        Returns:
            int64, shape (3, n).

        Raises:
            ValueError: The tokens of images and videos do not fit the grids.
        """
        is_of = {kind: input_ids == token for kind, token in self.token_ids.items()}
        waiting: dict[str, list[VisualGrid]] = {}
        for kind, tokens in is_of.items():
            found = [grid for grid in grids if grid.kind == kind]
            runs = int(np.count_nonzero(tokens[:1])) + int(np.count_nonzero(tokens[1:] & ~tokens[:-1]))
            # No feature says whether a processor separates the frames of a video, with times written between; the
            # number of runs of video tokens does.
            if kind == "video" and runs == sum(grid.grid[0] for grid in found):
                found = [VisualGrid(kind, (1, *grid.grid[1:])) for grid in found for _ in range(grid.grid[0])]
            waiting[kind] = found
        media = sorted((start, kind) for kind, tokens in is_of.items() for start in np.flatnonzero(tokens).tolist())
        parts: list[Int64s] = []
        at, number = 0, 0  # in the tokens, and of the next position: media advance the two differently
        for start, kind in media:
            if start < at:  # a later token of the medium before
                continue
            grid = waiting[kind].pop(0) if waiting[kind] else VisualGrid(kind, (0, 0, 0))
            frames, height, width = grid.grid
            shape = (frames, height // self.merge_size, width // self.merge_size)
            # The frame, row and column of each token of the medium.
            visual = np.indices(shape).reshape(3, -1).astype(np.int64)
            visual[0] = (visual[0] * grid.frame_step).astype(np.int64)
            size = visual.shape[1]
            if not size or not is_of[kind][start : start + size].all() or start + size > len(input_ids):
                raise _misfit(kind, start)
            parts += [_text(start - at, number), visual + (number + start - at)]
            number += start - at + max(height, width) // self.merge_size
            at = start + size
        if left := [kind for kind, grids in waiting.items() if grids]:
            raise _misfit(left[0], len(input_ids))
        return np.concatenate([*parts, _text(len(input_ids) - at, number)], axis=1)


def _text(length: int, start: int) -> Int64s:
    return np.broadcast_to(np.arange(start, start + length, dtype=np.int64), (3, length))


def _misfit(kind: str, at: int) -> ValueError:
    return ValueError(
        f"rope positions: expected the tokens of each {kind} as its grid says, got others at token {at}\n"
        "  The text may not spell the tokens that stand for images and videos."
    )


def rope_rule(processor: Any) -> RopeRule | None:
    """Returns the rule of a processor, or None where positions count tokens: it is not like that of Qwen2-VL."""
    image_processor: Any = getattr(processor, "image_processor", None)
    # By the name of a base: all processors that count so derive from it, also those of later models.
    if not any("Qwen2VLImageProcessor" in base.__name__ for base in type(image_processor).__mro__):
        return None
    token_ids = {kind: getattr(processor, f"{kind}_token_id", None) for kind in MEDIA_KINDS}
    return RopeRule({kind: token for kind, token in token_ids.items() if token is not None}, image_processor.merge_size)


def read_grids(kinds: Sequence[str], features: Mapping[str, Any]) -> list[VisualGrid]:
    """Returns the grids of a row's media, in their order, from what the processor made of them."""
    grids = {kind: iter(np.asarray(features.get(f"{kind}_grid_thw", ())).tolist()) for kind in MEDIA_KINDS}
    seconds = iter(np.asarray(features.get("second_per_grid_ts", ())).tolist())
    found = []
    for kind in kinds:
        second = next(seconds, None) if kind == "video" else None
        step = 1.0 if second is None else second * _TOKENS_PER_SECOND
        found.append(VisualGrid(kind, tuple(next(grids[kind])), step))
    return found
