"""The benchmarks run, each row with its ratio; how fast they are is no matter here."""

import json
from pathlib import Path

import pytest

from tests.benchmarks import clock_table
from tests.benchmarks.__main__ import GROUPS, as_json, lines, machine
from tests.benchmarks.measure import TINY, Row, Times, compared

# webdataset leaves the last shard of an iteration open until it is collected, which may be in the next test
pytestmark = pytest.mark.filterwarnings("ignore:(?s)Exception ignored.*[.]tar:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


# They start peers, stores, loaders and runs; the others share what measures and tells with them.
DEAR = {"collate", "images", "memory", "prepare", "prompts", "remote", "start", "stores", "tar"}


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


def _row(theirs: list[float], **wanted: float) -> Row:
    times = Times({"ours": [2.0, 1.0], "theirs": theirs, "limit": [0.5, 0.5]})
    beside = [times.beside("ours", "limit", "the limit"), times.beside("ours", "theirs", "peer", is_peer=True)]
    return compared("reading", wanted, beside, "2 turns")


def test_a_ratio_is_of_the_best_times_with_the_spread_of_its_turns() -> None:
    """A turn in a busy moment widens the spread, and does not move the ratio."""
    limit, peer = _row([3.0, 6.0]).beside
    assert (limit.ratio, limit.least, limit.most) == (0.5, 0.25, 0.5)
    assert (peer.ratio, peer.least, peer.most) == (3.0, 1.5, 6.0)


def test_a_row_is_ok_if_each_ratio_is_reached() -> None:
    """What was not measured counts as no miss, and is named."""
    assert _row([3.0, 6.0], peer=3.0).ok
    assert not _row([3.0, 6.0], peer=3.1).ok
    assert _row([3.0, 6.0], other=1.0).ok
    assert "other not measured" in _row([3.0, 6.0], other=1.0).got


def test_table_says_where_a_peer_is_ahead() -> None:
    """In Markdown as in JSON; a bare loop that is faster is no peer."""
    ahead, behind = _row([0.9, 0.9]), _row([1.1, 1.1])
    text = "\n".join(lines([ahead, behind]))
    assert "A peer is ahead:\n\n- reading: peer 0.90" in text
    assert "No peer is ahead." in "\n".join(lines([behind]))
    rows = json.loads(as_json([ahead, behind], 1.0))["rows"]
    assert [row["peers_ahead"] for row in rows] == [["peer"], []]


@pytest.mark.parametrize("weights", clock_table.WEIGHTINGS.values())
def test_the_table_of_clocks_shows_that_the_rule_is_even(weights: list[float]) -> None:
    """Within the grain of a batch, and more even than each other rule."""
    deviations = {rule: clock_table.deviation_of_batches(rule, weights, 20) for rule in clock_table.RULES}
    assert min(deviations, key=lambda rule: deviations[rule]) == "this rule"
    assert deviations["this rule"] < 1 / 128
