"""Bringing an encoded prompt to its limit: `tokens, media → those that stay`; no medium is cut in two."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.chats.prompts.encoding import Encoded, Encoder
from streamdata.text.truncation import cut


class MediaCutError(ValueError):
    """A cut meets an image or video that is not to be dropped."""


class Fitted(NamedTuple):
    """What stays of a prompt: ids without and with expansion, and the media with their features."""

    raw_ids: npt.NDArray[np.int64]
    input_ids: npt.NDArray[np.int64]
    kinds: list[str]
    media: list[Any]
    features: dict[str, Any]


def fit(
    encoded: Encoded, media: Sequence[Any], encoder: Encoder, limit: int, truncation: str, truncation_media: str
) -> Fitted:
    """Cut a prompt to `limit` tokens; ids without expansion are cut alike.

    Args:
        encoded: The prompt.
        media: Its opened media.
        encoder: What encoded it, for the features of the media that stay.
        limit: Tokens that may stay, expanded; fewer may, where a medium was met.
        truncation: left, right, middle or error.
        truncation_media: error, drop_sample or drop_media.

    Raises:
        OverlongError: It is too long, and `truncation` is error.
        MediaCutError: The cut meets a medium, and `truncation_media` is not drop_media.
    """
    kept, lost = cut(len(encoded.input_ids), limit, truncation, encoded.spans)
    if len(kept) == len(encoded.input_ids):
        return Fitted(encoded.raw_ids, encoded.input_ids, encoded.kinds, list(media), encoded.features)
    if lost and truncation_media != "drop_media":
        raise MediaCutError(
            f"truncation: expected to keep all media, got a cut of {len(encoded.input_ids)} tokens to {limit} that "
            f"meets {encoded.kinds[lost[0]]} {lost[0]} of the row\n"
            "  Raise max_prompt_length, or choose drop_sample or drop_media as truncation_media."
        )
    # Unique: each token of an expanded medium points to the same placeholder.
    raw_ids = encoded.raw_ids[np.unique(encoded.origin[kept])]
    stay = [number for number in range(len(encoded.kinds)) if number not in lost]
    kinds, left = [encoded.kinds[number] for number in stay], [media[number] for number in stay]
    # Made again rather than cut: how features of several media lie in one tensor is the processor's own affair.
    features = encoder.expand(kinds, left).features if lost else encoded.features
    return Fitted(raw_ids, encoded.input_ids[kept], kinds, left, features)
