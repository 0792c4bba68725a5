"""What several ranks saved, joined to one: after it is sure that they belong together."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamdata.errors import StateError, shown
from streamdata.progress.checked import checked_header
from streamdata.progress.deal_header import DEAL
from streamdata.progress.state_file import RankStates, dealt_of, headers_of, parse
from streamdata.progress.states_table import StatesTable, join, same_order

_MAX_NAMED = 30


def check_together(saved: Sequence[RankStates]) -> None:
    """Refuse to join what different runs saved.

    Raises:
        StateError: They are of different steps, numbers of ranks or process groups; a generation is another in one of
            them.
    """
    first = saved[0]
    for part in saved:
        for name in ("step", "size"):
            expected, got = getattr(first.origin, name), getattr(part.origin, name)
            if expected != got:
                raise _apart(part, first, f"of {name} {got}", f"of {name} {expected}")
    known = [part for part in saved if part.origin.group is not None]  # of the others it may be any
    for part in known:
        if part.origin.group != known[0].origin.group:
            raise _apart(
                part, known[0], *(f"saved in the process group {one.origin.group}" for one in (part, known[0]))
            )
    _check_headers(saved)


def join_ranks(saved: Sequence[RankStates], deals: Mapping[str, Any], unknown: Collection[int] = ()) -> StatesTable:
    """The states of all ranks, with a record of each that delivered nothing since the size last changed.

    Args:
        saved: Of different ranks.
        deals: By digest, what had been before, of all that these name.
        unknown: Ranks of which nobody knows whether they delivered anything.

    Raises:
        StateError: They do not belong together, or do not come from `to_state`.
    """
    check_together(saved)
    # Whichever rank had it wrote it: the others' files name it by its digest.
    before = {f"{DEAL}{number}": deals[digest] for number, digest in dealt_of(saved).items()}
    table = join([StatesTable(others=before), parse(sorted(saved, key=lambda part: part.origin.rank))])
    # A rank that has delivered nothing since the size changed may have saved what was before: of another size, that is.
    headers = table.headers()
    # One of the same size as the newest has begun without what the others had loaded.
    sizes = [(header["deal"], header["dp_size"], header["num_workers"]) for header in headers.values()]
    if any(size[0] < max(sizes)[0] and size[1:] == max(sizes)[1:] for size in sizes):
        raise StateError(
            "states: they are not of one run: some ranks go on from another number of ranks or workers, others do not\n"
            "  Delete the files of the run that you do not go on with, or load another step."
        )
    table = table.present()
    if missing := table.generations() - table.headers().keys():
        raise StateError(
            f"states: 'generation/{min(missing)}' is missing, though there are entries of it\n"
            "  Restore the files as they were saved."
        )
    return _with_idle(table, table.headers(), unknown) if table.headers() else table


def _with_idle(table: StatesTable, headers: Mapping[int, Mapping[str, Any]], unknown: Collection[int]) -> StatesTable:
    newest = max(headers)
    # Of the ranks that the newest header tells of: in a run of another size nobody has delivered yet.
    idle = sorted(set(range(headers[newest]["dp_size"])) - table.ranks(headers) - set(unknown))
    # Those that were idle once may have delivered since.
    others = {key: value for key, value in table.others.items() if not key.startswith("idle/")}
    return StatesTable(table.cursors, others | {f"idle/{newest}/{rank}": True for rank in idle})


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
