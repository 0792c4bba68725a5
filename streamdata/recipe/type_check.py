"""The values of a recipe against the types that parameters are annotated with, read from source text.

Only what certainly differs is refused. A type that is not one of Python's plain data takes anything: what a class takes
in place of itself, only running would show.
"""

import ast
import builtins
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.locations import UNKNOWN
from streamdata.recipe.parameters import Annotation
from streamdata.recipe.source_modules import Alias, Computed, Imported, SourceModule, SourceModules, dotted_name
from streamdata.recipe.variables import Dynamic

_MAX_STEPS: Final = 20
_LISTS: Final = ("list", "tuple", "set", "frozenset", "List", "Tuple", "Set", "FrozenSet", "MutableSequence")
_MAPPINGS: Final = ("dict", "Dict", "Mapping", "MutableMapping")
_TAKEN: Final[dict[str, tuple[type, ...]]] = {
    "None": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "Callable": (),
    "Path": (str,),
    "PathLike": (str,),
    **dict.fromkeys(_LISTS, (list,)),
    **dict.fromkeys(_MAPPINGS, (dict,)),
    "Sequence": (list, str),
    "Iterable": (list, str, dict),
    "Collection": (list, str, dict),
}
"""By the name of a type: which plain data it takes. A recipe has no tuples and sets; its lists stand for them."""

_SHOWN: Final = {
    "None": "null",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "Callable": "a function",
    "Path": "a path",
    "PathLike": "a path",
    **dict.fromkeys((*_LISTS, "Sequence", "Iterable", "Collection"), "a list"),
    **dict.fromkeys(_MAPPINGS, "a mapping"),
}
_TYPING: Final = ("typing", "typing_extensions", "collections.abc", "builtins", "pathlib", "os")
_PLAIN: Final = (str, int, float, bool, list, dict, type(None))


class TypeCheck:
    """Compares values with annotations.

    Args:
        modules: Where names of types are looked up.
    """

    def __init__(self, modules: SourceModules) -> None:
        self._modules = modules

    def refusal(self, value: Any, annotation: Annotation) -> str | None:
        """Returns why a value is certainly not of a type, or None.

        Args:
            value: As a recipe has it: what its targets and dynamic objects will be is not known.
            annotation: The type.
        """
        if annotation.takes_none and value is None:
            return None
        leaves = list(self._leaves(annotation.expression, annotation.module))
        if any(self._takes(leaf, module, value) for leaf, module in leaves):
            return None
        names = dict.fromkeys(self._shown(leaf, module) for leaf, module in leaves)
        return f"expected {' or '.join(names)}, got {shown(value)}" + _remedy(value, names)

    def _takes(self, leaf: ast.expr, module: SourceModule | None, value: Any) -> bool:
        if not _is_known(value):
            return True
        if isinstance(leaf, ast.Subscript) and _last(leaf) == "Literal":
            return any(_is_literal(value, choice) for choice in _arguments(leaf))
        taken = _TAKEN.get(self._name(leaf, module))
        if taken is None or (isinstance(value, bool) and int in taken):
            return True
        if type(value) is int and value in (0, 1) and bool in taken:
            return True
        if not isinstance(value, taken):
            return False
        return not isinstance(value, list) or self._take_elements(leaf, module, value)

    def _take_elements(self, leaf: ast.expr, module: SourceModule | None, values: list[Any]) -> bool:
        arguments = _arguments(leaf)
        if len(arguments) != 1:  # of a tuple's several, each stands for one place
            return True
        inner = list(self._leaves(arguments[0], module))
        return all(any(self._takes(one, where, value) for one, where in inner) for value in values)

    def _leaves(
        self, expression: ast.expr, module: SourceModule | None, depth: int = 0
    ) -> Iterator[tuple[ast.expr, SourceModule | None]]:
        """The members of unions, past the names of aliases."""
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            with suppress(SyntaxError):  # it is no type that is known, and takes anything
                expression = ast.parse(expression.value, mode="eval").body
        if isinstance(expression, ast.BinOp):
            parts = [expression.left, expression.right]
        elif isinstance(expression, ast.Subscript) and _last(expression) in ("Union", "Optional"):
            parts = [*_arguments(expression), *([ast.Constant(None)] if _last(expression) == "Optional" else [])]
        elif isinstance(expression, ast.Subscript) and _last(expression) in ("Annotated", "Final"):
            parts = _arguments(expression)[:1]
        else:
            alias = self._alias(expression, module) if depth < _MAX_STEPS else None
            if alias is None:
                yield expression, module
                return
            parts, module = [alias[0]], alias[1]
        for part in parts:
            yield from self._leaves(part, module, depth + 1)

    def _alias(self, expression: ast.expr, module: SourceModule | None) -> tuple[ast.expr, SourceModule | None] | None:
        """What a name of the module stands for, where that is an expression or a name elsewhere."""
        if module is None or not isinstance(expression, ast.Name):
            return None
        binding = module.names.get(expression.id)
        if isinstance(binding, Computed) and binding.value is not None:
            return binding.value, module
        if isinstance(binding, Alias):
            return ast.parse(binding.dotted, mode="eval").body, module
        if isinstance(binding, Imported) and binding.name and binding.module not in _TYPING:
            try:
                elsewhere = self._modules.find(binding.module)
            except SyntaxError:
                return None  # reported where a target leads there
            return (ast.Name(binding.name), elsewhere) if elsewhere and binding.name in elsewhere.names else None
        return None

    def _name(self, leaf: ast.expr, module: SourceModule | None) -> str:
        """The plain name of a type of Python's own, else an empty text."""
        if isinstance(leaf, ast.Constant) and leaf.value is None:
            return "None"
        dotted = dotted_name(leaf)
        if dotted is None:
            return ""
        first, _, rest = dotted.partition(".")
        binding = module.names.get(first) if module else None
        if module is None:
            return dotted
        if isinstance(binding, Imported) and binding.module in _TYPING:
            return binding.name or rest
        if isinstance(binding, Imported) and binding.module == "collections" and rest.startswith("abc."):
            return rest.removeprefix("abc.")
        return dotted if binding is None and hasattr(builtins, dotted) else ""

    def _shown(self, leaf: ast.expr, module: SourceModule | None) -> str:
        if isinstance(leaf, ast.Subscript) and _last(leaf) == "Literal":
            return " or ".join(ast.unparse(choice) for choice in _arguments(leaf))
        shown = _SHOWN.get(self._name(leaf, module), ast.unparse(leaf))
        arguments = _arguments(leaf)
        if shown == "a list" and len(arguments) == 1:
            inner = dict.fromkeys(self._shown(one, where) for one, where in self._leaves(arguments[0], module))
            return f"a list of {' or '.join(inner)}"
        return shown


def _is_known(value: Any) -> bool:
    """Whether a value is plain data, not what will be built or given."""
    if value is UNKNOWN or isinstance(value, Dynamic) or not isinstance(value, _PLAIN):
        return False
    return not (isinstance(value, dict) and ("target" in value or "include" in value))


def _is_literal(value: Any, choice: ast.expr) -> bool:
    return not isinstance(choice, ast.Constant) or (type(choice.value) is type(value) and choice.value == value)


def _last(subscript: ast.Subscript) -> str:
    return (dotted_name(subscript) or "").rpartition(".")[2]


def _arguments(expression: ast.expr) -> list[ast.expr]:
    """``A, B`` of ``X[A, B]``; without an ellipsis."""
    if not isinstance(expression, ast.Subscript):
        return []
    inner = expression.slice.elts if isinstance(expression.slice, ast.Tuple) else [expression.slice]
    return [one for one in inner if not (isinstance(one, ast.Constant) and one.value is ...)]


def _remedy(value: Any, names: dict[str, None]) -> str:
    if "a function" in names:
        target = value if isinstance(value, str) and "." in value else "my_pkg.my_function"
        return f"\n  Write {{target: {target}}}; with params it is called, and its result is the function."
    if isinstance(value, str) and names.keys() & {"an integer", "a number", "true or false"}:
        return "\n  Write it without quotes." if _reads_as_data(value) else "\n  Write the value itself."
    return ""


def _reads_as_data(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text in ("true", "false", "null")
    return True
