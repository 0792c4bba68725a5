"""A look at some records of a source: `K of its records, through its functions → tokens, samples, costs of one`."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from streamdata.fields import CURSOR, DATASET_NAME, DP_RANK, INDEX, KEY, RECORD, SEED, TOKEN_FIELDS, URL, WORKER_ID
from streamdata.io.storage import Int64s
from streamdata.mixing.deals import Deals
from streamdata.mixing.mixture import Mixture, cost_function
from streamdata.mixing.tree import Node, num_in
from streamdata.run import Lane, Permutation, stable_seed
from streamdata.shards.readers import DamagedRecordError, Record
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.functions.process_functions import Feed, StreamFns, call_per_record, run_bursts
from streamdata.sources.functions.tally import Tally
from streamdata.sources.functions.tally import num_tokens as count_ids
from streamdata.sources.source import Sample, describe_record, fields_of
from streamdata.states.cursor import Position, node_of
from streamdata.states.progress import Progress
from streamdata.tools.plan.course import Averages, Pulls, blank_tree, fresh_run
from streamdata.tools.plan.stragglers import lengths_in
from streamdata.tools.view.totals import estimate_bytes

_JOINED_FED: Final = 4
"""How many times more samples a function is given that makes one of several."""
_MOST_FED: Final = 1 << 13
"""How many records a stream function may pull."""
_ALL_FED: Final = 1 << 18
"""How many those of all sources may pull together."""
_LEAST_FED: Final = 1000
"""How many samples a yield function pulls at least."""
_BURSTS: Final = 24
"""Bursts that tell how many records an output takes: of each a packer carries something over."""
_MOST_KEPT: Final = 256
"""Outputs that are looked at."""
_RUNS: Final = 4
"""Places in parquet files at which rows are sampled: each costs the decoding of a row group."""
_KEPT_BYTES: Final = 1 << 27
"""Samples of all sources that are kept for yield functions."""

Pair = tuple[Record, Position]


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Some records of a source."""

    num_records: int
    """How many were looked at."""
    tokens: float | None
    """Tokens of a record on average, before packing; None where there are none."""
    record_bytes: float
    """Bytes of a record's content, on average."""
    samples: Sequence[Sample]
    """Samples that it gives, where a yield function above it pulls them."""


def sample_tree(
    top: Node, num_records: int, averages: Averages, progressed: Callable[[str, int, int], None]
) -> dict[str, Sampled]:
    """Look at some records of each source, and at what functions do with them; only at stores' sizes if at none.

    Args:
        top: The tree.
        num_records: How many of each source.
        averages: Is told what functions do.
        progressed: Is told what is looked at, how many of them are done, and of how many.
    """
    leaves, sampled = top.leaves(), dict[str, Sampled]()
    above: dict[str, list[Node]] = {"": []}
    for node in top.walk():
        above |= {child.path: [*above[node.path], node] for child in node.children}
    for number, node in enumerate(leaves):
        progressed("sources sampled", number, len(leaves))
        records, tokens = num_in(node, "records"), num_in(node, "tokens")
        has_function = any(getattr(node.dataset, name, None) for name in ("single_process_fn", "process_fn"))
        if num_records:
            sampled[node.path] = sample_source(node, num_records, above[node.path], averages, len(leaves))
        elif records and tokens is not None and not has_function:
            averages.tokens[node.path] = tokens / records
    progressed("sources sampled", len(leaves), len(leaves))
    pools = {path: recycled(found.samples) for path, found in sampled.items() if found.samples}
    for node in reversed(list(top.walk())):  # those below come first
        if pools and node.is_mixture and node.dataset.customized_yield_fn is not None:
            averages.pulls[node.path], outputs = _measure_yield_function(node, averages, pools)
            pools[node.path] = recycled(outputs)
    return sampled


def sample_source(
    node: Node, num_records: int, above: Sequence[Node], averages: Averages, num_sources: int = 1
) -> Sampled:
    """Read some records of a source, at random where they can be sought, else its first ones.

    Args:
        node: The source.
        num_records: How many.
        above: The mixtures above it.
        averages: Is told what its functions do.
        num_sources: How many are looked at: all of them together are not to take too much.

    Raises:
        Exception: What its reader or functions raise beyond `max_bad`.
    """
    tally = Tally(node.path, int(getattr(node.dataset, "max_bad", 0)))
    single, stream = (getattr(node.dataset, name, None) for name in ("single_process_fn", "process_fn"))
    first = list(islice(_records(node, num_records, tally), num_records))
    before = first if single is None else list(call_per_record(single, first, 0, tally, lambda after: after))
    per_sample = len(first) / max(1, len(before)) or 1.0
    samples, pulls = [sample for sample, _ in before], Pulls(per_sample, per_sample)
    count = getattr(stream, "num_tokens", num_tokens)  # a packer counts those that it will make of a record
    counts = [found for sample in samples if (found := count(sample)) is not None]
    tokens = statistics.fmean(counts or [0])
    if stream is not None and before:
        fed = islice(recycled(samples), min(_MOST_FED, max(2 * len(before), _ALL_FED // num_sources)))
        pulls, samples = measure_pulls(stream, fed, 2 * len(before), tally, "process_fn")
        pulls = Pulls(pulls.each * per_sample, pulls.first * per_sample)
    if pulls != (1.0, 1.0):
        averages.pulls[node.path] = pulls
    counts = [found for sample in samples if (found := num_tokens(sample)) is not None]
    averages.tokens[node.path] = of_samples = statistics.fmean(counts or [0])
    for mixture in above if samples else ():
        if (cost := mixture.dataset.cost) is not None:
            averages.costs[mixture.path, node.path] = statistics.fmean(map(cost_function(cost), samples))
    is_yielded = any(mixture.dataset.customized_yield_fn is not None for mixture in above)
    sizes = np.cumsum([estimate_bytes(sample) for sample in samples if is_yielded])
    return Sampled(
        num_records=len(first),
        tokens=tokens or (of_samples / pulls.each if of_samples else None),
        record_bytes=statistics.fmean(estimate_bytes(record) for record, _ in first) if first else 0.0,
        samples=samples[: 1 + int(np.searchsorted(sizes, _KEPT_BYTES / num_sources))] if is_yielded else (),
    )


def recycled(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield copies of them without end, in another order each time."""
    rng = np.random.default_rng(0)  # the same plan each time
    while samples:
        for number in rng.permutation(len(samples)).tolist():
            yield dict(samples[number])


def measure_pulls(
    function: StreamFns, samples: Iterable[Sample], least: int, tally: Tally, what: str
) -> tuple[Pulls, list[Sample]]:
    """Run a stream function over as many samples as tell how it pulls them, and at least so many.

    Returns:
        That, and the first samples that it gave.
    """
    first: list[Sample] = []
    bursts: list[tuple[int, int]] = []
    """How many outputs were given before the first output of each burst, and how many samples were pulled for it."""
    pulled = given = 0

    def counted() -> Iterator[Pair]:
        nonlocal pulled
        for sample in samples:
            # How well samples fit into rows differs from row to row: what joins them is looked at for longer.
            is_known = pulled >= least * (_JOINED_FED if pulled > given else 1)
            if is_known and len(bursts) > _BURSTS:
                return
            pulled += 1
            yield sample, (0, 0, pulled, 0)

    feed = Feed(counted(), (0, 0, 0, 0), 0, tally, what)
    for output in run_bursts(function, feed, None):
        # What ends with the samples is shorter than others; and of one sample a function may make any number.
        if (feed.exhausted and len(bursts) > _BURSTS) or given >= _MOST_FED:
            break
        if not bursts or pulled > bursts[-1][1]:
            bursts.append((given, pulled))
        given += 1
        if given <= _MOST_KEPT:
            first.append(output)
    if len(bursts) <= _BURSTS:
        return Pulls(pulled / max(1, given), float(bursts[0][1] if bursts else pulled)), first
    # What the first burst pulled is carried over by each: those between it and the last one are as all further ones.
    each = (bursts[-2][1] - bursts[0][1]) / (bursts[-1][0] - bursts[1][0])
    return Pulls(each, max(each, float(bursts[0][1]))), first


def _measure_yield_function(
    node: Node, averages: Averages, pools: Mapping[str, Iterator[Sample]]
) -> tuple[Pulls, list[Sample]]:
    """Run the yield function of a mixture over sampled samples, in the order in which a lane draws its sources.

    Args:
        node: The mixture.
        averages: What is known of the functions below it.
        pools: Samples of the sources, and of the mixtures with yield functions, below it, by path.
    """
    lane = Lane(dp_size=1, dp_rank=0, num_workers=1, worker=0)
    blank = blank_tree(node, 1, averages)
    drawn = Mixture(fresh_run(blank, lane, Deals(Progress({}), 0, 1)), blank).draw()
    paths = ([node_of(entry).path for entry in reversed(sample[CURSOR])] for sample in drawn)
    samples = (next(pools[path]) for below in paths for path in islice(filter(pools.__contains__, below), 1))
    tally = Tally(node.path or "the top", int(getattr(node.dataset, "max_bad", 0)))
    fed, function = islice(samples, _MOST_FED), node.dataset.customized_yield_fn
    pulls, outputs = measure_pulls(function, fed, _LEAST_FED, tally, "customized_yield_fn")
    averages.lengths = lengths_in(outputs, function)  # the top is measured last
    return pulls, outputs


def num_tokens(sample: Mapping[str, Any]) -> int | None:
    """How many tokens a sample has, as states count them; None where it has no token ids."""
    found = [count_ids(sample[name]) for name in TOKEN_FIELDS if name in sample]
    return sum(found) if found else None


def _records(node: Node, num_records: int, tally: Tally) -> Iterator[Pair]:
    """Different records with the fields that a run gives them, in an order of no meaning."""
    fields = {DATASET_NAME: node.path, DP_RANK: 0, WORKER_ID: 0, SEED: stable_seed("sample", node.path)}
    found: Iterator[Record | DamagedRecordError]
    match node.source:
        case BlockSource() as source:
            # Of parquet in runs: each costs the decoding of a row group.
            num_runs = _RUNS if isinstance(source, RowGroupSource) else num_records
            chosen = _chosen(source.num_records, num_records, num_runs).tolist()
            found = (
                one if isinstance(one, DamagedRecordError) else {**one, RECORD: (0, 0, row, 0)}
                for row, one in zip(chosen, source.fetch(chosen), strict=True)
                if one is not None  # all are there
            )
        case SequentialSource() as source:
            found = (record for shard in range(source.num_blocks) for record in source.shards.stream(shard))
        case source if hasattr(source, "num_records"):
            indices = _chosen(len(node.dataset), num_records, num_records).tolist()
            found = ({**fields_of(node.dataset[index], node.path), INDEX: index} for index in indices)
        case _:
            found = (fields_of(item, node.path) for item in node.dataset)
    for number, record in enumerate(found):
        if isinstance(record, DamagedRecordError):
            tally.fail(record, describe_record({URL: record.url, KEY: record.key}), "reading")
        else:
            yield {RECORD: (0, 0, number, 0), **record, **fields}, (0, 0, number, 0)


def _chosen(num_records: int, most: int, num_runs: int) -> Int64s:
    """The numbers of different records at random, or of all; sorted, in so many runs."""
    size = -(-most // num_runs)
    runs = Permutation(max(1, num_records // size), 0)(np.arange(min(num_runs, max(1, num_records // size))))
    chosen = np.sort((runs[:, None] * size + np.arange(size)).ravel())
    return chosen[chosen < num_records] if most < num_records else np.arange(num_records)
