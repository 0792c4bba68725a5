"""What several ranks saved, joined to one: after it is sure that they belong together."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.checked import checked_header
from streamdata.progress.descent import present_generations
from streamdata.progress.state_file import RankStates, headers_of, parse
from streamdata.progress.states_table import StatesTable, join, same_order

_MAX_NAMED = 30


def check_together(saved: Sequence[RankStates]) -> None:
    """Refuse to join what different runs saved.

    Raises:
        StateError: They are of different steps, numbers of ranks, branches or process groups; a generation is another
            in one of them.
    """
    first = saved[0]
    for part in saved:
        for name in ("step", "size"):
            expected, got = getattr(first.origin, name), getattr(part.origin, name)
            if expected != got:
                raise _apart(part, first, f"of {name} {got}", f"of {name} {expected}")
    _check_same(saved, "parent", _branch)
    _check_same(saved, "group", lambda part: f"saved in the process group {part.origin.group}")
    _check_headers(saved)


def _check_same(saved: Sequence[RankStates], name: str, describe: Callable[[RankStates], str]) -> None:
    # None, which nobody knows, may be any.
    known = [part for part in saved if getattr(part.origin, name) is not None]
    for part in known:
        if getattr(part.origin, name) != getattr(known[0].origin, name):
            raise _apart(part, known[0], *map(describe, (part, known[0])))


def join_ranks(
    saved: Sequence[RankStates], older: Sequence[StatesTable] = (), unknown: Collection[int] = ()
) -> StatesTable:
    """The states of all ranks, with a record of each that delivered nothing since the topology last changed.

    Args:
        saved: Of different ranks.
        older: What is held of ranks that are not among them.
        unknown: Ranks of which nobody knows whether they delivered anything.

    Raises:
        StateError: They do not belong together, or do not come from `to_state`.
    """
    check_together(saved)
    # By rank: rank 0 may hold copies of the others' entries, over which their own must come.
    table = join([*older, parse(sorted(saved, key=lambda part: part.origin.rank))])
    headers = table.headers()
    if missing := table.generations() - headers.keys():
        raise StateError(
            f"states: 'generation/{min(missing)}' is missing, though there are entries of it\n"
            "  Restore the files as they were saved."
        )
    return _with_idle(table, headers, unknown) if headers else table


def _with_idle(table: StatesTable, headers: Mapping[int, Mapping[str, Any]], unknown: Collection[int]) -> StatesTable:
    newest, present = max(headers), present_generations(headers)
    # Of the ranks that the newest header tells of: in a run of another size nobody has delivered yet.
    idle = sorted(set(range(headers[newest]["dp_size"])) - table.ranks(present) - set(unknown))
    # Those that were idle once may have delivered since.
    stale = {f"idle/{generation}/" for generation in present}
    others = {key: value for key, value in table.others.items() if key.rpartition("/")[0] + "/" not in stale}
    others |= {f"idle/{newest}/{rank}": True for rank in idle}
    return StatesTable(table.cursors, others, table.odd)


def _check_headers(saved: Sequence[RankStates]) -> None:
    # The first rank that has a generation stands for all: what differs from it is named with it.
    first: dict[str, tuple[RankStates, Any]] = {}
    seen: set[int] = set()
    for part, headers in headers_of(saved):
        if id(headers) in seen:  # parsed once for many ranks, and compared once
            continue
        seen.add(id(headers))
        for key, header in headers.items():
            try:
                checked_header(header)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise StateError(
                    f"{part.name}: {shown(key)} does not come from to_state ({error})\n  Delete it."
                ) from error
            other, expected = first.setdefault(key, (part, header))
            if not same_order(header, expected):
                differences = [f"{key} with {_difference(*two)}" for two in ((header, expected), (expected, header))]
                raise _apart(part, other, *differences)


def _difference(header: Any, other: Any) -> str:
    """What of a header another one has not."""
    if not isinstance(header, Mapping) or not isinstance(other, Mapping):
        return str(header)[:100]
    names = [name for name in sorted(header.keys() | other.keys()) if header.get(name) != other.get(name)]
    for name in names:
        value, expected = header.get(name), other.get(name)
        if isinstance(value, Mapping) and isinstance(expected, Mapping):
            return f"{name}: {_difference(value, expected)}"
    return ", ".join(f"{name}={str(header.get(name))[:100]}" for name in names)


def _branch(part: RankStates) -> str:
    parent = part.origin.parent
    return f"descending from the loaded states {parent}" if parent else "of a run that began without states"


def _apart(part: RankStates, other: RankStates, got: str, expected: str) -> StateError:
    return StateError(
        f"states: rank {part.origin.rank} and rank {other.origin.rank} are not of one run\n"
        f"  {part.name}: {got}\n  {other.name}: {expected}\n"
        "  Delete the files of the run that you do not go on with, or load another step."
    )


def named_ranks(ranks: Sequence[int]) -> str:
    """For messages."""
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return ", ".join(f"rank {rank}" for rank in ranks[:_MAX_NAMED]) + more
