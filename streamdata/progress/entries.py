"""The entries of a checkpoint that count, checked, by what they are of."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from streamdata.errors import StateError, shown
from streamdata.progress.checked import checked_header, checked_lane, count
from streamdata.progress.columns import Columns
from streamdata.progress.cursor_table import Group
from streamdata.progress.deal_header import DEAL, DealHeader, canonical, deal_header_of, digest_of
from streamdata.progress.entry_keys import key_number
from streamdata.progress.header import Topology

_LANE_NUMBERS = 4
"""Numbers in a key that names a lane: generation, pass, rank, worker."""

ByGeneration = dict[int, dict[int, Any]]
"""By generation, then by the number of the lane."""


class Entries:
    """The entries that `to_state` wrote since the size of the run last changed, and the header of what was before.

    Args:
        states: The collected dict, of one rank or of all together.

    Raises:
        StateError: It was not written by `to_state`; the message names the first key that does not fit.
    """

    def __init__(self, states: Mapping[str, Any]) -> None:
        # A view of its own: the trainer goes on writing to what it loaded.
        self.columns = Columns(Columns.of(states).table().present())
        self.deal = DealHeader()
        """What was before."""
        self.headers: dict[int, Mapping[str, Any]] = {}
        self.workers: dict[tuple[int, int], dict[int, int]] = {}
        """By pass and rank, then by generation: the worker that delivered last."""
        self.idle: set[tuple[int, int]] = set()
        """Generations and ranks: what saving and gathering recorded of those that delivered nothing."""
        self.drawn: defaultdict[int, dict[str, ByGeneration]] = defaultdict(dict)
        """By pass and the path of a mixture: how many samples it had drawn."""
        self.facts: defaultdict[int, ByGeneration] = defaultdict(dict)
        """By pass: how many batches a lane had delivered, and whether it had ended."""
        others = self.columns.others()
        # Headers first: what an entry may say depends on its generation.
        headers = {key: value for key, value in others.items() if str(key).startswith(("generation/", DEAL))}
        for key, value in (*headers.items(), *((k, v) for k, v in others.items() if k not in headers)):
            self._take(key, value)
        self._check_headers()
        self._check_whole()
        self._check_cursors()

    def topology(self, generation: int) -> Topology:
        """That of a generation."""
        written = self.headers[generation]
        return Topology(written["dp_size"], written["num_workers"])

    def paths(self) -> set[str]:
        """The nodes of which there are cursors."""
        return {group.path for group in self.columns.groups()}

    def lanes(self, group: Group) -> Any:
        """The numbers of the lanes that have a cursor in a group, int64 (n,)."""
        cursors = self.columns.group(*group)
        assert cursors is not None, "a group of these states"
        return cursors["rank"] * self.topology(group.generation).num_workers + cursors["worker"]

    def _take(self, key: object, value: Any) -> None:
        try:
            # At most five times: what follows the lane's numbers is the path, and names of sources may contain a slash.
            kind, *parts = str(key).split("/", 5)
            generation, *rest = (key_number(number) for number in parts[:_LANE_NUMBERS])
            match kind, rest, parts[_LANE_NUMBERS:]:
                case "generation", [], []:
                    self.headers[generation] = checked_header(value)
                case "deal", [], []:
                    self._take_deal(generation, value)
                case "worker", [epoch_pass, rank], []:
                    self._lane(generation, rank, count(value))
                    self.workers.setdefault((epoch_pass, rank), {})[generation] = value
                case "idle", [rank], []:
                    if value is not True:
                        raise ValueError("expected true")
                    self._lane(generation, rank, worker=0)
                    self.idle.add((generation, rank))
                case "lane", [epoch_pass, rank, worker], []:
                    facts = self.facts[epoch_pass].setdefault(generation, {})
                    facts[self._lane(generation, rank, worker)] = checked_lane(value)
                case "drawn", [epoch_pass, rank, worker], [path]:
                    drawn = self.drawn[epoch_pass].setdefault(path, {}).setdefault(generation, {})
                    drawn[self._lane(generation, rank, worker)] = count(value)
                case _:
                    raise ValueError("not a key of to_state")
        # All that values of any type can raise in the lines above: whichever it is, these are not states.
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise not_states(key, value, f"{type(error).__name__}: {str(error)[:200]}") from error

    def _take_deal(self, number: int, value: Any) -> None:
        # First of all: what is not what it was when it was written need not be looked at, and may be made to be large.
        digests = {header.get("dealt") for header in self.headers.values()}
        if digests and None not in digests and {digest_of(canonical(value))} != digests:
            raise ValueError(f"expected the digest {', '.join(map(str, digests))}")
        self.deal = deal_header_of(value)
        if self.deal.number != number:
            raise ValueError(f"expected number {number}")

    def _lane(self, generation: int, rank: int, worker: int) -> int:
        if generation not in self.headers:
            raise StateError(
                f"states: 'generation/{generation}' is missing, though there are entries of it\n"
                "  Save and restore the whole dict."
            )
        dp_size, num_workers = self.topology(generation)
        if rank >= dp_size or worker >= num_workers:
            raise StateError(
                f"states: an entry of rank {rank}, worker {worker} in generation {generation}, "
                f"which had dp_size={dp_size} and num_workers={num_workers}\n  Restore the states as they were saved."
            )
        return rank * num_workers + worker

    def _check_headers(self) -> None:
        """Refuse headers that contradict one another, and the lack of what was before them."""
        # By the digest: a header that was mended by hand, or is of another run, would deal out other records.
        first: Mapping[str, Any] = self.headers[min(self.headers)] if self.headers else {"deal": 0}
        for generation, header in sorted(self.headers.items()):
            for name in ("dp_size", "num_workers", "deal", "dealt"):
                if header.get(name) != first.get(name):
                    got, expected = shown(header.get(name)), shown(first.get(name))
                    _refuse_header(generation, f"{name}={got}, in generation {min(self.headers)} {expected}")
        if first["deal"] != self.deal.number or (self.deal.number and first["dealt"] != self.deal.digest):
            what = "another one" if self.deal.number else "none"
            raise StateError(
                f"states: expected the header {DEAL}{first['deal']}, of what was delivered before the number of ranks "
                f"or workers changed, got {what}\n"
                "  Call states.update(to_state(batch)) from the first batch after a resume on, and save the whole dict."
            )

    def _check_whole(self) -> None:
        missing = sorted({(epoch_pass, rank) for epoch_pass, rank in self._ranks()} - self.workers.keys())
        if missing:
            epoch_pass, rank = missing[0]
            raise StateError(
                f"states: 'worker/…/{epoch_pass}/{rank}' is missing, though there are cursors of it\n"
                "  Save and restore the whole dict."
            )

    def _ranks(self) -> Iterator[tuple[int, int]]:
        """The pass and rank of each entry of a lane."""
        cursors = self.columns.cursors()
        for generation in np.unique(cursors["generation"]).tolist():
            of_generation = cursors["generation"] == generation
            highest = (int(cursors[name][of_generation].max()) for name in ("rank", "worker"))
            self._lane(generation, *highest)
        for epoch_pass in np.unique(cursors["epoch_pass"]).tolist():
            ranks = np.unique(cursors["rank"][cursors["epoch_pass"] == epoch_pass])
            yield from ((epoch_pass, rank) for rank in ranks.tolist())
        for epoch_pass, held in self.facts.items():
            for generation, lanes in held.items():
                num_workers = self.topology(generation).num_workers
                yield from ((epoch_pass, lane // num_workers) for lane in lanes)
        for epoch_pass, paths in self.drawn.items():
            for generations in paths.values():
                for generation, lanes in generations.items():
                    num_workers = self.topology(generation).num_workers
                    yield from ((epoch_pass, lane // num_workers) for lane in lanes)

    def _check_cursors(self) -> None:
        """Refuse leftovers, and clocks that owe something, in a run of a single size."""
        cursors = self.columns.cursors()
        is_owing = (cursors["window"] < 0) | (cursors["clock"] < 0) | (cursors["pulled"][:, 1] < -1)
        wrong = np.flatnonzero(is_owing)
        if len(wrong) and not self.deal.number:
            names = ("generation", "epoch_pass", "rank", "worker", "path")
            *numbers, path = (int(cursors[name][wrong[0]]) for name in names)
            key = "/".join(["cursor", *map(str, numbers), cursors.table.paths[path]])
            raise not_states(key, self.columns[key], "expected numbers >= 0")


def not_states(key: object, value: object, why: str) -> StateError:
    """An error about an entry that `to_state` does not write."""
    return StateError(
        f"states: {shown(key)}: {shown(value)} does not come from to_state ({why})\n"
        "  Pass the dict that was filled by states.update(to_state(batch)), as it was saved."
    )


def _refuse_header(generation: int, why: str) -> NoReturn:
    raise StateError(
        f"states: 'generation/{generation}' does not fit the other headers: {why}\n"
        "  Restore the states as they were saved."
    )
