"""One iteration over a dataset that streamdata knows nothing of: what it gives, fails at, and says of where it is."""

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.utils.data._utils import worker as torch_worker

from streamdata.errors import shown, text_of
from streamdata.run import stable_seed
from streamdata.sources.foreign.map_style import is_of_grain
from streamdata.sources.functions.tally import raise_noted

if TYPE_CHECKING:
    from streamdata.sources.source import ReadTask

logger = logging.getLogger("streamdata")

END: Final = object()
"""What `pull` gives at the end."""

_said_that_it_skips: list[str] = []
"""The source of which this process said so."""


class FailedPull(NamedTuple):
    """In place of a record that the iterator could not give."""

    error: Exception | SystemExit


class OpenStream:
    """An iterator of a dataset, which finds itself in the worker of its lane, or in none.

    Args:
        task: Who reads.
        dataset: Is nobody else's: it is told the epoch and its state.
        epoch: Which is read.
        state: Where it goes on, None for its start; passed over where it has no `load_state_dict`.
        hides_worker: Whether it finds itself in no worker.
    """

    def __init__(self, task: "ReadTask", dataset: Any, epoch: int, state: list[Any] | None, hides_worker: bool) -> None:
        assert task.stream is not None, "whoever reads an iterable keeps its states"
        self._name, self._type = task.name, type(dataset).__name__
        self._info: Any = None
        if not hides_worker and task.lane.num_workers > 1:
            # After a resume another process may read the lane: then torch's own note is not the lane's.
            seed = stable_seed(task.order.seed(epoch), task.lane.index)
            self._info = torch_worker.WorkerInfo(
                id=task.lane.worker, num_workers=task.lane.num_workers, seed=seed, dataset=dataset
            )
        if callable(getattr(dataset, "set_epoch", None)):
            dataset.set_epoch(task.stream.epoch_pass + epoch)
        self.is_loaded = False
        self._iterator, self._stateful = self._begun(dataset, state)
        self._failed: Exception | SystemExit | None = None
        self.num_pulled = 0
        # Of a rank's workers by the first alone, all of which have the same sources.
        if self._stateful is None and not task.lane.worker:
            _say_that_it_skips(self._name, self._type)

    def _begun(self, dataset: Any, state: list[Any] | None) -> tuple[Iterator[Any], Any]:
        """The iterator, and who says where it is: itself, else the dataset, else nobody."""
        has_state = _is_stateful(dataset)
        # The iterator's state comes first, as in torchdata's StatefulDataLoader.
        iterator = self._as_in_lane(iter, dataset)
        if _is_stateful(stateful := _as_of_torch(iterator)):
            if state is not None:
                stateful.load_state_dict(state[0])
        else:
            stateful = dataset if has_state else None
            if stateful is not None and state is not None:
                stateful.load_state_dict(state[0])
                iterator = self._as_in_lane(iter, dataset)  # what is loaded applies to the next one
        self.is_loaded = stateful is not None and state is not None
        return iterator, stateful

    def _as_in_lane(self, function: Any, argument: Any) -> Any:
        # There is no public way to set what get_worker_info() gives.
        before = torch_worker._worker_info  # noqa: SLF001
        torch_worker._worker_info = self._info  # noqa: SLF001
        try:
            return function(argument)
        finally:
            torch_worker._worker_info = before  # noqa: SLF001

    def pull(self) -> Any:
        """What comes next: a record, `FailedPull`, or `END`.

        Raises:
            Exception: What it failed with last, if nothing came after that: a generator that raised is at its end.
        """
        try:
            item = self._as_in_lane(next, self._iterator)
        except StopIteration:
            item = END
        except (Exception, SystemExit) as error:  # a user's dataset may raise anything; the tally decides
            self._failed = error
            self.num_pulled += 1
            return FailedPull(error)
        if item is END:
            # A generator that raised ends next: taken for the end of the epoch, what is left would be lost in silence.
            if self._failed is not None:
                raise_noted(
                    self._failed,
                    f"source {shown(self._name)}: its iterator gave nothing after this: it may have ended with it, as "
                    "a generator does, so max_bad does not pass over it\n  Handle it where it is raised.",
                )
            return END
        self._failed = None
        self.num_pulled += 1
        return item

    def skip(self, number: int) -> int:
        """Pull so many, or as many as there are; return how many."""
        return next((found for found in range(number) if self.pull() is END), number)

    def state(self) -> list[Any] | None:
        """What its `state_dict` says, as plain JSON in a list, so that it is never taken for none; None without it.

        Raises:
            ValueError: It is no plain JSON.
        """
        if self._stateful is None:
            return None
        state = self._stateful.state_dict()
        try:
            plain = json.loads(json.dumps(state, allow_nan=False))  # a copy: it may go on changing what it said
        except (TypeError, ValueError) as error:
            self._refuse(text_of(error))
        if plain != state:  # keys that are no texts, and tuples, would come back as others
            self._refuse("read again it is something else")
        return [plain]

    def _refuse(self, why: str) -> Any:
        raise ValueError(
            f"source {shown(self._name)} ({self._type}): expected plain JSON from its state_dict(), which goes "
            "into the "
            f"checkpoint, got {str(self._stateful.state_dict())[:200]} ({why})\n"
            "  Return dicts with texts as keys, lists, texts and numbers; or have no state_dict, and a resume skips by "
            "reading."
        )


def _as_of_torch(iterator: Any) -> Any:
    """What tells where an iterator is, by torch's names: Grain's has others."""
    if is_of_grain(iterator, "DatasetIterator"):
        return SimpleNamespace(state_dict=iterator.get_state, load_state_dict=iterator.set_state)
    return iterator


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _say_that_it_skips(name: str, kind: str) -> None:
    if not _said_that_it_skips:
        _said_that_it_skips.append(name)
        logger.warning(
            "source %r (%s): it has no state_dict and load_state_dict, nor has its iterator: a resume finds its place "
            "by reading all records before it in the epoch again, and dropping them. This is said once per process, of "
            "the first such source",
            name,
            kind,
        )
