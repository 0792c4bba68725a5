"""Where the trainers of the real processes save, and what is loaded: the last step that all ranks have saved."""

from pathlib import Path
from typing import Any, NamedTuple

from streamdata import StateError, load_states, save_states


class Loaded(NamedTuple):
    """States of all ranks, and the step of which they are; 0 and nothing where none was saved."""

    step: int
    states: Any


def save(folder: Path, step: int, states: Any) -> None:
    """What this rank has collected."""
    save_states(folder, states, step=step)


def load(folder: Path) -> Loaded:
    """Of the last complete step."""
    try:
        states = load_states(folder)
    except (StateError, FileNotFoundError) as error:
        if "no step" not in str(error) and "no states" not in str(error):
            raise
        return Loaded(0, {})
    return Loaded(states.step, states)
