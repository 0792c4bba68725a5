"""A look at some records of a source: `K of its records, through its functions → tokens, samples, costs of one`."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from streamdata.fields import CURSOR, DATASET_NAME, DP_RANK, INDEX, KEY, SEED, STATES, URL, WORKER_ID
from streamdata.mixing.mixture import Mixture, cost_function
from streamdata.mixing.tree import Node
from streamdata.run import Lane, stable_seed
from streamdata.shards.readers import DamagedRecordError, Record, take_all
from streamdata.sources.files.parquet import RowGroupSource
from streamdata.sources.files.shard_source import BlockSource, SequentialSource
from streamdata.sources.functions.process_functions import Feed, call_per_record, run_bursts
from streamdata.sources.functions.tally import Tally
from streamdata.sources.source import Sample, describe_record, fields_of
from streamdata.states.cursor import Cursor, Entry, Position, node_of
from streamdata.tools.plan.draws import fresh_run
from streamdata.tools.view.shares import estimate_bytes

TOKEN_FIELDS = ("input_ids", "tokens", "sequence", "token_ids", "ids")
"""Fields with the token ids of a sample, as our sources and functions call them."""
_PADDING = ("attention_mask",)
"""Fields that are 0 at padding."""
_NORMAL = 1.96
"""Standard deviations to both sides that hold 95 % of a normal distribution."""
_MOST_FED = 64
"""How many records a stream function may pull, as a multiple of those that are sampled."""
_OUTPUTS = 8
"""Outputs that tell how many records one takes."""
_RUNS = 4
"""Places in parquet files at which rows are sampled: each costs the decoding of a row group."""

Known = tuple[Record, Position]


class Sampled(NamedTuple):
    """Averages over the records of a source, as far as some of them tell."""

    num_records: int
    """How many were looked at."""
    tokens: float | None
    """Tokens of a record, before packing; None where there are none."""
    interval: tuple[float, float] | None
    """Bounds of the mean of all records' tokens, with 95 %, if those looked at were drawn at random."""
    records_per_sample: float
    tokens_per_sample: float | None
    costs: Mapping[str, float]
    """The cost of a sample, by the path of a mixture above the source."""
    record_bytes: float
    """Bytes of a record's content."""


def sample_source(node: Node, num_records: int, weighers: Mapping[str, Any]) -> Sampled:
    """Read some records of a source, at random where they can be sought, else its first ones.

    Args:
        node: The source.
        num_records: How many.
        weighers: The `cost` of each mixture above it that has one, by path.

    Raises:
        Exception: What its reader or functions raise beyond `max_bad`.
    """
    tally = Tally(node.path, int(getattr(node.dataset, "max_bad", 0)))
    single, stream = (getattr(node.dataset, name, None) for name in ("single_process_fn", "process_fn"))

    def after_single(records: Iterator[Known]) -> Iterator[Known]:
        return records if single is None else call_per_record(single, records, 0, tally, lambda after: after)

    records = _records(node, num_records, tally)
    first = list(islice(records, num_records))
    before = list(after_single(iter(first)))
    count_tokens = getattr(stream, "num_tokens", num_tokens)  # a packer counts those that it will make of a record
    numbers = [found for sample, _ in before if (found := count_tokens(sample)) is not None]
    if stream is None:
        samples, taken = [sample for sample, _ in before], float(max(1, len(first)))
    else:
        samples, taken = _after_stream(stream, before, after_single(records), tally, num_records)
    of_samples = [found for sample in samples if (found := num_tokens(sample)) is not None]
    tokens, interval = _mean(numbers)
    if tokens is None and of_samples and stream is not None:
        tokens, interval = _mean([found * len(samples) / taken for found in of_samples])
    costs = {
        path: statistics.fmean(cost_function(cost)(s) for s in samples) for path, cost in weighers.items() if samples
    }
    per_sample = statistics.fmean(of_samples) if of_samples else None
    size = statistics.fmean(estimate_bytes(record) for record, _ in first) if first else 0.0
    return Sampled(len(first), tokens, interval, taken / max(1, len(samples)), per_sample, costs, size)


def draws_per_output(top: Node, num_outputs: int) -> float:
    """How many samples the yield function of a top takes for one of its own, by its first ones."""
    mixture = Mixture(fresh_run(top, Lane(dp_size=1, dp_rank=0, num_workers=1, worker=0)), top)
    drawn = outputs = 0
    for number, (sample, cursor) in enumerate(islice(mixture.start(None), num_outputs), 1):
        # Its states are those before the burst that is open, of which it has `given` so many.
        # Only the first output of a burst carries them.
        known = max((Entry(*entry).drawn for entry in sample[STATES] if "." not in node_of(entry).path), default=drawn)
        drawn, outputs = known, number - Cursor(*cursor).given
    return drawn / outputs if drawn and outputs else 1.0


def num_tokens(sample: Mapping[str, Any]) -> int | None:
    """How many tokens a sample has, padding left out; None where it has no token ids."""
    for name in TOKEN_FIELDS:
        ids = sample.get(name)
        if isinstance(ids, Sized) and not isinstance(ids, str | bytes | Mapping) and _are_integers(ids):
            mask = next((sample[mask] for mask in _PADDING if mask in sample), None)
            return int(np.asarray(mask).sum()) if mask is not None and len(mask) == len(ids) else len(ids)
    return None


def _are_integers(ids: Any) -> bool:
    kind = getattr(ids, "dtype", None)
    if kind is not None:
        return getattr(ids, "ndim", 0) == 1 and "int" in str(kind)
    return bool(len(ids)) and all(type(value) is int for value in ids)


def _mean(numbers: Sequence[float]) -> tuple[float | None, tuple[float, float] | None]:
    if not numbers:
        return None, None
    mean = statistics.fmean(numbers)
    if len(numbers) == 1:
        return mean, None
    half = _NORMAL * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return mean, (max(0.0, mean - half), mean + half)


def _after_stream(
    function: Any, first: list[Known], more: Iterator[Known], tally: Tally, num_records: int
) -> tuple[list[Sample], float]:
    """Some outputs of a stream function, and how many records it has pulled for them."""
    pulled, start = 0, (0, 0, 0, 0)

    def counted() -> Iterator[Known]:
        nonlocal pulled
        for pair in (*first, *islice(more, (_MOST_FED - 1) * num_records)):
            if pulled >= len(first) and len(outputs) >= _OUTPUTS:
                return
            pulled += 1
            yield pair

    outputs: list[Sample] = []
    feed = Feed(counted(), start, lambda _, after: after, 0, tally, "process_fn")
    taken = 0
    for output in run_bursts(function, feed, None):
        if not feed.exhausted or not outputs:  # what ends with the records is shorter than others
            outputs.append(output)
            taken = pulled
    return outputs, float(max(1, taken))


def _records(node: Node, num_records: int, tally: Tally) -> Iterator[Known]:
    """Records with the fields that a run gives them, in an order of no meaning; beyond the first many further ones."""
    fields = {DATASET_NAME: node.path, DP_RANK: 0, WORKER_ID: 0, SEED: stable_seed("sample", node.path)}
    most = _MOST_FED * num_records
    found: Iterator[Record | DamagedRecordError]
    match node.source:
        case BlockSource() as shards:
            found = _of_shards(shards, most, num_records)
        case SequentialSource() as shards:
            found = (record for shard in range(shards.num_blocks) for record in shards.shards.stream(shard))
        case source if hasattr(source, "num_records"):
            rows = _chosen(len(node.dataset), most).tolist()
            found = ({**fields_of(node.dataset[index], node.path), INDEX: index} for index in rows)
        case _:
            found = (fields_of(item, node.path) for item in node.dataset)
    for number, record in enumerate(found):
        if isinstance(record, DamagedRecordError):
            tally.fail(record, describe_record({URL: record.url, KEY: record.key}), "reading")
        else:
            yield {CURSOR: number, **record, **fields}, (0, 0, number, 0)


def _of_shards(source: BlockSource, most: int, at_once: int) -> Iterator[Record | DamagedRecordError]:
    chosen = _chosen(source.num_records, most, at_once if isinstance(source, RowGroupSource) else 0)
    ends = np.cumsum(source.shards.num_records)
    for begin in range(0, len(chosen), at_once):
        some = np.sort(chosen[begin : begin + at_once])
        shards = np.searchsorted(ends, some, side="right")
        firsts = some - (ends - source.shards.num_records)[shards]
        window = source.shards.window(shards, firsts, np.ones_like(some))
        if isinstance(source, RowGroupSource):
            window.come(iter(()))  # type: ignore[attr-defined]
        for number, record in zip(some.tolist(), take_all(window, np.arange(len(some))), strict=True):
            yield record if isinstance(record, DamagedRecordError) else {**record, CURSOR: number}


def _chosen(num_records: int, most: int, at_once: int = 0) -> Any:
    """Different records at random; in runs where some are taken at once."""
    rng = np.random.default_rng(0)  # the same plan each time
    if not at_once:
        some = rng.integers(0, num_records, min(most, 4 * num_records))
        return some[np.sort(np.unique(some, return_index=True)[1])]
    size = -(-at_once // _RUNS)
    starts = rng.integers(0, max(1, num_records - size + 1), _RUNS)
    return np.unique((starts[:, None] + np.arange(size)) % num_records)
