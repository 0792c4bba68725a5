"""A module's name → the names that its source text binds, without importing it or its parents."""

import ast
import importlib.machinery
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.abc import InspectLoader


@dataclass(frozen=True)
class Imported:
    """A name bound by an import: ``from module import name``, or a module where name is None."""

    module: str
    name: str | None = None


@dataclass(frozen=True)
class Alias:
    """A name bound to another name of the same module, such as ``Reader = readers.TarReader``."""

    dotted: str


@dataclass(frozen=True)
class Computed:
    """A name bound to something that only running the module would show.

    Attributes:
        value: The expression, where it is the only one; an alias of a type is read from it.
    """

    value: ast.expr | None = field(default=None, compare=False, repr=False)


Binding = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | Imported | Alias | Computed


@dataclass
class SourceModule:
    """What can be read about a module.

    Attributes:
        name: Its dotted name.
        has_source: False for extensions in C and for namespace packages.
        locations: Where a package's submodules are; None for a plain module.
        names: What its top level binds.
        stars: The modules of ``from module import *``.
        is_dynamic: Whether it can have names that its source does not show.
    """

    name: str
    has_source: bool
    locations: list[str] | None
    names: dict[str, Binding] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    is_dynamic: bool = False

    def submodules(self) -> list[str]:
        """Returns the names of the modules in a package."""
        return [module.name for module in pkgutil.iter_modules(self.locations or [])]


class SourceModules:
    """Finds and reads modules, each once."""

    def __init__(self) -> None:
        self._read: dict[str, SourceModule | None] = {}

    def find(self, name: str) -> SourceModule | None:
        """Returns a module by its dotted name, or None if there is none.

        Raises:
            SyntaxError: Its source is not Python.
        """
        if name not in self._read:
            spec = self._spec(name)
            self._read[name] = None if spec is None else _read(name, spec)
        return self._read[name]

    def _spec(self, name: str) -> importlib.machinery.ModuleSpec | None:
        parent_name = name.rpartition(".")[0]
        if parent_name:
            parent = self.find(parent_name)
            if parent is None or parent.locations is None:
                return None
            # Not `importlib.util.find_spec`, which imports the parents.
            return importlib.machinery.PathFinder.find_spec(name, parent.locations)
        # Editable installations bring finders of their own.
        specs = (finder.find_spec(name, None) for finder in sys.meta_path)
        return next(filter(None, specs), None)


def _read(name: str, spec: importlib.machinery.ModuleSpec) -> SourceModule:
    locations = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    source = spec.loader.get_source(name) if isinstance(spec.loader, InspectLoader) else None
    module = SourceModule(name, has_source=source is not None, locations=locations)
    if source is None:
        return module
    tree = ast.parse(source, spec.origin or name)
    _Bindings(module).collect(tree.body, certain=True)
    module.is_dynamic = "__getattr__" in module.names or any(map(_changes_namespace, ast.walk(tree)))
    return module


def _changes_namespace(node: ast.AST) -> bool:
    """Whether a node may bind names of the module that no statement shows."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("globals", "setattr", "exec", "vars", "locals")
    # The cheap comparison first: this is asked of each node of each module on the way to a name.
    return isinstance(node, ast.Attribute) and node.attr == "modules" and ast.unparse(node) == "sys.modules"


def dotted_name(expression: ast.expr) -> str | None:
    """Returns ``a.b.c`` of such an expression, also of ``a.b.c[T]``; None of any other."""
    if isinstance(expression, ast.Subscript):
        expression = expression.value
    text = ast.unparse(expression)
    return text if isinstance(expression, ast.Name | ast.Attribute) and text.replace(".", "").isidentifier() else None


class _Bindings:
    """Collects what the statements of a module bind."""

    def __init__(self, module: SourceModule) -> None:
        self.module = module
        self.for_checkers: set[str] = set()

    def collect(self, body: list[ast.stmt], *, certain: bool) -> None:
        """Notes what each statement binds; ``certain`` says that they run whatever happens."""
        for statement in body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
                self._collect_for_checkers(statement)
            elif isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self._bind(statement.name, statement, certain)
            elif isinstance(statement, ast.Import):
                self._import(statement, certain)
            elif isinstance(statement, ast.ImportFrom):
                self._import_from(statement, certain)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                self._assign(statement, certain)
            else:
                for inner in _blocks(statement):
                    self.collect(inner, certain=certain and isinstance(statement, ast.With))

    def _collect_for_checkers(self, statement: ast.If) -> None:
        """Prefers what type checkers see: a lazy module provides just that at run time."""
        before = dict(self.module.names)
        self.collect(statement.body, certain=True)
        self.for_checkers |= {name for name, known in self.module.names.items() if before.get(name) is not known}
        self.collect(statement.orelse, certain=True)

    def _bind(self, name: str, binding: Binding, certain: bool) -> None:
        if name in self.for_checkers:
            return
        known = self.module.names.get(name)
        # One of several statements that may run: source text does not show which.
        ambiguous = not certain and known is not None and known != binding
        self.module.names[name] = Computed() if ambiguous else binding

    def _import(self, statement: ast.Import, certain: bool) -> None:
        for alias in statement.names:
            top = alias.name.partition(".")[0]  # what `import a.b` binds, unlike `import a.b as c`
            self._bind(alias.asname or top, Imported(alias.name if alias.asname else top), certain)

    def _import_from(self, statement: ast.ImportFrom, certain: bool) -> None:
        module = self._absolute(statement)
        for alias in statement.names:
            if alias.name == "*":
                self.module.stars.append(module)
            else:
                self._bind(alias.asname or alias.name, Imported(module, alias.name), certain)

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.module.name.split(".")
        dropped = statement.level - (self.module.locations is not None)
        return ".".join([*parts[: len(parts) - dropped], *([statement.module] if statement.module else [])])

    def _assign(self, statement: ast.Assign | ast.AnnAssign, certain: bool) -> None:
        if statement.value is None:
            return
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        other = dotted_name(statement.value) if not isinstance(statement.value, ast.Subscript) else None
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(name, ast.Name):
                    own = statement.value if name is target else None
                    self._bind(name.id, Alias(other) if other and own else Computed(own), certain)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yields the blocks of an if, try, with, for or while."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body
