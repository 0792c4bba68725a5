"""The newest score of each record, and which records are left out because of it."""

import base64
import math
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final

import numpy as np

from streamdata.ledger.prompts import WrongCall

_SAVED: Final = {"records": "<i8", "values": "<f4", "epochs": "<i4"}


class Scores:
    """The newest score of each record.

    Args:
        drop_at: A record is left out if its score is at most the first of these, or at least the second; None leaves
            out nothing.
        again_after: For how many epochs after the one in which it was scored.

    Raises:
        ValueError: `drop_at` is not two numbers of which the first is smaller, or `again_after` no int from 1 on.
    """

    def __init__(self, drop_at: tuple[float, float] | None, again_after: int) -> None:
        if type(again_after) is not int or again_after < 1:
            raise WrongCall("PromptLedger", "again_after to be an int from 1 on", again_after, "It counts epochs.")
        try:  # as scores are kept: else one of 0.9 would be below a bound of 0.9
            self._low, self._high = np.array(drop_at or (-math.inf, math.inf), np.float32).tolist()
        except (TypeError, ValueError):
            self._low = self._high = 0.0
        if not self._low < self._high:
            remedy = "(0.0, 1.0) leaves out prompts that none or all of the answers solved."
            raise WrongCall("PromptLedger", "drop_at to be two numbers, the lower first", drop_at, remedy)
        self._again_after = again_after
        self._of_sources: dict[str, dict[int, tuple[float, int]]] = {}
        """By source and number of the record: its newest score, and the epoch of the prompt that was scored."""

    def __len__(self) -> int:
        return sum(map(len, self._of_sources.values()))

    def set(self, source: str, number: int, epoch: int, value: float) -> None:
        """Set the score of a record, given for its prompt of an epoch."""
        self._of_sources.setdefault(source, {})[number] = value, epoch

    def get(self, source: str, number: int) -> float | None:
        """Return the score of a record as float32; None if it has none."""
        return self._of_sources.get(source, {}).get(number, (None, 0))[0]

    def leaves_out(self, source: str, number: int, epoch: int) -> bool:
        """Whether a record is left out in an epoch."""
        value, scored = self._of_sources.get(source, {}).get(number, (None, 0))
        is_kept = value is None or self._low < value < self._high
        return not is_kept and scored < epoch <= scored + self._again_after

    def state_dict(self) -> dict[str, dict[str, str]]:
        """The scores as plain JSON: of each source three arrays in base64, little-endian."""
        state = {}
        for source, scores in self._of_sources.items():
            columns = scores, map(itemgetter(0), scores.values()), map(itemgetter(1), scores.values())
            arrays = zip(_SAVED.items(), columns, strict=True)
            state[source] = {
                name: base64.b64encode(np.fromiter(column, dtype, len(scores)).tobytes()).decode()
                for (name, dtype), column in arrays
            }
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, str]]) -> None:
        """Replace all scores by saved ones."""
        self._of_sources = {}
        for source, saved in state.items():
            contents = ((base64.b64decode(saved[name], validate=True), dtype) for name, dtype in _SAVED.items())
            arrays = [np.frombuffer(content, dtype).tolist() for content, dtype in contents]
            self._of_sources[source] = dict(zip(arrays[0], zip(*arrays[1:], strict=True), strict=True))


def read_scores(values: Any) -> list[float]:
    """Read scores, as float32.

    Raises:
        ValueError: One is no number, not finite, or beyond float32; or `values` is no list of them.
    """
    with suppress(TypeError, ValueError), np.errstate(over="ignore"):
        given = np.asarray(values if hasattr(values, "__array__") else list(values))
        if given.dtype.kind in "biuf" and given.ndim == 1 and np.isfinite(read := given.astype(np.float32)).all():
            found: list[float] = read.tolist()
            return found
    raise WrongCall("PromptLedger.score", "finite numbers as values", values, "Drop a prompt without a score.")
