"""Filters and tests of templates, measured before they run: `jinja's functions → the same, which spend the budget`."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streamdata.text.template_budget import (
    OBJECT_BYTES,
    OPERATION_BYTES,
    as_list,
    budget_of_rendering,
    check_integer,
    check_keys,
    extent_of,
    printed_size,
    shallow_size,
    size_of,
    width_of,
)
from streamdata.text.template_checks import (
    ESCAPED,
    MAX_PRECISION,
    argument,
    check_binop,
    check_join,
    check_percent,
    check_replace,
    check_strip,
    integer,
    is_in,
    num_lines,
)

_Args = Sequence[Any]
_Kwargs = Mapping[str, Any]
_SHALLOW: Final = dict.fromkeys(("default", "d", "length", "count", "first", "last", "attr", "items", "safe"), 0) | {
    "list": 1, "reverse": 1, "batch": 2, "slice": 2,
    "map": 1, "select": 1, "reject": 1, "selectattr": 1, "rejectattr": 1,
}  # fmt: skip
"""Filters that do not look into the items of a list, and what each item costs."""
_LEVEL_BYTES: Final = 32
_DEEP: Final = {
    "escape": ESCAPED, "e": ESCAPED, "forceescape": ESCAPED, "xmlattr": ESCAPED, "urlencode": 16, "striptags": 32,
    "upper": 8, "lower": 8, "capitalize": 8, "title": 128, "wordcount": 64, "wordwrap": 256,
    "pprint": 64, "sort": 5, "dictsort": 5, "groupby": 5, "unique": 2, "min": 2, "max": 2, "truncate": 2,
    "int": 8, "float": 8,
}  # fmt: skip
"""What others cost for each byte that they read; one that is not named costs 1."""
_FILTER_BYTES: Final = 3 * OPERATION_BYTES
_SLOW_FILTERS: Final = {
    name: number * OPERATION_BYTES
    for number, names in {
        4: "safe escape e forceescape center first last filesizeformat title sum unique",
        7: "default d urlencode",
        9: "striptags",
        12: "indent format tojson wordwrap",
        14: "replace join pprint",
    }.items()
    for name in names.split()
}
"""What filters cost whatever they are given, where it is more than `_FILTER_BYTES`."""
_ATTRIBUTES: Final = {
    "map": sys.maxsize, "selectattr": 0, "rejectattr": 0, "sort": 2, "unique": 1, "min": 1, "max": 1, "join": 1,
    "sum": 0, "groupby": 0,
}  # fmt: skip
"""Where filters have the attribute that they take of each item, after the value; `map` only by its name."""
_PATH_BYTES: Final = 64  # for each character of an attribute, which is split at dots
_DIGIT_BYTES: Final = 16  # of a power of ten, by which an integer is divided
_ITERATING: Final = frozenset(
    "list map select reject selectattr rejectattr batch slice unique sort groupby join sum min max".split()  # noqa: SIM905
)
_UNPRINTED: Final = _ITERATING | {"tojson", "dictsort"}
_CHECKED_WITH_ARGUMENTS: Final = frozenset(("trim",))
_COMPARING: Final = frozenset(
    "eq == equalto ne != gt > greaterthan ge >= lt < lessthan le <= in lower upper odd even filter test".split()  # noqa: SIM905
)


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The same filters, bounded."""
    bounded = {**filters, "unique": _unique(filters["unique"])}
    return {name: _limited(name, function) for name, function in bounded.items()}


def limited_tests(tests: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The same tests; those that compare, calculate or look up are bounded."""
    bounded = {name: (_compared if name in _COMPARING else _counted)(function) for name, function in tests.items()}
    return {**bounded, "divisibleby": _divisible, "in": is_in}


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    num_bytes = _SLOW_FILTERS.get(name, _FILTER_BYTES)
    num_passed = int(hasattr(function, "jinja_pass_arg"))  # the environment, or the like, goes before the value

    @functools.wraps(function)
    def limited(*given: Any, **kwargs: Any) -> Any:
        passed, args = given[:num_passed], [as_list(value) for value in given[num_passed:]]
        budget = budget_of_rendering.get()  # where there is none, jinja asks for constants, and takes an error for "no"
        budget.spend(num_bytes)
        _check(name, args, kwargs)
        result = function(*passed, *args, **kwargs)
        check_integer(result)
        budget.spend(shallow_size(result))
        return result

    return limited


def _unique(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def unique(environment: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        from jinja2.filters import make_attrgetter

        key_of = make_attrgetter(environment, argument(args, kwargs, 1, "attribute", None))
        check_keys(map(key_of, value))
        return function(environment, value, *args, **kwargs)

    return unique


def _compared(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def compared(*args: Any) -> Any:
        budget_of_rendering.get().spend(3 * OPERATION_BYTES + sum(map(size_of, args)))
        return function(*args)

    return compared


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any) -> Any:
        budget_of_rendering.get().spend(5 * OPERATION_BYTES // 2)  # some raise and catch an error within
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
        # Names of filters, tests and attributes are looked up, and hashed all through.
        size = size_of if name in _ITERATING or name == "attr" else shallow_size
        budget.spend(_SHALLOW[name] * shallow_size(value) + sum(map(size, others)))
    else:
        num_bytes = len(value) if type(value) is str else (size_of if name in _UNPRINTED else printed_size)(value)
        budget.spend(_DEEP.get(name, 1) * num_bytes + (sum(map(size_of, others)) if others else 0))
    if name in _ATTRIBUTES and others:
        _check_attribute(value, argument(args[1:], kwargs, _ATTRIBUTES[name], "attribute", None))
    if name in _CHECKS and (others or name not in _CHECKED_WITH_ARGUMENTS):
        _CHECKS[name](value, args[1:], kwargs)


def _check_attribute(items: Any, attribute: Any) -> None:
    """Takes what an attribute costs that is split once, and looked up in each item."""
    if attribute is not None:
        num_items = len(items) if hasattr(items, "__len__") else 0
        path = _PATH_BYTES * len(attribute) if isinstance(attribute, str) else 0
        budget_of_rendering.get().spend(path + num_items * size_of(attribute))


def _attr(_value: Any, _args: _Args, _kwargs: _Kwargs) -> None:  # which asks each class of the value
    budget_of_rendering.get().spend(16 * OPERATION_BYTES)


def _center(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    budget_of_rendering.get().check_size(integer(args, kwargs, 0, "width", 80), "pads", width_of(str(value)))


def _indent(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    width, text = argument(args, kwargs, 0, "width", 4), str(value)
    size = len(width) if isinstance(width, str) else width
    size = len(text) + size * (1 + num_lines(text))
    budget_of_rendering.get().check_size(size, "indents", width_of(text, width))


def _wordwrap(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    budget, text = budget_of_rendering.get(), str(value)
    end = argument(args, kwargs, 2, "wrapstring", None) or "\n"
    pieces = len(text) // max(1, integer(args, kwargs, 0, "width", 79))
    budget.check_size(len(text) + (num_lines(text) + pieces + 1) * len(end), "wraps", width_of(text, end))
    budget.spend(len(text) * pieces // 8)  # a long word's rest is copied for each line


def _replace(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    old, new = (str(argument(args, kwargs, number, name, "")) for number, name in enumerate(("old", "new")))
    check_replace(str(value), old, new, argument(args, kwargs, 2, "count", None))


def _join(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    for item in value if hasattr(value, "__len__") else ():
        if not isinstance(item, str):
            printed_size(item)
    check_join(str(argument(args, kwargs, 0, "d", "")), value)


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


def _trim(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    check_strip(str(value), argument(args, kwargs, 0, "chars", None))


def _pprint(value: Any, _args: _Args, _kwargs: _Kwargs) -> None:
    extent, budget = extent_of(value), budget_of_rendering.get()
    budget.check_size(extent.size * extent.depth, "prints")  # each line is indented so deep
    budget.spend(4 * extent.size * extent.depth)  # all that is below a level is printed for it


def _tojson(value: Any, args: _Args, kwargs: _Kwargs) -> None:
    extent = extent_of(value)
    indent, separators = (argument(args, kwargs, *which, None) for which in ((1, "indent"), (2, "separators")))
    width = len(indent) if isinstance(indent, str) else indent or 0
    between = sum(map(len, separators)) if separators else 4
    size = ESCAPED * extent.size + extent.num_objects * (between + extent.depth * width)
    if indent is not None:  # each piece is handed through all levels
        size += _LEVEL_BYTES * extent.num_objects * extent.depth
    budget_of_rendering.get().spend(size)


_CHECKS: Final[dict[str, Callable[[Any, _Args, _Kwargs], None]]] = {
    "attr": _attr,
    "batch": _in_groups,
    "center": _center,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "pprint": _pprint,
    "replace": _replace,
    "round": _round,
    "slice": _in_groups,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
    "wordwrap": _wordwrap,
}
"""Filters that make more than they are given."""
