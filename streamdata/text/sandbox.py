"""Chat templates in the sandbox of transformers, with limits: text, steps of loops, size of joined and repeated values.

A template comes with a tokenizer's files and is not trusted. The sandbox keeps it from the interpreter; it does not
keep it from looping or printing without end, so every loop and macro counts its steps here, and the text
is taken piece by piece.

TODO(templates): what one filter or method makes at once, such as by padding to a width, or by turning a list that holds
a long text many times into text, is not measured before it is printed.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

MAX_CHARS: Final = 1 << 26
"""Characters that one rendering may produce, by default."""
MAX_STEPS: Final = 10**6
"""Steps of loops and macros that one rendering may take."""
MAX_BASE: Final = 1 << 64
MAX_EXPONENT: Final = 64

MARK_BEGIN, MARK_END = "\ue0b1\ue0b2", "\ue0b3\ue0b4"
"""What stands around the text of `{% generation %}` blocks: they travel with the text, through macros and captures."""


@dataclass
class _Budget:
    chars: int
    marks: int | None
    """How many marks were made, if they are wanted."""
    steps: int = MAX_STEPS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise OverflowError(f"its loops take more than {MAX_STEPS:,} steps")

    def check_size(self, size: int, does: str) -> None:
        if size > self.chars:
            raise OverflowError(f"it {does} a value to {size:,} items (max_chars)")


_budget: ContextVar[_Budget] = ContextVar("budget of the template that is being rendered")


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
        return self._render(variables, _Budget(max_chars, None))

    def render_marked(self, variables: Mapping[str, Any], max_chars: int) -> tuple[str, int]:
        """Renders with `MARK_BEGIN` and `MARK_END` around generation blocks; returns also how many pairs were made."""
        budget = _Budget(max_chars, 0)
        return self._render(variables, budget), budget.marks or 0

    def _render(self, variables: Mapping[str, Any], budget: _Budget) -> str:
        token = _budget.set(budget)
        try:
            return "".join(_bounded(self._generate(variables), budget.chars))
        finally:
            _budget.reset(token)


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
    """
    from jinja2 import nodes

    environment = _limited_environment()
    tree = environment.parse(source)
    # Macros too: one may call itself, and that loops without a loop.
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        step = nodes.ExprStmt(nodes.EnvironmentAttribute("step"), lineno=node.lineno)
        node.body.insert(0, step)
    tree = _concatenations_through(tree)
    code = environment.compile(tree.set_environment(environment), "<chat template>", "<chat template>")
    template = environment.template_class.from_code(environment, code, environment.make_globals(None))
    marked = any(node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute))
    return SandboxedTemplate(template.generate, has_marks=marked)


@functools.cache
def _limited_environment() -> Any:
    """The environment in which transformers renders, with limits, and with our generation marks for its own."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from transformers.utils.chat_template_utils import _compile_jinja_template

    class LimitedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+"})

        @property
        def step(self) -> None:
            _budget.get().step()

        def concatenated(self, *parts: Any) -> str:
            texts = list(map(str, parts))
            _budget.get().check_size(sum(map(len, texts)), "joins")
            return "".join(texts)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_binop(operator, left, right)
            return super().call_binop(context, operator, left, right)

    # transformers makes its environment in there only, with filters and extensions that differ between its versions.
    environment: Any = _compile_jinja_template("").environment.overlay()
    environment.__class__ = LimitedEnvironment
    # Without these the text is always the same; for the day see `ChatRenderer`.
    unsteady = {"strftime_now", "lipsum"}
    environment.globals = {name: value for name, value in environment.globals.items() if name not in unsteady}
    environment.filters = {name: value for name, value in environment.filters.items() if name != "random"}
    environment.extensions = {
        key: extension for key, extension in environment.extensions.items() if "generation" not in extension.tags
    }
    environment.add_extension(_generation_marks())
    return environment


def _check_binop(operator: str, left: Any, right: Any) -> None:
    if operator == "**":  # a number has no length that could be checked afterwards, but may fill the memory
        if abs(left) > MAX_BASE or abs(right) > MAX_EXPONENT:
            raise OverflowError(f"it raises {left:.9g} to the power of {right:.9g}")
        return
    sizes = [len(value) if hasattr(value, "__len__") else 0 for value in (left, right)]
    if operator == "+":
        _budget.get().check_size(sum(sizes), "joins")
        return
    for size, times in zip(sizes, (right, left), strict=True):
        if isinstance(times, int):
            _budget.get().check_size(size * times, "repeats")


def _concatenations_through(tree: Any) -> Any:
    """The tree of a template, whose `~` is measured."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Transformer(NodeTransformer):
        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (jinja's name)
            self.generic_visit(node)
            call = nodes.Call(nodes.EnvironmentAttribute("concatenated"), node.nodes, [], None, None)
            return call.set_lineno(node.lineno)

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
            budget = _budget.get()
            if budget.marks is None:
                return caller()
            budget.marks += 1
            return f"{MARK_BEGIN}{caller()}{MARK_END}"

    return GenerationMarks
