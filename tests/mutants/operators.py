"""One-line mutants of a module: each is the replacement of one piece of one line."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType

OPPOSITES = {
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
    "and": "or",
    "or": "and",
}
NEIGHBOURS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ARITHMETIC = {"+": "-", "-": "+", "*": "//", "/": "*", "//": "*", "%": "*", "**": "*", "@": "*"}
BITWISE = {"&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<"}
CRASHES = {"enumerate", "getattr", "iter", "len", "next", "np.array", "range", "repr", "sum", "type", "zip"}
"""Calls whose argument cannot stand in their place: a mutant without them would count as killed, and show nothing."""
_TOKEN = re.compile(r"not\s+in|is\s+not|[a-z]+|[-+*/%&|^<>=!@]+")


@dataclass(frozen=True, order=True)
class Mutant:
    """The bytes [start, stop) of a line, replaced."""

    path: str
    line: int
    start: int
    stop: int
    operator: str
    text: str

    def lines(self, source: str) -> tuple[str, str]:
        """The line before and after, without indentation."""
        return _lines(source)[self.line - 1].decode().strip(), self._changed(source).decode().strip()

    def apply(self, source: str) -> str:
        """The mutated source."""
        lines = _lines(source)
        lines[self.line - 1] = self._changed(source)
        return b"".join(lines).decode()

    def _changed(self, source: str) -> bytes:
        line = _lines(source)[self.line - 1]
        return line[: self.start] + self.text.encode() + line[self.stop :]


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a module that can be compiled, in the order of their places."""
    found = {
        Mutant(path, line, start, stop, operator, text)
        for operator, line, start, stop, text in _edits(ast.parse(source), source)
    }
    return sorted(mutant for mutant in found if _compiles(mutant.apply(source)))


def compiles_alike(one: str, other: str) -> bool:
    """Whether two sources compile to the same code: then no test can tell them apart."""
    return _shape(compile(one, "", "exec")) == _shape(compile(other, "", "exec"))


Edit = tuple[str, int, int, int, str]
"""Operator, line, first byte, byte behind the last, new text."""


def _edits(node: ast.AST, source: str) -> Iterator[Edit]:
    if _is_passed_over(node):
        return
    yield from _own_edits(node, source)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _edits(child, source)


def _is_passed_over(node: ast.AST) -> bool:
    """What is said to people, and what states an invariant: tests need not know it word by word."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).startswith(("logger.", "logging.", "TypeVar"))
    is_repr = isinstance(node, ast.FunctionDef) and node.name == "__repr__"
    return is_repr or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)


def _own_edits(node: ast.AST, source: str) -> Iterator[Edit]:
    for edits in (_operators, _conditions, _constants, _calls):
        yield from edits(node, source)


def _operators(node: ast.AST, source: str) -> Iterator[Edit]:
    match node:
        case ast.Compare(left, _, others):
            operands = [left, *others]
        case ast.BinOp(left, _, right):
            operands = [left, right]
        case ast.BoolOp(_, values):
            operands = values
        case ast.AugAssign(target, _, value):
            operands = [target, value]
        case _:
            operands = []
    for one, other in pairwise(operands):
        yield from _between(one, other, source)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        operator = "comparison" if isinstance(node.op, ast.Not) else "arithmetic"
        yield from _replaced(node, operator, f"({_text(node.operand, source)})")


def _conditions(node: ast.AST, source: str) -> Iterator[Edit]:
    """The opposites of conditions that have no operator of their own."""
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            tests = [test]
        case ast.comprehension(_, _, tests):
            pass
        case _:
            tests = []
    for test in tests:
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield from _replaced(test, "comparison", f"(not ({_text(test, source)}))")


def _constants(node: ast.AST, source: str) -> Iterator[Edit]:
    match node:
        case ast.Constant(bool() as value):
            yield from _replaced(node, "constant", str(not value))
        case ast.Constant(int() as value):
            yield from _replaced(node, "constant", str(value + 1))
        case ast.Constant(float() as value):
            yield from _replaced(node, "constant", repr(2 * value))


def _calls(node: ast.AST, source: str) -> Iterator[Edit]:
    match node:
        case ast.Expr(ast.Call() as call) if not _is_passed_over(call):
            yield from _replaced(node, "removed call", "pass")
        case ast.Call(function, [*arguments], []) if _may_go(function, len(arguments)):
            for argument in arguments:
                if not isinstance(argument, ast.Starred):
                    yield from _replaced(node, "removed call", f"({_text(argument, source)})")


def _may_go(function: ast.expr, num_arguments: int) -> bool:
    name = ast.unparse(function)
    is_class = name.rpartition(".")[2].lstrip("_")[:1].isupper()
    return name in ("min", "max") or (num_arguments == 1 and name not in CRASHES and not is_class)


def _between(one: ast.expr, other: ast.expr, source: str) -> Iterator[Edit]:
    """Change the operator between two expressions, if it stands on one line with their neighbouring ends."""
    start, stop = one.end_col_offset, other.col_offset
    if start is None or one.end_lineno != other.lineno:
        return
    match = _TOKEN.search(_lines(source)[other.lineno - 1][start:stop].decode())
    assert match, f"no operator on line {other.lineno}"
    token = re.sub(r"\s+", " ", match[0])
    symbol, assigned = token.removesuffix("="), "="
    if token in OPPOSITES:
        symbol, assigned = token, ""
    elif symbol == token:
        assigned = ""
    tables = {"comparison": OPPOSITES, "boundary": NEIGHBOURS, "arithmetic": ARITHMETIC | BITWISE}
    for operator, table in tables.items():
        if symbol in table:
            yield operator, other.lineno, start + match.start(), start + match.end(), table[symbol] + assigned


def _replaced(node: ast.expr | ast.stmt, operator: str, text: str) -> Iterator[Edit]:
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        yield operator, node.lineno, node.col_offset, node.end_col_offset, text


def _text(node: ast.expr, source: str) -> str:
    return ast.get_source_segment(source, node) or ""


def _lines(source: str) -> list[bytes]:
    return source.encode().splitlines(keepends=True)


def _compiles(source: str) -> bool:
    try:
        compile(source, "", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _shape(code: CodeType) -> tuple[object, ...]:
    constants = tuple(
        _shape(value) if isinstance(value, CodeType) else (type(value), repr(value)) for value in code.co_consts
    )
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable
