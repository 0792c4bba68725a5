"""The house stays within its budgets: `tests/budgets.py`."""

from collections import Counter

import pytest

from tests.budgets import CODE_LINES, FILE_LINES, FILES, FILES_OF_A_FOLDER, WALKS
from tests.count_code import PACKAGE, lines_in
from tests.test_house import FLOORS_OF_ROOMS
from tests.walks import walk

MODULES = sorted(PACKAGE.rglob("*.py"))


def test_there_are_few_files_none_large():
    """In the package, in each folder, and in each file."""
    assert len(MODULES) <= FILES
    folders = Counter(module.parent.relative_to(PACKAGE) for module in MODULES)
    assert {folder: count for folder, count in folders.items() if count > FILES_OF_A_FOLDER} == {}
    lines = {str(module.relative_to(PACKAGE)): lines_in([module]).code for module in MODULES}
    assert {module: count for module, count in lines.items() if count > FILE_LINES} == {}


@pytest.mark.parametrize("floor", CODE_LINES)
def test_code_of_a_floor_only_gets_less(floor):
    """The core, what stands beside it, and what stands above."""
    assert lines_in([PACKAGE / room for room in FLOORS_OF_ROOMS[floor]]).code <= CODE_LINES[floor]


@pytest.mark.parametrize("name", WALKS)
def test_to_follow_a_walk_one_opens_few_files(name):
    """A first batch, a later one, a recipe, and states under another size."""
    files, functions = WALKS[name]
    found = walk(name)
    assert (len(found), sum(found.values())) <= (files, functions)
    assert sum(found.values()) <= functions
