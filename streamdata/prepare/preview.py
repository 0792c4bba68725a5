"""Shows records without training on them: `inputs, a finished store → named pieces of tokens`, without torch."""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.encode import make_backend
from streamdata.prepare.extract import with_record_format
from streamdata.prepare.inputs import plan_tasks
from streamdata.prepare.output import Staging
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import TaskRun
from streamdata.stores.dtypes import SOURCES
from streamdata.stores.factory import open_store
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
    """Shows the first records as they would be stored: they are, for a moment.

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
    if documents:
        kind = "row" if config.has_rows() else "document" if config.train_type in STREAMED else "record"
        with TemporaryDirectory(prefix="streamdata-") as folder:
            directory = RunDirectory(folder)
            directory.work.mkdir()
            with Staging(config, tokenizer, directory, 0, Counter()) as staging:
                staging.add(documents)
                staging.publish()
            store = open_store(directory.finished_data)
            for number in range(store.num_records):
                yield from stored_record(store, number, kind)
    if left_out:
        yield Shown("left out", "", [], ", ".join(f"{reason} {number}" for reason, number in sorted(left_out.items())))


def stored_record(store: Store, index: int, kind: str = "record") -> Iterator[Shown]:
    """Shows a record of a store.

    Args:
        store: The store.
        index: The record's number.
        kind: What to call it.

    Raises:
        StoreError: It is damaged.
        ValueError: It has fewer records.
    """
    name = f"{kind} {index}"
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
    bounds = [0, *(int(position) for position in ends if 0 < position < len(found)), len(found)]
    spans = (slice(*span) for span in itertools.pairwise(bounds))
    return [Piece(found[span], None if train is None else train[span]) for span in spans]
