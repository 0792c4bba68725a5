"""A ledger's state in a file: `file → counts of prompts, and the states of their stream`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamdata.errors import StateError
from streamdata.recipe.limits import open_regular


def read_ledger(paths: Sequence[Path]) -> tuple[dict[str, float], Mapping[str, Any]] | None:
    """Read the state of a ledger from a file of JSON.

    Returns:
        The counts of `PromptLedger.stats` when it was saved, but for the oldest prompt, and the states of the stream.
        None if the paths are not one file that looks like a ledger's.

    Raises:
        StateError: It looks like one, and is damaged.
    """
    if len(paths) != 1 or paths[0].is_dir():
        return None
    with open_regular(paths[0], StateError) as file:
        content = file.read()
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or "ledger" not in state:
        return None
    from streamdata.ledger.ledger import summed  # and torch, which other states do without

    try:
        saved = state["ledger"]
        due = [after >= 0 for *_, attempt, after in saved["prompts"] if attempt]
        return {**summed(saved["counts"]), "open": due.count(False), "due": due.count(True)}, state["stream"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{paths[0]}: expected the state of a ledger, got a damaged one: {error!r}\n  Take another checkpoint."
        ) from error
