"""Mutants change one line each, by the operator that they are named for."""

import pytest

from tests.mutants.operators import compiles_alike, mutants_of


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("a < b", {"comparison": ["a >= b"], "boundary": ["a <= b"]}),
        ("a not in b", {"comparison": ["a in b"]}),
        ("a and (b or c)", {"comparison": ["a or (b or c)", "a and (b and c)"]}),
        ("-(-a // b)", {"arithmetic": ["(-a // b)", "-((a) // b)", "-(-a * b)"]}),
        ("a += 1", {"arithmetic": ["a -= 1"], "constant": ["a += 2"]}),
        ("f(x)", {"removed call": ["pass", "(x)"]}),
        ("x = max(0, y)", {"removed call": ["x = (0)", "x = (y)"], "constant": ["x = max(1, y)"]}),
        (
            "x = 'ß' if y else 2.0",
            {"comparison": ["x = 'ß' if (not (y)) else 2.0"], "constant": ["x = 'ß' if y else 4.0"]},
        ),
        ("raise ValueError(f'{a + b}')", {}),
        ("def f(a: int | None = None) -> 1 + 1: ...", {}),
    ],
)
def test_each_operator_changes_what_it_says(line, changed):
    """Nothing else, and no text or annotation."""
    found = {}
    for mutant in mutants_of("m.py", line + "\n"):
        found.setdefault(mutant.operator, []).append(mutant.apply(line))
    assert {operator: sorted(lines) for operator, lines in found.items()} == {k: sorted(v) for k, v in changed.items()}


def test_mutants_that_compile_alike_are_known():
    """Constants are folded; what a line does is what counts."""
    assert compiles_alike("x = 2 + 2\n", "x = 2 * 2\n")
    assert not compiles_alike("x = a + 2\n", "x = a * 2\n")
