"""The table of faults in `tests/README.md` names tests that are there, for each fault."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", (TESTS / "README.md").read_text("utf-8"), re.MULTILINE)


@cache
def functions_of(path):
    """The names of the functions of a file."""
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_is_a_row_for_each_fault():
    """In their order."""
    assert [int(number) for number, *_ in ROWS] == list(range(1, 45))


def test_each_test_of_the_table_is_there():
    """Every row names one; scripts are modules."""
    for number, _, tests, _ in ROWS:
        named = re.findall(r"`([^`:]+)::(\w+)`", tests)
        assert named, f"row {number}"
        assert [name for path, name in named if name not in functions_of(path)] == [], f"row {number}"
        scripts = [TESTS.parent / f"{name.replace('.', '/')}.py" for name in re.findall(r"`python -m ([\w.]+)", tests)]
        assert all(map(Path.exists, scripts)), f"row {number}"


@pytest.mark.parametrize("name", ["test_damaged_shards.py", "test_damaged_arrays.py"])
def test_each_damage_to_a_file_has_a_row(name):
    """Its name begins with the number of a row, and that row names a test of its file."""
    text = (TESTS / "faults" / name).read_text("utf-8")
    numbers = set(re.findall(r'^    "(\d+) [^"]+": \(', text, re.MULTILINE))
    assert len(numbers) >= 3
    assert numbers <= {number for number, _, tests, _ in ROWS if f"faults/{name}::" in tests}
