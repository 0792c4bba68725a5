"""Images and videos in chats that are trained: `messages, media → token ids with media expanded, not trained`."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from streamdata.chats.prompts.encoding import Encoder, training_features
from streamdata.chats.prompts.media import open_media, patch_size_of
from streamdata.chats.prompts.rope_positions import RopeRule, read_grids, rope_rule
from streamdata.text.masks import EncodedChat
from streamdata.text.messages import MediaChat, Medium, Message, is_given, read_chat, with_images_first

Int64s = npt.NDArray[np.int64]


class MediaTokens(NamedTuple):
    """Where media lie in token ids, their kinds, and what the processor made of them."""

    spans: Sequence[tuple[int, int]] = ()
    kinds: Sequence[str] = ()
    features: Mapping[str, Any] = {}


class MediaChatEncoder:
    """Brings a processor's media into encoded chats.

    Args:
        processor: Of transformers.

    Raises:
        ValueError: Its tokenizer has no pad token.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._encoder = Encoder(processor.tokenizer, processor)

    @cached_property
    def _rope(self) -> RopeRule | None:
        return rope_rule(self._processor)

    @staticmethod
    def chat(row: Mapping[str, Any], messages: Sequence[Message], image_key: str, video_key: str) -> MediaChat:
        """The messages with typed parts, and the media of the row.

        A single image may stand in the column `image`. Where no message has a place for images, they stand before the
        first that a user says, as TRL puts them.
        """
        images = row.get(image_key) if image_key in row else [row.get("image")]
        images = [image for image in images or () if is_given(image)]
        videos = [video for video in row.get(video_key) or () if is_given(video)]
        # Under names of our own: a column may be called otherwise, and a row have both.
        placed = with_images_first(messages, len(images))
        return read_chat(
            {"messages": placed, "images": images, "videos": videos},
            "messages",
            {"image": "images", "video": "videos"},
            typed=True,
        )

    def expand(
        self, encoded: EncodedChat, media: Sequence[Medium], folder: str
    ) -> tuple[Int64s, npt.NDArray[np.bool_], MediaTokens]:
        """The token ids and what is trained of a chat, each placeholder replaced by its medium's tokens.

        Args:
            encoded: The chat, with one placeholder per medium.
            media: As the row has them.
            folder: Where relative paths begin.

        Raises:
            ValueError: A medium cannot be opened, or the text does not have a place for each.
        """
        opened = open_media(media, folder, patch_size_of(self._processor))
        found = self._encoder.encode(encoded.text, [medium.kind for medium in media], opened)
        # A medium's tokens would have the value of its placeholder, which an assistant's own message may train.
        train = encoded.train[found.origin]
        for begin, end in found.spans:
            train[begin:end] = False
        return found.input_ids, train, MediaTokens(found.spans, found.kinds, found.features)

    def fields(self, input_ids: Int64s, media: MediaTokens) -> dict[str, Any]:
        """What a sample has beside text: `mm_token_type_ids`, `multi_modal_inputs`, and perhaps `position_ids`."""
        made: dict[str, Any] = {
            "mm_token_type_ids": torch.from_numpy(self._encoder.media_types(input_ids)),
            "multi_modal_inputs": training_features(media.features),
        }
        if self._rope is not None:
            grids = read_grids(media.kinds, dict(media.features))
            made["position_ids"] = torch.from_numpy(self._rope.positions(input_ids, grids))
        return made
