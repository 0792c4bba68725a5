"""What counts as a line of code, and what as a comment."""

from tests import count_code
from tests.count_code import Lines, lines_in, lines_of, main, rooms

MODULE = '''
"""A docstring
of two lines."""

LIMIT = 3  # a remark on its line
"""What the limit is for."""


# Why there is a function.
def text():
    # A reason.
    return """# no comment,

but three lines of code"""
'''


def test_docstrings_comments_and_blanks_are_no_code():
    """But the lines of a string that is a value are; a comment behind code is none of its own."""
    assert lines_of(MODULE) == Lines(code=5, comments=2)
    assert lines_of(MODULE).comments_per_100 == 40


def test_a_module_without_code_has_no_comments_for_each_100_lines():
    """Rather than a division by zero."""
    assert lines_of("").comments_per_100 == 0


def test_the_rooms_together_are_the_package(capsys, monkeypatch, tmp_path):
    """Every module is counted once, and the last line printed is their sum."""
    package = tmp_path / "package"
    for folder in (package, package / "room", package / "room" / "below", package / "another"):
        folder.mkdir()
        for name in ("__init__.py", "module.py"):
            (folder / name).write_text(MODULE)
    monkeypatch.setattr(count_code, "PACKAGE", package)
    main([])
    assert list(rooms()) == ["package", "another", "room"]
    assert lines_in([path for paths in rooms().values() for path in paths]) == lines_in([package]) == (40, 16)
    assert "40 code" in capsys.readouterr().out.splitlines()[-1]
