"""The iterator of one lane, which can say where it stands and go on from there."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch.utils.data import get_worker_info

from streamdata.errors import StateError
from streamdata.fields import CURSOR, STATES
from streamdata.mixing.reading import LanePlan, Reading
from streamdata.run.lane_link import note_deal
from streamdata.shards.ahead.read_ahead import LaneAhead
from streamdata.sources.source import Sample
from streamdata.states.checks import check_nodes, describe_changes
from streamdata.states.cursor import Entry, NodeKey, PlainEntry, marked, node_of, to_state
from streamdata.states.lane_state import LaneState, lane_state_of
from streamdata.states.progress import Progress

logger = logging.getLogger("streamdata")

# Of a plain entry and its node: this is read of every sample.
_NODE, _PATH = Entry._fields.index("node"), NodeKey._fields.index("path")


class LaneIterator(Iterator[Sample]):
    """Iterates over the samples of one lane; `state_dict()` says where it stands.

    `state_dict` says where it stands after the last sample that it gave, and `load_state_dict` goes on there: in the
    same lane, of as many ranks and workers. A StatefulDataLoader calls both in each worker, and goes on with the worker
    whose turn it was. So a lane that goes on is the one that the state names, while the workers of a DataLoader that
    begins with `set_dataloader_states` take turns from worker 0 on: with that, a wrapper that hands our states to
    such a loader would have each worker read another's lane.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._loaded: LaneState | None = None
        self._progress = reading.progress
        self._resumed: str | None = None
        self._texts: dict[str, str] = {}
        """State entries of the samples it has given, by key, up to when it was last asked."""
        self._anew()

    def _anew(self) -> None:
        # No method of its own, here and below: by a cycle all that it has open would stay so until a collection.
        self._pull: Callable[[], Sample] | None = None
        self._plan: LanePlan | None = None
        self._ahead = LaneAhead(self._reading.ahead)
        self._ends: list[bool] = []
        """Not empty once the lane has come to its end."""
        self._entries: dict[str, PlainEntry] = {}
        """By path, the newest of each node since it was last asked."""
        self._entries_before: dict[str, PlainEntry] = {}
        """By path, the newest of each node when it was last asked."""
        self._last: tuple[PlainEntry, ...] = ()

    def __del__(self, is_at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # Not left to what it reads: a process function may be part of a cycle, with all that it was given. As Python
        # ends, modules may be gone that this needs; the network and all threads end by themselves.
        if not is_at_exit():
            self._ahead.close()

    def __next__(self) -> Sample:
        sample = self._begin() if self._pull is None else self._pull()
        entries = self._entries
        if STATES in sample:
            for entry in sample[STATES]:
                entries[entry[_NODE][_PATH]] = entry
        self._last = last = sample[CURSOR]
        for entry in last:
            entries[entry[_NODE][_PATH]] = entry
        return sample

    def _begin(self) -> Sample:
        # Only now: which pass it is, and whose turn, is decided when the first sample is asked for, by when all lanes
        # of an iteration that came to its end have said so.
        self._plan = plan = self._reading.plan(self._progress, self._loaded)
        self._pull = self._reading.begin(
            plan, self._ahead, partial(self._ends.append, True), (self._entries_before, self._entries)
        ).__next__
        sample = self._pull()
        if (deal := plan.run.progress.before.entry) is not None:
            sample[CURSOR] = marked(sample[CURSOR], deal=deal)
        self._reading.control.note_sample(plan.run.lane.worker)
        return sample

    def state_dict(self) -> dict[str, Any]:
        """The iterator's position as plain JSON: small, apart from what `set_dataloader_states` set."""
        plan = self._plan or self._reading.plan(self._progress, self._loaded)
        if self._resumed is None:
            self._resumed = json.dumps(self._progress.table.as_dict())
        self._collect()
        # Also before anything was given: another lane may be in this generation, and then the next one must have
        # another number in all of them.
        run = plan.run
        self._texts[f"generation/{run.generation}"] = run.header
        if (before := run.progress.before.entry) is not None:
            self._texts[before.key] = before.text
        was_begun = self._loaded is not None and self._loaded.is_begun
        return LaneState(
            lane=run.lane,
            epoch_pass=run.key.epoch_pass,
            is_begun=self._plan is not None or was_begun,
            is_ended=bool(self._ends) or plan.gave_all,
            ended=self._reading.control.ended(self._reading.version, run.lane),
            resumed=self._resumed,
            delivered=self._texts,
        ).as_json()

    def _collect(self) -> None:
        if not self._last:
            return
        others = tuple(entry for path, entry in self._entries.items() if path != node_of(self._last[-1]).path)
        states = to_state({STATES: others, CURSOR: self._last})
        link = node_of(self._last[-1]).link
        if link is not None and link.batches is not None:
            # The collate function numbers its batches in copies of their last samples.
            (top,) = (key for key in states if key.split("/", 5)[5:] == [""])
            states[top] |= {"batches": link.batches.number, "sizes": link.batches.sizes}
        texts = {key: json.dumps(value) for key, value in states.items() if not key.startswith("generation/")}
        # A mixture's own draws only grow, whichever of its sources were drawn since.
        self._texts.update(texts)
        self._entries_before.update(self._entries)
        self._entries.clear()
        self._last = ()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict()` of this lane's iterator stood.

        Raises:
            StateError: `state` is not an iterator state, or is of another dataset, rank or number of ranks or workers.
        """
        loaded, reading = lane_state_of(state), self._reading
        was, now = loaded.lane, reading.lane
        if (was.dp_size, was.num_workers, was.dp_rank) != (now.dp_size, now.num_workers, now.dp_rank):
            what = "rank" if (was.dp_size, was.num_workers) == (now.dp_size, now.num_workers) else "ranks and workers"
            raise StateError(
                f"iterator state: it is of other {what} than this run's: of rank {was.dp_rank} of {was.dp_size}, with "
                f"{was.num_workers} workers; this is rank {now.dp_rank} of {now.dp_size}, with {now.num_workers}\n"
                "  A StatefulDataLoader goes on under the same ranks and workers alone. Under others, call "
                "set_dataloader_states(merge_states(*[from_stateful(state) for state of each rank])) and load nothing "
                "else."
            )
        progress = Progress(loaded.states)
        check_nodes(progress, reading.top.tree.nodes)
        if reading.lane.worker == 0:
            for line in describe_changes(progress, reading.top.tree):
                logger.warning("%s", line)
        self._loaded, self._progress = loaded, progress
        self._resumed, self._texts = loaded.resumed, dict(loaded.delivered)
        self._ahead.close()
        self._anew()
        # At once: a loader that had come to the end of its pass never asks this iterator, but the next one, which is
        # another worker's, perhaps.
        has_ended = loaded.is_ended or (loaded.is_begun and reading.plan(progress, loaded).gave_all)
        if has_ended and get_worker_info() is not None and max(progress.before.passes, default=0) > loaded.epoch_pass:
            # What this worker was given is gone with it, and the next pass has workers of its own.
            raise StateError(
                f"iterator state: pass {loaded.epoch_pass} has ended, and of later ones an earlier number of ranks or "
                "workers has delivered some, which a DataLoader's next workers would not be told\n"
                "  Call set_dataloader_states(merge_states(*[from_stateful(state) for state of each rank])) and load "
                "nothing else."
            )
        is_empty = not progress.has_ended(loaded.epoch_pass, loaded.lane.dp_rank, [loaded.lane.worker])
        reading.control.resume(reading.version, loaded, has_ended=has_ended, is_empty=is_empty)
        note_deal(reading.control.name, reading.version, progress.before.entry)
