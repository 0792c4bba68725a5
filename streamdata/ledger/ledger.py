"""Exactly once for prompts that finish out of order: which are open, which are due again, and where the stream stands.

`stream → received → taken: open → done or dropped`; a retry, a lease that ran out and a load lead from open to due, and
so to be taken again.
"""

import math
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from heapq import heappop, heappush
from threading import RLock
from typing import Any, Final

from streamdata.errors import SourceError, StaleAttempt, StateError, listing
from streamdata.fields import CURSOR, DATASET_NAME, RECORD
from streamdata.ledger.prompts import Prompt, PromptIds, WrongCall, check_int, read_ids
from streamdata.ledger.scores import Scores, read_scores
from streamdata.ledger.server import LedgerServer
from streamdata.mixing.lane_iterator import LaneIterator
from streamdata.mixing.leaf import refuse_streams
from streamdata.mixing.merged import MergedDataset
from streamdata.mixing.tree import not_numbered, tree_of
from streamdata.sources.source import Sample
from streamdata.states.cursor import mark_of, node_of
from streamdata.states.lane_state import lane_state_of

_BITS: Final = 32
"""The lower bits of an id, for the number of the prompt in a load."""
_MAX_LEFT_OUT: Final = 1_000_000
"""Prompts that are left out in a row."""
_MAX_REASON: Final = 100


@dataclass(slots=True, eq=False)
class _Entry:
    """A prompt in the books that is not settled."""

    source: str
    record_id: tuple[int, int, int]
    epoch_pass: int
    sample: Sample | None
    """None once it was given, and after a load, until it is needed again."""
    attempt: int = 0
    """The one that was taken last."""
    id: int = -1
    """-1 until it is taken in this load."""
    taker: str | None = None
    lease_s: float = math.inf
    deadline: float = math.inf
    """When its lease runs out, by `time.monotonic`."""
    taken_at: tuple[int, float] = (0, 0.0)
    """Attempts by then, and `time.monotonic`."""


_Due = tuple[int, int, _Entry]
"""At how many attempts a prompt is due, or one of those below; and what tells equal ones apart."""
_RESTORED: Final = -2
"""It was open when the state was saved, and has not been taken since."""
_LATE: Final = -1
"""Its lease ran out."""


class PromptLedger:
    """Gives the prompts of a stream to many takers, and keeps the books of those that are not settled.

    Each prompt of an epoch ends exactly once, as done or as dropped, in whatever order, over retries and kills. Call
    `done` when a prompt has been trained on, and save the ledger with those weights: what was settled after the
    checkpoint is undone with it, as the weights are.

    A job has one ledger, in one process; others are its clients, see `serve`. It reads the dataset in its own process,
    as the only rank, and ends with the pass that it reads: for several epochs let the mixture be cyclic, with
    `max_epochs` of its sources. Its methods may be called in several threads.

    Args:
        dataset: The stream.
        drop_at: Leave out prompts that were scored at most the first of these, or at least the second: hopeless or
            solved.
        again_after: For how many epochs after the one that they were scored in; then they are tried again.

    Raises:
        ValueError: `drop_at` is not two numbers, the lower first, or `again_after` no int from 1 on.
        SourceError: A sample is not made of one record that can be read again: there is a stream function, such as a
            packer, or another library's iterable.
    """

    def __init__(
        self, dataset: MergedDataset, *, drop_at: tuple[float, float] | None = None, again_after: int = 1
    ) -> None:
        self._dataset, self._scores, self._lock = dataset, Scores(drop_at, again_after), RLock()
        top = tree_of(dataset)
        nodes = {node.path: node for node in top.walk()}
        for leaf in top.leaves():
            refuse_streams(nodes, leaf.path)
            if leaf.source is None or leaf.source.fetch([], leaf.part) is None:
                raise not_numbered(leaf, "PromptLedger")
        dataset.set_data_parallel(1, 0)
        self._load, self._has_ended = int(time.time()), False
        self._begin({}, [])

    def _begin(self, counts: Mapping[str, int], entries: Iterable[tuple[_Entry, int]]) -> None:
        """Begin the books of a load with entries, each with what is left of its `after`, -1 if it comes first."""
        self._counts = Counter(counts)
        """`attempts`, which is the clock of retries; `again`; by source or reason `taken/math` and the like."""
        self._open: dict[int, _Entry] = {}
        """By id, in the order in which they were taken."""
        self._due: list[_Due] = []
        """A heap of what is to be taken, again but for new ones that a call could not give, since the stream failed."""
        self._first_deadline = math.inf
        """No open prompt's lease runs out before."""
        self._pushed = 0
        """Tells equal ones apart."""
        self._stream: LaneIterator | None = None
        """Once it has given something."""
        # Source, number and epoch of each prompt taken in this load, by the lower half of its id: scores may come late.
        self._sources: dict[str, int] = {}
        self._taken = array("q")
        for entry, after in entries:
            self._push(entry, _RESTORED if after < 0 else self._counts["attempts"] + after)

    def _push(self, entry: _Entry, at: int) -> None:
        self._pushed += 1
        heappush(self._due, (at, self._pushed, entry))

    # Taking

    def take(self, n: int, *, lease_s: float = math.inf, taker: str | None = None) -> list[Prompt]:
        """Take prompts: those that are due again, then new ones in the stream's order. It waits for nobody.

        Once the stream has ended, all that waits for a retry is due at once. There are fewer than `n` only where
        nothing is left but what is open.

        Args:
            n: How many.
            lease_s: After so many seconds each is given to somebody else, unless it is settled or renewed.
            taker: The client that takes them, which alone may settle them beside this process.

        Raises:
            ValueError: `n` is no int from 1 on, or `lease_s` no number above 0.
            SourceError: A million prompts in a row were left out.
        """
        check_int("PromptLedger.take", "n", n, 1, "It says how many to take.")
        if type(lease_s) not in (int, float) or not lease_s > 0:
            raise WrongCall("PromptLedger.take", "lease_s to be seconds above 0", lease_s, "600 are ten minutes.")
        with self._lock:
            self._expire()
            chosen: list[_Due] = []
            try:
                while len(chosen) < n and (due := self._next(self._counts["attempts"] + len(chosen))) is not None:
                    chosen.append(due)
                self._read_again([entry for *_, entry in chosen])
            except BaseException:  # nothing was taken
                for due in chosen:
                    heappush(self._due, due)
                raise
            now = time.monotonic()
            return [self._give(due, lease_s, taker, now) for due in chosen]

    def _next(self, attempts: int) -> _Due | None:
        """Choose the prompt to be given as the next attempt, after so many."""
        if (not self._due or self._due[0][0] > attempts) and (new := self._receive()) is not None:
            self._push(new, attempts)
        return heappop(self._due) if self._due else None

    def _receive(self) -> _Entry | None:
        """The stream's next prompt that is not left out; None at its end."""
        left_out = 0
        while not self._has_ended:
            stream = self._stream or iter(self._dataset)
            try:
                sample = next(stream)
            except StopIteration:
                self._has_ended = True
                break
            except BaseException:  # it is of no use any more: another one goes on where it stood
                self._dataset.set_dataloader_states(self._stream_states())
                self._stream = None
                raise
            self._stream, cursor = stream, sample.pop(CURSOR)
            source, (_, epoch, number, output) = sample[DATASET_NAME], sample[RECORD]
            self._has_ended = (mark := mark_of(cursor[-1])) is not None and mark.ended
            if not self._scores.leaves_out(source, number, epoch):
                return _Entry(source, (epoch, number, output), node_of(cursor[-1]).lane.epoch_pass, sample)
            self._counts[f"left_out/{source}"] += 1
            left_out += 1
            if left_out == _MAX_LEFT_OUT:
                raise SourceError(
                    f"PromptLedger: expected prompts within drop_at, got {left_out:,} in a row that are left out\n"
                    "  Widen drop_at, lower again_after, or end: all is solved or hopeless. The next call goes on."
                )
        return None

    def _read_again(self, needed: Iterable[_Entry]) -> None:
        """Read the samples of all that is due again, once one of them is needed: in one pass over their shards."""
        if any(entry.sample is None for entry in needed):
            unread = [entry for entry in (*needed, *(entry for *_, entry in self._due)) if entry.sample is None]
            samples = self._dataset.read_many((one.source, one.record_id, one.epoch_pass) for one in unread)
            for entry, sample in zip(unread, samples, strict=True):
                entry.sample = sample

    def _give(self, due: _Due, lease_s: float, taker: str | None, now: float) -> Prompt:
        at, _, entry = due
        sample, entry.sample = entry.sample, None  # the taker's own, to change it
        assert sample is not None, "read by now"
        source, (epoch, number, _), counts = entry.source, entry.record_id, self._counts
        if entry.id < 0:
            entry.id = self._load << _BITS | len(self._taken) // 3
            self._taken.extend((self._sources.setdefault(source, len(self._sources)), number, epoch))
        counts["again"] += at == _RESTORED
        counts[f"taken/{source}"] += not entry.attempt
        entry.attempt, entry.taken_at = entry.attempt + 1, (counts["attempts"], now)
        entry.taker, entry.lease_s, entry.deadline = taker, lease_s, now + lease_s
        counts["attempts"] += 1
        self._open[entry.id] = entry
        self._first_deadline = min(self._first_deadline, entry.deadline)
        score = self._scores.get(source, number)
        return Prompt(entry.id, entry.attempt, sample, source, entry.record_id, entry.epoch_pass, score)

    def _expire(self) -> None:
        """Put prompts whose lease ran out in front, in the order in which they did."""
        if (now := time.monotonic()) >= self._first_deadline:
            late = [(entry.deadline, entry.taken_at, entry) for entry in self._open.values() if entry.deadline <= now]
            for *_, entry in sorted(late):
                self._push(self._open.pop(entry.id), _LATE)
            self._first_deadline = min((entry.deadline for entry in self._open.values()), default=math.inf)

    # Settling

    def done(self, ids: PromptIds, *, taker: str | None = None) -> None:
        """Settle prompts that have been trained on. Where one id is refused, nothing of the call is done.

        Args:
            ids: Ids, or pairs of id and attempt, of open prompts.
            taker: The client that took them; None for this process, which may settle any.

        Raises:
            StaleAttempt: One is settled, waits for its retry, is of before a load, or was taken again since; or it is
                another client's.
            ValueError: An id was never taken, comes twice, or is none.
        """
        with self._lock:
            for entry in self._opened("done", ids, taker):
                del self._open[entry.id]
                self._counts[f"done/{entry.source}"] += 1

    def drop(self, ids: PromptIds, reason: str, *, taker: str | None = None) -> None:
        """Settle prompts that will not be trained on, such as those whose answers are all alike.

        Args:
            ids: As for `done`.
            reason: Counted in `stats` as `dropped/REASON`.
            taker: As for `done`.

        Raises:
            StaleAttempt: As for `done`.
            ValueError: As for `done`; or the reason is no text of 1 to 100 characters.
        """
        if not isinstance(reason, str) or not 0 < len(reason) <= _MAX_REASON:
            expected = f"a reason of 1 to {_MAX_REASON} characters"
            raise WrongCall("PromptLedger.drop", expected, reason, "Reasons are counted: take few of them.")
        with self._lock:
            for entry in self._opened("drop", ids, taker):
                del self._open[entry.id]
                self._counts[f"dropped/{reason}"] += 1

    def retry(self, ids: PromptIds, after: int = 0, *, taker: str | None = None) -> None:
        """Have prompts taken again, under the same id and as the next attempt.

        Args:
            ids: As for `done`.
            after: How many prompts are taken before; or until the stream ends.
            taker: As for `done`.

        Raises:
            StaleAttempt: As for `done`.
            ValueError: As for `done`; or `after` is no int from 0 on.
        """
        check_int("PromptLedger.retry", "after", after, 0, "It counts prompts.")
        with self._lock:
            for entry in self._opened("retry", ids, taker):
                self._push(self._open.pop(entry.id), self._counts["attempts"] + after)

    def renew(self, ids: PromptIds, *, taker: str | None = None) -> None:
        """Begin the leases of prompts anew, each for the `lease_s` that it was taken with.

        Raises:
            StaleAttempt: As for `done`; a lease that has run out cannot be renewed.
            ValueError: As for `done`.
        """
        with self._lock:
            for entry in self._opened("renew", ids, taker):
                entry.deadline = time.monotonic() + entry.lease_s

    def keep(self, ids: PromptIds) -> None:
        """End the leases of prompts, whose answers are in this process: they stay open until they are settled.

        Raises:
            StaleAttempt: As for `done`.
            ValueError: As for `done`.
        """
        with self._lock:
            for entry in self._opened("keep", ids, None):
                entry.deadline = entry.lease_s = math.inf

    def score(self, ids: PromptIds, values: Iterable[float]) -> None:
        """Set the scores of prompts' records, such as the share of answers that were right.

        Args:
            ids: Ids of prompts taken since the last load, settled or not. An attempt given with an id is not looked at.
            values: One for each, kept as float32. The newest of a record counts.

        Raises:
            StaleAttempt: A prompt is of before a load.
            ValueError: An id was never taken, comes twice, or is none; or values are not as many finite numbers.
        """
        with self._lock:
            named, numbers = read_ids("PromptLedger.score", ids), read_scores(values)
            if len(named) != len(numbers):
                expected = f"a value for each of {len(named)} ids"
                raise WrongCall("PromptLedger.score", expected, len(numbers), "Give as many of both.")
            places, names = [self._place("score", prompt_id) for prompt_id, _ in named], list(self._sources)
            for place, value in zip(places, numbers, strict=True):
                source, number, epoch = self._taken[3 * place : 3 * place + 3]
                self._scores.set(names[source], number, epoch, value)

    def _opened(self, name: str, ids: PromptIds, taker: str | None) -> list[_Entry]:
        """The open entries that ids name, if all are open, in these attempts, and the taker's."""
        self._expire()
        found = []
        for prompt_id, attempt in read_ids(f"PromptLedger.{name}", ids):
            entry = self._open.get(prompt_id)
            if entry is None:
                self._place(name, prompt_id)
                raise _stale(name, prompt_id, "it is settled, or to be taken again")
            if attempt not in (None, entry.attempt):
                raise _stale(name, prompt_id, f"attempt {attempt} is over: {entry.attempt} is open now")
            if taker not in (None, entry.taker):
                raise _stale(name, prompt_id, "another has taken it")
            found.append(entry)
        return found

    def _place(self, name: str, prompt_id: int) -> int:
        """The number of a prompt among those taken in this load."""
        if prompt_id >> _BITS != self._load:
            raise _stale(name, prompt_id, "it is of before a load, or of another ledger")
        if (place := prompt_id & (1 << _BITS) - 1) >= len(self._taken) // 3:
            remedy = "Take ids from the Prompt."
            raise WrongCall(f"PromptLedger.{name}", "ids of prompts that were taken", prompt_id, remedy)
        return place

    # Looking

    @property
    def finished(self) -> bool:
        """Whether nothing is open or due, and the stream has ended."""
        with self._lock:
            return self._has_ended and not (self._open or self._due)

    def stats(self) -> dict[str, float]:
        """Count prompts, flat.

        Returns:
            `taken` from the stream, of which each is in one of `done`, `dropped`, `open` and `due` (to be taken again,
            now or later); whether it is `finished`; `attempts`, how often prompts were taken; `again`, how many of them
            because they were open when a state was saved; `left_out` by `drop_at`; `scored` records; `oldest_prompts`
            and `oldest_s`, how many attempts and seconds ago the oldest open one was taken. By source `taken/NAME`,
            `done/NAME` and `left_out/NAME`, by reason `dropped/REASON`.
        """
        with self._lock:
            self._expire()
            attempts, now = self._counts["attempts"], time.monotonic()
            oldest = next((entry.taken_at for entry in self._open.values()), (attempts, now))
            return {
                **summed(self._counts),
                "open": len(self._open),
                "due": sum(entry.attempt > 0 for *_, entry in self._due),
                "finished": self.finished,
                "scored": len(self._scores),
                "oldest_prompts": attempts - oldest[0],
                "oldest_s": now - oldest[1],
            }

    # States

    def state_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON, to be saved with the weights that were trained on what is done.

        It waits for nobody. It says where the stream stands, and has the places of prompts that are open, due or
        received, scores and counts; neither samples nor answers.
        """
        with self._lock:
            self._expire()
            due, attempts, names = sorted(self._due), self._counts["attempts"], dict[str, int]()
            held = [(entry, -1) for at, _, entry in due if at == _RESTORED]
            held += [(entry, -1) for entry in self._open.values()]
            held += [(entry, max(0, at - attempts)) for at, _, entry in due if at > _RESTORED]
            rows = [
                [names.setdefault(one.source, len(names)), *one.record_id, one.epoch_pass, one.attempt, after]
                for one, after in held
            ]
            about = {"load": self._load, "ended": self._has_ended, "counts": dict(self._counts), "sources": list(names)}
            state = {**about, "prompts": rows, "scores": self._scores.state_dict()}
            return {"ledger": state, "stream": self._stream_states()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: what was open is given first, in the order in which it was taken.

        It has the same samples, the next attempts and new ids: settlements of before are StaleAttempt. Samples are
        read again when the first of them is taken.

        Raises:
            StateError: `state` is no state of a ledger, is of another dataset, or lacks a source of its prompts.
        """
        with self._lock:
            try:
                saved, stream, scores = state["ledger"], state["stream"], copy(self._scores)
                names, counts, has_ended = saved["sources"], Counter(saved["counts"]), saved["ended"]
                load = max(saved["load"] + 1, int(time.time()))
                entries = [
                    (_Entry(names[source], (epoch, *place), epoch_pass, None, attempt), after)
                    for source, epoch, *place, epoch_pass, attempt, after in saved["prompts"]
                ]
                scores.load_state_dict(saved["scores"])
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise StateError(
                    f"PromptLedger: expected a state as state_dict() gave it, got another: {error!r}\n"
                    "  Load what was saved of the ledger."
                ) from error
            if missing := {entry.source for entry, _ in entries} - set(self._dataset.source_names):
                raise StateError(
                    f"PromptLedger: expected all sources of open prompts, got a dataset without {listing(missing)}\n"
                    "  Keep a source until its prompts are settled; a percent of 0 gives no new ones."
                )
            self._dataset.set_dataloader_states(stream)
            self._scores, self._load, self._has_ended = scores, load, has_ended
            self._begin(counts, entries)

    def _stream_states(self) -> dict[str, Any]:
        """Where the stream stands after what was received."""
        if self._stream is None:
            return self._dataset.progress.table.as_dict()
        return lane_state_of(self._stream.state_dict()).states

    def serve(self, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> LedgerServer:
        """Begin to serve clients in other processes; see `LedgerServer` and `LedgerClient`.

        Whoever has the token may take and settle prompts, and read their samples, which travel unencrypted.
        """
        return LedgerServer(self, host, port, token)


def summed(counts: Mapping[str, int]) -> dict[str, float]:
    """The counts of a ledger by source and reason, with their sums."""
    sums = dict.fromkeys(("taken", "done", "dropped", "left_out"), 0)
    for key, value in counts.items():
        if "/" in key:
            sums[key.partition("/")[0]] += value
    return {"attempts": 0, "again": 0, **sums, **dict(sorted(counts.items()))}


def _stale(name: str, prompt_id: int, why: str) -> StaleAttempt:
    return StaleAttempt(
        f"PromptLedger.{name}: expected open attempts, got prompt {prompt_id}: {why}; nothing of the call was done\n"
        "  Forget the answer."
    )
