"""What `plan` says that balance gives, and what a job then has."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from streamdata import Cost, GroupByLength, MergedDataset, PackTokens
from streamdata.errors import SourceError
from streamdata.tools.plan.make_plan import Amount, Planner, plan_text
from streamdata.tools.plan.stragglers import StragglerLoss, lengths_in
from tests.streams import Numbers, loaded

COST, SAMPLED = Cost(linear=20, quadratic=1), 300
LENGTHS = np.random.default_rng(0).lognormal(3, 1, SAMPLED).astype(int).clip(1, 200).tolist()


def ids(record: dict) -> dict:
    """A document as long as others of its number."""
    return {"input_ids": [1] * LENGTHS[record["value"]]}


def stream(**options: object) -> MergedDataset:
    """Rows of 200 tokens."""
    packer = PackTokens(200, lookahead=100, rows=32, **{"balance": COST, **options})  # type: ignore[arg-type]
    return MergedDataset([Numbers("a", SAMPLED, single_process_fn=ids)], seed=1, customized_yield_fn=packer)


def planned(dataset: MergedDataset, ranks: int = 8, batch: int = 1, read: int = SAMPLED) -> StragglerLoss:
    """The plan's part of it."""
    amount = Amount(1000, None, ranks, 0, batch)
    found = Planner(dataset, amount, read).plan(0, balances=True).balance
    assert found is not None
    return found


def loss_of(make: Callable[[], MergedDataset], ranks: int, batch: int, steps: int) -> float:
    """The same of a job that runs."""
    costs = np.zeros((ranks, steps))
    for rank in range(ranks):
        dataset = make()
        dataset.set_data_parallel(ranks, rank)
        for step, rows in zip(range(steps), loaded(dataset, 0, batch), strict=False):
            sizes = [np.diff(row["cu_seqlens"].numpy()) for row in rows]
            costs[rank, step] = sum(float((20 * size + size**2).sum()) for size in sizes)
    return float((costs.max(0) / costs.mean(0)).mean())


def test_documents_are_as_long_as_they_are_padded() -> None:
    """What fills a row up is no document."""
    packer = PackTokens(16, document_multiple=4, row_multiple=16, balance=COST)
    samples = [{"input_ids": [1] * size, "__record__": (0, 0, size, 0)} for size in (3, 5)]
    assert lengths_in(list(packer(iter(samples))), packer) == [4, 8]


@pytest.mark.parametrize("batch", [1, 4])
def test_the_loss_is_that_of_the_job(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without balance, within what chance makes of some steps."""
    monkeypatch.setattr("streamdata.tools.plan.stragglers.NUM_STEPS", 160)
    found = planned(stream(), 6, batch)
    losses = [loss_of(partial(stream, balance=balance), 6, batch, 160 // batch) for balance in (COST, None)]
    assert [found.loss_with, found.loss_without] == pytest.approx(losses, abs=0.06)
    assert found.loss_without > found.loss_with + 0.1
    assert 0.98 < found.fill < 1
    assert 0.98 < found.fill_without < 1
    assert found.steps == 160


def test_groups_are_planned_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample costs as much as the longest of its group."""
    monkeypatch.setattr("streamdata.tools.plan.stragglers.NUM_STEPS", 100)
    grouper = GroupByLength(1000, balance=COST, groups=32)
    found = planned(MergedDataset([Numbers("a", SAMPLED, single_process_fn=ids)], customized_yield_fn=grouper))
    assert 1 < found.loss_with < found.loss_without
    assert 0.9 < found.fill < 1


def test_many_ranks_are_planned_for_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many."""
    monkeypatch.setattr("streamdata.tools.plan.stragglers._MAX_ROWS", 120)
    assert planned(stream(), 6, 2).steps == 10


@pytest.mark.parametrize(
    ("dataset", "read", "got"), [(stream(balance=None), 9, "none that does"), (stream(), 0, "no samples with tokens")]
)
def test_what_cannot_be_planned_is_an_error(dataset: MergedDataset, read: int, got: str) -> None:
    """Nothing balances, or nothing was read."""
    with pytest.raises(SourceError, match=f"expected a customized_yield_fn that balances, .* got {got}"):
        planned(dataset, read=read)


def test_text_says_nothing_of_what_was_not_asked() -> None:
    """A plan without balance."""
    plan = Planner(stream(), Amount(10, None, 1, 0, 1), 0).plan(0)
    assert "slowest" not in plan_text(plan).plain
