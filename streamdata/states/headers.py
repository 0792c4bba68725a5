"""The headers of states: one of each generation, and one of all that the run had come to before its present size.

Each says by a digest that it is as it was written: so of its fields none is checked.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from streamdata.errors import StateError, shown
from streamdata.recipe.named_source import Weight
from streamdata.run import Lane
from streamdata.run.lane_link import DealText
from streamdata.states.cursor import FunctionState

FORMAT: Final = 4
"""Format number of the states, in each generation's header; another one is refused before anything is misread."""
DEAL: Final = "deal/"
"""How the key of the header of what was before begins; its number follows."""
HEADERS: Final = ("generation/", DEAL)
"""How keys begin that are of no rank."""
MIXTURE: Final = "mixture, "
"""How the order of a mixture begins, and no other one."""
BY_COST: Final = ", by cost"
"""How the order of a mixture ends that has a cost."""
DAMAGE: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError)
"""All that reading a value of any type as one of ours can raise."""
Numbers = npt.NDArray[np.int64]
STRETCH: Final = np.dtype([(name, np.int64) for name in ("first", "stride", "blocks", "start", "outputs", "stop")])
"""A run of consecutive windows that one lane would have read: the numbers `first`, `first + stride` … of the source's
endless order, `blocks` of them, from record `start` of the first window's shuffled order, of which `outputs` outputs
were delivered, up to, without, record `stop` of the last one's; -1 for its end."""
BURST: Final = np.dtype([(name, np.int64) for name in ("stretches", "given", "outputs")])
"""An open burst: how many stretches its records are, how many of its outputs were delivered, and how many outputs of
the last record belong to it, 0 for all."""
_TABLES: Final = {"stretches": STRETCH, "bursts": BURST, "pulled": STRETCH}
"""The tables of `Leftovers`."""
UNIT: Final = 1024
"""Unit of a cut's mean, 1/1024 record: whole numbers, which are the same on every machine."""


class Topology(NamedTuple):
    """The number of ranks, and of workers per rank."""

    dp_size: int
    num_workers: int

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self.dp_size * self.num_workers


class BlockCut(NamedTuple):
    """How a source is divided into blocks and windows; enough to compute leftovers while the source is absent."""

    blocks: int
    """In an epoch."""
    window: int
    """Blocks in a window."""
    mean: int
    """Records in a block, on average, in units of 1/`UNIT`; 0 where that shows only when they are read."""
    divides: int
    """1 where a window may be divided among lanes."""
    epochs: int
    """Read in a finite stream; 0 of one without end."""

    def records(self, blocks: Any) -> Any:
        """The number of records in `blocks` blocks, by the mean block."""
        return blocks * self.mean // UNIT


class SetPercent(NamedTuple):
    """A percent that was set while the run went on, in place of the recipe's."""

    percent: float
    """The number that was given."""
    recipe: Any
    """The recipe's own, when it was set, as JSON: where it is another one at a resume, that wins."""
    weight: Weight
    """The weight that follows: where the recipe has a schedule, the percent as set until its next point."""


class Tree(NamedTuple):
    """The facts that determine the order of a stream, by node path."""

    nodes: Mapping[str, str]
    """For each node, what determines its own order."""
    weights: Mapping[str, Weight]
    """For each node but the top, its weight in its parent: a number or a schedule."""
    cuts: Mapping[str, BlockCut] = {}
    """For each source of records, how it is divided."""
    sources: Mapping[str, str | None] = {}
    """The `weight_field` of each source of records, sorted by path, those that are left out too; unknown of a tree that
    was read from states."""

    set_percents: Mapping[str, SetPercent] = {}
    """The percents that were set in place of the recipe's, by path."""

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Self:
        """Read the tree that a generation's header holds, apart from its cuts."""
        set_percents = {path: SetPercent(*one) for path, one in header.get("set_percents", {}).items()}
        return cls(header["nodes"], header["weights"], set_percents=set_percents)

    def below(self, path: str) -> tuple[Mapping[str, str], Mapping[str, Weight]]:
        """The nodes and weights below a node."""
        start = f"{path}." if path else ""
        nodes = {key: node for key, node in self.nodes.items() if key.startswith(start) and key != path}
        return nodes, {key: weight for key, weight in self.weights.items() if key.startswith(start)}

    def blend(self, path: str) -> Mapping[str, Weight]:
        """The weights of a node's children."""
        return {key: weight for key, weight in self.weights.items() if key.rpartition(".")[0] == path}


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """The records of a source in a pass that earlier sizes of the run did not deliver."""

    offset: int = 0
    """First number of the source's endless order from which on all are left, and none is in `stretches`."""
    stretches: npt.NDArray[Any] = field(default_factory=partial(np.zeros, 0, STRETCH))
    """STRETCH (n,), sorted: what lies before the offset and is not delivered."""
    bursts: npt.NDArray[Any] = field(default_factory=partial(np.zeros, 0, BURST))
    """BURST (m,)."""
    pulled: npt.NDArray[Any] = field(default_factory=partial(np.zeros, 0, STRETCH))
    """STRETCH: the records of the bursts, one burst after another."""
    functions: Mapping[int, tuple[FunctionState | None, str]] = field(default_factory=dict)
    """Function's state at the start of a burst, and the code of what was left out of it, by the burst's number."""

    def __bool__(self) -> bool:
        return bool(self.offset or len(self.stretches) or len(self.bursts))

    def as_json(self) -> dict[str, Any]:
        """The leftovers as JSON, column by column: a column is a text, or one number if all rows are equal."""
        texts = {name: _as_text(table) for name in _TABLES if len(table := getattr(self, name))}
        return {"offset": self.offset, "functions": {str(n): list(f) for n, f in self.functions.items()}, **texts}


def leftovers_of(value: Mapping[str, Any]) -> Leftovers:
    """Read leftovers from the JSON of `Leftovers.as_json`."""
    tables = {name: _from_text(value[name], dtype) for name, dtype in _TABLES.items() if name in value}
    functions = {int(number): (state, left_out) for number, (state, left_out) in value["functions"].items()}
    return Leftovers(offset=value["offset"], functions=functions, **tables)


def _as_text(table: npt.NDArray[Any]) -> dict[str, Any]:
    """Columns as decimal numbers; of `first` the differences, which are small in a sorted list."""
    # As text a number takes the bytes of its digits, not the 36 of an int in a list; JSON need not look at it.
    texts: dict[str, Any] = {"rows": len(table)}
    for name in table.dtype.names or ():
        column = np.diff(table[name], prepend=0) if name == "first" else table[name]
        is_constant = bool((column == column[0]).all())
        texts[name] = int(column[0]) if is_constant else " ".join(map(str, column.tolist()))
    return texts


def _from_text(texts: Mapping[str, Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    table = np.zeros(texts["rows"], dtype)
    for name in dtype.names or ():
        table[name] = texts[name] if isinstance(texts[name], int) else np.array(texts[name].split(" "), np.int64)
    if "first" in texts:
        table["first"] = np.cumsum(table["first"])
    return table


@dataclass(frozen=True, kw_only=True)
class Base:
    """The progress of all lanes of earlier sizes together in a pass; empty if the size never changed."""

    time: float = 0.0
    """Samples drawn of the top mixture, before its yield function, or their cost where it has a `cost`."""
    excess: Mapping[str, float] = field(default_factory=dict)
    """Draws of a source above its share, by its path."""
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Sums of a node's `COUNTS` by its path; the lanes go on counting from them."""
    left: Mapping[str, Leftovers] = field(default_factory=dict)
    """Leftovers of a source, present or not, by its path. One that is missing was not begun."""


@dataclass(frozen=True, kw_only=True)
class DealHeader:
    """Deliveries and leftovers of the run when its size last changed; empty in a run that never changed it."""

    number: int = 0
    """The generation with which the size began."""
    step: int = 0
    """Batches that the furthest rank had delivered by then, since the run began."""
    first_pass: int = 0
    """The oldest pass that was not finished."""
    is_endless: bool = False
    """Whether nothing of the passes before that one is known."""
    finished: Sequence[int] = ()
    """The passes of which nothing was left."""
    passes: Mapping[int, Base] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Description of the order of each node that was ever there."""
    cuts: Mapping[str, BlockCut] = field(default_factory=dict)
    """How each source was divided."""
    totals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Sums over all that was delivered of each node since the run began."""
    sizes: Sequence[Mapping[str, Any]] = ()
    """For people, a line for each earlier generation, the last ones."""
    origin: str = ""
    """A digest of where the lanes of the size before stood."""

    @cached_property
    def text(self) -> str:
        """The header as canonical JSON: equal headers give equal texts."""
        entry = {each.name: getattr(self, each.name) for each in fields(self)}
        text = json.dumps(entry, default=lambda part: part.as_json() if isinstance(part, Leftovers) else vars(part))
        # As it is read: in JSON all keys are texts, also those of passes and of functions' states.
        return canonical(json.loads(text))

    @cached_property
    def entry(self) -> DealText | None:
        """The header as a lane's first batch carries it; None if the size never changed."""
        return DealText(f"{DEAL}{self.number}", self.text) if self.number else None


def read_deal(value: Any, digest: str | None = None) -> DealHeader:
    """Read the entry of a deal, and check it against its digest if that is known.

    Raises:
        ValueError: The entry has another digest. One of `DAMAGE` if it is not a deal at all.
    """
    text = canonical(value)
    # What is not what was written need not be looked at, and would deal out other records.
    if digest is not None and digest_of(text) != digest:
        raise ValueError("expected what was written: the header has another digest")
    passes = {}
    for number, base in value["passes"].items():
        left = {path: leftovers_of(leftovers) for path, leftovers in base["left"].items()}
        passes[int(number)] = Base(**base | {"left": left})
    cuts = {path: BlockCut(*cut) for path, cut in value["cuts"].items()}
    header = DealHeader(**dict(value) | {"passes": passes, "cuts": cuts})
    header.__dict__["text"] = text  # as it was written: to write all columns anew takes long
    return header


def canonical(value: Any) -> str:
    """Encode a value as JSON; equal values give equal texts."""
    # By its digest ranks know that they go on from the same states, and files are named.
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(text: str) -> str:
    """A digest that identifies a header, by its text."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def header(tree: Tree, lane: Lane, deal: DealHeader, anomalies: Mapping[str, Mapping[str, int]]) -> str:
    """Make a generation's header: size, tree, and (for people) anomalies found in shards.

    Args:
        tree: What determines the order.
        lane: Whose number of ranks and workers count.
        deal: What all generations of this size go on from.
        anomalies: Of each node that has any: how much is not a record, or less than one, by kind. No resume compares
            it.
    """
    written = {
        "format": FORMAT,
        "dp_size": lane.dp_size,
        "num_workers": lane.num_workers,
        "deal": deal.number,
        "dealt": digest_of(deal.text) if deal.number else "",
        "nodes": dict(tree.nodes),
        "weights": dict(tree.weights),
        "cuts": dict(tree.cuts),
    }
    if tree.set_percents:
        written["set_percents"] = dict(tree.set_percents)
    noted = {"anomalies": anomalies} if anomalies else {}
    return json.dumps({**written, "digest": digest_of(canonical(written)), **noted})


def compared(value: Any) -> Any:
    """The part of an entry that must be equal on all ranks: of a header, what determines the order."""
    # A rank may not have delivered anything since a shard was mended.
    if not isinstance(value, Mapping):
        return value
    return {name: part for name, part in value.items() if name not in ("anomalies", "digest")}


def check_one_run(parts: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Check that what several parts of states say is the same in all that say it.

    Args:
        parts: Of each how messages name it, and its facts: None where nobody knows.

    Raises:
        StateError: Two of them say another thing.
    """
    # The first that says something stands for all: what differs from it is named with it.
    first: dict[str, tuple[str, Any]] = {}
    for name, facts in parts:
        for what, fact in facts.items():
            other, expected = (name, None) if fact is None else first.setdefault(what, (name, fact))
            # The same object in many files, which is then compared once.
            if fact is not expected and (got := compared(fact)) != (wanted := compared(expected)):
                raise StateError(
                    f"states: {name} and {other} are not of one run: they differ in {_difference(got, wanted, what)}\n"
                    "  Restore the states as they were saved, and join or load those of one run only, all of which "
                    "resumed from the same; delete the files of the other."
                )


def _difference(value: Any, other: Any, path: str) -> str:
    """The first place at which two values differ, with what is there."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        for name in sorted(value.keys() | other.keys()):
            if value.get(name) != other.get(name):
                return _difference(value.get(name), other.get(name), f"{path}.{name}")
    return f"{path}: {shown(value)}, not {shown(other)}"


def check_header(value: Any) -> None:
    """Check that `value` is the header of a generation.

    Raises:
        ValueError: The value is not a header, or of another version. One of `DAMAGE` if it is something else.
    """
    if value["format"] != FORMAT:
        raise ValueError(
            f"expected format {FORMAT}, got {shown(value['format'])}: start anew, or go on under their own number of "
            "ranks and workers with the version of streamdata that wrote them"
        )
    # One check for all fields, which weights, sizes and cuts would each need: no value of them is computed with before.
    if value["digest"] != digest_of(canonical(compared(value))):
        raise ValueError("expected what was written: the header has another digest")
