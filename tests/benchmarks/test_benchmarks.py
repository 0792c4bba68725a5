"""The benchmarks run, each row with its ratio; how fast they are is no matter here."""

from pathlib import Path

import pytest

from tests.benchmarks import clock_table
from tests.benchmarks.__main__ import GROUPS, machine
from tests.benchmarks.measure import TINY

# webdataset leaves the last shard of an iteration open until it is collected, which may be in the next test
pytestmark = pytest.mark.filterwarnings("ignore:(?s)Exception ignored.*[.]tar:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


# They start peers, stores, loaders and runs; the others share what measures and tells with them.
DEAR = {"collate", "images", "memory", "prepare", "prompts", "remote", "stores", "tar"}


@pytest.mark.parametrize("group", [pytest.param(group, marks=[pytest.mark.long] * (group in DEAR)) for group in GROUPS])
def test_each_group_gives_its_rows_with_figures(group: str, directory: Path) -> None:
    """Every group of figures is measured, and each figure is told with what it comes from."""
    rows = list(GROUPS[group].rows(directory, TINY))
    assert rows
    measured = [row for row in rows if row.ok is not None]
    assert measured
    assert all(any(map(str.isdigit, row.got)) and row.reach for row in measured)
    assert all(row.work and row.got and row.from_ for row in rows)


def test_machine_is_named_with_versions() -> None:
    """A figure without its machine, date and versions says nothing."""
    assert "cores" in machine()
    assert "webdataset" in machine()


@pytest.mark.parametrize("weights", clock_table.WEIGHTINGS.values())
def test_the_table_of_clocks_shows_that_the_rule_is_even(weights: list[float]) -> None:
    """Within the grain of a batch, and more even than each other rule."""
    deviations = {rule: clock_table.deviation_of_batches(rule, weights, 20) for rule in clock_table.RULES}
    assert min(deviations, key=lambda rule: deviations[rule]) == "this rule"
    assert deviations["this rule"] < 1 / 128
