"""What a person sees of tokens: `first records of the inputs, or a record of a store → named pieces of text`."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.inputs import plan_tasks
from streamdata.prepare.manifest import Json
from streamdata.prepare.output import padding_id
from streamdata.prepare.pack import Packer
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import TaskRun, make_backend
from streamdata.stores.factory import open_store
from streamdata.stores.store import Store
from streamdata.stores.train_types import SOURCES


class Piece(NamedTuple):
    """Tokens that belong together: a document in a row, a response.

    Attributes:
        ids: The tokens, (n,).
        train: Which are trained, (n,); None where that is not said.
    """

    ids: npt.NDArray[Any]
    train: npt.NDArray[np.bool_] | None


class Shown(NamedTuple):
    """One record: its name, its pieces, and after them what is no text."""

    name: str
    pieces: list[Piece]
    note: str = ""


def first_records(config: PrepareConfig, tokenizer: Any, inputs: str | Sequence[str], count: int) -> Iterator[Shown]:
    """What the first records become.

    Args:
        config: How.
        tokenizer: One of transformers.
        inputs: As `Pipeline.run` takes them.
        count: How many records to read.

    Raises:
        PrepareError: One of them is bad, and none may be.
    """
    maker = DocumentMaker(config, tokenizer, make_backend(config, tokenizer))
    documents: list[TokenizedDocument] = []
    left: Counter[str] = Counter()
    for task in plan_tasks(inputs, config.task_bytes):
        run = TaskRun(config, maker, task)
        for batch in run.input.batches():
            documents += run.documents(batch._replace(records=batch.records[: count - left["records"]]))
            left["records"] += run.counts["records"]
            run.counts.clear()
            if left["records"] >= count:
                break
        left.update(run.left_out())
        if left["records"] >= count:
            break
    if config.train_type in STREAMED:
        yield from _packed(config, tokenizer, documents)
    else:
        for number, document in enumerate(documents):
            yield from _sources(config, document, number)
    del left["records"]
    if left:
        yield Shown("left out", [], ", ".join(f"{reason} {number}" for reason, number in sorted(left.items())))


def _packed(config: PrepareConfig, tokenizer: Any, documents: list[TokenizedDocument]) -> Iterator[Shown]:
    is_packed = config.packing != "none"
    packer = Packer(config, padding_id(tokenizer) if is_packed else 0, Counter())
    sequences = [tokens for document in documents for tokens in document.sequences["sequence"]]
    number = 0
    for block in [*packer.add(sequences), *packer.finish()]:
        keys = SOURCES[config.train_type]["sequence"]
        train = block.flat[keys.mask] if keys.mask else None
        ends = np.cumsum(block.lengths if block.documents is None else block.documents)
        for end in np.cumsum(block.lengths).tolist():
            begin = end - int(block.lengths[0]) if is_packed else int(ends[number - 1]) if number else 0
            yield Shown(
                f"{'row' if is_packed else 'document'} {number}", _cut(block.flat[keys.tokens], train, begin, end, ends)
            )
            number += 1


def _cut(ids: Any, train: Any, begin: int, end: int, ends: npt.NDArray[np.int64]) -> list[Piece]:
    """Tokens `begin` to `end`, cut where documents end."""
    bounds = [begin, *(int(place) for place in ends if begin < place < end), end]
    spans = itertools.pairwise(bounds)
    return [Piece(ids[first:stop], None if train is None else train[first:stop]) for first, stop in spans]


def _sources(config: PrepareConfig, document: TokenizedDocument, number: int) -> Iterator[Shown]:
    for name, keys in SOURCES[config.train_type].items():
        rows = document.sequences.get(name, [])
        pieces = [Piece(row.ids, row.train if keys.mask else None) for row in rows]
        yield Shown(
            f"record {number}, {name}", pieces, ", ".join(f"{value:g}" for value in document.values.get(name, ()))
        )


def manifest_of(path: str | Path) -> Json | None:
    """The manifest of the run that wrote a store, found in its directory or one above; None without one."""
    absolute = Path(path).absolute()
    for directory in map(RunDirectory, (absolute, *absolute.parents)):
        if directory.manifest.exists() and directory.is_finished():
            return directory.read_plan()
    return None


def stored_record(path: str | Path, index: int) -> Iterator[Shown]:
    """A record of a finished store.

    Raises:
        StoreError: It is no store, or damaged.
        ValueError: It has no such record.
    """
    store = open_store(path)
    for keys in dict.fromkeys(keys for sources in SOURCES.values() for keys in sources.values()):
        if keys.tokens not in store.keys or (keys.mask is None and _has_mask(store, keys.tokens)):
            continue
        found = store.fetch_record(index, keys.tokens)
        if keys.tokens == "rewards":
            yield Shown(f"record {index}, rewards", [], ", ".join(f"{float(value):g}" for value in found))
            continue
        masks = store.fetch_record(index, keys.mask) if keys.mask in store.keys and keys.mask else None
        yield Shown(f"record {index}, {keys.tokens}", _stored_pieces(store, keys.tokens, index, found, masks))


def _has_mask(store: Store, key: str) -> bool:
    masks = [keys.mask for sources in SOURCES.values() for keys in sources.values() if keys.tokens == key]
    return any(mask in store.keys for mask in masks if mask)


def _stored_pieces(store: Store, key: str, index: int, found: Any, masks: Any) -> list[Piece]:
    if isinstance(found, list) or found.ndim > 1:
        rows = [None] * len(found) if masks is None else masks
        return [
            Piece(row.numpy(), None if mask is None else mask.numpy()) for row, mask in zip(found, rows, strict=True)
        ]
    train = None if masks is None else masks.numpy()
    column = store.column(key)
    number = bisect_right(column.record_ends, index)
    segment = column.segments[number]
    if segment.documents is None:
        return [Piece(found.numpy(), train)]
    first, last = segment.records.span(index - column.record_ends[number] + segment.records.count, store.values)
    begin = column.starts[number] + first
    ends = store.document_starts(key, begin, begin + last - first) - begin
    return _cut(found.numpy(), train, 0, len(found), ends)
