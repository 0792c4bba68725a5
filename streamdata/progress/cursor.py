"""Where one lane stands in one node of the tree, as samples carry it.

What is made for every sample is a plain tuple: a named one takes nine times as long to make, and three times as long to
pickle and unpickle. So for each such layout there is a named tuple with the same fields in the same sequence, and
whoever reads one does it by name: `Cursor(*cursor).given`, `Entry(*entry).node`. The plain ones are made where samples
are: in `Source.read`, `Leaf` and `Mixture`.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from streamdata.fields import CURSOR
from streamdata.progress.lane_link import DealText, LaneLink

Position: TypeAlias = tuple[int, int, int, int]
"""(epoch, window, taken, part): in the lane's `window`-th window of `epoch`, `taken` records are done, and of the
next one the first `part` outputs of `single_process_fn`. Plain, always."""

FunctionState: TypeAlias = dict[str, object]
"""What `state_dict()` of a stateful function returned: small plain JSON."""

PlainCursor: TypeAlias = tuple[Any, ...]
"""A `Cursor` as samples carry it: all its fields, or the first ones where the others say nothing."""

Told: TypeAlias = tuple[float, ...]


class Cursor(NamedTuple):
    """Where a lane stands in a node."""

    epoch: int = 0
    """Of a mixture 0."""
    window: int = 0
    taken: int = 0
    """Of a mixture with a yield function, how many samples its sources had given when the open burst began."""
    part: int = 0
    given: int = 0
    """With a stream function, how many outputs of the present burst were delivered. The position is then the start of
    that burst, or as many records before it as the function asked for."""
    function: FunctionState | None = None
    """The stream function's state at the start of the burst."""
    dropped: int = 0
    """Records for which `single_process_fn` returned nothing, since the very start."""
    bad: int = 0
    """Failures forgiven under `max_bad`, since the very start."""
    skipped: int = 0
    """Records that were left out because they were to be skipped, since the very start."""
    records: int = 0
    """Records read, since the very start, where a function makes that another number than the draws."""
    pulled: Position | None = None
    """With a stream function, the position after the last record that the open burst has pulled."""
    left_out: str = ""
    """With a stream function, which records were to be skipped since the burst began, as `left_out_code` says it."""
    skips: int = 0
    """Of a mixture with a yield function, what tells the records that were to be skipped below it from others."""
    told: Told = ()
    """Of one with schedules below it, when the open burst was drawn: time and unit, and of the first records, if these
    were drawn before, how many they are, time and unit."""
    stream: list[Any] | None = None
    """Of an iterable that says where it is: what it said at the position, alone in a list."""

    @property
    def position(self) -> Position:
        """Its first four fields."""
        return self.epoch, self.window, self.taken, self.part


class LaneKey(NamedTuple):
    """One lane in one pass: what a rank's worker delivers between two of `set_epoch`'s numbers."""

    epoch_pass: int
    dp_rank: int
    worker: int


class NodeKey(NamedTuple):
    """What all entries of one node in one lane share, by reference, so that a batch carries it once."""

    header: str
    """The generation's header as JSON."""
    generation: int
    lane: LaneKey
    path: str
    link: LaneLink | None


class Mark(NamedTuple):
    """What a sample says of its lane, beside where the stream stands."""

    batch: int | None = None
    """In the last sample of a batch of `mixed_collate`: the batch's number in its lane in this pass, from 1."""
    ended: bool = False
    """In the last sample of a lane in a pass."""
    deal: DealText | None = None
    """In the first sample that a lane gives in an iteration, where the size of the run has changed."""


class Entry(NamedTuple):
    """The state of one node in one lane after the sample that carries it."""

    node: NodeKey
    draws: int
    clock: float
    cursor: PlainCursor
    drawn: int
    """How many samples its mixture had drawn by then, of all sources together."""
    mark: Mark | None
    """In the last entry of a sample only, and of few samples."""
    cost: float
    """What the samples drawn of it cost in all, where its mixture has a cost; else 0."""
    tokens: int = 0
    """How many `input_ids` or `tokens` the samples drawn of it had in all, as the mixture was given them."""


PlainEntry: TypeAlias = tuple[NodeKey, int, float, PlainCursor, int, Mark | None, float, int]
"""An `Entry` as samples carry it."""

node_of: Callable[[PlainEntry], NodeKey] = itemgetter(Entry._fields.index("node"))
"""The node of a plain entry, in a fifth of the time of `Entry(*entry).node`."""


def marked(entries: tuple[PlainEntry, ...], **said: Any) -> tuple[PlainEntry, ...]:
    """The entries of a sample, with fields of `Mark` said beside what they say already."""
    last = Entry(*entries[-1])
    return (*entries[:-1], last._replace(mark=(last.mark or Mark())._replace(**said)))


def number_batch(samples: list[dict[str, Any]]) -> None:
    """Number a batch in its lane: put a copy in place of its last sample, with a mark that says so.

    Does nothing where the samples are not a MergedDataset's, or were read in another process.
    """
    entries = samples[-1].get(CURSOR) if samples else None
    if not isinstance(entries, tuple) or not entries:
        return
    link = Entry(*entries[-1]).node.link
    if link is not None:
        # A copy: the caller may put the same sample into another batch.
        samples[-1] = {**samples[-1], CURSOR: marked(entries, batch=link.next_batch())}


def links_of(samples: Iterable[Mapping[str, Any]]) -> list[LaneLink]:
    """The links that samples bring along, each once: for a batch that leaves the samples' cursors out."""
    entries = (sample.get(CURSOR) for sample in samples)
    links = (node_of(each[-1]).link for each in entries if isinstance(each, tuple) and each)
    return list(dict.fromkeys(link for link in links if link is not None))
