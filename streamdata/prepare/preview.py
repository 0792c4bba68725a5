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
from streamdata.prepare.record_formats import with_record_format
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import TaskRun, make_backend
from streamdata.stores.factory import open_store
from streamdata.stores.store import Store
from streamdata.stores.train_types import SOURCES


class Piece(NamedTuple):
    """Tokens that belong together: a document in a row, a response.

    Attributes:
        ids: The tokens, (n,).
        train: Which are trained, (n,); None where that is not known.
    """

    ids: npt.NDArray[Any]
    train: npt.NDArray[np.bool_] | None


class Shown(NamedTuple):
    """One record: its name, its pieces, and after them what is not tokens."""

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
    tasks = plan_tasks(inputs, config.task_bytes)
    config = with_record_format(config, tasks)
    maker = DocumentMaker(config, tokenizer, make_backend(config, tokenizer))
    documents: list[TokenizedDocument] = []
    left_out: Counter[str] = Counter()
    for task in tasks:
        run = TaskRun(config, maker, task)
        for batch in run.input.batches():
            documents += run.documents(batch._replace(records=batch.records[:count]))
            count -= run.counts.pop("records")
            if not count:
                break
        left_out.update(run.left_out())
        if not count:
            break
    if config.train_type in STREAMED:
        yield from _packed(config, tokenizer, documents)
    else:
        for number, document in enumerate(documents):
            yield from _sources(config, document, number)
    if left_out:
        yield Shown("left out", [], ", ".join(f"{reason} {number}" for reason, number in sorted(left_out.items())))


def _packed(config: PrepareConfig, tokenizer: Any, documents: list[TokenizedDocument]) -> Iterator[Shown]:
    kind, padding = ("document", 0) if config.packing == "none" else ("row", padding_id(tokenizer))
    packer = Packer(config, padding, Counter())
    sequences = [tokens for document in documents for tokens in document.sequences["sequence"]]
    number = 0
    for block in [*packer.add(sequences), *packer.finish()]:
        keys = SOURCES[config.train_type]["sequence"]
        train = block.flat[keys.mask] if keys.mask else None
        stops = np.cumsum(block.lengths)
        ends = stops if block.documents is None else np.cumsum(block.documents)
        for begin, stop in zip((stops - block.lengths).tolist(), stops.tolist(), strict=True):
            yield Shown(f"{kind} {number}", _cut(block.flat[keys.tokens], train, begin, stop, ends))
            number += 1


def _cut(ids: Any, train: Any, begin: int, end: int, ends: npt.NDArray[np.int64]) -> list[Piece]:
    """Tokens `begin` to `end`, cut where documents end."""
    bounds = [begin, *(int(position) for position in ends if begin < position < end), end]
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
        StoreError: It is not a store, or is damaged.
        ValueError: The store has fewer records.
    """
    store = open_store(path)
    for key, mask in {keys.tokens: keys.mask for sources in SOURCES.values() for keys in sources.values()}.items():
        if key not in store.keys:
            continue
        found = store.fetch_record(index, key)
        if key == "rewards":
            yield Shown(f"record {index}, rewards", [], ", ".join(f"{float(value):g}" for value in found))
            continue
        masks = store.fetch_record(index, mask) if mask is not None and mask in store.keys else None
        yield Shown(f"record {index}, {key}", _stored_pieces(store, key, index, found, masks))


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
