"""Locations in a recipe, and what is wrong there.

A *path* leads from the root to a node: keys and list indexes, shown as ``params.datasets[2].params.img_size``.
A *location* is ``file:line:column`` (both from 1).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

from streamdata.errors import RecipeError, printable, shown, without_secrets
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS

Key = str | int | float | bool
Path = tuple[Key, ...]
Kind = Literal["error", "warning", "not checked"]
MAX_DEPTH: Final = 100
"""Levels of a recipe, interpolations resolved."""
_MAX_KEY: Final = 100
_CUT: Final = 16


def path_text(path: Path) -> str:
    """Shows a path as a reader would write it; the root itself is ``root``."""
    text = ""
    for key in path:
        if isinstance(key, str) and key.isidentifier() and len(key) <= _MAX_KEY:
            text += f".{key}" if text else key
        else:
            text += f"[{shown(key)}]"
    return text or "root"


@dataclass(frozen=True)
class Problem:
    """Something to say about one location in a recipe.

    Attributes:
        location: ``file:line:column``.
        path: The node, as `path_text` shows it.
        message: What was expected and what was found; a second line, if any, says what to do.
        kind: ``not checked`` marks what a check could not look into.
        target: The dotted name that was being built, if any.
        chain: The locations of the includes that lead here, innermost first.
    """

    location: str
    path: str
    message: str
    kind: Kind = "error"
    target: str | None = None
    chain: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Here, for all that is made of it: it may quote a url of the recipe, or another's error.
        object.__setattr__(self, "message", without_secrets(self.message))

    def __str__(self) -> str:
        """The problem as one message."""
        who = f"{self.path} ({self.target})" if self.target else self.path
        lines = [f"{self.location}: {who}: {self.message}", *(f"  included from {location}" for location in self.chain)]
        return without_secrets(printable("\n".join(lines)))


OnProblem = Callable[[Problem, BaseException | None], Any]
"""Takes a problem and the exception behind it: building raises at the first, checking collects them all."""


def refuse(problem: Problem, cause: BaseException | None) -> NoReturn:
    """Raises `RecipeError`, as building does."""
    raise RecipeError(str(problem)) from cause


class Unknown:
    """The value of a node that has a problem; only a check meets it."""

    def __repr__(self) -> str:
        """``?``, in messages."""
        return "?"


UNKNOWN = Unknown()


class UnreadableError(Exception):
    """A file of a recipe cannot be read any further, whether problems are raised or collected.

    Attributes:
        problem: What was found.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass
class NodeBudget:
    """How many nodes all files of a recipe may still have; see `RecipeLimits.num_nodes`."""

    left: int = DEFAULT_RECIPE_LIMITS.num_nodes


@dataclass
class Locations:
    """The lines and columns of one file, and what becomes of the problems there.

    Attributes:
        file: The file's name as shown in messages.
        on_problem: Takes each problem that is reported.
        has_lines: Whether there is such a file; a mapping given by a caller has no lines to point at.
        chain: The locations of the includes that lead to this file, innermost first.
        budget: Bounds the nodes of all files together.
        values: (line, column) where each node's value starts.
        keys: (line, column) of the key before each mapping value.
        written: Texts that interpolations gave, by path, each with what the file has there: messages show the latter,
            since the former may be of the environment.
    """

    file: str
    chain: tuple[str, ...] = ()
    on_problem: OnProblem = refuse
    has_lines: bool = True
    budget: NodeBudget = field(default_factory=NodeBudget)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    written: dict[Path, tuple[str, str]] = field(default_factory=dict)

    def of(self, path: Path, *, key: bool = False) -> str:
        """Returns ``file:line:column`` of a node, or of the nearest node above it that the file itself holds."""
        if key and path in self.keys:
            return self._shown(self.keys[path])
        while path and path not in self.values:
            path = path[:-1]
        return self._shown(self.values.get(path, (1, 1)))

    def report(
        self,
        path: Path,
        message: str,
        *,
        key: bool = False,
        at: tuple[int, int] | None = None,
        kind: Kind = "error",
        target: str | None = None,
        cause: BaseException | None = None,
        is_told: bool = False,
    ) -> Unknown:
        """Reports a problem of the node at a path; ``key=True`` points at its key, ``at`` at a line and column.

        Of an interpolated text the message shows what the file has, unless it is a constructor's own (``is_told``).

        Returns:
            The value with which to continue, where problems are collected.
        """
        location = self._shown(at) if at else self.of(path, key=key)
        if path[-1:] == ("target",) and path in self.written:
            message = "the name that an interpolation gives is refused, or nothing to import\n  Write it out."
            cause = None
        elif not is_told and self.written:
            for below, (value, raw) in self.written.items():
                if below[: len(path)] == path:
                    message = message.replace(shown(value), shown(raw))
                    if shown(value)[:_CUT] in message:  # within a list, whose text is cut elsewhere
                        message = f"the value that {shown(raw)} gives is refused\n  Write it out to see why."
        if any(target == value for value, _ in self.written.values()):
            target = None
        self.on_problem(Problem(location, path_text(path), message, kind, target, self.chain), cause)
        return UNKNOWN

    def unreadable(self, path: Path, message: str) -> UnreadableError:
        """Returns the exception to raise where a problem ends the reading of the file."""
        return UnreadableError(Problem(self.of(path), path_text(path), message, chain=self.chain))

    def count(self, path: Path, number: int = 1) -> None:
        """Takes nodes from the budget.

        Raises:
            UnreadableError: Nothing is left of it.
        """
        self.budget.left -= number
        if self.budget.left < 0:
            message = "the recipe has more nodes than may be (num_nodes), with what aliases and interpolations add"
            raise self.unreadable(path, f"{message}\n  Make it smaller, or pass larger limits.")

    def _shown(self, mark: tuple[int, int]) -> str:
        return f"{self.file}:{mark[0]}:{mark[1]}" if self.has_lines else self.file
