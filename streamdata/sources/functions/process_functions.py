"""Process functions: from records to samples, with a cursor after each sample from which a resume gets the rest.

1. records → `call_per_record` (`single_process_fn`) → samples, or the records of
2. records → `run_bursts` (`process_fn`, `customized_yield_fn` over a merged stream) → samples, by a `fresh` function
"""

import copy
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from types import FrameType
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from torch.utils.data import get_worker_info

from streamdata.errors import StateError, shown, text_of
from streamdata.fields import RECORD, is_reserved
from streamdata.sources.functions.starts import fresh, is_stateful
from streamdata.sources.functions.tally import Tally, raise_noted
from streamdata.sources.source import DamagedRecord, Record, Sample, describe_record
from streamdata.states.cursor import FunctionState, Position

logger = logging.getLogger("streamdata")

PerRecordFn = Callable[[Record], Sample | list[Sample] | None]
StreamFn = Callable[[Iterator[Record]], Iterator[Sample]]
StreamFns = StreamFn | list[StreamFn]
"""One, or several of which each reads what the one before it yields; only one alone may keep something."""

_PER_RECORD: Final = {
    "process_fn": "\n  It is called once, with an iterator of records: name a function of one record single_process_fn."
}
"""Remedy where a stream function is a function of one record, by what it is called."""

Sizes: TypeAlias = dict[tuple[str, str], int]
"""Lengths of what is in variables, by the name of a function and of its variable or attribute."""
_SIZED: Final = (list, dict, set, deque, str, bytes, bytearray, np.ndarray)
_MAX_HELD: Final = 1000
"""Positions that are kept of a function that has no state."""
_said_that_it_holds: set[str] = set()
"""The sources of which this process said so."""

StreamPosition = TypeVar("StreamPosition")
"""Where the records' stream stands: a `Position`, or for a merged stream the entries of what was pulled."""


def call_per_record(
    function: PerRecordFn,
    records: Iterable[tuple[Record, Position]],
    skip: int,
    tally: Tally,
    start_of: Callable[[Position], Position],
) -> Iterator[tuple[Sample, Position]]:
    """Yield the samples that `function` makes of each record (none, one or several), each with its position.

    Args:
        function: The source's `single_process_fn`.
        records: Records with the position after each.
        skip: How many outputs of the first record were delivered before.
        tally: Counts the records that gave nothing, and failures.
        start_of: The position before a record, by the one after it.
    """
    what, note = f"source {shown(tally.name)}: single_process_fn", tally.note
    for record, after in records:
        is_new = not (skip or tally.replaying)  # what is read again was counted before
        tally.records += is_new and (not tally.counts_outputs or isinstance(record, DamagedRecord))
        if isinstance(record, DamagedRecord):
            tally.fail(record.error, describe_record(record), record.what)
            skip = 0
            continue
        if note is not None:
            note(record)
        try:
            output = function(record)
        except (Exception, SystemExit) as error:  # a user's function may raise anything; the tally decides
            tally.fail(error, describe_record(record), "single_process_fn")
            tally.records += is_new and tally.counts_outputs
            skip = 0
            continue
        outputs = output if isinstance(output, list) else [] if output is None else [output]
        if not outputs:
            tally.drop(describe_record(record), "single_process_fn gave no sample")
            tally.records += is_new and tally.counts_outputs
        last = len(outputs)
        # Nothing of the function was saved within a record: it runs again, and what was delivered of it is skipped.
        for number, sample in enumerate(outputs, 1):
            if number > skip:
                # Behind the last output of a record stands the next record.
                position = after if number == last else (*start_of(after)[:3], number)
                yield complete(sample, record, what, number - 1, is_of_it=True), position
        if skip > last:
            raise StateError(
                f"{what} gave {last} samples for {describe_record(record)} where it had given at least {skip}\n"
                "  A function must do the same on resume: draw from record_rng alone, and keep its parameters."
            )
        skip = 0


def complete(sample: object, record: Record, what: str, output: int = 0, *, is_of_it: bool = False) -> Sample:
    """Copy a sample, and add the record's `__…__` fields that it lacks; it is the record's output of this number.

    Where it is known to be made of the record, it is so numbered also if it brings along the number of the record.

    Raises:
        TypeError: The output is not a dict.
    """
    if not isinstance(sample, dict):
        raise TypeError(
            f"{what}: expected a dict, got {type(sample).__name__} for {describe_record(record)}\n"
            "  Return samples as dicts."
        )
    # Its state comes with them: a function that builds samples anew need not know of any field but its own.
    fields = {name: value for name, value in record.items() if is_reserved(name)}
    completed = {**fields, **sample}
    if output and RECORD in record and (is_of_it or RECORD not in sample):
        completed[RECORD] = (*record[RECORD][:3], output)
    return completed


class Feed(Iterator[Record], Generic[StreamPosition]):
    """The iterator from which a stream function pulls records; it tracks where bursts begin.

    A burst is all the records pulled between two outputs, and the outputs until the function pulls again.

    Args:
        records: Each record with the position after it.
        start: The position at which the first burst begins.
        replayed: How many outputs of this burst were delivered before: it is fed again, and gives them again.
        tally: Counts failures; what a replay drops was counted before.
        what: What the function is called in messages.
        is_one_burst: Whether all records are one burst, that of another lane, whatever comes between them.
    """

    def __init__(
        self,
        records: Iterator[tuple[Record, StreamPosition]],
        start: StreamPosition,
        replayed: int,
        tally: Tally,
        what: str,
        *,
        is_one_burst: bool = False,
    ) -> None:
        self.start = start
        self.pulled = start
        """The position after the last record pulled."""
        self.given = 0
        self.outputs = 0
        """Outputs of all bursts together."""
        self.state: FunctionState | None = None
        self.last: Record = {}
        self.exhausted = False
        self.error: Exception | None = None
        """An error that is no failure of the function: the records raised it, or a burst is not what it was."""
        self.stateful: Any = None
        """The function, if its state is to be asked for when a burst begins."""
        self._sizes: Sizes = {}
        """Lengths of the function's variables when it pulled its first record."""
        self._records = chain(_measured(self._sizes), records)
        self._held: list[Any] = []
        self._first = 0
        """Number of the first one held, in the sequence in which the function pulled them."""
        self._num_ended = 0
        """Records that count and came to their end in the present burst."""
        self.num_pulled = 0
        """Records of the present burst that were pulled so far, those held from bursts before among them."""
        self._replayed, self.tally, self.what = replayed, tally, what
        self._is_one_burst = is_one_burst
        # While a burst is replayed, failures and drops in it are not counted: they were, when it was first fed.
        tally.replaying = replayed > 0

    def __next__(self) -> Record:
        if self.error is not None:
            raise StopIteration  # a function that swallowed it must come to its end, where it is raised again
        try:
            # It pulls again after an output: a burst ends here. Its state is asked for before the record is pulled, so
            # that it is the one without it.
            if self.given and not self._is_one_burst:
                self._begin_burst()
            elif self.stateful is not None and self.state is None and not self.num_pulled:
                self.state = copy.deepcopy(self.stateful.state_dict())  # the first burst is of its settings, too
            self.last, after = next(self._records)
            self.pulled = after
            if self.tally.note is not None:
                self.tally.note(self.last)
        except StopIteration:
            self.exhausted = True
            raise
        except Exception as error:
            self.error = error
            raise
        self.num_pulled += 1
        self._held.append(after)
        if self.stateful is None:  # it can ask for none of them again, and all that it pulls for an output is in that
            if self.tally.counts_outputs:
                self._end([self._first])
            if len(self._held) > _MAX_HELD:
                self._held = [self._joined(self._held)]
        return self.last

    def holds_records(self) -> bool:
        """Whether the function says that it holds records, or may receive them during a replay."""
        return self.stateful is not None and (self.tally.replaying or self.stateful.state_dict().get("rewind", 0) > 0)

    def passed_over(self) -> str:
        """Describe the records of the present burst that gave no sample, for an error message."""
        return f"{self.what} passed over {self.num_pulled} records, the last: {describe_record(self.last)}"

    def count_output(self) -> bool:
        """Count an output; return whether it is new, not repeated by a replay."""
        if self.tally.counts_outputs and self.stateful is not None:
            self._end(self.stateful.ended_pulls)
        self.given += 1
        self.outputs += 1
        if self.tally.replaying:
            self.tally.replaying = self.given < self._replayed
            return False
        return True

    def _end(self, numbers: Iterable[int]) -> None:
        """Count held records that come to their end with the present output, or the next one."""
        ended = sum(not self._held[number - self._first][-1] for number in numbers)
        self._num_ended += ended
        self.tally.records += 0 if self.tally.replaying else ended

    def _end_burst(self, over: list[Any]) -> None:
        """Count all that are not held any more, in whatever output they are, or in none."""
        if self.tally.counts_outputs:
            self.tally.records += sum(not position[-1] for position in over) - self._num_ended
        self._num_ended = 0

    def forget(self) -> int:
        """Begin a new burst after all pulled records, as if nothing were held; return how many were pulled in vain."""
        self.advance(0)
        self.given, self.state, self._first = 0, None, 0
        lost, self.num_pulled = self.num_pulled, 0
        return lost

    def check_replay(self) -> None:
        """Raise if a replayed burst ended before it repeated all outputs delivered earlier.

        Raises:
            StateError: The function is not deterministic, or another one than when the states were written.
        """
        if self.tally.replaying:
            raise StateError(
                f"source {shown(self.tally.name)}: {self.what} gave {self.given} outputs, not {self._replayed} "
                "as before\n"
                "  A function must do the same on resume: draw from record_rng alone, and keep its parameters;\n"
                "  or resume with reload_from_url_level=True."
            )

    def _begin_burst(self) -> None:
        self.check_replay()
        rewind: Any = 0
        if self.stateful is None and self.outputs == self.given:
            _warn_of_held(self.tally.name, self.what, self._sizes)
        if self.stateful is not None:
            self.state = copy.deepcopy(self.stateful.state_dict())  # it may be what the function goes on to change
            rewind = self.state.get("rewind", 0) if isinstance(self.state, dict) else None
            held = len(self._held)
            if type(rewind) is not int or not 0 <= rewind <= held:
                raise ValueError(
                    f"state_dict(): expected a dict with 'rewind' between 0 and {held}, the records pulled and held, "
                    f"got {shown(self.state)}\n"
                    "  'rewind' is how many of the last records pulled the function still needs."
                )
        self.advance(rewind)
        self.given, self.num_pulled = 0, rewind

    def advance(self, keep: int) -> None:
        """Let the burst be over: of the records that were pulled only so many, the last, are still held."""
        number = len(self._held) - keep
        over, self._held = self._held[:number], self._held[number:]
        self._first += number
        self.start = self._joined([self.start, *over])
        self._end_burst(over)

    def _joined(self, positions: Sequence[Any]) -> Any:
        """The position after successive ones."""
        return positions[-1]


def _measured(sizes: Sizes) -> Iterator[Any]:
    """Yield nothing: it runs when the first record is pulled, and costs the others nothing."""
    sizes.update(_sizes_held())
    yield from ()


def _sizes_held() -> Sizes:
    """How much is in the variables of the functions that are pulling."""
    sizes: Sizes = {}
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  found anew: a feed that held frames would be in a cycle
    while frame is not None and frame.f_code is not run_bursts.__code__:
        if not str(frame.f_globals.get("__name__")).startswith("streamdata."):  # ours have states, or only look on
            own = getattr(frame.f_locals.get("self"), "__dict__", {})
            held = {name: len(value) for name, value in {**own, **frame.f_locals}.items() if isinstance(value, _SIZED)}
            sizes |= {(frame.f_code.co_name, name): size for name, size in held.items()}
        frame = frame.f_back
    return sizes


def _warn_of_held(name: str, what: str, before: Sizes) -> None:
    """Say that a function without a state keeps something after its first burst, which a resume does not give it.

    What it is for nobody knows from outside: a cache, or a list that is made anew for each record, is named too.
    """
    grown = [key for key, size in _sizes_held().items() if size > before.get(key, size)]
    worker = get_worker_info()
    if grown and name not in _said_that_it_holds and (worker is None or not worker.id):
        _said_that_it_holds.add(name)
        logger.warning(
            "source %s: %s still has something when it asks for more after its first output (%s), and no state_dict: a "
            "resume begins without it. If these are records, or what is left of them, they are lost then; give it "
            "state_dict and load_state_dict. `streamdata check --resume` shows whether it goes on exactly",
            shown(name),
            what,
            ", ".join(f"{variable} of {function}" for function, variable in grown),
        )


def run_bursts(function: StreamFns, feed: Feed[Any], state: FunctionState | None) -> Iterator[Sample]:
    """Yield the samples that a stream function makes of a stream of records.

    After each output `feed.start`, `feed.given` and `feed.state` are the cursor: feeding a new copy of the function
    from there, with that state, and dropping the given outputs, goes on with the next one.

    Args:
        function: The stream function, stateful if it has `state_dict` and `load_state_dict`; or several.
        feed: Its records.
        state: State of the function at the start of the first burst.

    Raises:
        StateError: A replayed burst gives less than it had given.
    """
    while True:
        outputs = _call(function, feed, state)
        state = None  # for the first start alone: one after a failure begins with nothing held
        try:
            for sample in outputs:
                if feed.count_output():
                    yield complete(sample, feed.last, feed.what, feed.given - 1)
        except (Exception, SystemExit) as error:  # a user's function may raise anything; the tally decides
            if feed.error is not None:
                raise
            _note_taken_for_record(error, feed)
            feed.tally.replaying = False
            lost = feed.forget()
            at = f"{describe_record(feed.last)}, with {lost} records in hand" if feed.last else "its start"
            feed.tally.fail(error, at, feed.what)
        else:
            break
    # Here, after the loop: a function may have swallowed what the records raised.
    if feed.error is not None:
        raise feed.error
    feed.check_replay()
    feed.advance(0)
    if not feed.exhausted:
        raise ValueError(
            f"source {shown(feed.tally.name)}: {feed.what} ended before its records did, "
            f"after {describe_record(feed.last)}\n"
            "  A stream function must go on until the iterator that it was given ends."
        )


def _call(function: StreamFns, feed: Feed[Any], state: FunctionState | None) -> Iterator[Sample]:
    try:
        who = f"source {shown(feed.tally.name)}: {feed.what}"
        own: list[Any] = [fresh(one, who) for one in (function if isinstance(function, list) else [function])]
        if is_stateful(own[0]):
            feed.stateful = own[0]
            if state is not None:
                own[0].load_state_dict(copy.deepcopy(state))  # it may keep and change what it is given
                feed.state = state
        outputs: Iterator[Any] = feed
        for one in own:
            output: Any = one(outputs)
            if isinstance(output, Mapping) or not hasattr(output, "__iter__"):
                got = f"{type(output).__name__}{_PER_RECORD.get(feed.what, '')}"
                raise TypeError(f"{feed.what}: expected an iterator of samples, got {got}")
            outputs = iter(output)
        return outputs
    except (Exception, SystemExit) as error:
        _note_taken_for_record(error, feed)
        raise_noted(error, f"source {shown(feed.tally.name)}: {feed.what} could not be called")


def _note_taken_for_record(error: Exception | SystemExit, feed: Feed[Any]) -> None:
    """Say what a stream function is given, where it took that for a record."""
    if isinstance(error, TypeError | AttributeError) and f"'{type(feed).__name__}' object" in text_of(error):
        with suppress(Exception):  # whatever a class does in place of `add_note`
            error.add_note(f"{feed.what}: expected a function of an iterator{_PER_RECORD.get(feed.what, '')}")
