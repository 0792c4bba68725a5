"""Where the stream stands: pure functions on plain JSON.

1. sample or batch → `to_state` → flat dict of JSON, to be collected with `states.update(…)`
2. dicts of several ranks → `merge_states` → one
3. collected dict → `Progress` → where each node stands in each lane, or an error that says what differs
4. `Progress`, `Shape` → `check_complete` → an error that says which entries are missing
5. `TrafficReport` of each process that reads → `traffic_of` → what was asked of stores: beside states, never in them
"""

from streamdata.progress.cursor import (
    Cursor,
    Entry,
    FunctionState,
    LaneKey,
    NodeKey,
    PlainCursor,
    PlainEntry,
    Position,
    links_of,
    marked,
    node_of,
    number_batch,
)
from streamdata.progress.deal_header import Base, DealHeader
from streamdata.progress.finals import COUNTS, Finals, share_out, sums
from streamdata.progress.header import Tree, check_position, header
from streamdata.progress.history import compact, describe_changes, history_of, last_lines, totals_of_nodes
from streamdata.progress.joining import merge_states
from streamdata.progress.lane_entries import LaneEntries
from streamdata.progress.lane_link import LaneLink
from streamdata.progress.lane_state import LaneState, lane_state_of
from streamdata.progress.left_out import left_out_code, read_left_out
from streamdata.progress.leftovers import BlockCut, Leftovers
from streamdata.progress.progress import Progress
from streamdata.progress.to_state import States, state_text, to_state
from streamdata.progress.traffic import Traffic, TrafficReport, note, traffic_of

__all__ = [
    "COUNTS",
    "Base",
    "BlockCut",
    "Cursor",
    "DealHeader",
    "Entry",
    "Finals",
    "FunctionState",
    "LaneEntries",
    "LaneKey",
    "LaneLink",
    "LaneState",
    "Leftovers",
    "NodeKey",
    "PlainCursor",
    "PlainEntry",
    "Position",
    "Progress",
    "States",
    "Traffic",
    "TrafficReport",
    "Tree",
    "check_position",
    "compact",
    "describe_changes",
    "header",
    "history_of",
    "lane_state_of",
    "last_lines",
    "left_out_code",
    "links_of",
    "marked",
    "merge_states",
    "node_of",
    "note",
    "number_batch",
    "read_left_out",
    "share_out",
    "state_text",
    "sums",
    "to_state",
    "totals_of_nodes",
    "traffic_of",
]
