"""Chat templates in the sandbox of transformers, with limits: text, steps of loops, what operations read and make.

A template comes with a tokenizer's files and is not trusted. The sandbox keeps it from the interpreter; it does not
keep it from looping or filling the memory. So every loop and macro counts its steps here, and every operator, call,
filter and printed value is measured before it runs: by `template_tree`, `template_checks` and
`template_filters`, from one `template_budget` of the rendering.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from streamdata.text.template_budget import (
    OPERATION_BYTES,
    Budget,
    as_list,
    budget_of_rendering,
    check_integer,
    printed_size,
    size_of,
    width_of,
)
from streamdata.text.template_checks import ESCAPED, check_binop, check_call, check_spec
from streamdata.text.template_filters import limited_filters, limited_tests

MAX_CHARS: Final = 1 << 26
"""Characters that one rendering may produce, by default."""
MAX_SOURCE_CHARS: Final = 1 << 18
"""Of a template; the longest in use has about 20,000."""
MAX_TOKENS: Final = 10_000
"""Of a template, without spaces; the longest in use has about 2,700. Each takes up to 0.05 ms to compile."""
_RANGE_BITS: Final = 63
_NAMES_OF_DICTS: Final = frozenset(dir(dict))
_SAFE_OF_DICTS: Final = frozenset(("copy", "get", "items", "keys", "values"))
_METHODS: Final = (MethodType, BuiltinMethodType)
_NAMES_OF_LOOPS: Final = frozenset(("depth", "first", "index", "index0", "last", "length", "revindex", "revindex0"))
_SEQUENCES: Final = frozenset((list, tuple, str))
_OF_JINJA: Final = frozenset(("_loop_vars", "_block_vars"))
_NO_FILTERS: Final = frozenset(("random", "urlize"))  # the text is always the same; its pattern is quadratic
_KEY_BYTES: Final = 192  # for a key that is looked up
_ABSENT: Final = object()

MARK_BEGIN, MARK_END = "\ue0b1\ue0b2", "\ue0b3\ue0b4"
"""What stands around the text of `{% generation %}` blocks: they travel with the text, through macros and captures."""
_MARK_WIDTH: Final = 2


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
        OverflowError: It is too long, or has an integer that is.
        ValueError: It has a statement that chat templates cannot have.
    """
    from jinja2 import nodes

    from streamdata.text.template_tree import measured

    if len(source) > MAX_SOURCE_CHARS:
        raise OverflowError(f"it has {len(source):,} characters, more than {MAX_SOURCE_CHARS:,}")
    environment = _limited_environment()
    tokens = (kind for _, kind, _ in environment.lex(source) if kind != "whitespace")
    if next(itertools.islice(tokens, MAX_TOKENS, None), None) is not None:
        raise OverflowError(f"it has more than {MAX_TOKENS:,} tokens")
    tree = environment.parse(source)
    tree = measured(tree)
    code = environment.compile(tree.set_environment(environment), "<chat template>", "<chat template>")
    template = environment.template_class.from_code(environment, code, environment.make_globals(None))
    marked = any(node.name == "mark" for node in tree.find_all(nodes.ExtensionAttribute))
    return SandboxedTemplate(template.generate, has_marks=marked)


def _limited_class() -> Any:
    """The sandbox that measures."""

    class LimitedEnvironment(_looking_up()):  # type: ignore[misc]  # the sandbox of jinja
        intercepted_binops = frozenset({"*", "**", "+", "-", "%", "/", "//"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "-":  # the items of views and sets, which are checked
                left, right = as_list(left), as_list(right)
            check_binop(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            made = super().call(context, function, *check_call(function, args, _given(kwargs)), **kwargs)
            check_integer(made)
            return made

        def wrap_str_format(self, value: Any) -> Any:
            is_format = isinstance(value, _METHODS) and value.__name__ in ("format", "format_map")
            return _bounded_format(self, value) if is_format and isinstance(value.__self__, str) else None

    return LimitedEnvironment


def _looking_up() -> Any:
    """The sandbox whose lookups are measured; what templates do most comes first, at once."""
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class LookingUp(ImmutableSandboxedEnvironment):
        def getattr(self, obj: Any, attribute: str) -> Any:
            kind = type(obj)
            if kind is dict and attribute not in _NAMES_OF_DICTS:
                budget_of_rendering.get().spend(_KEY_BYTES)
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if kind is dict and attribute in _SAFE_OF_DICTS:
                budget_of_rendering.get().spend(OPERATION_BYTES)
                return getattr(obj, attribute)
            is_known = kind is LoopContext and attribute in _NAMES_OF_LOOPS
            if is_known or (issubclass(kind, Namespace) and attribute[:1] != "_"):
                budget_of_rendering.get().spend(3 * OPERATION_BYTES // 2)
                value = getattr(obj, attribute, _ABSENT)
                return value if value is not _ABSENT else self.undefined(obj=obj, name=attribute)
            budget_of_rendering.get().spend(8 * OPERATION_BYTES)
            return super().getattr(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            kind, key = type(obj), type(argument)
            if key is str if kind is dict else key is int and kind in _SEQUENCES:
                budget_of_rendering.get().spend(_KEY_BYTES)
                try:
                    return obj[argument]
                except LookupError:
                    pass  # it is an attribute, or not there at all: jinja looks
            budget_of_rendering.get().spend(10 * OPERATION_BYTES)
            return super().getitem(obj, argument)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            budget_of_rendering.get().spend(2 * OPERATION_BYTES)
            return super().is_safe_attribute(obj, attr, value)

    return LookingUp


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call is given by name: in a loop or block jinja adds variables of its own, which no function sees."""
    return {name: value for name, value in kwargs.items() if name not in _OF_JINJA} if kwargs else kwargs


def _counted(undefined: Any) -> Any:
    """The class of what is not there, counted."""

    class CountedUndefined(undefined):  # type: ignore[misc]  # the one of transformers
        __slots__ = ()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            budget_of_rendering.get().spend(5 * OPERATION_BYTES // 2)
            super().__init__(*args, **kwargs)

    return CountedUndefined


@functools.cache
def _limited_environment() -> Any:
    """The environment in which transformers renders, with limits, and with our generation marks for its own."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    from streamdata.text.template_tree import MEASURING

    # transformers makes its environment in there only, with filters and extensions that differ between its versions.
    environment: Any = _compile_jinja_template("").environment.overlay()
    environment.__class__ = _limited_class()
    environment.undefined = _counted(environment.undefined)
    # Without these the text is always the same; for the day see `ChatRenderer`.
    unsteady = {"strftime_now", "lipsum"}
    kept = {name: value for name, value in environment.globals.items() if name not in unsteady}
    environment.globals = kept | {"range": _bounded_range(kept["range"])}
    filters = {name: value for name, value in environment.filters.items() if name not in _NO_FILTERS}
    environment.filters, environment.tests = limited_filters(filters) | MEASURING, limited_tests(environment.tests)
    environment.extensions = {
        key: extension for key, extension in environment.extensions.items() if "generation" not in extension.tags
    }
    environment.add_extension(_generation_marks())
    return environment


def _bounded_range(safe_range: Callable[..., range]) -> Callable[..., range]:
    @functools.wraps(safe_range)
    def bounded(*bounds: Any) -> range:
        if any(isinstance(bound, int) and bound.bit_length() > _RANGE_BITS for bound in bounds):
            raise OverflowError(f"it counts with integers of more than {_RANGE_BITS} bits")
        return safe_range(*bounds)

    return bounded


@functools.cache
def _formatters() -> tuple[Any, Any]:
    """The classes that format a text, and one that is safe HTML; each field is measured."""
    from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter

    class Bounded(SandboxedFormatter):
        def format_field(self, value: Any, format_spec: str) -> Any:
            check_spec(format_spec, value)
            text = super().format_field(value, format_spec)
            budget_of_rendering.get().spend(size_of(text))
            return text

        def convert_field(self, value: Any, conversion: Any) -> Any:
            budget_of_rendering.get().spend(ESCAPED * printed_size([value] if conversion else value))
            return super().convert_field(value, conversion)

    class BoundedEscape(Bounded, SandboxedEscapeFormatter):
        pass

    return Bounded, BoundedEscape


def _bounded_format(environment: Any, method: Any) -> Callable[..., str]:
    """`format` or `format_map` of a text, each of whose fields is measured."""
    text, has_map = method.__self__, method.__name__ == "format_map"

    def formatted(*args: Any, **kwargs: Any) -> str:  # not a partial, whose arguments a template could read
        budget_of_rendering.get().spend(len(text) + OPERATION_BYTES * (1 + sum(map(text.count, "{}[."))))
        formatter = _formatter(environment, text)
        if has_map:
            (mapping,) = args
            made = formatter.vformat(text, (), mapping)
        else:
            made = formatter.vformat(text, args, kwargs)
        return str(made) if type(text) is str else type(text)(made)  # its fields were escaped, or are safe

    return formatted


def _formatter(environment: Any, text: Any) -> Any:
    plain, escaping = _formatters()
    return escaping(environment, escape=text.escape) if hasattr(text, "__html__") else plain(environment)


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
            text = caller()
            # The marks make the text, and all that it is joined with, two bytes wide.
            budget.check_size(len(text) + len(MARK_BEGIN + MARK_END), "marks", max(_MARK_WIDTH, width_of(text)))
            budget.widen(_MARK_WIDTH)
            return f"{MARK_BEGIN}{text}{MARK_END}"

    return GenerationMarks
