"""Reads records to look at them: `inputs, a finished store → fields of records`, without torch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from streamdata.prepare.config import STREAMED, PrepareConfig
from streamdata.prepare.documents import DocumentMaker, TokenizedDocument
from streamdata.prepare.encode import make_backend
from streamdata.prepare.extract import with_record_format
from streamdata.prepare.inputs import plan_tasks
from streamdata.prepare.output import Staging
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import TaskRun
from streamdata.stores.factory import open_store
from streamdata.stores.store import Store

ROW: Final = "sequence"
"""The key of rows that hold documents."""

Record = dict[str, Any]
"""The keys of a record in a store, as the fields of a sample."""


def first_records(
    config: PrepareConfig, tokenizer: Any, inputs: str | Sequence[str], count: int
) -> Iterator[tuple[str, Record]]:
    """Yields the first records as they would be stored, each with its name: they are, for a moment.

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
                yield f"{kind} {number}", stored_record(store, number)
    if left_out:
        yield "left out", dict(sorted(left_out.items()))


def stored_record(store: Store, index: int) -> Record:
    """Reads a record of a store, with `cu_seqlens`, where its documents end, if the store says that it has several.

    Raises:
        StoreError: It is damaged.
        ValueError: It has fewer records.
    """
    found: Record = {key: store.record(key, index) for key in store.keys}
    row = found.get(ROW)
    if row is not None and all(segment.documents is not None for segment in store.column(ROW).segments):
        begin = store.record_begin(ROW, index)
        starts = store.document_starts(ROW, begin, begin + len(row)) - begin
        if len(starts):
            found["cu_seqlens"] = np.array([0, *starts, len(row)])
    return found
