"""A step's folder: which files are there, and that each is the one that its name says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamdata.errors import StateError, place_of_io
from streamdata.progress.joining import check_together
from streamdata.progress.saving import FILE_NAME, STEP_NAME, deal_file
from streamdata.progress.state_file import RankStates, dealt_of, decode, decode_deal
from streamdata.recipe.regular_files import open_regular


class NoStepError(StateError, FileNotFoundError):
    """Nothing is saved where states are looked for."""


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """What is saved of a step."""

    directory: Path
    step: int
    saved: Sequence[RankStates]
    """By rank."""

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.directory / f"step-{self.step}"

    @property
    def size(self) -> int:
        """How many ranks there were; 0 where no rank has saved the step."""
        return self.saved[0].origin.size if self.saved else 0

    @property
    def missing(self) -> list[int]:
        """The ranks that have not saved it; of a step without files, one at least."""
        # Of an empty folder nobody knows how many there were; rank 0 at least.
        held = {part.origin.rank for part in self.saved}
        return [rank for rank in range(max(1, self.size)) if rank not in held]


def steps_in(directory: Path) -> list[int]:
    """The steps of which there is a folder, the newest first.

    Raises:
        NoStepError: There is none.
    """
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    steps = [int(match[1]) for match in map(STEP_NAME.fullmatch, names) if match]
    if not steps:
        raise NoStepError(f"{directory}: no states are saved there\n  Start without states, or name the directory.")
    # As numbers: as text 9 would come after 10.
    return sorted(steps, reverse=True)


def read_step(directory: Path, step: int) -> SavedStep:
    """Read the files of a step, but for what is in their lines.

    Raises:
        NoStepError: It has no folder.
        StateError: A file is torn, or of another step or rank than its name says, or of another run than the others.
    """
    folder = directory / f"step-{step}"
    if not folder.is_dir():
        there = ", ".join(map(str, steps_in(directory)[:10]))
        raise NoStepError(f"{folder}: this step is not saved, the newest ones are {there}\n  Load one of them.")
    named = [(match, path) for path in folder.iterdir() if (match := FILE_NAME.fullmatch(path.name))]
    saved = [_read(path, int(match[1]), step) for match, path in named]
    saved.sort(key=lambda part: part.origin.rank)
    if saved:  # also where a rank is missing: a step that is passed over must not hide a mixture
        check_together(saved)
    return SavedStep(directory=directory, step=step, saved=saved)


def read_deals(found: SavedStep) -> dict[str, Any]:
    """By digest, what the run had come to under earlier sizes, as far as the step's files name it.

    Raises:
        StateError: Such a file is missing or damaged.
    """
    deals: dict[str, Any] = {}
    # First, so that what is no header is refused with the name of its file.
    check_together(found.saved)
    for digest in dealt_of(found.saved).values():
        path = found.folder / deal_file(digest)
        if not path.exists():
            raise StateError(
                f"{found.folder}: its ranks name {path.name}, which is missing: what they had delivered under earlier "
                "sizes is in it\n  Restore it, or load another step."
            )
        with place_of_io(path), open_regular(path, StateError) as file:
            deals[digest] = decode_deal(str(path), digest, file.read())
    return deals


def _read(path: Path, rank: int, step: int) -> RankStates:
    with place_of_io(path), open_regular(path, StateError) as file:
        part = decode(str(path), file.read())
    for name, expected in (("rank", rank), ("step", step)):
        got = getattr(part.origin, name)
        if got != expected:
            raise StateError(
                f"{path}: expected {name} {expected}, got a file of {name} {got}\n"
                "  Restore it under the name that it was saved by, or delete it."
            )
    return part
