"""Locations in a recipe, and what is wrong there.

A *path* leads from the root to a node: keys and list indexes, shown as ``params.datasets[2].params.img_size``.
A *location* is ``file:line:column`` (both from 1).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from streamdata.errors import RecipeError, printable, shown, without_secrets
from streamdata.recipe.environment import EnvironmentValues

Key = str | int | float | bool
Path = tuple[Key, ...]
Kind = Literal["error", "warning", "not checked"]
_MAX_KEY = 100


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
        kind: ``not checked`` marks what a static check could not look into.
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
"""What becomes of a problem and the exception behind it: building raises at the first, checking collects them all."""


def refuse(problem: Problem, cause: BaseException | None) -> NoReturn:
    """What building does: raises `RecipeError`."""
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
class Locations:
    """The lines and columns of one file, and what becomes of the problems there.

    Attributes:
        file: The file's name as shown in messages.
        on_problem: Takes each problem that is reported.
        has_lines: Whether there is such a file; what a caller gave as a mapping has no lines to point at.
        chain: The locations of the includes that lead to this file, innermost first.
        values: (line, column) where each node's value starts.
        keys: (line, column) of the key before each mapping value.
        resolved: The texts that interpolations gave: they may be of the environment, and are not told.
        environment: Those of them that are, in all files of the recipe; constructors do not tell them either.
    """

    file: str
    chain: tuple[str, ...] = ()
    on_problem: OnProblem = refuse
    has_lines: bool = True
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    resolved: dict[Path, str] = field(default_factory=dict)
    environment: EnvironmentValues = field(default_factory=EnvironmentValues)

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

        What interpolations gave is left out of the message; where it is a file's or a constructor's own, what they took
        from the environment, and the cause with it.

        Returns:
            The value with which to continue, where problems are collected.
        """
        location = self._shown(at) if at else self.of(path, key=key)
        if path[-1:] == ("target",) and path in self.resolved:
            message, cause = (
                "the name that an interpolation gives is refused, or nothing to import\n  Write it out.",
                None,
            )
        elif not is_told:
            message = self._without_resolved(message, path)
        target = None if target in self.resolved.values() and not is_told else target
        message = self.environment.without(message)
        cause = None if cause and self.environment.are_told_by(cause) else cause
        self.on_problem(Problem(location, path_text(path), message, kind, target, self.chain), cause)
        return UNKNOWN

    def _without_resolved(self, message: str, path: Path) -> str:
        for below, value in self.resolved.items():
            if below[: len(path)] == path:
                message = message.replace(shown(value), "a text by interpolation")
        return message

    def unreadable(self, path: Path, message: str) -> UnreadableError:
        """Returns the exception to raise where a problem ends the reading of the file."""
        return UnreadableError(Problem(self.of(path), path_text(path), message, chain=self.chain))

    def _shown(self, mark: tuple[int, int]) -> str:
        return f"{self.file}:{mark[0]}:{mark[1]}" if self.has_lines else self.file
