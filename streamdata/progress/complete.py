"""Whether a checkpoint holds all that was delivered: what is missing would come again in silence."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from streamdata.errors import StateError, names_text, shown
from streamdata.progress.cursor import LaneKey
from streamdata.progress.finals import Column
from streamdata.progress.progress import Progress
from streamdata.run import Lane

logger = logging.getLogger("streamdata")

_SAVE_ALL = "Call states.update(to_state(batch)) for every batch, and save and restore the whole dict."
_SAVE_IN_TURN = (
    f"{_SAVE_ALL} A DataLoader with in_order=False delivers out of turn: save once each worker has delivered."
)
_SAVE_APART = "Begin each iteration over a pass with states of its own, or call set_epoch before it."


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a dataset knows of its stream that states do not say."""

    joins: Mapping[str, bool]
    """Of each mixture, by its path: whether it has a yield function, and so gives other samples than it draws."""
    is_endless: bool
    least: Callable[[Lane, int], float]
    """How many samples the stream gives the lane at least in a pass."""


def check_complete(progress: Progress, shape: Shape) -> None:
    """Compare the entries of each lane with one another, and the lanes of each rank.

    Raises:
        StateError: Entries of a source, a mixture or a lane are missing, or belong to another iteration.
    """
    held = {epoch_pass: progress.num_batches(epoch_pass) for epoch_pass in progress.passes()}
    for epoch_pass in held:
        _check_sums(progress, shape, epoch_pass)
        _check_top(progress, shape, epoch_pass)
    by_rank = _by_rank(progress, held)
    drawn = {epoch_pass: progress.drawn_by_lane(epoch_pass, "", of_its_own=shape.joins[""]) for epoch_pass in held}
    for dp_rank in progress.ranks():
        _check_workers(progress, by_rank, drawn, shape, dp_rank)
    if any(None in lanes.values() and not progress.has_facts(epoch_pass) for epoch_pass, lanes in held.items()):
        logger.warning(
            "states: some were written by an earlier version of streamdata: entries that are missing would go unnoticed"
        )


def _check_sums(progress: Progress, shape: Shape, epoch_pass: int) -> None:
    """Each mixture says how many samples it drew: the draws of its sources must add up to that."""
    joined = [path for path, joins in shape.joins.items() if path and not joins]
    for path in {*progress.mixtures(epoch_pass), *joined}:
        expected = progress.drawn_by_lane(epoch_pass, path, of_its_own=path in joined)
        found = sum(
            (
                progress.draws(epoch_pass, child)
                for child in progress.paths()
                if child and child.rpartition(".")[0] == path
            ),
            np.zeros_like(expected),
        )
        wrong = np.flatnonzero((expected >= 0) & (expected != found))
        if len(wrong):
            _refuse_sum(progress, epoch_pass, path, int(wrong[0]), int(expected[wrong[0]]))


def _refuse_sum(progress: Progress, epoch_pass: int, path: str, index: int, expected: int) -> NoReturn:
    lane = LaneKey(epoch_pass, *divmod(index, progress.topology().num_workers))
    draws = progress.lane(lane).draws_below(path)
    missing = expected - sum(draws.values())
    who = f"mixture {shown(path)}" if path else "the top mixture"
    what = f"{missing} draws are missing" if missing > 0 else f"{-missing} draws are of another iteration"
    _refuse(
        lane,
        f"{what}: {who} had drawn {expected} samples, of its sources there are the draws {draws}",
        _SAVE_ALL if missing > 0 else _SAVE_APART,
    )


def _check_top(progress: Progress, shape: Shape, epoch_pass: int) -> None:
    # States had the entry of a yield function from the first; the count of a mixture without one is newer.
    is_there = progress.drawn_by_lane(epoch_pass, "", of_its_own=shape.joins[""]) >= 0
    for index in progress.num_batches(epoch_pass):
        if progress.is_ended_alone(epoch_pass, index):
            continue
        if not is_there[index] and (shape.joins[""] or progress.has_facts(epoch_pass, index)):
            lane = LaneKey(epoch_pass, *divmod(index, progress.topology().num_workers))
            what = (
                f"the entry of the top mixture is missing, there are those of {names_text(progress.lane(lane).cursors)}"
            )
            _refuse(lane, what, _SAVE_ALL)


def _by_rank(
    progress: Progress, held: Mapping[int, Mapping[int, int | None]]
) -> Mapping[tuple[int, int], Mapping[int, int | None]]:
    """By pass and rank: the batches of each worker of which something is held."""
    found: defaultdict[tuple[int, int], dict[int, int | None]] = defaultdict(dict)
    for epoch_pass, lanes in held.items():
        for lane, number in lanes.items():
            rank, worker = divmod(lane, progress.topology().num_workers)
            found[epoch_pass, rank][worker] = number
    return found


def _check_workers(
    progress: Progress,
    by_rank: Mapping[tuple[int, int], Mapping[int, int | None]],
    drawn: Mapping[int, Column],
    shape: Shape,
    dp_rank: int,
) -> None:
    """Workers deliver batches in turn: the number of one's newest batch says how many each other one has delivered."""
    epoch_pass = progress.newest_pass(dp_rank)
    assert epoch_pass is not None, "a rank of which something is held has a pass"
    dp_size, num_workers = progress.topology()
    last = progress.last_worker(epoch_pass, dp_rank)
    assert last is not None, "and in that pass a worker that was the last"
    held = by_rank.get((epoch_pass, dp_rank), {})
    if last not in held:
        what = f"its entries are missing; there are workers {sorted(held)}"
        _refuse(LaneKey(epoch_pass, dp_rank, last), what, _SAVE_ALL)
    # Workers deliver in turn: those after the one that was last are a batch behind it.
    counted = [number + (worker > last) for worker, number in held.items() if number is not None]
    # Batches of another collate function are not numbered, nor those in states of earlier versions.
    if len(counted) < len(held):
        return
    samples = drawn[epoch_pass]
    # States do not say it: the mean over a lane's batches, rounded up, since a last one may be smaller.
    batch_size = max(
        -(-int(samples[dp_rank * num_workers + worker]) // (number or 1)) for worker, number in held.items()
    )
    for worker in range(num_workers):
        expected = max(counted) - (worker > last)
        if worker not in held and expected:
            lane = Lane(dp_size=dp_size, dp_rank=dp_rank, num_workers=num_workers, worker=worker)
            what = f"its entries are missing, of {expected} batches delivered; there are workers {sorted(held)}"
            _check_missing(lane, epoch_pass, what, shape.least(lane, epoch_pass), batch_size)
        if shape.is_endless and (held.get(worker) or expected) < expected:
            logger.warning(
                "states: rank %d, worker %d: its newest batch is number %s, in turn it had delivered %d: unless the "
                "DataLoader has in_order=False, to_state was not called for each batch, and what it missed comes again",
                dp_rank,
                worker,
                held[worker],
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
