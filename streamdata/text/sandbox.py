"""Chat templates in the sandbox of transformers, with limits: text, steps of loops, what operations read and make.

A template comes with a tokenizer's files and is not trusted. The sandbox keeps it from the interpreter; it does not
keep it from looping or filling the memory. So every loop and macro counts its steps here, and every operator, call,
filter and printed value is measured before it runs: by `template_checks` and `template_filters`, from one
`template_budget` of the rendering.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from streamdata.text.template_budget import OPERATION_BYTES, Budget, budget_of_rendering, shallow_size, size_of
from streamdata.text.template_checks import ESCAPED, check_binop, check_call, check_comparison, check_spec
from streamdata.text.template_filters import limited_filters, limited_tests

MAX_CHARS: Final = 1 << 26
"""Characters that one rendering may produce, by default."""
MAX_SOURCE_CHARS: Final = 1 << 18
"""Of a template; the longest in use has about 20,000."""
_NODES_PER_STEP: Final = 64  # of the body of a loop, at least one step

MARK_BEGIN, MARK_END = "\ue0b1\ue0b2", "\ue0b3\ue0b4"
"""What stands around the text of `{% generation %}` blocks: they travel with the text, through macros and captures."""


class SandboxedTemplate:
    """A compiled template. Make it by `compile_template`.

    Args:
        generate: Variables → pieces of text.
        has_marks: Whether it has `{% generation %}` blocks.
    """

    def __init__(self, generate: Callable[[Mapping[str, Any]], Iterator[str]], *, has_marks: bool) -> None:
        self._generate = generate
        self.has_marks = has_marks

    def render(self, variables: Mapping[str, Any], max_chars: int) -> str:
        """Renders.

        Raises:
            Exception: Whatever the template raises; OverflowError past a limit.
        """
        return self._render(variables, Budget(max_chars))

    def render_marked(self, variables: Mapping[str, Any], max_chars: int) -> tuple[str, int]:
        """Renders with `MARK_BEGIN` and `MARK_END` around generation blocks; returns also how many pairs were made."""
        budget = Budget(max_chars, 0)
        return self._render(variables, budget), budget.marks or 0

    def _render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        token = budget_of_rendering.set(budget)
        try:
            return "".join(_bounded(self._generate(variables), budget.chars))
        finally:
            budget_of_rendering.reset(token)


def _bounded(pieces: Iterator[str], max_chars: int) -> Iterator[str]:
    left = max_chars
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise OverflowError(f"its text is longer than {max_chars:,} characters (max_chars)")
        yield piece


@functools.lru_cache(maxsize=64)
def compile_template(source: str) -> SandboxedTemplate:
    """Compiles a template, once per process.

    Raises:
        jinja2.TemplateSyntaxError: It is not a valid template.
        OverflowError: It is too long.
    """
    from jinja2 import nodes

    if len(source) > MAX_SOURCE_CHARS:
        raise OverflowError(f"it has {len(source):,} characters, more than {MAX_SOURCE_CHARS:,}")
    environment = _limited_environment()
    tree = environment.parse(source)
    # Macros too: one may call itself, and that loops without a loop. Of those inside one another the outer counts all.
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        node.body.insert(0, _step_of(node))
    tree = _measured(tree)
    code = environment.compile(tree.set_environment(environment), "<chat template>", "<chat template>")
    template = environment.template_class.from_code(environment, code, environment.make_globals(None))
    marked = any(node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute))
    return SandboxedTemplate(template.generate, has_marks=marked)


def _step_of(node: Any) -> Any:
    """What counts one round of a loop, by the number of nodes and the text in its body."""
    from jinja2 import nodes

    steps = 1 + sum(1 for _ in node.find_all(nodes.Node)) // _NODES_PER_STEP
    size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    return nodes.ExprStmt(_own(_step, [nodes.Const(steps), nodes.Const(size)], node.lineno), lineno=node.lineno)


def _own(function: Callable[..., Any], arguments: list[Any], lineno: int) -> Any:
    """A call of a function of ours: as a filter, which jinja calls at once, by a name that no template can write."""
    from jinja2 import nodes

    filtered = nodes.Filter(arguments[0], f"({function.__name__})", arguments[1:], [], None, None)
    return filtered.set_lineno(lineno)


@functools.cache
def _limited_environment() -> Any:
    """The environment in which transformers renders, with limits, and with our generation marks for its own."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from transformers.utils.chat_template_utils import _compile_jinja_template

    class LimitedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            check_binop(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            return super().call(context, function, *check_call(function, args, kwargs), **kwargs)

        def wrap_str_format(self, value: Any) -> Any:
            return _bounded_format(self, value) if super().wrap_str_format(value) else None

    # transformers makes its environment in there only, with filters and extensions that differ between its versions.
    environment: Any = _compile_jinja_template("").environment.overlay()
    environment.__class__ = LimitedEnvironment
    # Without these the text is always the same; for the day see `ChatRenderer`.
    unsteady = {"strftime_now", "lipsum"}
    environment.globals = {name: value for name, value in environment.globals.items() if name not in unsteady}
    filters = {name: value for name, value in environment.filters.items() if name != "random"}
    own = {
        f"({function.__name__})": function for function in (_step, _printed, _concatenated, _compared, _sliced, _keyed)
    }
    environment.filters, environment.tests = limited_filters(filters) | own, limited_tests(environment.tests)
    environment.extensions = {
        key: extension for key, extension in environment.extensions.items() if "generation" not in extension.tags
    }
    environment.add_extension(_generation_marks())
    return environment


def _step(steps: int, size: int) -> None:
    budget_of_rendering.get().step(steps, size)


def _printed(value: Any) -> str:
    """A value as the text that is printed for it."""
    budget_of_rendering.get().spend(OPERATION_BYTES + (len(value) if type(value) is str else size_of(value)))
    return str(value)


def _concatenated(*parts: Any) -> str:
    budget = budget_of_rendering.get()
    budget.spend(OPERATION_BYTES + sum(map(size_of, parts)))
    texts = list(map(str, parts))
    budget.check_size(sum(map(len, texts)), "joins")
    return "".join(texts)


def _compared(left: Any, operation: str, right: Any) -> Any:
    is_search = operation in ("in", "notin")
    check_comparison(left, right, is_search=is_search)
    if is_search:
        return (left in right) is (operation == "in")
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
    budget_of_rendering.get().spend(OPERATION_BYTES + size_of(items))
    return items


def _bounded_format(environment: Any, method: Any) -> Callable[..., str]:
    """`format` or `format_map` of a text, each of whose fields is measured."""
    from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
    from markupsafe import Markup

    class Bounded(SandboxedFormatter):
        def format_field(self, value: Any, format_spec: str) -> Any:
            check_spec(format_spec, value)
            text = super().format_field(value, format_spec)
            budget_of_rendering.get().spend(size_of(text))
            return text

        def convert_field(self, value: Any, conversion: Any) -> Any:
            budget_of_rendering.get().spend(ESCAPED * size_of(value))
            return super().convert_field(value, conversion)

    class BoundedEscape(Bounded, SandboxedEscapeFormatter):
        pass

    text = method.__self__
    is_markup = isinstance(text, Markup)
    formatter = BoundedEscape(environment, escape=text.escape) if is_markup else Bounded(environment)

    def formatted(*args: Any, **kwargs: Any) -> str:
        budget_of_rendering.get().spend(OPERATION_BYTES * (1 + text.count("{")))
        if method.__name__ == "format_map":
            (mapping,) = args
            made = formatter.vformat(text, (), mapping)
        else:
            made = formatter.vformat(text, args, kwargs)
        return Markup(made) if is_markup else made  # noqa: S704  (its fields were escaped, or are safe)

    return formatted


def _measured(tree: Any) -> Any:
    """The tree of a template in which what is printed, joined by `~`, compared, cut out, or a tuple goes through us."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Transformer(NodeTransformer):
        def visit_Output(self, node: Any) -> Any:  # noqa: N802 (jinja's names, here and below)
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
            left, pairs = node.expr, []
            for operand in node.ops:
                pairs.append(_own(_compared, [left, nodes.Const(operand.op), operand.expr], node.lineno))
                left = operand.expr
            return functools.reduce(nodes.And, pairs)

        def visit_Getitem(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            if not isinstance(node.arg, nodes.Slice):
                return node
            bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
            return _own(_sliced, [node.node, *bounds], node.lineno)

        def visit_Tuple(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            return _own(_keyed, node.items, node.lineno) if node.ctx == "load" and node.items else node

    return Transformer().visit(tree)


@functools.cache
def _generation_marks() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension

    class GenerationMarks(Extension):
        """`{% generation %}text{% endgeneration %}`, as transformers has it."""

        tags: Any = frozenset({"generation"})

        def parse(self, parser: Any) -> nodes.Node:
            lineno = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(lineno)

        def mark(self, caller: Callable[[], str]) -> str:
            budget = budget_of_rendering.get()
            if budget.marks is None:
                return caller()
            budget.marks += 1
            return f"{MARK_BEGIN}{caller()}{MARK_END}"

    return GenerationMarks
