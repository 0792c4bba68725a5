"""Multimodal rope positions: time, height and width of each token, as Qwen2-VL counts them.

A text token has the same number three times. The tokens of an image or video start from the number after the text
before them, and count frames, rows and columns from there; the text after it goes on beyond its larger side.
Qwen2.5-VL spaces frames by seconds, Qwen3-VL writes each frame as an image of its own.
See "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any Resolution" (2024), section 2.1.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

TOKENS_PER_SECOND: Final = 2
"""Of the published Qwen2.5-VL checkpoints (`vision_config.tokens_per_second`), where a processor reports seconds."""


class VisualGrid(NamedTuple):
    """What one image or video is to the language model.

    Attributes:
        kind: image or video.
        grid: Frames, rows and columns of patches, before `merge_size` of them a side become one token.
        frame_step: How far apart in time two frames are.
    """

    kind: str
    grid: tuple[int, int, int]
    frame_step: float = 1.0


class RopeRule(NamedTuple):
    """What the positions depend on beside the grids.

    Attributes:
        token_ids: The id of an image's and of a video's tokens, by kind.
        merge_size: Patches a side that become one token.
    """

    token_ids: dict[str, int]
    merge_size: int

    def positions(self, input_ids: Int64s, grids: Sequence[VisualGrid]) -> Int64s:
        """Compute the positions of one unpadded sequence.

        Args:
            input_ids: Shape (n,).
            grids: Of its images and videos, in their order.

        Returns:
            int64, shape (3, n).

        Raises:
            ValueError: The tokens of images and videos do not fit the grids.
        """
        kinds = _kinds(input_ids, self.token_ids)
        waiting = {kind: self._per_run(kind, kinds, grids) for kind in self.token_ids}
        parts: list[Int64s] = []
        at, number = 0, 0  # in the tokens, and of the next position: media advance the two differently
        for start in np.flatnonzero(kinds).tolist():
            if start < at:  # a later token of the medium before
                continue
            parts.append(_text(start - at, number))
            number += start - at
            kind = list(self.token_ids)[kinds[start] - 1]
            grid = waiting[kind].pop(0) if waiting[kind] else None
            size = math.prod(self._shape(grid)) if grid else 0
            if grid is None or not (kinds[start : start + size] == kinds[start]).all() or start + size > len(kinds):
                raise _misfit(kind, start)
            parts.append(self._visual(grid, number))
            number += max(grid.grid[1:]) // self.merge_size
            at = start + size
        if any(waiting.values()):
            raise _misfit(next(kind for kind, grids in waiting.items() if grids), len(kinds))
        return np.concatenate([*parts, _text(len(kinds) - at, number)], axis=1)

    def _shape(self, grid: VisualGrid) -> tuple[int, int, int]:
        """Frames, rows and columns of tokens."""
        frames, height, width = grid.grid
        return frames, height // self.merge_size, width // self.merge_size

    def _visual(self, grid: VisualGrid, start: int) -> Int64s:
        found = np.indices(self._shape(grid)).reshape(3, -1).astype(np.int64)
        found[0] = (found[0] * grid.frame_step).astype(np.int64)
        return found + start

    def _per_run(self, kind: str, kinds: Int64s, grids: Sequence[VisualGrid]) -> list[VisualGrid]:
        """The grids of a kind, a video by frames where its tokens come frame by frame, with times written between."""
        found = [grid for grid in grids if grid.kind == kind]
        frames = sum(grid.grid[0] for grid in found)
        of_kind = kinds == 1 + list(self.token_ids).index(kind)
        runs = int(of_kind[:1].sum() + (of_kind[1:] & ~of_kind[:-1]).sum())
        # No feature says whether a processor separates frames; the number of runs of video tokens does.
        if kind != "video" or runs != frames:
            return found
        return [VisualGrid(kind, (1, *grid.grid[1:])) for grid in found for _ in range(grid.grid[0])]


def _kinds(input_ids: Int64s, token_ids: dict[str, int]) -> Int64s:
    """0 for text, else 1 + the number of its kind."""
    kinds = np.zeros(len(input_ids), dtype=np.int64)
    for number, token in enumerate(token_ids.values(), 1):
        kinds[input_ids == token] = number
    return kinds


def _text(length: int, start: int) -> Int64s:
    return np.broadcast_to(np.arange(start, start + length, dtype=np.int64), (3, length))


def _misfit(kind: str, at: int) -> ValueError:
    return ValueError(
        f"rope positions: expected the tokens of each {kind} as its grid says, got others at token {at}\n"
        "  The text may not spell the tokens that stand for images and videos."
    )


def rope_rule(processor: Any) -> RopeRule | None:
    """The rule of a processor, or None where positions count tokens: it is not like that of Qwen2-VL."""
    image_processor: Any = getattr(processor, "image_processor", None)
    # By the name of a base: all processors that count so derive from it, also those of later models.
    if not any("Qwen2VLImageProcessor" in base.__name__ for base in type(image_processor).__mro__):
        return None
    token_ids = {kind: getattr(processor, f"{kind}_token_id", None) for kind in ("image", "video")}
    return RopeRule({kind: token for kind, token in token_ids.items() if token is not None}, image_processor.merge_size)


def read_grids(kinds: Sequence[str], features: dict[str, Any]) -> list[VisualGrid]:
    """The grids of a row's media, in their order, from what the processor made of them."""
    grids = {kind: iter(np.asarray(features.get(f"{kind}_grid_thw", ())).tolist()) for kind in ("image", "video")}
    seconds = iter(np.asarray(features.get("second_per_grid_ts", ())).tolist())
    found = []
    for kind in kinds:
        frames, height, width = next(grids[kind])
        second = next(seconds, None) if kind == "video" else None
        step = 1.0 if second is None else second * TOKENS_PER_SECOND
        found.append(VisualGrid(kind, (frames, height, width), step))
    return found
