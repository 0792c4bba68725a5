"""What README and site show, runs, and gives what they say."""

import re
import runpy
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks_of, matches, run_page

WITH_BLOCKS = [page for page in PAGES if any(blocks_of(page))]


@pytest.fixture
def workplace(tmp_path, demo_data, monkeypatch):
    """A folder with the recipes, the examples and the demo's data, as after `make demo`."""
    for name, place in {"demo_data": demo_data, "configs": ROOT / "configs", "examples": ROOT / "examples"}.items():
        (tmp_path / name).symlink_to(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, workplace: Path) -> None:
    """Each file is written, each script runs, each command gives the output beside it."""
    run_page(page)


@pytest.mark.parametrize(
    ("expected", "output", "varies", "same"),
    [
        ("a 1\n", "a 1\n", False, True),
        ("a 1\n", "a 2\n", False, False),
        ("a 1\n", "a 2\n", True, True),
        ("a   1\n", "a 1,000\n", True, True),
        ("a 1\n", "b 1\n", True, False),
        ("a … c\n", "a b c\n", False, True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", False, True),
        ("a\n…\nd\n", "a\nb\nc\n", False, False),
        ("a\n", "a\nb\n", False, False),
    ],
)
def test_output_is_compared(expected: str, output: str, varies: bool, same: bool) -> None:
    """Exactly but for what a page leaves out or says to vary."""
    assert matches(expected, output, varies=varies) is same


def test_demo_says_what_the_pages_show(workplace, capsys, monkeypatch, caplog) -> None:
    """A short one, so the numbers are others; it resumes exactly, and no function that only looks on is warned of."""
    demo = runpy.run_path("examples/demo.py")
    monkeypatch.setitem(demo["main"].__globals__, "NUM_BATCHES", 12)
    monkeypatch.setitem(demo["main"].__globals__, "STOP_AFTER", 5)
    demo["main"]("demo_data")
    output = capsys.readouterr().out
    assert "still has something" not in caplog.text
    assert "resumed: 7 of 7 remaining batches equal" in output
    assert re.search(r"docs +30 % +(29|30|31)(\.\d)? %", output)
    for page in ("README.md", "docs/start/first-run.md"):
        shown = next(block.text for block in blocks_of(ROOT / page) if block.text.startswith("$ make demo\n"))
        assert matches(shown.removeprefix("$ make demo\n").removesuffix("$ make test\n"), output, varies=True), page
