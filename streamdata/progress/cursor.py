"""Where one lane stands in one node of the tree, as samples carry it.

Plain tuples, not classes: one is made for every sample, and they are pickled with it. Their layout is known here,
where they are made (`sources`, `mixing`) and in `to_state`, nowhere else.
"""

from typing import TypeAlias

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

NodeKey: TypeAlias = tuple[str, int, int, int, int, str, int]
"""(header, generation, pass, rank, worker, path, round): what all entries of one node in one lane share, by
reference, so that a batch carries it once. `header` is the generation's header as JSON; `round` says how often
the parent, a finite mixture within an endless one, has started again: a clock of another round has run out."""

Entry: TypeAlias = tuple[NodeKey, int, float, Cursor]
"""(node, draws, clock, cursor): the state of one node in one lane after the sample that carries it."""
