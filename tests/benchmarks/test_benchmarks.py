"""The benchmarks run, each row with its ratio; how fast they are is no matter here."""

from pathlib import Path

import pytest

from tests.benchmarks.__main__ import GROUPS, machine
from tests.benchmarks.measure import TINY


@pytest.mark.parametrize("group", GROUPS)
def test_each_group_gives_its_rows_with_figures(group: str, tmp_path: Path):
    """Every group of figures is measured, and each is told with what it comes from."""
    rows = list(GROUPS[group].rows(tmp_path, TINY))
    assert rows
    assert all(any(char.isdigit() for char in row.got) and row.work and row.reach and row.from_ for row in rows)


def test_machine_is_named_with_versions():
    """A figure without its machine and date says nothing."""
    assert "cores" in machine()
    assert "webdataset" in machine()
