"""A target's dotted name → its definition in source text, and what it can be called with."""

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from streamdata.errors import did_you_mean, shown
from streamdata.recipe.own_targets import OWN
from streamdata.recipe.parameters import Parameters
from streamdata.recipe.source_modules import (
    Alias,
    Binding,
    Computed,
    Imported,
    SourceModule,
    SourceModules,
    dotted_name,
)
from streamdata.recipe.source_parameters import (
    Function,
    dataclass_parameters,
    function_parameters,
    is_dataclass,
    last_name,
    stage_function,
)
from streamdata.recipe.trust import is_standard

_MAX_STEPS = 50
_WITHOUT_CONSTRUCTOR = ("object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol")
_KEEPS_SIGNATURE = {
    "abstractmethod", "cache", "classmethod", "contextmanager", "final", "lru_cache", "no_grad", "override",
    "runtime_checkable", "staticmethod", "total_ordering", "inference_mode", "deprecated", "wraps",
}  # fmt: skip


class NotFoundError(Exception):
    """The source shows that there is no such name."""


class NotCheckedError(Exception):
    """Only running the code would show."""


@dataclass(frozen=True)
class Definition:
    """Where a name leads.

    Attributes:
        name: The dotted name where it is defined, past all re-exports.
        module: The module that defines it; None in the standard library, which is not read.
        node: The class or function; None in the standard library.
        owner: The class whose method it is.
        is_stage: Whether it is one of webdataset's stages, whose function `node` is.
    """

    name: str
    module: SourceModule | None = None
    node: ast.ClassDef | Function | None = None
    owner: "Definition | None" = None
    is_stage: bool = False


class Definitions:
    """Finds definitions by following names through source text."""

    def __init__(self) -> None:
        self.modules = SourceModules()

    def find(self, name: str) -> Definition:
        """Follows a dotted name to its definition.

        Raises:
            NotFoundError: The source shows that there is no such thing.
            NotCheckedError: The source does not show it.
        """
        try:
            return self._absolute(name.split("."), 0)
        except SyntaxError as error:
            raise NotFoundError(f"{error.filename}:{error.lineno}: not valid Python: {error.msg}") from error

    def _absolute(self, parts: list[str], depth: int) -> Definition:
        if is_standard(parts[0]):
            return Definition(".".join(parts))
        module = self.modules.find(parts[0])
        if module is None:
            guess = did_you_mean(parts[0], [OWN])
            remedy = "Install it, or put its directory on PYTHONPATH."
            raise NotFoundError(f"no module {shown(parts[0])} was found{guess}\n  {remedy}")
        return self._inside(module, parts[1:], depth)

    def _inside(self, module: SourceModule, parts: list[str], depth: int) -> Definition:
        """Follows the rest of a name inside a module."""
        if depth > _MAX_STEPS:
            raise NotCheckedError(f"the re-exports of {shown(module.name)} go round in circles")
        if not parts:
            raise NotFoundError(f"it is the module {shown(module.name)}, expected something inside a module")
        binding = module.names.get(parts[0])
        if binding is not None:
            return self._bound(module, binding, parts, depth + 1)
        submodule = self.modules.find(f"{module.name}.{parts[0]}")
        if submodule is not None:
            return self._inside(submodule, parts[1:], depth + 1)
        return self._from_stars(module, parts, depth + 1)

    def _bound(self, module: SourceModule, binding: Binding, parts: list[str], depth: int) -> Definition:
        first, rest = parts[0], parts[1:]
        stage = stage_function(binding, module) if not rest else None
        if stage is not None:
            return Definition(f"{module.name}.{first}", module, stage, is_stage=True)
        leads_nowhere = isinstance(binding, Alias) and binding.dotted.partition(".")[0] not in module.names
        if isinstance(binding, Computed) or leads_nowhere:
            raise NotCheckedError(f"{module.name}.{first} is computed when {module.name} is imported")
        if isinstance(binding, Alias):
            return self._inside(module, [*binding.dotted.split("."), *rest], depth)
        if isinstance(binding, Imported):
            return self._imported(module, binding, rest, depth)
        definition = Definition(f"{module.name}.{first}", module, binding)
        for part in rest:
            definition = self._member(definition, part)
        return definition

    def _imported(self, module: SourceModule, binding: Imported, rest: list[str], depth: int) -> Definition:
        name = [binding.name] if binding.name else []
        if binding.module == module.name:
            # `from . import x` in a package's own file: the submodule, for the name itself is this very import.
            submodule = self.modules.find(f"{module.name}.{binding.name}")
            if submodule is not None:
                return self._inside(submodule, rest, depth)
        if is_standard(binding.module):
            return Definition(".".join([binding.module, *name, *rest]))
        source = self.modules.find(binding.module)
        if source is None:
            raise NotFoundError(f"{module.name} imports {shown(binding.module)}, which was not found")
        return self._inside(source, [*name, *rest], depth)

    def _from_stars(self, module: SourceModule, parts: list[str], depth: int) -> Definition:
        dynamic = module.is_dynamic or not module.has_source
        for star in module.stars:
            try:
                return self._absolute([*star.split("."), *parts], depth)
            except NotFoundError:
                continue
            except NotCheckedError:
                dynamic = True
        if dynamic:
            raise NotCheckedError(f"{shown(module.name)} does not show {shown(parts[0])} in Python source")
        guess = did_you_mean(parts[0], [*module.names, *module.submodules()])
        raise NotFoundError(f"module {shown(module.name)} has no {shown(parts[0])}{guess}")

    def _member(self, owner: Definition, name: str) -> Definition:
        """A method or inner class, of the class itself or of a base."""
        if not isinstance(owner.node, ast.ClassDef):
            raise NotCheckedError(f"{shown(name)} of {owner.name} is known only at run time")
        known: list[str] = []
        for cls in self.lineage(owner):
            if self._is_opaque(cls):
                raise NotCheckedError(f"the class {cls.name} is not read, which {owner.name} is based on")
            if not isinstance(cls.node, ast.ClassDef):
                continue
            members = {node.name: node for node in cls.node.body if isinstance(node, ast.ClassDef | Function)}
            if name in members:
                return Definition(f"{cls.name}.{name}", cls.module, members[name], owner)
            known.extend(members)
            if name in _assigned_names(cls.node):
                raise NotCheckedError(f"{cls.name}.{name} is computed")
        raise NotFoundError(f"class {shown(owner.name)} has no {shown(name)}{did_you_mean(name, known)}")

    def lineage(self, cls: Definition) -> list[Definition]:
        """Returns a class and its bases, nearest first; one whose source is not read has ``node=None``."""
        found = list(self._with_bases(cls))
        names = [definition.name for definition in found]
        # A base that several share comes after all of them, as in Python's own order.
        return [definition for at, definition in enumerate(found) if definition.name not in names[at + 1 :]]

    def _with_bases(self, cls: Definition, depth: int = 0) -> Iterator[Definition]:
        yield cls
        if isinstance(cls.node, ast.ClassDef) and cls.module is not None and depth <= _MAX_STEPS:
            for base in cls.node.bases:
                yield from self._with_bases(self._base(cls.module, base), depth + 1)

    def _base(self, module: SourceModule, expression: ast.expr) -> Definition:
        name = dotted_name(expression)
        if name is None:
            return Definition(ast.unparse(expression))
        top = name.partition(".")[0]
        if top not in module.names and hasattr(builtins, top):
            return Definition(name)
        try:
            return self._inside(module, name.split("."), 0)
        except (NotFoundError, NotCheckedError):
            return Definition(name)

    def parameters(self, definition: Definition) -> list[Parameters]:
        """Returns what a call must satisfy; for a class with both, that of ``__new__`` and that of ``__init__``.

        Raises:
            NotCheckedError: The source does not show it.
        """
        if isinstance(definition.node, ast.ClassDef):
            return self._constructors(definition)
        if definition.node is None:
            raise NotCheckedError(f"the source of {definition.name} is not read")
        _refuse_decorators(definition.node, definition.name)
        is_bound = definition.owner is not None and "classmethod" in _decorators(definition.node)
        return [function_parameters(definition.node, definition.module, skip_first=is_bound)]

    def _constructors(self, cls: Definition) -> list[Parameters]:
        lineage = self.lineage(cls)
        # Python passes the same arguments to both, so that a call must satisfy each that is defined.
        found = [own for name in ("__new__", "__init__") if (own := self._constructor(lineage, name))]
        opaque = next((base.name for base in lineage if self._is_opaque(base)), None)
        if opaque and not found:
            raise NotCheckedError(f"the class {opaque} is not read, which {cls.name} is based on")
        return found or [Parameters()]

    def _constructor(self, lineage: list[Definition], name: str) -> Parameters | None:
        for at, cls in enumerate(lineage):
            if self._is_opaque(cls):
                return None
            if not isinstance(cls.node, ast.ClassDef):
                continue
            own = [node for node in cls.node.body if isinstance(node, Function) and node.name == name]
            if own:
                _refuse_decorators(own[-1], f"{cls.name}.{name}")
                return function_parameters(own[-1], cls.module, skip_first=True)
            if name in _assigned_names(cls.node):
                raise NotCheckedError(f"{cls.name}.{name} is computed")
            if name == "__init__" and is_dataclass(cls.node):
                return dataclass_parameters([(base.node, base.module) for base in lineage[at:]])
            if name == "__init__":  # a decorator of the class may add a constructor, as `dataclass` does
                _refuse_decorators(cls.node, cls.name)
            self._refuse_metaclass(cls)
        return None

    def _is_opaque(self, cls: Definition) -> bool:
        return cls.node is None and not self.is_neutral(cls)

    def is_neutral(self, cls: Definition) -> bool:
        """Whether a class that is not read is known to add nothing."""
        return cls.name in _WITHOUT_CONSTRUCTOR or cls.name.startswith("collections.abc.")

    def _refuse_metaclass(self, cls: Definition) -> None:
        assert isinstance(cls.node, ast.ClassDef), "only classes have metaclasses"
        for keyword in cls.node.keywords:
            if keyword.arg != "metaclass" or cls.module is None:
                continue
            metaclass = self._base(cls.module, keyword.value)
            if metaclass.name in ("type", "abc.ABCMeta"):
                continue
            if not isinstance(metaclass.node, ast.ClassDef) or "__call__" in _method_names(metaclass.node):
                raise NotCheckedError(f"the metaclass {metaclass.name} may change how {cls.name} is called")

    def sets_attribute(self, cls: Definition, name: str) -> bool:
        """Whether a class or a base sets an attribute of its objects; also True where only running would show."""
        for base in self.lineage(cls):
            if self._is_opaque(base):
                return True
            if isinstance(base.node, ast.ClassDef):
                nodes = [node for node in ast.walk(base.node) if isinstance(node, ast.Attribute)]
                stored = {node.attr for node in nodes if isinstance(node.ctx, ast.Store)}
                if name in stored | _assigned_names(base.node) | _method_names(base.node):
                    return True
        return False


def _method_names(cls: ast.ClassDef) -> set[str]:
    return {node.name for node in cls.body if isinstance(node, Function)}


def _assigned_names(cls: ast.ClassDef) -> set[str]:
    """The names that a class body binds by assignment with a value."""
    names: set[str] = set()
    for statement in cls.body:
        if isinstance(statement, ast.Assign):
            names.update(target.id for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and statement.value and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    return names


def _decorators(node: ast.ClassDef | Function) -> list[str]:
    """The last parts of the decorators' names."""
    return [last_name(decorator) for decorator in node.decorator_list]


def _refuse_decorators(node: ast.ClassDef | Function, name: str) -> None:
    unknown = [decorator for decorator in _decorators(node) if decorator not in _KEEPS_SIGNATURE]
    if unknown:
        raise NotCheckedError(f"the decorator {shown(unknown[0])} may change the parameters of {name}")
