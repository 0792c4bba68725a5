"""Orders that must not change: who resumes with a newer version goes on in the order in which the run began.

Each pin is a hash of what one lane draws, as `(name, place)`. A pin that is to change changes by intent, in a commit
that says so. The hashes depend on no directory: seeds are made of names, and a place is the base name of a url.
"""

import gzip
import json
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata import (
    Cost,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    PackTokens,
    ParquetDataset,
    to_state,
)
from tests.mixing.test_resume import Packer, filter_stream, irregular_stream, many_to_one_stream, one_to_many
from tests.shard_files import write_jsonl, write_tars
from tests.sources.own_streams import Stateful
from tests.streams import Numbers, NumbersAhead, in_lane, loaded, resumed

DRAWS = 300
BEFORE = 31
"""Samples before a resume: an odd number, so that the workers change places."""


def named(source, name, percent=1.0):
    """A source with what a recipe sets on it."""
    source.name, source.percent = name, percent
    return source


def three(percents=(0.7, 0.2, 0.1)):
    """Sources whose epochs end early and do not divide by the lanes."""
    return [Numbers("a", 61, percents[0]), NumbersAhead("b", 35, percents[1]), Numbers("c", 11, percents[2])]


def flat(_):
    return MergedDataset(three(), seed=7)


def heavier(_):
    return MergedDataset(three((0.1, 0.2, 0.7)), seed=7)


def joined(_):
    return MergedDataset([Numbers("new", 23, 0.3), *three()], seed=7)


def left(_):
    return MergedDataset(three()[1:], seed=7)


def second_pass(_):
    dataset = MergedDataset(three(), seed=7)
    dataset.set_epoch(1)
    return dataset


def unshuffled(folder):
    shards = JsonlIterableDataset(write_jsonl(folder / "lines", [30, 7]))
    sources = [*three(), named(shards, "lines")]
    return MergedDataset(sources, shuffle_unstreaming_subsets=False, shuffle_streaming_subsets=False)


def many(_):
    return MergedDataset([Numbers(f"s{k:02}", 40 + k) for k in range(40)], seed=1)


def many_unequal(_):
    return MergedDataset([Numbers(f"s{k:02}", 40 + k, 1 / (k + 1)) for k in reversed(range(40))], seed=1)


def vast(_):
    return MergedDataset([Numbers("billion", 10**9), NumbersAhead("trillion", 10**12)], seed=-3)


def nested(_):
    leaf = Numbers("leaf", 17, 0.3, process_fn=filter_stream)
    inner = named(MergedDataset([leaf, Numbers("other", 40, 0.7)], seed=4), "inner", 0.6)
    middle = named(MergedDataset([inner, Numbers("beside", 29)], shuffle_unstreaming_subsets=False), "middle", 2)
    return MergedDataset([Numbers("first", 50), middle], seed=7)


def finite(_):
    return MergedDataset([Numbers("a", 200), Numbers("b", 450, 3)], cyclic=False)


def finite_to_the_last(_):
    return MergedDataset([Numbers("a", 200), Numbers("b", 450, 3)], cyclic=False, stop="all_exhausted")


def functions(_):
    sources = [
        Numbers("single", 41, single_process_fn=one_to_many),
        Numbers("stream", 83, process_fn=irregular_stream),
        Numbers("packer", 53, process_fn=Packer()),
    ]
    return MergedDataset(sources, seed=2)


def yielding(_):
    return MergedDataset(three(), seed=7, customized_yield_fn=many_to_one_stream)


def yielding_heavier(_):
    return MergedDataset(three((0.1, 0.2, 0.7)), seed=7, customized_yield_fn=many_to_one_stream)


def costly(_):
    return MergedDataset(three((1, 1, 1)), seed=7, cost=lambda sample: 1 + sample["value"] % 7)


def side_by_side(_):
    return MergedDataset([Numbers("a", 60, records_per_block=4), NumbersAhead("b", 45, records_per_block=5)], seed=7)


def ids(record):
    return {"input_ids": [record["value"]] * (1 + record["value"] * 7 % 11)}


def balanced(_):
    sources = [Numbers(name, size, 1, single_process_fn=ids) for name, size in (("a", 61), ("b", 35))]
    packer = PackTokens(40, balance=Cost(10, 1), rows=16)
    return MergedDataset(sources, seed=7, customized_yield_fn=packer)


def in_parts(_):
    spread, tail = Numbers("spread", 90), NumbersAhead("tail", 70)
    for source, part, by in ((spread, "valid", "seed"), (tail, "train", "tail")):
        source.parts, source.part, source.parts_by = "6,3,1", part, by
    return MergedDataset([spread, tail], seed=7)


def tars(folder):
    source = MetaDistributedWebDataset(write_tars(folder, [40, 3, 70]), meta_names=["score"], shuffle_buffer=16)
    return MergedDataset([named(source, "tars"), Numbers("a", 61)], seed=7)


def lines(folder):
    """Enough records for blocks of several."""
    source = JsonlIterableDataset(write_jsonl(folder, [5000, 1, 4003]), block_size=4, shuffle_buffer=24)
    return MergedDataset([named(source, "lines")], seed=7)


def write_parquet(folder, group):
    """Two files of several row groups."""
    for name, count in (("a", 4000), ("b", 1050)):
        path = folder / f"{name}.parquet"
        pq.write_table(pa.table({"value": range(count)}), path, row_group_size=group, use_dictionary=False)
    return str(folder)


def small_parquet(folder):
    """All of it stays decoded: blocks of 9 rows, of which there are 512 and more."""
    source = ParquetDataset(write_parquet(folder, 1000), shuffle_buffer=300)
    return MergedDataset([named(source, "rows"), Numbers("a", 61)], seed=7)


def large_parquet(folder):
    """A few row groups are kept: a block is a group."""
    source = ParquetDataset(write_parquet(folder, 100), shuffle_buffer=300, max_open_bytes=40_000)
    return MergedDataset([named(source, "rows")], seed=7)


def compressed(folder, suffix):
    """A folder with the shards of `folder` that have the suffix, compressed."""
    target = folder / "compressed"
    target.mkdir(exist_ok=True)
    for path in folder.glob(f"*{suffix}"):
        (target / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    return str(target)


def compressed_lines(folder):
    write_jsonl(folder, [50, 20, 33])
    source = JsonlIterableDataset(compressed(folder, ".jsonl"), shuffle_buffer=16)
    return MergedDataset([named(source, "lines"), Numbers("a", 61)], seed=7)


def compressed_tars(folder):
    write_tars(folder, [50, 20, 33], sidecars=False)
    source = MetaDistributedWebDataset(compressed(folder, ".tar"), shuffle_buffer=16)
    return MergedDataset([named(source, "tars"), Numbers("a", 61)], seed=7)


def iterable(_):
    source = Stateful("own", size=71, lanes="stride", single_process_fn=lambda r: {**r, "__index__": r["value"]})
    return MergedDataset([source, Numbers("a", 61)], seed=7)


FRESH = {
    "flat": (flat, "75a4321557d0", "7db19dbb794a"),
    "second pass": (second_pass, "ef9ba74319e9", "03386328fbbc"),
    "unshuffled": (unshuffled, "8393e507fadc", "46023e5a578f"),
    "many of equal weight": (many, "2ec6bf4bf0cf", "34a01db71176"),
    "many of unequal weight": (many_unequal, "c53674a4eb53", "58857959a17a"),
    "vast": (vast, "9576979bd99d", "47db64a4b1cb"),
    "nested": (nested, "9647050414ac", "738ad11fcd14"),
    "finite": (finite, "fbd980115c73", "6d5d354cb972"),
    "finite to the last": (finite_to_the_last, "a50e13dfaf2a", "f80c0a3d4148"),
    "functions": (functions, "40810fe453a6", "54d3e5ee427e"),
    "a yield function": (yielding, "0181a4482060", "3affa386deb3"),
    "rows of alike cost": (balanced, "e73852fc22af", "a1d5ee9158a3"),
    "cost": (costly, "8dc5641e0c41", "047f3bc660aa"),
    "side by side": (side_by_side, "ad1e06cb68cc", "10cf8b53e3a7"),
    "parts": (in_parts, "56a83722f205", "1f3bc40dcafb"),
    "indexed tars with sidecars": (tars, "55af2adf10f4", "e34e179043b1"),
    "indexed lines": (lines, "beb19cd86e87", "8a0fda971e89"),
    "parquet that stays decoded": (small_parquet, "250068aa81d9", "bfba89ab4579"),
    "parquet by row groups": (large_parquet, "0f149428e20f", "f3bde6a4e854"),
    "sequential lines": (compressed_lines, "4bdb9be42000", "ec8074a0b191"),
    "an iterable": (iterable, "03b349094194", "af32286856b3"),
    "sequential tars": (compressed_tars, "790369cb2b8e", "f3101f43990a"),
}
"""Recipes with the pins of two lanes: of rank 0 with worker 0, and of rank 1 with worker 1."""

CONTINUED = {
    "flat": (flat, flat, "3103e5899662", "73b668302b01"),
    "second pass": (second_pass, second_pass, "e840b7fdd7c1", "724e3f6063d5"),
    "nested": (nested, nested, "be7f60c8ef5d", "afd96f19150c"),
    "functions": (functions, functions, "e9a47b879e6b", "3255dee08237"),
    "a yield function": (yielding, yielding, "8868cbeeb869", "5f8df85e7e81"),
    "rows of alike cost": (balanced, balanced, "c86bfa941666", "5b7134b9030e"),
    "cost": (costly, costly, "5c1171785092", "26011f008d36"),
    "side by side": (side_by_side, side_by_side, "5f8713e26ea3", "1113660b8dd9"),
    "an iterable": (iterable, iterable, "e7affd8772ce", "5a57d2f45931"),
    "indexed tars": (tars, tars, "6ff8db8afb47", "79f99fbf4ae4"),
    "indexed lines": (lines, lines, "57b1b2832077", "5a0bc3733bd0"),
    "parquet by row groups": (large_parquet, large_parquet, "c1150e5010c5", "dcd0d17be680"),
    "sequential lines": (compressed_lines, compressed_lines, "d1db2776d283", "f7fe7c0c101f"),
    "other weights": (flat, heavier, "11a1e1e284db", "32d71009c532"),
    "other weights under a yield function": (yielding, yielding_heavier, "866ab7837102", "0e87d7e0d246"),
    "a source that joins": (flat, joined, "079639c84bb8", "c733795b2017"),
    "a source that leaves": (flat, left, "5f1d99f337a4", "e329ae68d79e"),
}
"""The recipe that wrote the states and the one that goes on from them, with the pins of two lanes."""


def made(recipe, folder, rank):
    """The dataset of one of two ranks."""
    dataset = recipe(folder)
    dataset.set_data_parallel(2, rank)
    return dataset


def place(sample):
    """Which record it is, wherever the shards lie; of a packed row, all of them."""
    if "record_ids" in sample:
        return sample["source_ids"].tolist(), sample["record_ids"].tolist()
    return sample["__index__"] if "__index__" in sample else (Path(sample["__url__"]).name, sample["__key__"])


def assert_pinned(pin, samples):
    """Compare the hash of what is drawn; the message shows how it begins."""
    drawn = [(sample["__datasetname__"], place(sample)) for sample in islice(samples, DRAWS)]
    found = blake2b(json.dumps(drawn).encode(), digest_size=6).hexdigest()
    assert found == pin, f"another order than before, which begins {drawn[:6]} …"


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("name", FRESH)
def test_the_order_from_the_start_is_as_it_was(name, lane, tmp_path):
    """In a lane of each rank."""
    recipe, *pins = FRESH[name]
    assert_pinned(pins[lane], in_lane(made(recipe, tmp_path, lane), lane, 2))


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("name", CONTINUED)
def test_the_order_after_a_resume_is_as_it_was(name, lane, tmp_path):
    """From states that both workers of the rank filled, with the same recipe or with one that differs."""
    before, after, *pins = CONTINUED[name]
    states = {}
    for batch in islice(loaded(made(before, tmp_path, lane), 2), BEFORE):
        states.update(to_state(batch))
    assert_pinned(pins[lane], in_lane(resumed(lambda: made(after, tmp_path, lane), states), lane, 2))
