"""The rest of the cases is `python -m tests.faults.changed_files`."""

import logging
from pathlib import Path

import pytest

from tests.faults.changed_files import CHANGES, KINDS, outcome


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_in_mid_pass_is_an_error_or_changes_nothing(
    kind: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing where what was open stays whole: stores are not looked for at their paths again, their sums are."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    logging.disable(logging.WARNING)
    is_open = kind.startswith("store") and change in ("removed", "replaced")
    expected = "all as it was" if is_open else "StoreError" if kind.startswith("store") else "ShardError"
    try:
        assert outcome(tmp_path, kind, change, "mid-pass") == expected
    finally:
        logging.disable(logging.NOTSET)
