"""Methods, filters and operators of templates, measured before they run: `what it is called with → what it will make`.

One call can fill the memory: a width, a separator, a replacement multiply what is there. Each that can is estimated
here, and everything else costs what it reads.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from streamdata.text.template_budget import (
    MAX_BITS,
    MAX_WIDTH,
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

MAX_BASE: Final = 1 << 64
MAX_EXPONENT: Final = 64
_REFERENCE_BYTES: Final = 8
MAX_PRECISION: Final = 400  # digits; a float has no more
ESCAPED: Final = 6  # characters that one may become, in JSON, HTML or a representation
_FORMAT_BYTES: Final = 64  # of a format, which is looked through for widths
_SHORT_PART: Final = 8
_SHORT_OF_LONG, _SHORT_TEXT, _MAX_PLACES = 100, 30_000, 2500  # where Python begins to search in linear time
_CALL_BYTES: Final = 10 * OPERATION_BYTES
_MACRO_BYTES: Final = 6 * OPERATION_BYTES
_BINDING: Final = ("Macro", "LoopContext")  # of jinja: calls that give their arguments names, and read none of them
_LONG_WIDTH = re.compile(r"[%).:<>=^][-+ #0]*\d{6}|\d{7}")
_WIDTH = re.compile(r"\d{1,6}")
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1")


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Estimates what an operator makes."""
    budget = budget_of_rendering.get()
    budget.spend(OPERATION_BYTES)
    if operator == "+" and type(left) is str and type(right) is str:  # what templates do most
        budget.check_size(len(left) + len(right), "joins", width_of(left, right))
        return
    if isinstance(left, int | float) and isinstance(right, int | float):
        _check_numbers(operator, left, right)
        return
    budget.spend(4 * OPERATION_BYTES)
    if operator == "%":
        if isinstance(left, str | bytes):
            check_percent(left, right)
        return
    if operator not in ("+", "*"):  # of views of mappings, which are hashed
        budget.spend(size_of(left) + size_of(right))
        _check_members((left, right))
        return
    sizes = [len(value) if hasattr(value, "__len__") else 0 for value in (left, right)]
    item_bytes = 1 if isinstance(left, str | bytes) or isinstance(right, str | bytes) else _REFERENCE_BYTES
    if operator == "+":
        is_markup = hasattr(left, "__html__") or hasattr(right, "__html__")  # which escapes what is joined to it
        budget.check_size(sum(sizes) * (ESCAPED if is_markup else 1), "joins", width_of(left, right))
        budget.spend(item_bytes * sum(sizes) + sum(size_of(value) for value in (left, right) if type(value) is tuple))
    else:
        value, times = (left, right) if isinstance(right, int) else (right, left)
        _check_repeated(value, times, item_bytes)


def _check_numbers(operator: str, left: float, right: float) -> None:
    """Refuses what makes long integers, and takes what the digits of two cost by each other."""
    if operator == "**" and (abs(left) > MAX_BASE or abs(right) > MAX_EXPONENT):
        raise OverflowError(f"it raises {left:.9g} to the power of {right:.9g}")
    check_integer(left)
    check_integer(right)
    if operator not in ("+", "-") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        if operator == "*" and sum(bits) > MAX_BITS:
            raise OverflowError(f"it multiplies integers to more than {MAX_BITS:,} bits")
        budget_of_rendering.get().spend(bits[0] * bits[1] // OPERATION_BYTES)


def _check_repeated(value: Any, times: Any, item_bytes: int) -> None:
    """Estimates what `value * times` makes."""
    if isinstance(times, int) and hasattr(value, "__len__"):
        budget, times = budget_of_rendering.get(), max(times, 0)
        budget.check_size(len(value) * times, "repeats")
        # A tuple may become a key, and is hashed all through then.
        budget.spend(times * (size_of(value) if type(value) is tuple else item_bytes * width_of(value) * len(value)))


def check_percent(template: str | bytes, values: Any) -> None:
    """Estimates what `"%5d" % values` makes."""
    budget_of_rendering.get().spend(_FORMAT_BYTES * len(template))
    text = template.decode("latin-1") if isinstance(template, bytes) else template
    widths = _widths(text)
    items = (
        list(values) if isinstance(values, tuple) else list(values.values()) if isinstance(values, dict) else [values]
    )
    if "*" in text:
        widths += [abs(item) for item in items if isinstance(item, int)]
    largest = max(map(size_of, items), default=0)
    size = len(text) + text.count("%") * (ESCAPED * largest + max(widths, default=0))
    width = MAX_WIDTH if "c" in text else width_of(text, *items)  # %c makes any character of a number
    budget_of_rendering.get().check_size(size, "formats", width)


def check_spec(spec: str, value: Any) -> None:
    """Estimates what a field of `"{:5d}".format(value)` makes."""
    budget = budget_of_rendering.get()
    budget.spend(OPERATION_BYTES + _FORMAT_BYTES * len(spec) + printed_size(value))
    budget.check_size(max(_widths(":" + spec), default=0), "formats", width_of(spec, value))


def _widths(text: str) -> list[int]:
    if _LONG_WIDTH.search(text):
        raise OverflowError("it formats a value to 100,000 characters or more")
    return [int(digits) for digits in _WIDTH.findall(text)] if any(map(str.isdigit, text)) else []


def check_comparison(left: Any, right: Any, *, is_search: bool) -> None:
    """Takes what two values have, which may be compared all through; of a search in a mapping only the key."""
    if type(left) is str and type(right) is str:
        budget_of_rendering.get().spend(OPERATION_BYTES + len(left) + len(right))
        if is_search:
            check_search(right, left)
        return
    if is_search and isinstance(left, str | bytes):
        check_search(right, left)
    searched = 0 if is_search and isinstance(right, dict) else size_of(right)
    budget_of_rendering.get().spend(OPERATION_BYTES + size_of(left) + searched)


def is_in(value: Any, searched: Any) -> bool:
    """`value in searched`, measured: of an iterator item by item, as Python takes them."""
    if hasattr(searched, "__next__"):
        return any(_is_same(value, item) for item in searched)
    check_comparison(value, searched, is_search=True)
    return value in searched


def _is_same(value: Any, item: Any) -> bool:
    check_comparison(value, item, is_search=False)
    return value is item or bool(value == item)


def check_search(text: Any, part: Any, times: int = 1) -> None:
    """Takes what a search costs beyond reading: Python compares most of a part at each place, but in long texts."""
    if not (isinstance(text, str | bytes) and isinstance(part, str | bytes)) or len(part) <= _SHORT_PART:
        return
    places, is_part_short = max(0, len(text) - len(part)), len(part) < _SHORT_OF_LONG
    is_linear = len(text) > (_SHORT_TEXT if is_part_short else _MAX_PLACES) and 3 * len(part) < len(text)
    if not is_linear:
        places = places if is_part_short else min(places, _MAX_PLACES)
        budget_of_rendering.get().spend(times * places * len(part) // 8)


def check_strip(text: Any, chars: Any) -> None:
    """Takes what it costs to look for each character of a text among others."""
    if isinstance(chars, str | bytes):
        budget_of_rendering.get().spend(len(text) * len(chars) // (4 if chars.isascii() else 2))


def _check_members(values: Iterable[Any]) -> None:
    """Refuses lists, sets and views whose items, as keys, would have one hash."""
    for value in values:
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | range):
            check_keys(value)


def _check_pairs(values: Iterable[Any]) -> None:
    """The same of the pairs of which a mapping is made."""
    for value in values:
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | range):
            pairs = [as_list(pair) for pair in value]
            if any(pair is not given for pair, given in zip(pairs, value, strict=True)):
                raise ValueError("it makes a mapping of pairs that are iterators")
            check_keys(next(iter(pair), None) for pair in pairs if isinstance(pair, Iterable))


def check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Estimates what a call makes, and returns its arguments, none of which is an iterator any more."""
    budget = budget_of_rendering.get()
    budget.spend(_CALL_BYTES)
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, str | bytes):
        args = tuple(map(as_list, args))
        size = shallow_size if name == "join" else size_of  # what it joins is measured below
        budget.spend(sum(map(size, (*args, *kwargs.values()))))
        _check_method(owner, name, args, kwargs)
    elif isinstance(owner, int) and name == "to_bytes":
        budget.check_size(integer(args, kwargs, 0, "length", 1), "extends")
    elif isinstance(owner, list | tuple):
        budget.spend(size_of(owner) + sum(map(size_of, args)))
    elif type(function).__name__ in _BINDING:
        budget.spend(_MACRO_BYTES + sum(map(shallow_size, (*args, *kwargs.values()))))
    else:
        budget.spend(0 if isinstance(owner, dict) else _CALL_BYTES)
        if not isinstance(owner, dict) or name == "fromkeys":
            args = tuple(map(as_list, args))
        # Such as `fromkeys`, which makes an object of each character.
        if isinstance(owner, type) or isinstance(function, type) or name in ("fromkeys", "maketrans"):
            budget.spend(sum(OBJECT_BYTES * len(arg) for arg in args if isinstance(arg, str | bytes)))
        # Keys are hashed, and values that `loop` compares are compared, all through.
        budget.spend(shallow_size(owner) + sum(map(size_of, args)) + sum(map(shallow_size, kwargs.values())))
        if name == "fromkeys" or isinstance(owner, AbstractSet):
            _check_members(args[:1] if name == "fromkeys" else (owner, *args))
        elif owner is None and args:
            _check_pairs(args)
    return args


def _check_method(text: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Estimates what a method of a text makes."""
    budget, size = budget_of_rendering.get(), size_of(text)
    if hasattr(text, "__html__"):  # which escapes what it is given
        budget.check_size(ESCAPED * sum(map(size_of, args)), "escapes")
    if name in ("ljust", "rjust", "center", "zfill"):
        budget.check_size(max(len(text), integer(args, kwargs, 0, "width", 0)), "pads", width_of(text, *args))
    elif name == "expandtabs":
        tabs = text.count(b"\t" if isinstance(text, bytes) else "\t")
        budget.check_size(len(text) + tabs * integer(args, kwargs, 0, "tabsize", 8), "pads", width_of(text))
    elif name == "replace":
        check_replace(text, *args[:3], **kwargs)
    elif name == "join":
        items = args[0] if args else ()
        check_join(text, items)
    elif name in ("split", "rsplit", "splitlines"):
        _check_split(text, name, args, kwargs)
    elif name == "translate":
        longest = _longest_of(args[0] if args else {})
        budget.check_size(len(text) * longest, "translates", MAX_WIDTH)  # a table may make any character of another
        budget.spend(OBJECT_BYTES * len(text))
    elif name in ("encode", "decode"):
        encoding = (*args, *kwargs.values(), "utf-8")[0]
        if str(encoding).lower() not in _ENCODINGS or len(args) + len(kwargs) > 1:
            raise ValueError(f"it {name}s text in another way than as UTF-8")
        budget.spend(4 * size)
    else:
        _check_reading(text, name, args[0] if args else None)


def _longest_of(table: Any) -> int:
    """The longest text that `translate` may write for one character."""
    if isinstance(table, str | bytes | range) or table is None:  # of characters, numbers or nothing
        return 1
    if not isinstance(table, dict | list | tuple):
        raise ValueError(f"it translates text by a {type(table).__name__}")
    texts = table.values() if isinstance(table, dict) else table
    return max((len(text) for text in texts if isinstance(text, str)), default=1)


def _check_reading(text: Any, name: str, argument: Any) -> None:
    """Estimates what a method costs that reads a text, most often once."""
    budget_of_rendering.get().spend(size_of(text) * _METHODS.get(name, OBJECT_BYTES))
    if name in ("strip", "lstrip", "rstrip"):
        check_strip(text, argument)
    elif name in ("rfind", "rindex", "rpartition") and isinstance(argument, str | bytes):
        budget_of_rendering.get().spend(size_of(text) * (len(argument) // 8))
    elif name in _SEARCHES:
        check_search(text, argument)


_SEARCHES: Final = ("count", "find", "index", "partition")
_METHODS: Final = dict.fromkeys(
    (
        "count", "find", "index", "startswith", "endswith", "partition", "removeprefix", "removesuffix",
        "rfind", "rindex", "rpartition", "strip", "lstrip", "rstrip",
    ),
    1,
) | dict.fromkeys(("upper", "lower", "title", "capitalize", "swapcase", "casefold"), 8)  # fmt: skip
"""What methods cost for each byte that they read. Those that are not named are of the slow kind."""


def check_replace(text: Any, old: Any = "", new: Any = "", count: Any = -1) -> None:
    """Estimates what `replace` makes."""
    check_search(text, old, 2)  # here, and by itself
    found = len(text) + 1 if not old else text.count(old)
    if isinstance(count, int) and count >= 0:
        found = min(found, count)
    size = len(text) + found * max(0, len(new) - len(old))
    width = width_of(text, new)
    budget_of_rendering.get().spend(len(text) * (width - 1))  # Python first makes the text as wide
    budget_of_rendering.get().check_size(size, "replaces in", width)


def check_join(separator: Any, items: Any) -> None:
    """Estimates what `join` makes."""
    extent = extent_of(items)
    separators = len(separator) * len(items) if hasattr(items, "__len__") else 0
    budget_of_rendering.get().check_size(extent.size + separators, "joins", max(extent.width, width_of(separator)))


def _check_split(text: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    budget, separator = budget_of_rendering.get(), args[0] if args else kwargs.get("sep")
    if name == "splitlines":
        num_parts = num_lines(text)
    elif separator is None:
        num_parts = len(text) // 2
    else:
        check_search(text, separator, 2)  # here, and by itself
        num_parts = text.count(separator)
        budget.spend(len(text) * (len(separator) // 8 if name == "rsplit" else 0))
    limit = integer(args, kwargs, 1, "maxsplit", -1) if name != "splitlines" else -1
    num_parts = num_parts if limit < 0 else min(num_parts, limit)
    budget.spend(size_of(text) + OBJECT_BYTES * (1 + num_parts))


def num_lines(text: Any) -> int:
    """How many lines a text has at most, by any of the ends that Python knows."""
    return len(text) if isinstance(text, bytes) else 1 + sum(map(text.count, _LINE_ENDS))


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], number: int, name: str, default: Any) -> Any:
    """An argument that is given by its place or its name."""
    return args[number] if len(args) > number else kwargs.get(name, default)


def integer(args: Sequence[Any], kwargs: Mapping[str, Any], number: int, name: str, default: int) -> int:
    """The same of an integer; another type is an error of the call, and counts as 0 before it."""
    value = argument(args, kwargs, number, name, default)
    return value if isinstance(value, int) else 0
