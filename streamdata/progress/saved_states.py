"""States from wherever they were saved: a step's folder, files of ranks, or JSON that a trainer wrote itself."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import StateError
from streamdata.progress.joining import join_ranks
from streamdata.progress.loading import load_states
from streamdata.progress.progress import Progress
from streamdata.progress.saved_step import SavedStep, read_deals, read_step
from streamdata.progress.saving import STEP_NAME
from streamdata.progress.state_file import RankStates, decode, is_rank_file
from streamdata.recipe.regular_files import open_regular


class ReadStates(NamedTuple):
    """What was read."""

    states: Mapping[str, Any]
    origin: str
    """Which step and ranks; empty where the files do not say it."""


def read_states(paths: Sequence[Path]) -> list[ReadStates]:
    """Read states: those of ranks' files together, each other file by itself.

    Args:
        paths: Files, the folder of a step, or the directory of several: then its newest step that all ranks have saved.

    Raises:
        StateError: A file is torn, or holds no states; or ranks' files are not of one step and run.
    """
    saved: list[RankStates] = []
    deals: dict[str, Any] = {}
    found: list[ReadStates] = []
    for path in paths:
        if step := STEP_NAME.fullmatch(path.name) if path.is_dir() else None:
            step_read = read_step(path.parent, int(step[1]))
            saved += step_read.saved
            deals |= read_deals(step_read)
        elif path.is_dir():
            states = load_states(path)
            found.append(ReadStates(dict(states.items()), f"step {states.step}"))
        elif is_rank_file(content := _content(path)):
            part = decode(str(path), content)
            saved.append(part)
            deals |= read_deals(SavedStep(directory=path.parent.parent, step=part.origin.step, saved=[part]))
        else:
            found.append(ReadStates(_plain(path, content), ""))
    if saved:
        found.insert(0, _joined(saved, deals))
    return found


def _content(path: Path) -> bytes:
    with open_regular(path, StateError) as file:
        return file.read()


def _joined(saved: Sequence[RankStates], deals: Mapping[str, Any]) -> ReadStates:
    origin = saved[0].origin
    # What is shown may be one rank's file: the others may have delivered, so that nothing of them is recorded.
    ranks = sorted(part.origin.rank for part in saved)
    missing = set(range(origin.size)) - set(ranks)
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    table = join_ranks(saved, deals, unknown=missing)
    return ReadStates(dict(table.items()), f"step {origin.step}, {which} of {origin.size}")


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
