"""What `prepare` would make of the first records: `inputs → named pieces of tokens`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.inputs import plan_tasks
from streamdata.prepare.output import padding_id
from streamdata.prepare.pack import Packer
from streamdata.prepare.record_formats import with_record_format
from streamdata.prepare.stored_record import Piece, Shown, cut
from streamdata.prepare.worker import TaskRun, make_backend
from streamdata.stores.dtypes import SOURCES


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
    kind, padding = ("row", padding_id(tokenizer)) if config.has_rows() else ("document", 0)
    packer = Packer(config, padding, Counter())
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
