"""Which files a recipe may include: `name of a file → regular YAML file below a folder that the caller trusts → bytes`.

A recipe may come from elsewhere, so its includes stay where it lies, or where the caller works or says: else it could
have any file of the machine read, and shown in an error. What counts is where a file is, past all links.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from streamdata.errors import one_line, shown
from streamdata.recipe.regular_files import open_regular

_SUFFIXES = (".yaml", ".yml")
_MAX_PATH_BYTES = 4096


class RefusedFileError(Exception):
    """A file may not be read; the message says why, and what to do."""


class IncludeFolders:
    """The folders below which includes lie.

    Args:
        recipe: The file of the top recipe; None where it is none.
        include_roots: More folders.
    """

    def __init__(self, recipe: str | None, include_roots: Iterable[str | os.PathLike[str]] = ()) -> None:
        # A recipe that is a link includes what lies beside the link, or beside what that leads to.
        own = [] if recipe is None else [os.path.dirname(recipe) or ".", os.path.dirname(os.path.realpath(recipe))]
        self._roots = list(dict.fromkeys(map(os.path.realpath, [*own, ".", *include_roots])))

    def find(self, name: str, folder: Path) -> Path:
        """The file of this name, sought from a folder, then from the working directory.

        Raises:
            RefusedFileError: There is none that may be included.
        """
        tried = list(dict.fromkeys([folder / name, Path(name)]))
        if not name.endswith(_SUFFIXES) or "\0" in name or len(os.fsencode(name)) > _MAX_PATH_BYTES:
            raise RefusedFileError(f"expected a file of .yaml or .yml, got {shown(name)}")
        inside = [path for path in tried if self._holds(path)]
        if not inside:
            raise RefusedFileError(
                f"the included file {shown(name)} lies outside of the recipe's folder and of the working directory\n"
                "  Move it there, or pass include_roots=[…] with its folder."
            )
        found = next((path for path in inside if os.path.exists(path)), None)  # False for names that no disk takes
        if found is None:
            looked = ", ".join(one_line(path.absolute()) for path in inside)
            raise RefusedFileError(f"the included file {shown(name)} was not found\n  Looked for {looked}.")
        if not os.path.realpath(found).endswith(_SUFFIXES):
            raise RefusedFileError(f"expected a file of .yaml or .yml, got the link {shown(name)} to another file")
        return found

    def _holds(self, path: Path) -> bool:
        real = os.path.realpath(path)
        return any(os.path.commonpath([real, root]) == root for root in self._roots)


def read_bounded(path: str | os.PathLike[str], max_bytes: int, *, is_regular: bool) -> bytes:
    """All bytes of a file.

    Args:
        path: The file.
        max_bytes: A larger one is not read.
        is_regular: Whether it must be a regular file: any other may have no end, or make whoever opens it wait.

    Raises:
        RefusedFileError: It is too large, or no regular file.
        OSError: It cannot be read.
    """
    with open_regular(path, RefusedFileError) if is_regular else open(path, "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise RefusedFileError(f"expected at most {max_bytes} bytes, got more\n  Split it, or pass larger limits.")
    return content


def checked_roots(include_roots: Sequence[str | os.PathLike[str]]) -> Sequence[str | os.PathLike[str]]:
    """Returns ``include_roots`` if they are folders.

    Raises:
        ValueError: It is a single text, or one of them is no folder.
    """
    if isinstance(include_roots, str | os.PathLike):
        raise ValueError(
            f"include_roots: expected a list of folders, got {shown(include_roots)}\n  Write it in a list."
        )
    for root in include_roots:
        if not os.path.isdir(root):
            raise ValueError(f"include_roots: expected folders, got {shown(str(root))}, which is none\n  Name folders.")
    return include_roots
