"""The plan of a run: `dataset, its length, topology → RunPlan`. Payloads are read of a sample alone."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from streamdata.errors import SourceError, shown
from streamdata.mixing import MergedDataset
from streamdata.mixing.lengths import MANY_EPOCHS, lengths_by
from streamdata.mixing.tree import Node, mean_node_shares, num_in, tree_of
from streamdata.run import Lane
from streamdata.run.per_process import most_open_files
from streamdata.shards.ahead.read_ahead import AheadSettings, ahead_settings
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.foreign.own_stream import OwnStreamSource
from streamdata.stores.datasets.base_dataset import BaseDataset
from streamdata.tools.plan.demand import Demand, Repeats, SourceShares, Stream, share_lines
from streamdata.tools.plan.draws import Draw, LaneBlocks, first_draws, lane_blocks
from streamdata.tools.plan.sampled import Sampled, draws_per_output, sample_source

_TAKEN_BYTES: Final = 8 << 20
"""Bytes that a reader of local shards reads at once, and holds, at most."""
_OWN_FILES: Final = 16
"""Open files of Python, torch and the queue to the trainer, about."""


class Needs(NamedTuple):
    """Memory and files that one worker process needs."""

    held_bytes: int
    """Bytes that its sources hold at most, the process itself and functions left out."""
    process_bytes: int
    """Memory of this process, with the recipe built: a worker that is forked shares most of it."""
    descriptors: int
    """Open files and connections at most."""
    unknown: list[str]
    """Sources of which it is not known what they hold, by path."""


def needs_of(top: Node, settings: AheadSettings, sampled: Mapping[str, Sampled]) -> Needs:
    """Estimate what a worker needs that reads a tree."""
    leaves = top.leaves()
    held = {node.path: _held_bytes(node, sampled.get(node.path)) for node in leaves}
    sources = [node.source for node in leaves]
    shards = [source.shards for source in sources if isinstance(source, BlockSource | SequentialSource)]
    is_remote = any(each.has_remote for each in shards)
    num_files = sum(len(each.urls) for each in shards)
    arrays = sum(len(node.dataset.store.arrays()) for node in leaves if isinstance(node.dataset, BaseDataset))
    most = most_open_files()
    descriptors = min(2 * num_files, most) + 2 * min(arrays, most)  # a shard has an index; arrays have sums
    ahead = settings.read_ahead_bytes if is_remote else 0
    return Needs(
        held_bytes=ahead + math.ceil(sum(size for size in held.values() if size is not None)),
        process_bytes=_resident_bytes(),
        descriptors=_OWN_FILES + descriptors + (settings.connections if is_remote else 0),
        unknown=[path for path, size in held.items() if size is None],
    )


def _held_bytes(node: Node, sampled: Sampled | None) -> float | None:
    match node.source:
        case RowGroupSource() as source:
            return int(source.shards.sizes.sum()) if source.shards.fits else 2 * source.shards.window_bytes
        case BlockSource() as source:
            return 0.0 if source.shards.has_remote else min(_TAKEN_BYTES, int(source.shards.sizes.sum()))
        case SequentialSource() as source:
            return None if sampled is None else sampled.record_bytes * max(1, source.records_per_group)
    return 0.0 if isinstance(node.dataset, BaseDataset) else None


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


FINE: Final = "fine"
MIND: Final = "mind"
HURTS: Final = "hurts"
"""How much there is to do about a source."""

_FEW_SOURCES: Final = 64
"""Up to so many sources the first repeat is looked for where shares change; of more the mean share tells it."""
_MAX_LISTED: Final = 4
_HALVINGS: Final = 60
_ROUNDS: Final = 8
"""Attempts to find the number of samples that have so many tokens by their mean shares."""

Progressed = Callable[[str, int, int], None]
"""Is told what is being looked at, how many of them are done, and of how many."""


class Amount(NamedTuple):
    """The length of a run, and its ranks and workers."""

    samples: float | None = None
    tokens: float | None = None
    """Where the samples are not given."""
    dp_size: int = 1
    num_workers: int = 0
    batch_size: int = 1
    """Samples in a batch of one rank."""

    @property
    def lane(self) -> Lane:
        """The first lane."""
        return Lane(dp_size=self.dp_size, dp_rank=0, num_workers=max(1, self.num_workers), worker=0)


@dataclass(kw_only=True)
class SourcePlan:
    """A source in the plan of a run."""

    name: str
    """Its path of names."""
    records: int | None
    """None where nobody has counted them."""
    records_are_estimated: bool
    """Whether `records` is the share of a part by hash; the parts' own numbers show when they are read."""
    tokens: float | None
    tokens_are_estimated: bool
    tokens_per_record: float | None
    tokens_interval: tuple[float, float] | None
    """Bounds of `tokens`, with 95 %; of a source that nobody has counted, of the tokens of a record."""
    share: float
    """The share of the whole stream that the recipe wants, on average over the run."""
    samples: float
    """Samples that the run takes of it."""
    records_read: float
    epochs: float | None
    first_repeat: int | None
    """The sample of the job, from 0, that is the first one of a second epoch."""
    first_repeat_is: str | None
    """`exact`; `within`, where lanes come to the second epoch from then on, up to `first_repeat_last`; `estimated`."""
    first_repeat_last: int | None
    bytes: float | None
    """Bytes that the run reads of it."""
    blocks: int | None
    advice: str
    level: str
    """One of fine, mind and hurts."""


@dataclass(kw_only=True)
class RunPlan:
    """The plan of a run."""

    samples: float
    """Samples that the run delivers."""
    tokens: float | None
    """Tokens in these samples, as far as that is known."""
    ends_after: float | None
    """The stream's own end, where that comes first."""
    amount: Amount
    sources: list[SourcePlan]
    draws: list[Draw]
    """The first of rank 0, worker 0."""
    lanes: list[LaneBlocks]
    schedules: list[SourceShares]
    needs: Needs
    notes: list[str] = field(default_factory=list)


def make_plan(
    dataset: MergedDataset,
    amount: Amount,
    *,
    num_sampled: int,
    num_draws: int,
    progressed: Progressed = lambda *_: None,
) -> RunPlan:
    """Say what a run will do.

    Args:
        dataset: The mixture.
        amount: How long the run is, and on how many ranks and workers.
        num_sampled: Records of each source that are read; 0 reads nothing.
        num_draws: First draws that are shown.
        progressed: Told how far it is.

    Raises:
        SourceError: A source has no records; or tokens are asked for, and nobody knows how many a sample has.
    """
    top = tree_of(dataset)
    sampled = dict(_sample(top, num_sampled, progressed))
    return _Planner(dataset, top, amount, sampled).plan(num_draws, progressed)


def _sample(top: Node, num_records: int, progressed: Progressed) -> Iterator[tuple[str, Sampled]]:
    weighers: dict[str, dict[str, Any]] = {"": {}}
    for node in top.walk():
        own = {} if not node.is_mixture or node.dataset.cost is None else {node.path: node.dataset.cost}
        for child in node.children:
            weighers[child.path] = weighers[node.path] | own
    leaves = top.leaves()
    for number, node in enumerate(leaves):
        progressed("sources sampled", number, len(leaves))
        # A store has counted its tokens, and gives each record as it is.
        is_known = isinstance(node.dataset, BaseDataset) and not (_has_function(node) or weighers[node.path])
        if num_records and not is_known:
            yield node.path, sample_source(node, num_records, weighers[node.path])


def _has_function(node: Node) -> bool:
    return any(getattr(node.dataset, name, None) for name in ("single_process_fn", "process_fn"))


class _Planner:
    def __init__(self, dataset: MergedDataset, top: Node, amount: Amount, sampled: Mapping[str, Sampled]) -> None:
        self._dataset, self._top, self._amount, self._sampled = dataset, top, amount, sampled
        self._leaves = top.leaves()
        self._per_sample = {path: found.records_per_sample for path, found in sampled.items()}
        self._costs = {(above, path): cost for path, found in sampled.items() for above, cost in found.costs.items()}
        self._stream = Stream(top, self._per_sample, self._costs)
        self._pulls = self._pulls_per_sample()

    def plan(self, num_draws: int, progressed: Progressed) -> RunPlan:
        amount, top = self._amount, self._top
        samples = amount.samples if amount.samples is not None else self._samples_of_tokens(amount.tokens or 0.0)
        demand = self._stream.demand(samples * self._pulls)
        lengths = self._lengths(demand, samples * self._pulls)
        repeats, sources = Repeats(top, amount.lane, amount.batch_size), []
        for number, (node, length) in enumerate(zip(self._leaves, lengths, strict=True)):
            progressed("sources planned", number, len(self._leaves))
            sources.append(self._source(node, length, demand, repeats, samples))
        ends = None if demand.ends_after is None else demand.ends_after / self._pulls
        ahead = ahead_settings(self._dataset.read_ahead_bytes, self._dataset.connections)
        return RunPlan(
            samples=samples,
            tokens=self._tokens_in(demand) or None,  # none in any source: not known, rather than 0
            ends_after=ends,
            amount=amount,
            sources=sources,
            draws=first_draws(top, amount.lane, num_draws, self._costs) if num_draws else [],
            lanes=lane_blocks(top, amount.lane) if num_draws else [],
            schedules=share_lines(top, samples * self._pulls),
            needs=needs_of(top, ahead, self._sampled),
            notes=list(self._notes(demand)),
        )

    def _pulls_per_sample(self) -> float:
        """Samples that the top draws for one that it delivers: 1 but for a yield function."""
        if self._dataset.customized_yield_fn is None or not self._sampled:
            return 1.0
        return draws_per_output(self._top, max(found.num_records for found in self._sampled.values()))

    def _lengths(self, demand: Demand, draws: float) -> list[dict[str, Any]]:
        taken = {
            node.path: demand.samples[node.path]
            * (1.0 if getattr(node.dataset, "length", None) else self._per_sample.get(node.path, 1.0))
            for node in self._leaves
        }
        return lengths_by(self._top, mean_node_shares(self._top, draws), taken)

    def _source(
        self, node: Node, length: dict[str, Any], demand: Demand, repeats: Repeats, samples: float
    ) -> SourcePlan:
        records, drawn, epochs = num_in(node, "records"), demand.samples[node.path], length["epochs"]
        first, last, how = self._first_repeat(node, records, demand, repeats, samples)
        tokens, per_record, interval = self._tokens(node, records)
        size = _bytes_of(node)
        advice, level = self._advice(node, length, demand)
        return SourcePlan(
            name=node.path,
            records=records,
            records_are_estimated=node.part is not None,
            tokens=tokens,
            tokens_are_estimated=num_in(node, "tokens") is None and tokens is not None,
            tokens_per_record=per_record,
            tokens_interval=interval,
            share=length["share"],
            samples=drawn,
            records_read=drawn * self._per_sample.get(node.path, 1.0),
            epochs=epochs,
            first_repeat=first,
            first_repeat_is=how,
            first_repeat_last=last,
            bytes=None if size is None or epochs is None else size * epochs,
            blocks=None if isinstance(node.source, OwnStreamSource) or node.source is None else node.source.num_blocks,
            advice=advice,
            level=level,
        )

    def _first_repeat(
        self, node: Node, records: int | None, demand: Demand, repeats: Repeats, samples: float
    ) -> tuple[int | None, int | None, str | None]:
        end = samples if demand.ends_after is None else demand.ends_after / self._pulls
        source, epoch = node.source, None if not records else records / self._per_sample.get(node.path, 1.0)
        is_far = epoch is not None and 2 * demand.samples[node.path] < epoch
        if is_far and source is not None and source.num_blocks >= self._amount.lane.count:
            return None, None, None
        exact = repeats.first(node)
        if exact is not None:
            how = "exact" if self._amount.lane.count == 1 else "within"
            return (exact.sample, exact.last, how) if exact.sample < end else (None, None, None)
        if epoch is None or demand.samples[node.path] <= epoch * (1 + 1e-9):
            return None, None, None
        is_even = not self._top.has_schedule and all(each.is_endless for each in self._top.walk())
        if is_even or len(self._leaves) > _FEW_SOURCES:
            return int(end * epoch / demand.samples[node.path]), None, "estimated"
        low, high = 0.0, end * self._pulls
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            taken = self._stream.demand(middle).samples[node.path]
            low, high = (middle, high) if taken <= epoch else (low, middle)
        return int(high / self._pulls), None, "estimated"

    def _tokens(self, node: Node, records: int | None) -> tuple[float | None, float | None, tuple[float, float] | None]:
        """All of a source, those of a record, and the interval."""
        exact, sampled = num_in(node, "tokens"), self._sampled.get(node.path)
        if exact is not None:
            return exact, None if not records else exact / records, None
        if sampled is None or sampled.tokens is None:
            return None, None, None
        if records is None:
            return None, sampled.tokens, sampled.interval
        low_high = None if sampled.interval is None else (records * sampled.interval[0], records * sampled.interval[1])
        return records * sampled.tokens, sampled.tokens, low_high

    def _tokens_per_sample(self, node: Node) -> float | None:
        sampled, exact, records = self._sampled.get(node.path), num_in(node, "tokens"), num_in(node, "records")
        if sampled is not None:
            return sampled.tokens_per_sample or 0.0
        return None if exact is None or not records or _has_function(node) else exact / records

    def _tokens_in(self, demand: Demand) -> float | None:
        each = {node.path: self._tokens_per_sample(node) for node in self._leaves}
        if None in each.values():
            return None
        return math.fsum(demand.samples[path] * (number or 0.0) for path, number in each.items())

    def _samples_of_tokens(self, tokens: float) -> float:
        for node in self._leaves:
            if self._tokens_per_sample(node) is None:
                raise SourceError(
                    f"source {shown(node.path)}: expected to know how many tokens a sample of it has, to plan a run by "
                    "tokens, got records that nobody has looked at\n  Give --sample, or the run's length as --samples."
                )
        samples = tokens
        for _ in range(_ROUNDS):  # the shares, and with them the tokens of a sample, depend on the length
            got = self._tokens_in(self._stream.demand(samples * self._pulls))
            if not got:
                raise SourceError(
                    "the top mixture: expected samples with tokens, to plan a run by tokens, got none in any source\n"
                    "  Give the run's length as --samples."
                )
            samples *= tokens / got
            if math.isclose(got, tokens, rel_tol=1e-6):
                break
        return float(math.ceil(samples))

    def _advice(self, node: Node, length: dict[str, Any], demand: Demand) -> tuple[str, str]:
        parts, level = [], FINE
        if length["advice"]:
            parts.append(length["advice"])
        epochs = length["epochs"]
        if epochs is None:
            parts.append(
                "not counted: its records show only when they are read, so epochs and repeats are not known; set its "
                "`length` to have them"
            )
            level = MIND
        elif epochs > MANY_EPOCHS:
            level = HURTS if epochs > MANY_EPOCHS**2 else MIND
        if node.path in demand.ended and demand.ends_after is not None:
            parts.append("is at its end before the run is, and ends the stream or a part of it")
            level = HURTS
        few = self._few_blocks(node)
        if few:
            parts.append(few)
            level = HURTS if level == HURTS or not node.is_endless else MIND
        return "; ".join(parts), level

    def _few_blocks(self, node: Node) -> str:
        lanes, source = self._amount.lane.count, node.source
        if source is None or isinstance(source, OwnStreamSource) or source.num_blocks >= lanes:
            return ""
        has = f"{source.num_blocks:,} {'block' if source.num_blocks == 1 else 'blocks'} for {lanes:,} lanes"
        if isinstance(source, SequentialSource):
            remedy = "cut it into more shards, or decompress them"
        elif isinstance(source, BlockSource):
            remedy = "give it a smaller block_size, or more records"
        else:
            remedy = "add records"
        if node.is_endless:
            return (
                f"{has}: lanes read other epochs of it at the same time, so records repeat before all were read; "
                f"{remedy}"
            )
        return f"{has}: {lanes - source.num_blocks:,} lanes get none of it, and go on without it; {remedy}"

    def _notes(self, demand: Demand) -> Iterator[str]:
        packed = [node.path for node in self._leaves if getattr(node.dataset, "process_fn", None) is not None]
        functions = [node.path for node in self._leaves if _has_function(node)]
        if functions and self._sampled:
            yield (
                "estimated of a sample, since functions decide how many records become one: samples, epochs, repeats "
                f"and bytes of {listed(functions)}"
            )
        elif functions:
            yield f"as if each record became one sample: {listed(functions)} have functions, and nothing was sampled"
        if packed:
            yield "tokens are those of records before packing"
        if any(node.is_mixture and node.dataset.cost is not None for node in self._top.walk()):
            yield "shares count costs" + ("" if self._sampled else ", taken to be alike, since nothing was sampled")
        if any(isinstance(weight, list) for weight in self._top.tree().weights.values()):
            yield (
                "between the points of schedules shares are linear, percents are not: beside 0.6, [[0, 10], [2000, 0]] "
                "gives 944 of 2,000 samples, where a linear percent would give 1,655"
            )
        if self._dataset.customized_yield_fn is not None:
            yield f"a sample takes {self._pulls:.3g} draws of the top, by its yield function"
        if any(n.path and n.is_mixture and n.dataset.customized_yield_fn is not None for n in self._top.walk()):
            yield "as if inner yield functions gave one sample for each that they pull"
        if self._dataset.skip is not None:
            yield "records to skip are counted as if they were read"
        if demand.ends_after is not None and demand.ended:
            yield f"the stream ends before the run: {listed(demand.ended)} at their end"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _bytes_of(node: Node) -> float | None:
    """Bytes that an epoch of a source reads."""
    match node.source:
        case RowGroupSource() as source:
            size = float(sum(stamp.size for stamp in source.shards.groups.stamps))
        case BlockSource() as source:
            size = float(source.shards.sizes.sum())
        case SequentialSource() as source:
            size = float(sum(num_bytes for _, num_bytes in source.shards.identity()))
        case _ if isinstance(node.dataset, BaseDataset):
            size = float(sum(array.count * array.dtype.itemsize for array in node.dataset.store.arrays()))
        case _:
            return None
    return size if node.part is None else size * node.part.share
