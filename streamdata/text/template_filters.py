"""Filters and tests of templates, measured before they run: `jinja's functions → the same, which spend the budget`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streamdata.text.template_budget import (
    OBJECT_BYTES,
    OPERATION_BYTES,
    as_list,
    budget_of_rendering,
    check_integer,
    extent_of,
    shallow_size,
    size_of,
)
from streamdata.text.template_checks import (
    ESCAPED,
    MAX_PRECISION,
    argument,
    check_binop,
    check_percent,
    check_replace,
    integer,
    num_lines,
)

_Args = Sequence[Any]
_Kwargs = Mapping[str, Any]
_SHALLOW: Final = dict.fromkeys(("default", "d", "length", "count", "first", "last", "attr", "items", "safe"), 0) | {
    "list": 1, "reverse": 1, "batch": 2, "slice": 2,
    "map": 1, "select": 1, "reject": 1, "selectattr": 1, "rejectattr": 1,
}  # fmt: skip
"""Filters that do not look into the items of a list, and what each item costs."""
_DEEP: Final = {
    "escape": ESCAPED, "e": ESCAPED, "forceescape": ESCAPED, "xmlattr": ESCAPED, "urlencode": 16, "striptags": 32,
    "upper": 8, "lower": 8, "capitalize": 8, "title": 128, "wordcount": 64, "wordwrap": 256, "urlize": 256,
    "pprint": 64, "sort": 5, "dictsort": 5, "groupby": 5, "unique": 2, "min": 2, "max": 2, "truncate": 2,
}  # fmt: skip
"""What others cost for each byte that they read; one that is not named costs 1."""
_DIGIT_BYTES: Final = 16  # of a power of ten, by which an integer is divided
_ITERATING: Final = frozenset(
    "list map select reject selectattr rejectattr batch slice unique sort groupby join sum min max".split()  # noqa: SIM905
)
_COMPARING: Final = frozenset(
    "eq == equalto ne != gt > greaterthan ge >= lt < lessthan le <= in lower upper odd even filter test".split()  # noqa: SIM905
)


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The same filters, bounded."""
    return {name: _limited(name, function) for name, function in filters.items()}


def limited_tests(tests: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The same tests; those that compare, calculate or look up are bounded."""
    bounded = {name: (_compared if name in _COMPARING else _counted)(function) for name, function in tests.items()}
    return {**bounded, "divisibleby": _divisible}


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    num_passed = int(hasattr(function, "jinja_pass_arg"))  # the environment, or the like, goes before the value

    @functools.wraps(function)
    def limited(*given: Any, **kwargs: Any) -> Any:
        passed, args = given[:num_passed], [as_list(value) for value in given[num_passed:]]
        budget = budget_of_rendering.get()  # where there is none, jinja asks for constants, and takes an error for "no"
        budget.spend(OPERATION_BYTES)
        _check(name, args, kwargs)
        result = function(*passed, *args, **kwargs)
        check_integer(result)
        budget.spend(shallow_size(result))
        return result

    return limited


def _compared(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def compared(*args: Any) -> Any:
        budget_of_rendering.get().spend(OPERATION_BYTES + sum(map(size_of, args)))
        return function(*args)

    return compared


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any) -> Any:
        budget_of_rendering.get().spend(3 * OPERATION_BYTES // 2)  # some raise and catch an error within
        return function(*args)

    return counted


def _divisible(value: Any, by: Any) -> Any:
    check_binop("%", value, by)
    return value % by == 0


def _check(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Estimates what a filter makes of its value, the first of the arguments."""
    budget, value, others = budget_of_rendering.get(), args[0], [*args[1:], *kwargs.values()]
    if isinstance(value, str | bytes) and name in _ITERATING:  # each character becomes an object
        budget.spend(OBJECT_BYTES * len(value))
    if name in _SHALLOW:
        budget.spend(_SHALLOW[name] * shallow_size(value) + sum(map(shallow_size, others)))
    else:
        budget.spend(_DEEP.get(name, 1) * size_of(value) + sum(map(size_of, others)))
    if name in _CHECKS:
        _CHECKS[name](value, args[1:], kwargs)


def _center(_: Any, args: _Args, kwargs: _Kwargs) -> None:
    budget_of_rendering.get().check_size(integer(args, kwargs, 0, "width", 80), "pads")


def _indent(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    width, text = argument(args, kwargs, 0, "width", 4), str(value)
    size = len(width) if isinstance(width, str) else width
    budget_of_rendering.get().check_size(len(text) + size * (1 + num_lines(text)), "indents")


def _wordwrap(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    budget, text = budget_of_rendering.get(), str(value)
    end = argument(args, kwargs, 2, "wrapstring", None) or "\n"
    pieces = len(text) // max(1, integer(args, kwargs, 0, "width", 79))
    budget.check_size(len(text) + (num_lines(text) + pieces + 1) * len(end), "wraps")
    budget.spend(len(text) * pieces // 8)  # a long word's rest is copied for each line


def _replace(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    old, new = (str(argument(args, kwargs, number, name, "")) for number, name in enumerate(("old", "new")))
    check_replace(str(value), old, new, argument(args, kwargs, 2, "count", None))


def _join(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    num_items = len(value) if hasattr(value, "__len__") else 0
    separators = num_items * len(str(argument(args, kwargs, 0, "d", "")))
    budget_of_rendering.get().check_size(separators + size_of(value), "joins")


def _format(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    check_percent(str(value), kwargs or tuple(args))


def _in_groups(_: Any, args: _Args, kwargs: _Kwargs) -> None:
    # They are made while they are taken, of so many items each or so many at all.
    size = max(integer(args, kwargs, 0, name, 0) for name in ("linecount", "slices"))
    budget_of_rendering.get().spend(OBJECT_BYTES * size)


def _round(_: Any, args: _Args, kwargs: _Kwargs) -> None:
    if abs(precision := integer(args, kwargs, 0, "precision", 0)) > MAX_PRECISION:
        raise OverflowError(f"it rounds to {precision:.9g} digits")
    budget_of_rendering.get().spend(_DIGIT_BYTES * abs(precision))


def _sum(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    if not isinstance(argument(args, kwargs, 1, "start", 0), int | float):  # lists are made anew at each step
        budget_of_rendering.get().spend(size_of(value) * (1 + len(value)))


def _tojson(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    extent = extent_of(value)
    indent, separators = (argument(args, kwargs, *which, None) for which in ((1, "indent"), (2, "separators")))
    width = len(indent) if isinstance(indent, str) else indent or 0
    between = sum(map(len, separators)) if separators else 4
    size = ESCAPED * extent.size + extent.num_objects * (between + extent.depth * width)
    budget_of_rendering.get().spend(size)


_CHECKS: Final[dict[str, Callable[[Any, _Args, _Kwargs], None]]] = {
    "batch": _in_groups,
    "center": _center,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "slice": _in_groups,
    "sum": _sum,
    "tojson": _tojson,
    "wordwrap": _wordwrap,
}
"""Filters that make more than they are given."""
