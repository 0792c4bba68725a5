"""Whether a checkpoint holds all that was delivered: what is missing would come again in silence."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from streamdata.errors import StateError, names_text, shown
from streamdata.progress.cursor import LaneKey
from streamdata.progress.header import MIXTURE
from streamdata.progress.progress import Progress
from streamdata.run import Lane

logger = logging.getLogger("streamdata")

TAKEN = 2
"""The column of a position; of a mixture with a yield function what its sources had given."""

_SAVE_ALL = "Call states.update(to_state(batch)) for every batch, and save and restore the whole dict."
_SAVE_IN_TURN = (
    f"{_SAVE_ALL} A DataLoader with in_order=False delivers out of turn: save once each worker has delivered."
)
_SAVE_APART = "Begin each iteration over a pass with states of its own, or call set_epoch before it."


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a dataset knows of its stream that states do not say."""

    is_endless: bool
    least: Callable[[Lane, int], float]
    """How many samples the stream gives the lane at least in a pass."""


def check_complete(progress: Progress, shape: Shape) -> None:
    """Compare the entries of each lane with one another, and the lanes of each rank.

    Raises:
        StateError: Entries of a source, a mixture or a lane are missing, or belong to another iteration.
    """
    # Those that are not there any more, too: they may return.
    mixtures = [path for path, node in progress.nodes().items() if node.startswith(MIXTURE)]
    for epoch_pass in progress.passes():
        for path in sorted(mixtures):
            _check_draws(progress, epoch_pass, path)
    for dp_rank in progress.ranks():
        _check_workers(progress, shape, dp_rank)


def _check_draws(progress: Progress, epoch_pass: int, path: str) -> None:
    """Each mixture says how many samples it drew: the draws of its sources must add up to that."""
    children = [child for child in progress.paths() if child and child.rpartition(".")[0] == path]
    own, held = progress.finals(epoch_pass, path), progress.num_batches(epoch_pass)
    found = sum((progress.column("draws", epoch_pass, child) for child in children), np.zeros_like(own.draws))
    # One with a yield function, which has always given something of its open burst, says it at the burst's start.
    drawn = np.where(own.given > 0, own.position[:, TAKEN], own.draws)
    is_right = (found == drawn) | ~own.is_held
    if not path:
        is_right[[lane for lane in held if not own.is_held[lane]]] = False
    for index in np.flatnonzero(~is_right).tolist():
        lane = LaneKey(epoch_pass, *divmod(index, progress.topology().num_workers))
        entries = progress.lane(lane)
        if not own.is_held[index]:
            what = f"the entry of the top mixture is missing, there are those of {names_text(entries.cursors)}"
            _refuse(lane, what, _SAVE_ALL)
        missing, draws = int(drawn[index] - found[index]), entries.draws_below(path)
        who = f"mixture {shown(path)}" if path else "the top mixture"
        what = f"{missing} draws are missing" if missing > 0 else f"{-missing} draws are of another iteration"
        what += f": {who} had drawn {drawn[index]} samples, of its sources there are the draws {draws}"
        _refuse(lane, what, _SAVE_ALL if missing > 0 else _SAVE_APART)


def _check_workers(progress: Progress, shape: Shape, dp_rank: int) -> None:
    """Workers deliver batches in turn: the number of one's newest batch says how many each other one has delivered."""
    epoch_pass = progress.newest_pass(dp_rank)
    assert epoch_pass is not None, "a rank of which something is held has a pass"
    dp_size, num_workers = progress.topology()
    last = progress.last_worker(epoch_pass, dp_rank)
    assert last is not None, "and in that pass a worker that was the last"
    held = progress.batches_of_workers(epoch_pass, dp_rank)
    if last not in held:
        what = f"its entries are missing; there are workers {sorted(held)}"
        _refuse(LaneKey(epoch_pass, dp_rank, last), what, _SAVE_ALL)
    # Workers deliver in turn: those after the one that was last are a batch behind it.
    counted = {worker: number for worker, number in held.items() if number is not None}
    # Batches of another collate function are not numbered.
    if len(counted) < len(held):
        return
    most = max(number + (worker > last) for worker, number in counted.items())
    samples = progress.finals(epoch_pass, "").draws[dp_rank * num_workers :]
    # States do not say it: the mean over a lane's batches, rounded up, since a last one may be smaller.
    batch_size = max(-(-int(samples[worker]) // number) for worker, number in counted.items())
    for worker in range(num_workers):
        expected = most - (worker > last)
        if worker not in held and expected:
            lane = Lane(dp_size=dp_size, dp_rank=dp_rank, num_workers=num_workers, worker=worker)
            what = f"its entries are missing, of {expected} batches delivered; there are workers {sorted(held)}"
            _check_missing(lane, epoch_pass, what, shape.least(lane, epoch_pass), batch_size)
        if shape.is_endless and counted.get(worker, expected) < expected:
            logger.warning(
                "states: rank %d, worker %d: its newest batch is number %s, in turn it had delivered %d: unless the "
                "DataLoader has in_order=False, to_state was not called for each batch, and what it missed comes again",
                dp_rank,
                worker,
                counted[worker],
                expected,
            )


def _check_missing(lane: Lane, epoch_pass: int, what: str, least: float, batch_size: int) -> None:
    """Refuse the lack of a lane that must have had a batch; if it has less, drop_last may have left all of it out."""
    if least >= batch_size:
        _refuse(LaneKey(epoch_pass, lane.dp_rank, lane.worker), what, _SAVE_IN_TURN)
    if least:
        logger.warning(
            "states: rank %d, worker %d: %s: unless it has less than a batch, which drop_last leaves out, to_state was "
            "not called for each batch, and what it missed comes again",
            lane.dp_rank,
            lane.worker,
            what,
        )


def _refuse(lane: LaneKey, what: str, remedy: str) -> NoReturn:
    raise StateError(f"states: rank {lane.dp_rank}, worker {lane.worker}, pass {lane.epoch_pass}: {what}\n  {remedy}")
