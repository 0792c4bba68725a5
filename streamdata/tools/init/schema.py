"""A JSON Schema of recipes, for editors: `targets → signatures and docstrings → a definition for each`.

A value is refused where `streamdata check` refuses its type (`recipe.signatures`), so that both agree; `${…}`, and what
is to be built or included, may stand for any value. Format: https://json-schema.org/draft/2020-12.
"""

import inspect
import re
from importlib import import_module
from typing import Any, Final, get_type_hints

from streamdata.recipe.check import ATTRIBUTES
from streamdata.recipe.named_source import NamedSource
from streamdata.recipe.signatures import PlainKind, Type, parameters_of, type_of
from streamdata.recipe.targets import OWN, TARGETS, import_target
from streamdata.tools.cli.recipe_files import SETTINGS

_JSON_TYPES: Final = {
    "NoneType": "null", "bool": "boolean", "dict": "object", "float": "number", "int": "integer", "list": "array",
    "str": "string",
}  # fmt: skip
_VALUE: Final = {"$ref": "#/$defs/value"}
_TEXT: Final = {"type": "string", "pattern": r"\$\{"}
_PARAMS: Final = _TEXT | {"type": ["null", "object", "string"]}
_SECTION: Final = re.compile(r"^(?:Args|Attributes):\n((?:(?: {4}.*)?\n?)*)", re.MULTILINE)
_FIELD: Final = re.compile(r"^ {4}\*{0,2}(\w+): (.*(?:\n {5,}\S.*)*)", re.MULTILINE)

Schema = dict[str, Any]


def recipe_schema() -> Schema:
    """Describe all recipes, each of our targets by what it takes; of what others build only the shape."""
    names = sorted(TARGETS)
    cases = [{"if": {"properties": {"target": {"const": name}}}, "then": {"$ref": f"#/$defs/{name}"}} for name in names]
    node = {
        "if": {"properties": {"target": {"pattern": rf"^{OWN}\."}}},
        "then": {"properties": {"target": {"enum": names}}, "allOf": cases},
        "else": {"properties": {"params": _PARAMS}, "additionalProperties": _VALUE},
    }
    value = {
        "properties": {"target": {"anyOf": [{"enum": names}, {"type": "string"}]}, "include": {"type": "string"}},
        "items": _VALUE,
        "if": {"type": "object", "required": ["target"]},
        "then": node,
        "else": {"additionalProperties": _VALUE},
    }
    references = [_TEXT, *({"type": "object", "required": [key]} for key in ("target", "include"))]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of streamdata",
        "type": ["array", "object"],
        **_VALUE,
        "$defs": {"reference": {"anyOf": references}, "value": value, **{name: _about_target(name) for name in names}},
    }


def _about_target(name: str) -> Schema:
    """Describe what may stand beside one of our targets."""
    target: Any = import_target(name)
    classes = inspect.getmro(target) if isinstance(target, type) else (target,)
    texts = [inspect.cleandoc(one.__doc__ or "") for one in (NamedSource, *reversed(classes))]
    sections = (section for text in texts for section in _SECTION.findall(text))  # a subclass's come last, and count
    documented = dict(field for section in sections for field in _FIELD.findall(section))
    parameters = parameters_of(target, with_types=True)
    assert parameters is not None, f"{name} has no signature"
    signature = inspect.signature(target).parameters
    params = {
        key: _property(parameters.types.get(key), documented.get(key), signature[key].default)
        for key in parameters.needed
    }
    if name in SETTINGS:
        module, class_name = SETTINGS[name]
        settings = getattr(import_module(module), class_name)
        fields = settings.model_fields.items()
        keys = {key: _property(type_of(one.annotation | None), one.description, one.default) for key, one in fields}
        # One that a trainer shares has other keys, too.
        params["config"] |= {"properties": keys, "additionalProperties": _VALUE if settings.trainer_keys else False}
    types = {key: type_of(hint) for key, hint in get_type_hints(NamedSource).items()} | ATTRIBUTES
    taken = {
        **_PARAMS,
        "properties": params,
        "required": sorted(key for key, is_needed in parameters.needed.items() if is_needed),
        "additionalProperties": _VALUE if parameters.accepts_any else False,
    }
    attributes = {key: _property(types.get(key), documented.get(key)) for key in TARGETS[name]}
    return {
        "description": _first_sentence(inspect.getdoc(target) or ""),
        "properties": {"target": {"const": name}, "params": taken, **attributes},
        "additionalProperties": False,
    }


def _property(type_: Type, description: str | None, default: object = None) -> Schema:
    found: Schema = {**_VALUE, "description": _first_sentence(description or "")}
    if isinstance(default, str | int | float):
        found["default"] = default
    return found | ({} if type_ is None else _alternatives(type_))


def _alternatives(kinds: list[PlainKind]) -> Schema:
    """The plain data of a type, or what stands for it."""
    choices = [choice for kind in kinds for choice in kind.choices]
    names = {_JSON_TYPES[name] for kind in kinds for name in kind.classes if not (kind.inner and name == "list")}
    lists = [{"type": "array", "items": {**_VALUE, **_alternatives(kind.inner)}} for kind in kinds if kind.inner]
    plain = [{"enum": choices}] * bool(choices) + [{"type": sorted(names)}] * bool(names)
    return {"anyOf": [*plain, *lists, {"$ref": "#/$defs/reference"}]}


def _first_sentence(text: str) -> str:
    sentence, *_ = re.split(r"(?<=\.)\s|\n\n", text, maxsplit=1)
    return " ".join(sentence.split())
