"""A record of a finished store → named pieces of tokens, without torch: it is looked at, not trained on."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.prepare.manifest import Json
from streamdata.prepare.run_directory import RunDirectory
from streamdata.stores.dtypes import SOURCES
from streamdata.stores.store import Store


class Piece(NamedTuple):
    """Tokens that belong together: a document in a row, a response.

    Attributes:
        ids: The tokens, (n,).
        train: Which are trained, (n,); None where that is not known.
    """

    ids: npt.NDArray[Any]
    train: npt.NDArray[np.bool_] | None


class Shown(NamedTuple):
    """A key of a record.

    Attributes:
        name: The record's.
        key: Such as sequence, chosen, rewards; "" of what is said of all records.
        pieces: Its tokens.
        note: What is not tokens.
        are_apart: Whether its pieces are sequences of their own, not documents of one row.
    """

    name: str
    key: str
    pieces: list[Piece]
    note: str = ""
    are_apart: bool = False


def manifest_of(path: str | Path) -> Json | None:
    """The manifest of the run that wrote a store, found in its directory or one above; None without one."""
    absolute = Path(path).absolute()
    for directory in map(RunDirectory, (absolute, *absolute.parents)):
        if directory.manifest.exists() and directory.is_finished():
            return directory.read_plan()
    return None


def stored_record(store: Store, index: int) -> Iterator[Shown]:
    """A record of a store.

    Raises:
        StoreError: It is damaged.
        ValueError: It has fewer records.
    """
    name = f"record {index}"
    for key, mask in {keys.tokens: keys.mask for sources in SOURCES.values() for keys in sources.values()}.items():
        if key not in store.keys:
            continue
        found = store.record(key, index)
        if key == "rewards":
            yield Shown(name, key, [], ", ".join(f"{float(value):g}" for value in found))
            continue
        masks = store.record(mask, index) if mask is not None and mask in store.keys else None
        if isinstance(found, list) or found.ndim > 1:
            rows = [None] * len(found) if masks is None else masks
            pieces = [Piece(row, mask) for row, mask in zip(found, rows, strict=True)]
            yield Shown(name, key, pieces, are_apart=True)
        else:
            yield Shown(name, key, _stored_pieces(store, key, index, found, masks))


def _stored_pieces(store: Store, key: str, index: int, found: Any, train: Any) -> list[Piece]:
    column = store.column(key)
    number = bisect_right(column.record_ends, index)
    segment = column.segments[number]
    if segment.documents is None:
        return [Piece(found, train)]
    first, last = segment.records.span(index - column.record_ends[number] + segment.records.count, store.values)
    begin = column.starts[number] + first
    ends = store.document_starts(key, begin, begin + last - first) - begin
    return cut(found, train, 0, len(found), ends)


def cut(ids: Any, train: Any, begin: int, end: int, ends: npt.NDArray[np.int64]) -> list[Piece]:
    """Tokens `begin` to `end`, cut where documents end."""
    bounds = [begin, *(int(position) for position in ends if begin < position < end), end]
    spans = itertools.pairwise(bounds)
    return [Piece(ids[first:stop], None if train is None else train[first:stop]) for first, stop in spans]
