"""Failures: records that a lane read and did not deliver are counted, and errors leave a worker with their text."""

import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import Any, Final, NoReturn

from numpy import ndarray

from streamdata.errors import SourceError, printable, shown, text_of
from streamdata.states.table import COUNTS

_TEXT: Final = "the text of an error"


def reaches_trainer(error: BaseException) -> bool:
    """Whether torch can raise this error of a worker in the trainer, with its text.

    A worker sends the class and the text, and the trainer calls the class with the text. The class may be one that
    cannot be pickled, of which torch sends nothing: the batch is missing without an error. It may want other arguments,
    as `ExceptionGroup` does, or have a text of its own, and then what was wrong, and where, is lost. So it is tried.
    """
    data = sys.modules.get("torch.utils.data")  # not imported: who has not imported it is no worker
    if data is None or data.get_worker_info() is None:
        return True
    wrapped = sys.modules["torch._utils"].ExceptionWrapper((type(error), error, None))
    wrapped.exc_msg = _TEXT
    try:
        pickle.loads(ForkingPickler.dumps(wrapped)).reraise()  # noqa: S301  made here
    except (Exception, SystemExit) as raised:
        with suppress(Exception, SystemExit):  # somebody else's `__str__`
            return _TEXT in str(raised)
    return False


def end_where_batches_are_lost() -> None:
    """Make this worker process exit when a batch or error cannot be pickled, so that the trainer notices.

    What a collate function returns is not known here. Without this there is only a traceback on stderr, and the batch
    is missing: a pass ends as if it were whole, or the trainer waits for ever.
    """

    def end(error: Exception, item: Any) -> None:
        traceback.print_exception(error)
        match item:
            case (int(), _):  # torch's, not of a queue of somebody else's
                sys.stderr.write(
                    "streamdata: expected a batch that can be sent to the trainer, got one that cannot be pickled; the "
                    "worker ends, or the batch would be missing\n"
                    "  Let the collate function return, and raise, what can be pickled.\n"
                )
                sys.stderr.flush()
                os._exit(1)

    Queue._on_queue_feeder_error = staticmethod(end)  # type: ignore[attr-defined]  # noqa: SLF001  # its hook


logger = logging.getLogger("streamdata")


def raise_noted(error: Exception | SystemExit, note: str) -> NoReturn:
    """Raise an error of foreign code again, with a note.

    StopIteration and SystemExit become the cause of a RuntimeError: one would end the loop that it passes through, the
    other the process, and neither would say why. So does one that takes no note, such as a frozen dataclass, and in a
    worker one that torch would not raise again in the trainer.
    """
    if not isinstance(error, StopIteration | SystemExit) and reaches_trainer(error):
        with suppress(Exception):  # whatever a class does in place of `add_note` or setting an attribute
            error.add_note(note)
        if note in getattr(error, "__notes__", ()):
            raise error
    failure = RuntimeError(f"{type(error).__name__}: {text_of(error)}")
    failure.add_note(note)
    raise failure from error


class Tally:
    """Counts, for one source in one lane, dropped records and failures forgiven under `max_bad`.

    Args:
        name: The source's path of names.
        max_bad: How many failures are forgiven.
        dropped: Records dropped before.
        bad: Failures forgiven before.
        skipped: Records left out before, because they were to be skipped.
        records: Records read before, where a function sees them; who reads one counts it, unless it is fed again.
    """

    def __init__(
        self, name: str, max_bad: int, dropped: int = 0, bad: int = 0, skipped: int = 0, records: int = 0
    ) -> None:
        self.name, self.max_bad, self.dropped, self.bad = name, max_bad, dropped, bad
        self.skipped, self.records = skipped, records
        self._last = ""
        self.counts_outputs = False
        """Whether records count once the outputs that they are in are delivered, not when they are read."""
        self.note: Callable[[Any], None] | None = None
        """Called with each record that a function is about to be given, where somebody wants to know."""
        self.replaying = False
        """Whether a burst is fed again, whose drops and failures were counted when it was first read."""

    @property
    def used(self) -> int:
        """How many records were read of which something came."""
        return self.records - self.dropped - self.bad

    def drop(self, record: str, reason: str) -> None:
        """Count a record that a process function dropped."""
        self._last = f"{record}: {reason}"
        if not self.replaying:
            self.dropped += 1

    def skip(self) -> None:
        """Count a record that is left out under `skip`."""
        if not self.replaying:
            self.skipped += 1

    def fail(self, error: Exception | SystemExit, record: str, what: str) -> None:
        """Forgive a failure, or raise it once there are more than `max_bad`.

        Raises:
            Exception: `error` as `raise_noted` raises it, with the record.
        """
        self._last = printable(f"{record}: {what} raised {type(error).__name__}: {text_of(error)}")
        # It was counted when the burst was first fed, and then forgiven: there is nothing to raise, either.
        if self.replaying:
            return
        if self.bad >= self.max_bad:
            remedy = (
                "Mend the data or the function, or set the source's max_bad to skip failures, up to so many per lane."
            )
            if self.bad:
                number = self.bad + 1
                remedy = f"It is failure number {number}, and max_bad={self.max_bad}: mend the data, or raise max_bad."
            raise_noted(error, f"source {shown(self.name)}: {what} failed at {record}\n  {remedy}")
        self.bad += 1
        logger.warning("source %s: skipped (%d of max_bad=%d) %s", shown(self.name), self.bad, self.max_bad, self._last)

    def summary(self) -> str:
        """Describe what was dropped so far, for an error message."""
        counts = f"{self.dropped} records dropped, {self.bad} failures skipped"
        if self.skipped:
            counts += f", {self.skipped} records left out by `skip`"
        return f"{counts}; the last: {self._last}" if self._last else counts

    def silence(self, what: str, passed_over: str = "") -> SourceError:
        """Make the error for a long part of the stream that gave no sample."""
        counts = f"{self.summary()}; {passed_over}" if passed_over else self.summary()
        return SourceError(
            f"source {shown(self.name)}: {what} gave no sample: {counts}\n"
            "  Mend the data or the function, or give the lane more records (fewer ranks or workers)."
        )


counts_of: Callable[[Tally], tuple[int, int, int, int]] = attrgetter(*COUNTS)
"""The counts of a tally that a cursor holds; made for each sample, so in C."""


def num_tokens(ids: Any) -> int:
    """The number of token ids in a sample's field: all elements of a tensor or array; 0 if it is not a collection."""
    if type(ids) is ndarray:
        return ids.size
    if type(ids) is list:
        return len(ids)
    if hasattr(ids, "numel"):  # a tensor's: to look for a Mapping takes three times as long
        return int(ids.numel())
    # A record's text may be called so.
    return 0 if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__len__") else len(ids)
