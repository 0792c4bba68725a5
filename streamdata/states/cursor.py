"""Where one lane stands in one node of the tree, as samples carry it.

What is made for every sample is a plain tuple: a named one takes nine times as long to make, and three times as long to
pickle and unpickle. So for each such layout there is a named tuple with the same fields in the same sequence, and
whoever reads one does it by name: `Cursor(*cursor).given`, `Entry(*entry).node`. The plain ones are made where samples
are: in `Source.read`, `Leaf` and `Mixture`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from streamdata.fields import CURSOR
from streamdata.run.lane_link import DealText, LaneLink

Position: TypeAlias = tuple[int, int, int, int]
"""(epoch, window, taken, part): in the lane's `window`-th window of `epoch`, `taken` records are done, and of the
next one the first `part` outputs of `single_process_fn`. Plain, always."""

FunctionState: TypeAlias = dict[str, object]
"""Small plain JSON that `state_dict()` of a stateful function returned."""

PlainCursor: TypeAlias = tuple[Any, ...]
"""A `Cursor` as samples carry it: all its fields, or the first ones where the others say nothing."""


class Cursor(NamedTuple):
    """Where a lane stands in a node."""

    epoch: int = 0
    """Epoch of the source; 0 of a mixture."""
    window: int = 0
    taken: int = 0
    """Records done in the window; of a mixture with a yield function, samples that its sources had given when the open
    burst began."""
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
    """With a stream function, which records were to be skipped since the burst began, as `Skipping` writes it."""
    skips: int = 0
    """Digest of the records to be skipped below a mixture with a yield function; else 0."""
    stream: list[Any] | None = None
    """State of an iterable with `state_dict` at the position, alone in a list; else None."""

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
    """The fields that all entries of one node in one lane share, by reference, so that a batch carries them once."""

    header: str
    """The generation's header as JSON."""
    generation: int
    lane: LaneKey
    path: str
    link: LaneLink | None


class Mark(NamedTuple):
    """Facts about its lane that a sample carries, beside where the stream stands."""

    batch: int | None = None
    """In the last sample of a batch of `mixed_collate`: the batch's number in its lane in this pass, from 1."""
    ended: bool = False
    """In the last sample of a lane in a pass."""
    deal: DealText | None = None
    """In the first sample that a lane gives in an iteration, where the size of the run has changed."""
    tail: Mapping[str, list[int]] | None = None
    """In the last sample of a lane: by path, the `COUNTS` of what was read after the node's last entry."""


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
    """Cost of all samples drawn of it, where its mixture has a cost; else 0."""
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


class Standing(NamedTuple):
    """Where one node stood in one lane, at the end of a generation."""

    generation: int
    draws: int
    clock: float
    cursor: Cursor
    cost: float = 0.0
    """Cost of the samples drawn of it, where its mixture has a cost."""
    tokens: int = 0
    """Tokens in the samples drawn of it."""


class LaneEntries:
    """The entries of one lane, each by generation; what is asked for comes from the newest generation that has it."""

    def __init__(self) -> None:
        self.cursors: dict[str, dict[int, Mapping[str, Any]]] = {}
        """By the path of the node."""

    def standing(self, path: str, before: float = math.inf) -> Standing | None:
        """Where the node stood last, or at the moment when a generation began."""
        held = [number for number in self.cursors.get(path, ()) if number < before]
        if not held:
            return None
        entry = self.cursors[path][max(held)]
        cursor = Cursor(*map(entry.get, Cursor._fields, Cursor()))  # Cursor(): what to_state leaves out is as there
        cost, tokens = float(entry.get("cost", 0)), entry.get("tokens", 0)
        return Standing(max(held), entry["draws"], entry["clock"], cursor, cost, tokens)

    def clocks(self, path: str) -> dict[int, float]:
        """The node's last clock in each generation in which it was drawn."""
        return {generation: entry["clock"] for generation, entry in self.cursors.get(path, {}).items()}

    def draws_below(self, path: str) -> dict[str, int]:
        """The draws of each source that the mixture at the path ever had, by its path."""
        # Those of sources that were removed, too: the mixture has counted them as drawn.
        children = [child for child in self.cursors if child and child.rpartition(".")[0] == path]
        return {child: self.cursors[child][max(self.cursors[child])]["draws"] for child in sorted(children)}
