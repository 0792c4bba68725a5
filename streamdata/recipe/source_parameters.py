"""A signature in source text → `Parameters`: of functions, and of the constructors that dataclasses get."""

import ast
from collections.abc import Iterable
from inspect import Parameter
from typing import Any

from streamdata.recipe.parameters import Annotation, Parameters
from streamdata.recipe.source_modules import Binding, Computed, SourceModule, dotted_name

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_parameters(node: Function, module: SourceModule | None, *, skip_first: bool) -> Parameters:
    """Returns the parameters of a function; ``skip_first`` leaves out what a method is bound to."""
    arguments = node.args
    # One default per parameter, None for none: source text has those of the last positional ones only.
    defaults = [None] * (len(arguments.posonlyargs + arguments.args) - len(arguments.defaults)) + arguments.defaults
    defaults += arguments.kw_defaults
    found = [
        _parameter(argument.arg, kind, defaults.pop(0), argument.annotation, module)
        for kind, of_kind in (
            (Parameter.POSITIONAL_ONLY, arguments.posonlyargs),
            (Parameter.POSITIONAL_OR_KEYWORD, arguments.args),
            (Parameter.KEYWORD_ONLY, arguments.kwonlyargs),
        )
        for argument in of_kind
    ]
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Parameters.of(found[skip_first:])


def stage_function(binding: Binding, module: SourceModule) -> Function | None:
    """Returns the function of one of webdataset's stages, which its module makes of it: ``x = pipelinefilter(_x)``."""
    call = binding.value if isinstance(binding, Computed) and module.name == "webdataset.filters" else None
    if not isinstance(call, ast.Call) or last_name(call) != "pipelinefilter" or not isinstance(call.args[0], ast.Name):
        return None
    function = module.names.get(call.args[0].id)
    return function if isinstance(function, Function) else None


def stage_parameters(node: Function, module: SourceModule | None, args: object) -> Parameters:
    """Returns what a stage takes beside its data and `args`, a list of those that are given by position.

    Raises:
        ValueError: There are more `args` than it takes.
    """
    positional = [argument.arg for argument in node.args.posonlyargs + node.args.args][1:]
    num_given = len(args) if isinstance(args, list) else 0
    if num_given > len(positional) and not node.args.vararg:
        raise ValueError(f"expected at most {len(positional)} args, got {num_given}")
    filled = positional[:num_given]
    own = function_parameters(node, module, skip_first=True)
    return Parameters(
        required=tuple(name for name in own.required if name not in filled),
        optional=("args", *(name for name in own.optional if name not in filled)),
        accepts_any=own.accepts_any,
        annotations={"args": Annotation(ast.parse("list | None", mode="eval").body, None)},
    )


def _parameter(
    name: str, kind: Any, default: ast.expr | None, written: ast.expr | None, module: SourceModule | None
) -> Parameter:
    takes_none = isinstance(default, ast.Constant) and default.value is None
    annotation = Annotation(written, module, takes_none) if written else Parameter.empty
    return Parameter(name, kind, default=default or Parameter.empty, annotation=annotation)


def is_dataclass(cls: ast.ClassDef) -> bool:
    """Whether a class gets its constructor from `dataclass`."""
    made = next((decorator for decorator in cls.decorator_list if last_name(decorator) == "dataclass"), None)
    given = made.keywords if isinstance(made, ast.Call) else []
    return made is not None and not any(word.arg == "init" and ast.unparse(word.value) == "False" for word in given)


def dataclass_parameters(lineage: Iterable[tuple[ast.AST | None, SourceModule | None]]) -> Parameters:
    """Returns the parameters of the constructor that a dataclass gets.

    Args:
        lineage: The class and its bases, nearest first, each with its module.
    """
    fields: dict[str, Parameter] = {}
    for node, module in reversed(list(lineage)):
        if isinstance(node, ast.ClassDef) and is_dataclass(node):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    _add_field(fields, statement, statement.target.id, module)
    return Parameters.of(fields.values())


def _add_field(fields: dict[str, Parameter], statement: ast.AnnAssign, name: str, module: SourceModule | None) -> None:
    """Notes a dataclass's field, its default and its type."""
    if last_name(statement.annotation) in ("ClassVar", "KW_ONLY"):
        return
    default = statement.value
    if isinstance(default, ast.Call) and last_name(default) == "field":
        given = {word.arg: word.value for word in default.keywords}
        if "init" in given and ast.unparse(given["init"]) == "False":
            fields.pop(name, None)
            return
        default = given.get("default", given.get("default_factory"))
    fields[name] = _parameter(name, Parameter.KEYWORD_ONLY, default, statement.annotation, module)


def last_name(expression: ast.expr) -> str:
    """``c`` of ``a.b.c``, ``a.b.c[T]`` and ``a.b.c(…)``."""
    called = expression.func if isinstance(expression, ast.Call) else expression
    return (dotted_name(called) or "?").rpartition(".")[2]
