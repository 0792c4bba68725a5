"""Loading: the newest step that all ranks have saved, one that is asked for, or whatever lies at some paths.

A step's folder has a file for each rank, and is whole if none is missing.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import StateError, one_line, place_of_io, shown
from streamdata.progress.joining import check_together, dealt_of, join_ranks
from streamdata.progress.progress import Progress
from streamdata.progress.saving import FILE_NAME, STEP_NAME, deal_file, remember
from streamdata.progress.state_file import RankStates, decode, decode_deal, is_rank_file
from streamdata.progress.states_table import LoadedStates
from streamdata.recipe.regular_files import open_regular

logger = logging.getLogger("streamdata")
_MAX_NAMED = 30


class NoStepError(StateError, FileNotFoundError):
    """Nothing is saved where states are looked for."""


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """What is saved of a step."""

    folder: Path
    step: int
    saved: Sequence[RankStates]
    """By rank."""

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

    @property
    def lacking(self) -> str:
        """For messages, what is missing."""
        return f"{named_ranks(self.missing)} of {self.size}" if self.saved else "every rank"


class ReadStates(NamedTuple):
    """What was read."""

    states: Mapping[str, Any]
    origin: str
    """Which step and ranks; empty where the files do not say it."""


def load_states(directory: str | Path, *, step: int | None = None) -> LoadedStates:
    """Load the states of all ranks, for `set_dataloader_states` on any number of ranks, and to go on updating.

    Args:
        directory: That of `save_states`.
        step: The one to load; by default the newest that all ranks have saved: newer ones that lack a rank are passed
            over with a warning.

    Returns:
        A mapping with the keys and values of the flat dict, whose attribute `step` says which step it is.

    Raises:
        NoStepError: Nothing is saved there, or not the step that is asked for. It is a FileNotFoundError.
        StateError: No step has all ranks; the step is not 0, and no rank's has an entry; or a file is torn, missing, or
            of another step, rank or number of ranks than its name and the other files say.
        ValueError: `step` is no int.
    """
    # As text, 9 would find the folder, and no file in it that is of that step.
    if step is not None and type(step) is not int:
        raise ValueError(f"load_states: expected an int as step, got {shown(step)}")
    found = _newest(Path(directory)) if step is None else read_step(Path(directory), step)
    if found.missing:
        raise StateError(f"{found.folder}: this step lacks {found.lacking}\n  Load another step.")
    states = LoadedStates(join_ranks(found.saved, _deals(found.folder, found.saved)), step=found.step)
    if found.step and not states:
        raise StateError(
            f"{found.folder}: expected states of what was delivered, got none of any rank: a resume would begin at "
            "sample 0\n  Start without states, or load another step; the training has to save what to_state gives."
        )
    remember(states.loaded)
    logger.info("states: step %d of %d ranks, from %s", found.step, found.size, one_line(directory))
    return states


def _newest(directory: Path) -> SavedStep:
    lacking: list[str] = []
    # Read, not only listed: a torn file in a newer step is an error, however complete an older one is.
    for step in steps_in(directory):
        found = read_step(directory, step)
        if not found.missing:
            return found
        lacking.append(f"step {step} lacks {found.lacking}")
        logger.warning("states: %s is passed over, since it lacks %s", one_line(found.folder), found.lacking)
    raise StateError(
        f"{directory}: no step is there that all ranks have saved\n  " + "\n  ".join(lacking[:10]) + "\n"
        "  Start without states."
    )


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
    """Read the files of a step.

    Raises:
        NoStepError: It has no folder.
        StateError: A file is torn, or of another step or rank than its name says, or of another run than the others.
    """
    folder = directory / f"step-{step}"
    if not folder.is_dir():
        there = ", ".join(map(str, steps_in(directory)[:10]))
        raise NoStepError(f"{folder}: this step is not saved, the newest ones are {there}\n  Load one of them.")
    named = {int(match[1]): path for path in folder.iterdir() if (match := FILE_NAME.fullmatch(path.name))}
    saved = [decode(str(named[rank]), _content(named[rank])) for rank in sorted(named)]
    for rank, part in zip(sorted(named), saved, strict=True):
        if (part.origin.rank, part.origin.step) != (rank, step):
            raise StateError(
                f"{part.name}: expected rank {rank} at step {step}, got a file of rank {part.origin.rank} at step "
                f"{part.origin.step}\n  Restore it under the name that it was saved by, or delete it."
            )
    # Also where a rank is missing: a step that is passed over must not hide a mixture.
    check_together(saved)
    return SavedStep(folder=folder, step=step, saved=saved)


def _deals(folder: Path, saved: Sequence[RankStates]) -> dict[str, Any]:
    """By digest, what the run had come to under earlier sizes, as far as files name it.

    Raises:
        StateError: Such a file is missing or damaged.
    """
    deals: dict[str, Any] = {}
    for digest in dealt_of(saved):
        path = folder / deal_file(digest)
        if not path.exists():
            raise StateError(
                f"{folder}: its ranks name {path.name}, which is missing: what they had delivered under earlier sizes "
                "is in it\n  Restore it, or load another step."
            )
        deals[digest] = decode_deal(str(path), digest, _content(path))
    return deals


def read_states(paths: Sequence[Path]) -> list[ReadStates]:
    """Read states: those of ranks' files together, each other file by itself.

    Args:
        paths: Files, the folder of a step, or the directory of several: then its newest step that all ranks have saved.

    Raises:
        StateError: A file is torn, or holds no states; or ranks' files are not of one step and run.
    """
    saved: dict[Path, list[RankStates]] = {}
    found: list[ReadStates] = []
    for path in paths:
        if step := STEP_NAME.fullmatch(path.name) if path.is_dir() else None:
            saved[path] = list(read_step(path.parent, int(step[1])).saved)
        elif path.is_dir():
            states = load_states(path)
            found.append(ReadStates(states.loaded.as_dict(), f"step {states.step}"))
        elif is_rank_file(content := _content(path)):
            saved.setdefault(path.parent, []).append(decode(str(path), content))
        else:
            found.append(ReadStates(_plain(path, content), ""))
    if saved:
        found.insert(0, _joined(saved))
    return found


def _joined(folders: Mapping[Path, Sequence[RankStates]]) -> ReadStates:
    saved = [part for parts in folders.values() for part in parts]
    check_together(saved)
    deals = {digest: deal for folder, parts in folders.items() for digest, deal in _deals(folder, parts).items()}
    origin, ranks = saved[0].origin, sorted(part.origin.rank for part in saved)
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    # What is shown may be one rank's file: the others may have delivered, so that nothing of them is recorded.
    table = join_ranks(saved, deals, unknown=set(range(origin.size)) - set(ranks))
    return ReadStates(table.as_dict(), f"step {origin.step}, {which} of {origin.size}")


def _plain(path: Path, content: bytes) -> dict[str, Any]:
    try:
        states = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: expected states, got a file that is not JSON ({str(error)[:100]})") from error
    if not isinstance(states, dict):
        raise StateError(f"{path}: expected states, got a {type(states).__name__}")
    try:
        Progress(states)
    except StateError as error:  # it knows keys, and of several files not which one has them
        raise StateError(f"{path}: {error}") from error
    return states


def _content(path: Path) -> bytes:
    with place_of_io(path), open_regular(path, StateError) as file:
        return file.read()


def named_ranks(ranks: Sequence[int]) -> str:
    """For messages."""
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return ", ".join(f"rank {rank}" for rank in ranks[:_MAX_NAMED]) + more
