"""The tree of a template: `loops, operations, printed values and keys → the same, which spend the budget`.

Each becomes a call of a function of ours, as a filter, which jinja calls at once, by a name that no template can write.
It imports jinja2; so it is imported where a template is compiled.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from streamdata.text.template_budget import (
    MAX_WIDTH,
    OPERATION_BYTES,
    budget_of_rendering,
    check_integer,
    check_keys,
    printed_size,
    shallow_size,
    size_of,
    width_of,
)
from streamdata.text.template_checks import check_comparison, is_in

_MAX_COPIED_NODES: Final = 1024
_MAX_PAIRS: Final = 64  # whose keys need no check
_NODES_PER_STEP: Final = 32  # of the body of a loop, at least one step
_SLOW_BYTES: Final = 3 * OPERATION_BYTES // 2
_REFUSED: Final = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.EvalContextModifier: "autoescape",
}
"""Statements that no chat template has use for: there is nothing to load, and what is escaped is not the chat's text.

jinja writes all names in scope for each of the first, and escapes what is measured already.
"""
_SLOW: Final = (nodes.NSRef, nodes.AssignBlock, nodes.FilterBlock, nodes.For, nodes.Macro, nodes.CallBlock)
_MADE: Final = (nodes.List, nodes.Dict)


def measured(tree: nodes.Template) -> nodes.Template:
    """The tree with all that is measured.

    Raises:
        OverflowError: It has an integer that is too long, or would have too many nodes.
        ValueError: It has a statement that chat templates cannot have.
    """
    _check_statements(tree)
    # What may be called, too: it may call itself, and that loops without a loop. Of those inside one another the outer
    # counts all.
    repeated: list[Any] = list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)))
    for node in repeated:
        node.body.insert(0, nodes.ExprStmt(_step_of(node), lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:  # rounds that it leaves out are rounds
            node.test = nodes.And(_step_of(node.test), node.test, lineno=node.lineno)
    made: nodes.Template = _Measuring().visit(tree)
    return made


def _check_statements(tree: nodes.Template) -> None:
    for node in tree.find_all((*_REFUSED, nodes.Block)):
        names = [name for kind, name in _REFUSED.items() if isinstance(node, kind)]
        if isinstance(node, nodes.Block) and node.scoped:  # jinja writes all names for it, too
            names = ["block … scoped"]
        if names:
            raise ValueError(f"line {node.lineno}: a chat template cannot have {{% {names[0]} %}}")


def _step_of(node: Any) -> Any:
    """What counts one round of a loop, by the number of nodes and the text in its body; it is true."""
    steps = 1 + sum(1 for _ in node.find_all(nodes.Node)) // _NODES_PER_STEP
    size = sum(MAX_WIDTH * len(data.data) for data in node.find_all(nodes.TemplateData))
    size += _SLOW_BYTES * sum(2 if isinstance(slow, nodes.For) else 1 for slow in node.find_all(_SLOW))
    size += OPERATION_BYTES * sum(1 for _ in node.find_all(_MADE))
    return _own(_step, [nodes.Const(steps), nodes.Const(size)], node.lineno)


def _own(function: Callable[..., Any], arguments: list[Any], lineno: int) -> Any:
    """A call of a function of ours: as a filter, which jinja calls at once, by a name that no template can write."""
    filtered = nodes.Filter(arguments[0], f"({function.__name__})", arguments[1:], [], None, None)
    return filtered.set_lineno(lineno)


class _Measuring(NodeTransformer):
    """Puts our functions in the place of what they measure."""

    num_copied = 0

    def visit_Const(self, node: Any) -> Any:  # noqa: N802 (jinja's names, here and below)
        check_integer(node.value)
        if isinstance(node.value, float) and not math.isfinite(node.value):  # jinja writes the name `inf` for it
            return _own(_read, [nodes.Const(repr(node.value))], node.lineno)
        return node

    def visit_Neg(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        is_number = isinstance(node.node, nodes.Const) and isinstance(node.node.value, int | float)
        return nodes.Const(-node.node.value) if is_number else _own(_negated, [node.node], node.lineno)

    def visit_Pair(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _own(_looked_up, [node.key], node.lineno)
        return node

    def visit_Dict(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        if len(node.items) <= _MAX_PAIRS:
            return node
        keys, values = ([getattr(pair, name) for pair in node.items] for name in ("key", "value"))
        return _own(_mapped, [nodes.List(keys), nodes.List(values)], node.lineno)

    def visit_Output(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [
            child if isinstance(child, nodes.TemplateData) else _own(_printed, [child], node.lineno)
            for child in node.nodes
        ]
        return node

    def visit_Concat(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _own(_concatenated, node.nodes, node.lineno)

    def visit_Compare(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        # Each value between two operators is taken by both: within one another they would double at each level.
        self.num_copied += sum(1 for operand in node.ops[:-1] for _ in operand.find_all(nodes.Node))
        if self.num_copied > _MAX_COPIED_NODES:
            raise OverflowError("its comparisons are chained within one another")
        left, pairs = node.expr, []
        for operand in node.ops:
            pairs.append(_own(_compared, [left, nodes.Const(operand.op), operand.expr], node.lineno))
            left = operand.expr
        return functools.reduce(nodes.And, pairs)

    def visit_Getitem(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            if not isinstance(node.arg, nodes.Const):
                node.arg = _own(_looked_up, [node.arg], node.lineno)
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _own(_sliced, [node.node, *bounds], node.lineno)

    def visit_Tuple(self, node: Any) -> Any:  # noqa: N802
        self.generic_visit(node)
        return _own(_keyed, node.items, node.lineno) if node.ctx == "load" and node.items else node


def _step(steps: int, size: int) -> bool:
    budget_of_rendering.get().step(steps, size)
    return True


def _printed(value: Any) -> str:
    """A value as the text that is printed for it."""
    budget = budget_of_rendering.get()
    budget.spend(OPERATION_BYTES + (0 if type(value) is str else printed_size(value)))
    text = str(value)
    budget.print_text(text)
    return text


def _concatenated(*parts: Any) -> str:
    budget = budget_of_rendering.get()
    budget.spend(2 * OPERATION_BYTES + sum(map(printed_size, parts)))
    texts = list(map(str, parts))
    budget.check_size(sum(map(len, texts)), "joins", width_of(*texts))
    return "".join(texts)


def _compared(left: Any, operation: str, right: Any) -> Any:
    if operation in ("in", "notin"):
        return is_in(left, right) is (operation == "in")
    check_comparison(left, right, is_search=False)
    return _OPERATIONS[operation](left, right)


_OPERATIONS: Final = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}


def _sliced(value: Any, *bounds: Any) -> Any:
    part = value[slice(*bounds)]
    budget_of_rendering.get().spend(OPERATION_BYTES + shallow_size(part))
    return part


def _keyed(*items: Any) -> tuple[Any, ...]:
    """A tuple, which may become a key and is hashed all through then."""
    budget_of_rendering.get().spend(4 * OPERATION_BYTES + sum(map(size_of, items)))
    return items


def _mapped(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    """A mapping of many pairs."""
    check_keys(keys)
    return dict(zip(keys, values, strict=True))


def _looked_up(key: Any) -> Any:
    """A key, or an index, which is hashed all through."""
    budget_of_rendering.get().spend(OPERATION_BYTES + size_of(key))
    return key


def _read(number: str) -> float:
    budget_of_rendering.get().spend(OPERATION_BYTES)
    return float(number)


def _negated(value: Any) -> Any:
    budget_of_rendering.get().spend(4 * OPERATION_BYTES + size_of(value))
    return -value


MEASURING: Final = {
    f"({function.__name__})": function
    for function in (_step, _printed, _concatenated, _compared, _sliced, _keyed, _mapped, _looked_up, _read, _negated)
}
"""The filters that the tree calls."""
