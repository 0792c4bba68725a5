"""Process functions that are watched: `records → function → samples, each with the records that were read for it`."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

RECORDS: Final = "__records__"
"""Private. In a sample of a watched function: the raw records that were read for it."""
_MOST: Final = 64
"""Records that are kept for a sample: a function may pass over millions."""

Record = dict[str, Any]


class WatchedRecord:
    """A `single_process_fn` whose samples carry their record.

    Args:
        function: The one of the recipe.
    """

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self._function = function

    def __call__(self, record: Record) -> Any:
        """What the function makes of a record, with it."""
        kept = [dict(record)]  # the function may change it
        made = self._function(record)
        if isinstance(made, list):
            return [_with_records(sample, kept) for sample in made]
        return made if made is None else _with_records(made, kept)


# A partial: at each start of a stream function `fresh` copies what a partial is of, so that the function which is
# watched has collections of its own then, as it would have by itself.
class WatchedStream(functools.partial[Any]):
    """A `process_fn` whose samples carry the records that were pulled since the one before, or the last one."""

    def __call__(self, records: Iterable[Record], /, *_: Any, **__: Any) -> Iterator[Any]:
        """What the function makes of records, with them."""
        pulled: list[Record] = []
        last: list[Record] = []
        for sample in self.func(_noting(records, pulled), *self.args, **self.keywords):
            last = pulled[:_MOST] or last
            pulled.clear()
            yield _with_records(sample, last[-_MOST:])

    def __getattr__(self, name: str) -> Any:
        # Whether it has a state, and which one.
        return getattr(self.func, name)


def _noting(records: Iterable[Record], pulled: list[Record]) -> Iterator[Record]:
    for record in records:
        if len(pulled) < _MOST:
            pulled.append(dict(record))
        yield record


def _with_records(sample: Any, records: list[Record]) -> Any:
    return {**sample, RECORDS: records} if isinstance(sample, Mapping) else sample
