"""The newest score of each record, and which records are left out because of it."""

import base64
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from streamdata.ledger.prompts import WrongCall, check_int

_SAVED: Final = "<i8", "<f4", "<i4"
"""How numbers of records, values and epochs are saved."""


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
        check_int("PromptLedger", "again_after", again_after, 1, "It counts epochs.")
        try:  # as scores are kept: else one of 0.9 would be below a bound of 0.9
            self._low, self._high = np.array((-math.inf, math.inf) if drop_at is None else drop_at, np.float32).tolist()
        except (TypeError, ValueError):
            self._low = self._high = 0.0
        if not self._low < self._high:
            remedy = "(0.0, 1.0) leaves out prompts that none or all of the answers solved."
            raise WrongCall("PromptLedger", "drop_at to be two numbers, the lower first", drop_at, remedy)
        self._again_after = again_after
        # Complex numbers, not pairs: a million of those would keep the garbage collector busy for seconds.
        self._scores: dict[str, dict[int, complex]] = {}
        """By source and number of the record: its newest score, and the epoch of the prompt that had it."""

    def __len__(self) -> int:
        return sum(map(len, self._scores.values()))

    def set(self, source: str, number: int, epoch: int, value: float) -> None:
        """Set the score of a record, given for its prompt of an epoch."""
        self._scores.setdefault(source, {})[number] = complex(value, epoch)

    def get(self, source: str, number: int) -> float | None:
        """Return the score of a record as float32; None if it has none."""
        found = self._scores.get(source, {}).get(number)
        return None if found is None else found.real

    def leaves_out(self, source: str, number: int, epoch: int) -> bool:
        """Whether a record is left out in an epoch."""
        found = self._scores.get(source, {}).get(number)
        if found is None or self._low < found.real < self._high:
            return False
        return found.imag < epoch <= found.imag + self._again_after

    def state_dict(self) -> dict[str, list[str]]:
        """The scores as plain JSON: of each source int64, float32 and int32 arrays in base64, little-endian."""
        state = {}
        for source, scores in self._scores.items():
            found = np.fromiter(scores.values(), np.complex128, len(scores))
            arrays = zip((np.fromiter(scores, np.int64, len(scores)), found.real, found.imag), _SAVED, strict=True)
            state[source] = [base64.b64encode(array.astype(dtype).tobytes()).decode() for array, dtype in arrays]
        return state

    def load_state_dict(self, state: Mapping[str, Sequence[str]]) -> None:
        """Replace all scores by saved ones."""
        self._scores = {}
        for source, saved in state.items():
            contents = zip((base64.b64decode(text, validate=True) for text in saved), _SAVED, strict=True)
            numbers, values, epochs = (np.frombuffer(content, dtype) for content, dtype in contents)
            found = values.astype(np.complex128) + 1j * epochs
            self._scores[source] = dict(zip(numbers.tolist(), found.tolist(), strict=True))


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
