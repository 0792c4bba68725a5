"""Shows records without training on them: `inputs, a finished store → named pieces of tokens`, without torch."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.encode import make_backend
from streamdata.prepare.extract import with_record_format
from streamdata.prepare.inputs import plan_tasks
from streamdata.prepare.output import Packer, padding_id
from streamdata.prepare.worker import TaskRun
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
        yield Shown("left out", "", [], ", ".join(f"{reason} {number}" for reason, number in sorted(left_out.items())))


def _packed(config: PrepareConfig, tokenizer: Any, documents: list[TokenizedDocument]) -> Iterator[Shown]:
    kind = "row" if config.has_rows() else "document"
    packer = Packer(config, padding_id(config, tokenizer), Counter())
    sequences = [tokens for document in documents for tokens in document.sequences["sequence"]]
    number = 0
    for block in [*packer.add(sequences), *packer.finish()]:
        keys = SOURCES[config.train_type]["sequence"]
        train = block.flat[keys.mask] if keys.mask else None
        stops = np.cumsum(block.lengths)
        ends = stops if block.documents is None else np.cumsum(block.documents)
        for begin, stop in zip((stops - block.lengths).tolist(), stops.tolist(), strict=True):
            yield Shown(f"{kind} {number}", keys.tokens, cut(block.flat[keys.tokens], train, begin, stop, ends))
            number += 1


def _sources(config: PrepareConfig, document: TokenizedDocument, number: int) -> Iterator[Shown]:
    for name, keys in SOURCES[config.train_type].items():
        rows = document.sequences.get(name, [])
        pieces = [Piece(row.ids, row.train if keys.mask else None) for row in rows]
        values = ", ".join(f"{value:g}" for value in document.values.get(name, ()))
        yield Shown(f"record {number}", name, pieces, values, are_apart=len(pieces) > 1)


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
