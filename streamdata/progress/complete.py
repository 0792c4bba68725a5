"""Whether a checkpoint holds all that was delivered: what is missing would come again in silence."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from streamdata.errors import StateError
from streamdata.progress.cursor import LaneKey
from streamdata.progress.lane_entries import LaneEntries
from streamdata.progress.progress import Progress
from streamdata.run import Lane

logger = logging.getLogger("streamdata")

_SAVE_ALL = "Call states.update(to_state(batch)) for every batch, and save and restore the whole dict."
_SAVE_APART = "Begin each iteration over a pass with states of its own, or call set_epoch before it."


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a dataset knows of its stream that states do not say."""

    joins: Mapping[str, bool]
    """Of each mixture, by its path: whether it has a yield function, and so gives other samples than it draws."""
    is_endless: bool
    least: Callable[[Lane], float]
    """How many samples the stream gives the lane at least."""


def check_complete(progress: Progress, shape: Shape) -> None:
    """Compare the entries of each lane with one another, and the lanes of each rank.

    Raises:
        StateError: Entries of a source, a mixture or a lane are missing, or belong to another iteration.
    """
    for lane, entries in progress.lanes.items():
        _check_sums(lane, entries, shape)
        _check_top(lane, entries, shape)
    for dp_rank in progress.ranks():
        _check_workers(progress, shape, dp_rank)
    if not all(entries.facts for entries in progress.lanes.values()):
        logger.warning(
            "states: some were written by an earlier version of streamdata: entries that are missing would go unnoticed"
        )


def _check_sums(lane: LaneKey, entries: LaneEntries, shape: Shape) -> None:
    """Each mixture says how many samples it drew: the draws of its sources must add up to that."""
    mixtures = entries.mixtures()
    for path, joins in shape.joins.items():
        standing = entries.standing(path)
        if standing is not None and path and not joins:
            mixtures[path] = standing.draws
    for path, expected in mixtures.items():
        draws = entries.draws_below(path)
        missing = expected - sum(draws.values())
        if missing:
            who = f"mixture {path!r}" if path else "the top mixture"
            what = f"{missing} draws are missing" if missing > 0 else f"{-missing} draws are of another iteration"
            _refuse(
                lane,
                f"{what}: {who} had drawn {expected} samples, of its sources there are the draws {draws}",
                _SAVE_ALL if missing > 0 else _SAVE_APART,
            )


def _check_top(lane: LaneKey, entries: LaneEntries, shape: Shape) -> None:
    # States had the entry of a yield function from the first; the count of a mixture without one is newer.
    is_there = entries.standing("") is not None if shape.joins[""] else "" in entries.drawn or not entries.facts
    if not is_there:
        what = f"the entry of the top mixture is missing, there are those of {sorted(entries.cursors)}"
        _refuse(lane, what, _SAVE_ALL)


def _check_workers(progress: Progress, shape: Shape, dp_rank: int) -> None:
    """Workers deliver batches in turn: the number of one's newest batch says how many each other one has delivered."""
    epoch_pass = progress.newest_pass(dp_rank)
    assert epoch_pass is not None, "a rank of which something is held has a pass"
    dp_size, num_workers = progress.topology()
    last = progress.last_worker(epoch_pass, dp_rank)
    assert last is not None, "and in that pass a worker that was the last"
    held = progress.num_batches(epoch_pass, dp_rank)
    if last not in held:
        what = f"its entries are missing; there are workers {sorted(held)}"
        _refuse(LaneKey(epoch_pass, dp_rank, last), what, _SAVE_ALL)
    # Workers deliver in turn: those after the one that was last are a batch behind it.
    counted = [number + (worker > last) for worker, number in held.items() if number is not None]
    # Batches of another collate function are not numbered, nor those in states of earlier versions.
    if len(counted) < len(held):
        return
    lanes = [progress.lane(LaneKey(epoch_pass, dp_rank, worker)) for worker in held]
    # States do not say it: the mean over a lane's batches, rounded up, since a last one may be smaller.
    batch_size = max(-(-_samples(entries, shape) // (entries.num_batches or 1)) for entries in lanes)
    for worker in range(num_workers):
        expected = max(counted) - (worker > last)
        if worker not in held and expected:
            lane = Lane(dp_size=dp_size, dp_rank=dp_rank, num_workers=num_workers, worker=worker)
            what = f"its entries are missing, of {expected} batches delivered; there are workers {sorted(held)}"
            _check_missing(lane, epoch_pass, what, shape.least(lane), batch_size)
        if shape.is_endless and (held.get(worker) or expected) < expected:
            logger.warning(
                "states: rank %d, worker %d: its newest batch is number %s, in turn it had delivered %d: unless the "
                "DataLoader has in_order=False, to_state was not called for each batch, and what it missed comes again",
                dp_rank,
                worker,
                held[worker],
                expected,
            )


def _samples(entries: LaneEntries, shape: Shape) -> int:
    """How many samples the lane has delivered."""
    top = entries.standing("") if shape.joins[""] else None
    return entries.mixtures().get("", 0) if top is None else top.draws


def _check_missing(lane: Lane, epoch_pass: int, what: str, least: float, batch_size: int) -> None:
    """Refuse the lack of a lane that must have had a batch; if it has less, drop_last may have left all of it out."""
    if least >= batch_size:
        _refuse(LaneKey(epoch_pass, lane.dp_rank, lane.worker), what, _SAVE_ALL)
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
