"""A ledger's state in a file: `file → counts of prompts, and the states of their stream`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamdata.errors import StateError
from streamdata.recipe.limits import open_regular


class SavedLedger(NamedTuple):
    """A ledger as it was saved."""

    counts: dict[str, float]
    stream: Mapping[str, Any]


def read_ledger(paths: Sequence[Path]) -> SavedLedger | None:
    """Read the state of a ledger; None if the paths are not one file of JSON that looks like one.

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
    from streamdata.ledger.ledger import saved_stats  # and torch, which other states do without

    try:
        return SavedLedger(saved_stats(state), state["stream"])
    except (StateError, KeyError) as error:
        raise StateError(f"{paths[0]}: {error}") from error
