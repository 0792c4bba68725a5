"""A faster backend is used only if it agrees with the tokenizer itself on a sample of the input."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.encode import GigatokenBackend, special_finder
from streamdata.prepare.errors import BadRecordError, DroppedRecordError
from streamdata.prepare.inputs import Task, TaskInput
from streamdata.prepare.records import parse
from streamdata.prepare.sections import Extractor, TextPart

_TASKS, _RECORDS = 8, 100


def check_backend(config: PrepareConfig, tokenizer: Any, tasks: Sequence[Task]) -> None:
    """Compare gigatoken, where the config names it, with the tokenizer, on records from all over the input.

    Raises:
        PrepareError: They differ.
    """
    if config.backend != "gigatoken" or not tasks:
        return
    backend = GigatokenBackend(tokenizer)
    count = min(_TASKS, len(tasks))
    for number in range(count):
        task = tasks[number * (len(tasks) - 1) // max(count - 1, 1)]  # the first, the last, and some between
        found = list(islice(_texts(config, tokenizer, task), _RECORDS))
        backend.check([text for text, _ in found], [location for _, location in found])


def _texts(config: PrepareConfig, tokenizer: Any, task: Task) -> Iterator[tuple[str, str]]:
    """The texts of a task, each with its location."""
    extract, source = Extractor(config, special_finder(tokenizer)), TaskInput(task)
    for batch in source.batches():
        for number, raw in enumerate(batch.records, batch.first):
            try:
                parsed = raw if raw is None or isinstance(raw, dict) else parse(raw, task.url)
                parts = extract(parsed or {}).parts()
            except (BadRecordError, DroppedRecordError):
                continue  # its task meets it again, and counts it
            yield from ((part.text, source.location(number)) for part in parts if isinstance(part, TextPart))
