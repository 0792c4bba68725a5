"""Loading: the newest step that all ranks have saved, or one that is asked for."""

import logging
from pathlib import Path
from typing import Final

from streamdata.errors import StateError, one_line, shown
from streamdata.progress.columns import Columns
from streamdata.progress.descent import remember
from streamdata.progress.joining import join_ranks, named_ranks
from streamdata.progress.rewinding import rewound
from streamdata.progress.saved_step import SavedStep, read_step, steps_in

logger = logging.getLogger("streamdata")

_MISSING: Final = ("error", "rewind")


def load_states(directory: str | Path, *, step: int | None = None, missing: str = "error") -> Columns:
    """Load the states of all ranks, for `set_dataloader_states` on any number of ranks, and to go on updating.

    Args:
        directory: That of `save_states`.
        step: The one to load; by default the newest that all ranks have saved: newer ones that lack a rank are passed
            over with a warning.
        missing: What a rank that has not saved the step means: `error`; or `rewind`: the newest step counts, and that
            rank goes on from its newest entry in an older one, else from its start. What comes again is counted.

    Returns:
        A mapping with the keys and values of the flat dict, whose attribute `step` says which step it is.

    Raises:
        NoStepError: Nothing is saved there, or not the step that is asked for. It is a FileNotFoundError.
        StateError: No step has all ranks; or a file is torn, or of another step, rank, number of ranks or branch than
            its name and the other files say.
        ValueError: `missing` is something else, or `step` is no int.
    """
    if missing not in _MISSING:
        raise ValueError(f"load_states: expected missing to be one of {_MISSING}, got {shown(missing)}")
    # As text, 9 would find the folder, and no file in it that is of that step.
    if step is not None and type(step) is not int:
        raise ValueError(f"load_states: expected an int as step, got {shown(step)}")
    found = _newest(Path(directory), missing) if step is None else read_step(Path(directory), step)
    if found.missing and (missing == "error" or not found.saved):
        ranks = f"{named_ranks(found.missing)} of {found.size}" if found.saved else "every rank"
        raise StateError(
            f"{found.folder}: this step lacks {ranks}\n"
            '  Load another step, or accept that what these ranks delivered comes again: missing="rewind".'
        )
    table = rewound(found) if found.missing else join_ranks(found.saved)
    # What is loaded is a parent, whether it was rewound or not: ranks that go on from other states must not meet again.
    states = Columns(table, parent=table, step=found.step)
    remember(states)
    logger.info("states: step %d of %d ranks, from %s", found.step, found.size, one_line(directory))
    return states


def _newest(directory: Path, missing: str) -> SavedStep:
    lacking: list[str] = []
    # Read, not only listed: a torn file in a newer step is an error, however complete an older one is.
    for step in steps_in(directory):
        found = read_step(directory, step)
        if not found.missing or (missing == "rewind" and found.saved):
            return found
        ranks = f"{named_ranks(found.missing)} of {found.size}" if found.saved else "every rank"
        lacking.append(f"step {step} lacks {ranks}")
        logger.warning("states: %s is passed over, since it lacks %s", one_line(found.folder), ranks)
    raise StateError(
        f"{directory}: no step is there that all ranks have saved\n  " + "\n  ".join(lacking[:10]) + "\n"
        '  Accept that what these ranks delivered comes again: missing="rewind"; or start without states.'
    )
