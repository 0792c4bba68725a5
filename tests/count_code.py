"""Counts lines of code and of comments in each room: `python -m tests.count_code [PATH …]`.

A line of code has a token other than a comment or a docstring; a string that stands alone under an attribute is a
docstring too. A comment line holds nothing but a comment: one behind code is a remark on that line, and not counted.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import streamdata

PACKAGE = Path(streamdata.__file__).parent
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Lines(NamedTuple):
    """How many lines of each kind some source has."""

    code: int
    comments: int

    @property
    def comments_per_100(self) -> float:
        """Comment lines for each 100 lines of code."""
        return 100 * self.comments / max(self.code, 1)


@cache  # a module is counted in its room and in the package
def lines_of(source: str) -> Lines:
    """Counts the lines of one module."""
    code, comments = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
        elif token.type == tokenize.COMMENT:
            comments += token.line.lstrip().startswith("#")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, node.end_lineno + 1))
    return Lines(len(code), comments)


def lines_in(paths: Iterable[Path]) -> Lines:
    """Counts the lines of modules, and of all modules below directories."""
    modules = [module for path in paths for module in (path.rglob("*.py") if path.is_dir() else [path])]
    counts = [lines_of(module.read_text(encoding="utf-8")) for module in modules]
    return Lines(sum(count.code for count in counts), sum(count.comments for count in counts))


def rooms() -> dict[str, list[Path]]:
    """The directories of the package by name, and its own modules under the name of the package."""
    named = {path.parent.name: [path.parent] for path in sorted(PACKAGE.glob("*/__init__.py"))}
    return {PACKAGE.name: sorted(PACKAGE.glob("*.py"))} | named


def main(arguments: list[str]) -> None:
    """Prints a line for each path, or for each room of the package, and one for all of them."""
    groups = {argument: [Path(argument)] for argument in arguments} or rooms()
    groups["all"] = [path for paths in groups.values() for path in paths]
    for name, paths in groups.items():
        lines = lines_in(paths)
        print(f"{name:30}{lines.code:7,} code {lines.comments:5,} comments {lines.comments_per_100:5.1f} per 100")


if __name__ == "__main__":
    main(sys.argv[1:])
