"""Where one lane stands in one node of the tree, as samples carry it.

Entries and cursors are plain tuples: one is made for every sample, and they are pickled with it. Their layout is
known here, where they are made (`sources`, `mixing`) and in `to_state`, nowhere else.
"""

from typing import Any, NamedTuple, TypeAlias

from streamdata.fields import CURSOR
from streamdata.progress.lane_link import LaneLink

Position: TypeAlias = tuple[int, int, int, int]
"""(epoch, window, taken, part): in the lane's `window`-th window of `epoch`, `taken` records are done, and of the
next one the first `part` outputs of `single_process_fn`."""

FunctionState: TypeAlias = dict[str, object]
"""What `state_dict()` of a stateful function gave: small plain JSON."""

Cursor: TypeAlias = Position | tuple[int, int, int, int, int, FunctionState | None, int, int]
"""A position alone, or followed by (given, function, dropped, bad).

With a stream function the position is the start of the present burst, or as many records before it as the
function asked for; `given` counts the outputs of the burst so far, `function` is the function's state at its
start. `dropped` counts the records for which `single_process_fn` gave nothing, `bad` the failures forgiven under
`max_bad`, both since the very start."""

WholeCursor: TypeAlias = tuple[int, int, int, int, int, FunctionState | None, int, int]
"""A cursor with all its fields."""


def whole(cursor: Cursor) -> WholeCursor:
    """Write out the fields that a plain position leaves away."""
    return (*cursor, 0, None, 0, 0) if len(cursor) == _POSITION_FIELDS else cursor


_POSITION_FIELDS = 4


class NodeKey(NamedTuple):
    """What all entries of one node in one lane share, by reference, so that a batch carries it once."""

    header: str
    """The generation's header as JSON."""
    generation: int
    epoch_pass: int
    dp_rank: int
    worker: int
    path: str
    round: int
    """How often the parent, a finite mixture within an endless one, has started again: a clock of another round has
    run out."""
    link: LaneLink | None


class Mark(NamedTuple):
    """What a sample says of its lane, beside where the stream stands."""

    batch: int | None = None
    """In the last sample of a batch of `mixed_collate`: the batch's number in its lane in this pass, from 1."""
    ended: bool = False
    """In the last sample of a lane in a pass."""


Entry: TypeAlias = tuple[NodeKey, int, float, Cursor, int, Mark | None]
"""(node, draws, clock, cursor, drawn, mark): the state of one node in one lane after the sample that carries it.

`drawn` is how many samples its mixture had drawn by then, of all sources together. A mark is in the last entry of a
sample only, and of few samples."""


def marked(entries: tuple[Entry, ...], *, batch: int | None = None, ended: bool = False) -> tuple[Entry, ...]:
    """The entries of a sample, with that said beside what they say already."""
    node, draws, clock, cursor, drawn, before = entries[-1]
    mark = Mark(batch, ended=ended or (before is not None and before.ended))
    return (*entries[:-1], (node, draws, clock, cursor, drawn, mark))


def number_batch(samples: list[dict[str, Any]]) -> None:
    """Number a batch in its lane: put a copy in place of its last sample, with a mark that says so.

    Does nothing where the samples are not a MergedDataset's, or were read in another process.
    """
    entries = samples[-1].get(CURSOR) if samples else None
    if not isinstance(entries, tuple) or not entries or entries[-1][0].link is None:
        return
    samples[-1] = {**samples[-1], CURSOR: marked(entries, batch=entries[-1][0].link.next_batch())}
