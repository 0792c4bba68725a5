"""Loading: the newest step that all ranks have saved, or one that is asked for."""

import logging
from pathlib import Path

from streamdata.errors import StateError, one_line, shown
from streamdata.progress.columns import Columns
from streamdata.progress.joining import join_ranks, named_ranks
from streamdata.progress.loaded import remember
from streamdata.progress.saved_step import SavedStep, read_deals, read_step, steps_in

logger = logging.getLogger("streamdata")


def load_states(directory: str | Path, *, step: int | None = None) -> Columns:
    """Load the states of all ranks, for `set_dataloader_states` on any number of ranks, and to go on updating.

    Args:
        directory: That of `save_states`.
        step: The one to load; by default the newest that all ranks have saved: newer ones that lack a rank are passed
            over with a warning.

    Returns:
        A mapping with the keys and values of the flat dict, whose attribute `step` says which step it is.

    Raises:
        NoStepError: Nothing is saved there, or not the step that is asked for. It is a FileNotFoundError.
        StateError: No step has all ranks; or a file is torn, missing, or of another step, rank or number of ranks than
            its name and the other files say.
        ValueError: `step` is no int.
    """
    # As text, 9 would find the folder, and no file in it that is of that step.
    if step is not None and type(step) is not int:
        raise ValueError(f"load_states: expected an int as step, got {shown(step)}")
    found = _newest(Path(directory)) if step is None else read_step(Path(directory), step)
    if found.missing:
        raise StateError(f"{found.folder}: this step lacks {_lacking(found)}\n  Load another step.")
    states = Columns(join_ranks(found.saved, read_deals(found)), step=found.step)
    remember(states)
    logger.info("states: step %d of %d ranks, from %s", found.step, found.size, one_line(directory))
    return states


def _newest(directory: Path) -> SavedStep:
    lacking: list[str] = []
    # Read, not only listed: a torn file in a newer step is an error, however complete an older one is.
    for step in steps_in(directory):
        found = read_step(directory, step)
        if not found.missing:
            return found
        lacking.append(f"step {step} lacks {_lacking(found)}")
        logger.warning("states: %s is passed over, since it lacks %s", one_line(found.folder), _lacking(found))
    raise StateError(
        f"{directory}: no step is there that all ranks have saved\n  " + "\n  ".join(lacking[:10]) + "\n"
        "  Start without states."
    )


def _lacking(found: SavedStep) -> str:
    return f"{named_ranks(found.missing)} of {found.size}" if found.saved else "every rank"
