"""Whether states fit the dataset that is to go on from them, and hold all that it delivered.

A node with another order is refused, and so are states that lack entries: what is missing would come again in silence.
Sources that join or leave are described, for the log.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Final, NoReturn

import numpy as np

from streamdata.errors import StateError, names_text, shown
from streamdata.states.headers import MIXTURE, Tree
from streamdata.states.progress import Progress

logger = logging.getLogger("streamdata")

_SAVE_ALL = "Call states.update(to_state(batch)) for every batch, and save and restore the whole dict."
_SAVE_IN_TURN = (
    f"{_SAVE_ALL} A DataLoader with in_order=False delivers out of turn: save once each worker has delivered."
)
_SAVE_APART = "Begin each iteration over a pass with states of its own, or call set_epoch before it."
_GAP: Final = (
    "states: rank %d, worker %d: %s: unless %s, to_state was not called for each batch, and what it missed comes again"
)


def check_nodes(progress: Progress, nodes: Mapping[str, str]) -> None:
    """Compare the saved tree with the present one: sources may join and leave; those that stay may not change.

    Raises:
        StateError: A node's order differs (records, blocks, seed, shuffling), or no source is common.
    """
    # A source that left and returns must not have changed either.
    written = progress.nodes()
    if written and not (written.keys() & nodes.keys()) - {""}:
        raise StateError(
            f"states: written for another dataset, with the sources {names_text(written)}; "
            f"this one has {names_text(nodes)}\n"
            "  Resume with the recipe that wrote them, or start without states."
        )
    for path in nodes:
        if path in written and written[path] != nodes[path]:
            who = f"source {shown(path)}" if path else "the mixture"
            raise StateError(
                f"states: {who} has another order than when they were written\n"
                f"  expected {written[path]}\n  got      {nodes[path]}\n"
                "  Resume with the recipe, seed and data that wrote them: the source with its former shuffle_buffer, "
                "block_size or max_open_bytes, and shards or records added since as another source.\n"
                "  Or start without states."
            )


def describe_changes(progress: Progress, now: Tree) -> Iterator[str]:
    """Yield a line for each source that was removed, renamed, added, returned, or given another weight."""
    if not progress:
        return
    before = progress.tree(progress.newest)
    held = {*progress.paths(), *progress.before.nodes}
    removed = {path: node for path, node in before.nodes.items() if path not in now.nodes}
    for path, node in now.nodes.items():
        if path not in before.nodes and path in held:
            yield f"source {shown(path)} returns, and goes on where it stood"
        elif path not in before.nodes:
            twin = next((old for old, was in removed.items() if was == node), None)
            hint = "" if twin is None else f" (was {shown(twin)} renamed? where it stood counts for that name alone)"
            yield f"source {shown(path)} is new since the states were written, and starts at its beginning{hint}"
        elif path in before.weights and before.weights[path] != now.weights[path]:
            weights = f"{now.weights[path]} now, had {before.weights[path]} in the states"
            yield f"source {shown(path)} has the weight {weights}"
    for path in removed:
        kept = "where it stood is kept for when it returns"
        yield f"source {shown(path)} was removed since the states were written; {kept}"


def check_complete(progress: Progress, *, is_endless: bool, least: Callable[[int, int], float]) -> None:
    """Check that each lane's entries agree with one another, and that no lane of a rank is missing.

    Args:
        progress: The states.
        is_endless: Whether a pass of the stream has no end.
        least: Says how many samples the stream gives a lane, by its number, at least in a pass.

    Raises:
        StateError: Entries of a source, a mixture or a lane are missing, or belong to another iteration.
    """
    # Those that are not there any more, too: they may return.
    mixtures = sorted(path for path, node in progress.nodes().items() if node.startswith(MIXTURE))
    for epoch_pass, path in product(progress.passes, mixtures):
        _check_draws(progress, epoch_pass, path)
    for dp_rank in sorted(progress.newest_passes):
        _check_workers(progress, is_endless, least, dp_rank)


def _check_draws(progress: Progress, epoch_pass: int, path: str) -> None:
    """Each mixture says how many samples it drew: the draws of its sources must add up to that."""
    own = progress.last(epoch_pass, path)
    # One with a yield function, which has always given something of its open burst, says it at the burst's start:
    # there `taken` is what its sources had given.
    drawn = np.where(own["given"] > 0, own["taken"], own["draws"])
    children = [child for child in progress.paths() if child and child.rpartition(".")[0] == path]
    found = sum((progress.last(epoch_pass, child)["draws"] for child in children), np.zeros_like(drawn))
    is_wrong = own.is_held & (found != drawn)
    if not path:
        is_wrong |= ~own.is_held & (found > 0)
    for index in np.flatnonzero(is_wrong).tolist():
        entries = progress.table.lane(epoch_pass, *divmod(index, progress.topology().num_workers))
        if not own.is_held[index]:
            what = f"the entry of the top mixture is missing, there are those of {names_text(entries.cursors)}"
            _refuse(progress, epoch_pass, index, what, _SAVE_ALL)
        missing, of_sources = int(drawn[index] - found[index]), entries.draws_below(path)
        who = f"mixture {shown(path)}" if path else "the top mixture"
        what = f"{missing} draws are missing" if missing > 0 else f"{-missing} draws are of another iteration"
        what += f": {who} had drawn {drawn[index]} samples, of its sources there are the draws {of_sources}"
        _refuse(progress, epoch_pass, index, what, _SAVE_ALL if missing > 0 else _SAVE_APART)


def _check_workers(progress: Progress, is_endless: bool, least: Callable[[int, int], float], dp_rank: int) -> None:
    """Workers deliver batches in turn: the number of one's newest batch says how many each other one has delivered."""
    epoch_pass, num_workers = progress.newest_passes[dp_rank], progress.topology().num_workers
    last, held = progress.last_workers[epoch_pass, dp_rank], progress.batches_of_workers(epoch_pass, dp_rank)
    if last not in held:
        what = f"its entries are missing; there are workers {sorted(held)}"
        _refuse(progress, epoch_pass, dp_rank * num_workers + last, what, _SAVE_ALL)
    # Batches of another collate function are not numbered.
    if 0 in held.values():
        return
    # Those after the one that was last are a batch behind it.
    most = max(number + (worker > last) for worker, number in held.items())
    fields = progress.last(epoch_pass, "")["rare"][dp_rank * num_workers :]
    batch_size = max((size for worker in held for _, size in (fields[worker] or {}).get("sizes", ())), default=1)
    for worker in range(num_workers):
        expected = most - (worker > last)
        if worker not in held and expected:
            what = f"its entries are missing, of {expected} batches delivered; there are workers {sorted(held)}"
            # One that has less than a batch may have been left out whole, by drop_last.
            lane = dp_rank * num_workers + worker
            if (fewest := least(lane, epoch_pass)) >= batch_size:
                _refuse(progress, epoch_pass, lane, what, _SAVE_IN_TURN)
            if fewest > 0:
                logger.warning(_GAP, dp_rank, worker, what, "it has less than a batch, which drop_last leaves out")
        if is_endless and held.get(worker, expected) < expected:
            what = f"its newest batch is number {held[worker]}, in turn it had delivered {expected}"
            logger.warning(_GAP, dp_rank, worker, what, "the DataLoader has in_order=False")


def _refuse(progress: Progress, epoch_pass: int, lane: int, what: str, remedy: str) -> NoReturn:
    rank, worker = divmod(lane, progress.topology().num_workers)
    raise StateError(f"states: rank {rank}, worker {worker}, pass {epoch_pass}: {what}\n  {remedy}")
