"""Whether all ranks are about to read the same: what each holds, as digests, beside that of the others."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from streamdata.errors import StateError
from streamdata.progress.columns import Columns
from streamdata.progress.ranks import all_gather, check_can_meet
from streamdata.progress.states_table import StatesTable
from streamdata.run import DataParallel


def states_digests(states: Mapping[str, Any], rank: int) -> dict[str, str | None]:
    """What a rank's states say, to be compared: their topology, and the digests of their headers and of all.

    The digest of all is None of states that hold the rank's own alone: two ranks' own must differ, and of these the
    headers say whether they are of one run.
    """
    table = Columns.of(states).table()
    table = table.present()
    headers = StatesTable(others={key: value for key, value in table.others.items() if key.startswith("generation/")})
    # A single rank's own are all there are.
    is_own = table.ranks(table.headers()) <= {rank}
    newest = table.headers()[max(table.headers())] if table.headers() else None
    is_alone = newest is not None and newest["dp_size"] == 1
    whole = table.digest() if is_alone or not is_own else None
    # The headers' digest tells this, too, but not what it is that differs.
    topology = None if newest is None else f"{newest['dp_size']} ranks with {newest['num_workers']} workers each"
    return {"topology in its states": topology, "states' header": headers.digest(), "states": whole}


def verify_ranks_agree(facts: Mapping[str, Any], group: DataParallel) -> None:
    """Compare what each rank says of itself, in one all-gather; to be called on every rank.

    Args:
        facts: By what it is called in messages. A fact that is None on some rank is not compared with that rank's.
        group: Which replica this rank is.

    Raises:
        StateError: Some rank says another thing than most; on every rank.
    """
    check_can_meet("verify_agreement", group.dp_size)
    told, replicas = zip(*all_gather((dict(facts), group.dp_rank)), strict=True)
    found = [line for name in facts for line in _differences(name, [of_rank[name] for of_rank in told])]
    # Where more processes meet than there are replicas, those of one replica share its number.
    if not found and len(replicas) == group.dp_size:
        found = [
            f"rank {rank} has another topology: it is replica {replica}, and so is rank {replicas.index(replica)}"
            for rank, replica in enumerate(replicas)
            if replicas.index(replica) < rank
        ]
    if found:
        raise StateError(
            "verify_agreement: the ranks would not read one stream\n  " + "\n  ".join(found) + "\n"
            "  Give all ranks the same recipe, seed, size and states."
        )


def _differences(name: str, values: list[Any]) -> list[str]:
    known = [value for value in values if value is not None]
    if not known:
        return []
    # The first of the most common: of two ranks that differ, rank 0 counts as the one that is right.
    usual, _ = Counter(known).most_common(1)[0]
    pattern = values.index(usual)
    return [
        f"rank {rank} has another {name} than rank {pattern}: {value}, not {usual}"
        for rank, value in enumerate(values)
        if value is not None and value != usual
    ]
