"""Where the stream stands: pure functions on plain JSON.

1. sample or batch → `to_state` → flat dict of JSON, to be collected with `states.update(…)`
2. dicts of several ranks → `merge_states` → one
3. collected dict → `Progress` → where each node stands in each lane, or an error that says what differs
4. `Progress`, `Shape` → `check_complete` → an error that says which entries are missing
"""

from streamdata.progress.changes import describe_changes
from streamdata.progress.checked import check_position
from streamdata.progress.complete import Shape, check_complete
from streamdata.progress.cursor import (
    Cursor,
    Entry,
    FunctionState,
    LaneKey,
    NodeKey,
    PlainCursor,
    PlainEntry,
    Position,
    marked,
    node_of,
    number_batch,
)
from streamdata.progress.lane_entries import LaneEntries
from streamdata.progress.lane_link import Beginning, LaneLink, warn_once
from streamdata.progress.merge import merge_states
from streamdata.progress.progress import Progress, Tree, header
from streamdata.progress.to_state import States, to_state

__all__ = [
    "Beginning",
    "Cursor",
    "Entry",
    "FunctionState",
    "LaneEntries",
    "LaneKey",
    "LaneLink",
    "NodeKey",
    "PlainCursor",
    "PlainEntry",
    "Position",
    "Progress",
    "Shape",
    "States",
    "Tree",
    "check_complete",
    "check_position",
    "describe_changes",
    "header",
    "marked",
    "merge_states",
    "node_of",
    "number_batch",
    "to_state",
    "warn_once",
]
