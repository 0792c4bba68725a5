"""Where the stream stands: pure functions on plain JSON.

1. sample or batch → `to_state` → flat dict of JSON, to be collected with `states.update(…)`
2. dicts of several ranks → `merge_states` → one
3. collected dict → `Progress` → where each node stands in each lane, or an error that says what differs
"""

from streamdata.progress.cursor import Cursor, Entry, FunctionState, NodeKey, Position, whole
from streamdata.progress.merge import merge_states
from streamdata.progress.progress import Progress, Standing, Tree, header
from streamdata.progress.to_state import States, to_state

__all__ = [
    "Cursor",
    "Entry",
    "FunctionState",
    "NodeKey",
    "Position",
    "Progress",
    "Standing",
    "States",
    "Tree",
    "header",
    "merge_states",
    "to_state",
    "whole",
]
