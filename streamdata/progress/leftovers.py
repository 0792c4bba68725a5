"""What the sizes before left of a source in a pass: an offset, and a list of what lies before it and is not delivered.

A stretch is a run of consecutive windows that one lane would have read: the numbers `first`, `first + stride` … of the
source's endless order, `blocks` of them, from record `start` of the first window's shuffled order up to, without,
record `stop` of the last one's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.progress.cursor import FunctionState

Numbers = npt.NDArray[np.int64]

_STRETCH_FIELDS: Final = ("first", "stride", "blocks", "start", "outputs", "stop")
STRETCH: Final = np.dtype([(name, np.int64) for name in _STRETCH_FIELDS])
"""`outputs`: how many outputs of the record at `start` were delivered. `stop` is -1 for the end of the last window."""
_BURST_FIELDS: Final = ("stretches", "given", "outputs")
BURST: Final = np.dtype([(name, np.int64) for name in _BURST_FIELDS])
"""An open burst: how many stretches its records are, how many of its outputs were delivered, and how many outputs of
the last record belong to it, 0 for all."""


UNIT: Final = 1024
"""Of a cut's mean: whole numbers, which are the same on every machine."""


class BlockCut(NamedTuple):
    """What the arithmetic of leftovers needs to know of a source, which may be absent."""

    blocks: int
    """In an epoch."""
    window: int
    """Blocks in a window."""
    mean: int
    """Records in a block, on average, in units of 1/`UNIT`; 0 where that shows only when they are read."""
    divides: int
    """1 where a window may be divided among lanes."""
    epochs: int
    """Read in a finite stream; 0 of one without end."""

    def records(self, blocks: Any) -> Any:
        """How many records so many blocks have, by the mean."""
        return blocks * self.mean // UNIT


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What the sizes before left of a source."""

    offset: int = 0
    """Of the source's endless order: all numbers from here on are left, and none is in the list."""
    stretches: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, STRETCH))
    """STRETCH (n,), sorted."""
    bursts: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, BURST))
    """BURST (m,)."""
    pulled: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, STRETCH))
    """STRETCH: the records of the bursts, one burst after another."""
    functions: Mapping[int, tuple[FunctionState | None, str]] = field(default_factory=dict)
    """By the number of a burst: its function's state at its start, and the code of what was left out of it."""

    def __bool__(self) -> bool:
        return bool(self.offset or len(self.stretches) or len(self.bursts))

    def as_json(self) -> dict[str, Any]:
        """What a header holds: columns, each as text, or one number where all rows have the same."""
        texts: dict[str, Any] = {"offset": self.offset}
        for name, table in (("stretches", self.stretches), ("bursts", self.bursts), ("pulled", self.pulled)):
            if len(table):
                texts[name] = _as_text(table)
        if self.functions:
            texts["functions"] = {str(number): list(state) for number, state in self.functions.items()}
        return texts


def leftovers_of(value: Mapping[str, Any]) -> Leftovers:
    """Read what `as_json` gave."""
    tables = {name: _table(value.get(name), STRETCH) for name in ("stretches", "pulled")}
    functions = {int(number): (state, left_out) for number, (state, left_out) in value.get("functions", {}).items()}
    return Leftovers(offset=value["offset"], bursts=_table(value.get("bursts"), BURST), functions=functions, **tables)


def _as_text(table: npt.NDArray[Any]) -> dict[str, Any]:
    """Columns as decimal numbers; of `first` the differences, which are small in a sorted list."""
    # As text a number takes the bytes of its digits, not the 36 of an int in a list; JSON need not look at it.
    texts: dict[str, Any] = {"rows": len(table)}
    for name in table.dtype.names or ():
        column = np.diff(table[name], prepend=0) if name == "first" else table[name]
        is_constant = bool((column == column[0]).all())
        texts[name] = int(column[0]) if is_constant else " ".join(map(str, column.tolist()))
    return texts


def _table(texts: Mapping[str, Any] | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    table = np.zeros(texts["rows"] if texts else 0, dtype)
    for name in (dtype.names or ()) if texts else ():
        value = texts[name]  # type: ignore[index]
        column = value if isinstance(value, int) else np.array(value.split(" "), np.int64)
        table[name] = np.cumsum(np.full(len(table), column)) if name == "first" else column
    return table
