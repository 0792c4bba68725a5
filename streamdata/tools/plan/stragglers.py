"""Loss of steps to their slowest rank: `lengths of some documents, function that balances → StragglerLoss`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamdata.errors import SourceError
from streamdata.fields import BOUNDS, PADDED_BOUNDS, SAMPLES, SOURCE_IDS
from streamdata.sources.source import Sample
from streamdata.text.plan import Balance, Integers, plan_alike_head, plan_bfd_head

NUM_STEPS: Final = 2000
"""Steps that are looked at, if these are not too many rows."""
_MAX_ROWS: Final = 1 << 18
_MAX_RANKS: Final = 1 << 10


@dataclass(frozen=True, kw_only=True)
class StragglerLoss:
    """How much longer steps take than if all ranks had the same work, as far as that is their rows' cost."""

    loss_with: float
    """The mean over steps of the largest cost of a rank, divided by the mean of all ranks."""
    loss_without: float
    """That loss without balance."""
    fill: float
    """The share of rows that holds tokens."""
    fill_without: float
    steps: int
    """Steps that were looked at."""


def lengths_in(outputs: Sequence[Sample], function: Any) -> list[int]:
    """The tokens of each document of rows, with its padding, or of each sample of groups, if the function balances."""
    if not isinstance(getattr(function, "balance", None), Balance):
        return []
    field, found = function.state_dict()["field"], list[int]()
    for one in outputs:
        if BOUNDS in one:
            # A document of no source fills its row up.
            found += one[PADDED_BOUNDS if PADDED_BOUNDS in one else BOUNDS].diff()[one[SOURCE_IDS] >= 0].tolist()
        else:
            found += [len(sample[field]) for sample in one.get(SAMPLES, ())]
    return found


def straggler_loss(function: Any, lengths: Sequence[int], dp_size: int, batch_size: int) -> StragglerLoss:
    """Plan the first steps of all ranks, with documents as long as those that were sampled.

    Args:
        function: The yield function of the top mixture.
        lengths: Those of sampled documents.
        dp_size: How many ranks there are; of more than 1,024 as many are looked at.
        batch_size: Rows of a rank in a step.

    Raises:
        SourceError: It does not balance, or nothing was sampled.
    """
    balance = getattr(function, "balance", None)
    if not isinstance(balance, Balance) or not lengths:
        got = "no samples with tokens, or none that were read" if isinstance(balance, Balance) else "none that does"
        raise SourceError(
            f"the top mixture: expected a customized_yield_fn that balances, to plan balance, got {got}\n"
            "  Give PackTokens or GroupByLength balance=Cost(…), and records to --read."
        )
    ranks, found = min(dp_size, _MAX_RANKS), np.array(lengths)
    steps = max(1, min(NUM_STEPS, _MAX_ROWS // (ranks * batch_size)))
    losses, fills = [], []
    for lookahead in (None, int(function.state_dict()["lookahead"])):
        rng = np.random.default_rng(0)  # the same plan each time
        lanes = (_rows(balance, lookahead, found, rng, steps * batch_size) for _ in range(ranks))
        costs, full = zip(*lanes, strict=True)
        of_steps = np.array(costs).reshape(ranks, steps, batch_size).sum(axis=2)
        losses.append(float((of_steps.max(axis=0) / of_steps.mean(axis=0)).mean()))
        fills.append(float(np.mean(full)))
    return StragglerLoss(loss_with=losses[0], loss_without=losses[1], fill=fills[0], fill_without=fills[1], steps=steps)


def _rows(
    balance: Balance, lookahead: int | None, lengths: Integers, rng: np.random.Generator, number: int
) -> tuple[list[float], float]:
    """The costs of a rank's first rows, in the sequence in which it gives them; and how full these are.

    Args:
        balance: How it balances.
        lookahead: Over how many documents it plans where it does not; None where it does.
        lengths: Of documents,
        rng: which draws some of them.
        number: How many rows.
    """
    held, costs, fills = np.zeros(0, dtype=np.int64), list[float](), []
    most = balance.num_tokens if lookahead is None else balance.row_length
    head = plan_alike_head if balance.is_padded else plan_bfd_head
    while len(costs) < number:
        count = max(lookahead or 1, 1 + int(np.searchsorted(np.cumsum(held), most, side="right")))
        if count > len(held):
            held = np.append(held, rng.choice(lengths, 1000))
            continue
        if lookahead is None:
            plan = balance.plan(held[:count])
            costs += [cost for *_, cost in balance.aligned(plan)]
        else:
            plan = head(held[:count], balance.row_length)
            costs += balance.cost.of_rows(plan, is_padded=balance.is_padded).tolist()
        held = held[len(plan.document) :]
        fills.append(plan.fill)
    return costs[:number], float(np.mean(fills))
