"""The draws of a plan are those of the run."""

from itertools import islice

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, ParquetDataset, named, to_state
from streamdata.mixing.tree import tree_of
from streamdata.run import Lane
from streamdata.tools.plan.course import Averages, first_draws
from tests.shard_files import write_jsonl, write_tars
from tests.sources.own_streams import Counting
from tests.streams import Numbers, in_lane
from tests.tools.plan.jobs import planned


def nested(**options):
    """Schedules, an inner mixture, a part, a bounded source."""
    inner = MergedDataset([Numbers("b", 10, 1), Numbers("c", 30, [[0, 3], [80, 0.1]])], seed=3)
    sources = [Numbers("a", 50, [[0, 1], [60, 5]], holdout=0.3), Numbers("d", 9, 2, max_epochs=2, records_per_block=3)]
    return MergedDataset([*sources, named(inner, name="inner", percent=3)], stop="all_exhausted", seed=5, **options)


def in_shards(folder):
    """Tars, JSONL with an index and without one, parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_tars(folder / "tars", [20, 7])
    write_jsonl(folder / "lines", [30, 12])
    pq.write_table(pa.table({"n": list(range(25))}), folder / "rows.parquet", row_group_size=10)
    sources = [
        MetaDistributedWebDataset(str(folder / "tars"), name="tars", percent=1),
        JsonlIterableDataset(str(folder / "lines"), shuffle_buffer=8, holdout=0.2, name="lines", percent=2),
        ParquetDataset(str(folder / "rows.parquet"), name="rows", percent=1),
    ]
    return MergedDataset(sources, seed=2)


def assert_drawn(dataset, lane, count):
    """Each draw is the one that the run makes, with its clocks."""
    draws = first_draws(tree_of(dataset), lane, count, Averages())
    dataset.set_data_parallel(lane.dp_size, lane.dp_rank)
    real = list(islice(in_lane(dataset, lane.worker, lane.num_workers), count))
    assert len(draws) == len(real) > 20
    assert [draw.number for draw in draws] == [*range(1, count + 1)]
    for draw, sample in zip(draws, real, strict=True):
        assert (draw.source, draw.index) == (sample["__datasetname__"], sample.get("__index__"))
        assert (draw.url, draw.epoch) == (
            sample.get("__url__"),
            sample["__cursor__"][-1 if "." not in draw.source else -2][3][0],
        )
        key = f"cursor/0/0/{lane.dp_rank}/{lane.worker}/{draw.source}"
        assert to_state([sample])[key]["clock"] == draw.clock
    return draws, real


@pytest.mark.parametrize("place", [(1, 0, 1, 0), (2, 1, 2, 1), (3, 0, 2, 0)])
def test_draws_are_those_of_the_run(place):
    """In each lane, over several epochs."""
    dp_size, dp_rank, num_workers, worker = place
    lane = Lane(dp_size=dp_size, dp_rank=dp_rank, num_workers=num_workers, worker=worker)
    assert_drawn(nested(), lane, 120)


def test_draws_of_shards_name_shard_and_record(tmp_path):
    """Without reading one of them."""
    lane = Lane(dp_size=1, dp_rank=0, num_workers=2, worker=1)
    draws, real = assert_drawn(in_shards(tmp_path), lane, 100)
    for draw, sample in zip(draws, real, strict=True):
        if draw.source in ("lines", "rows"):
            assert str(draw.record) == sample["__key__"]


def test_what_is_not_counted_is_drawn_as_if_it_did_not_end(tmp_path):
    """Compressed shards and iterables: the sequence of sources is right, the record unknown."""
    import gzip

    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 50))
    sources = [
        JsonlIterableDataset(str(tmp_path / "a.jsonl.gz"), name="zipped", percent=2),
        Counting(lanes="stride", percent=1),
    ]
    dataset = MergedDataset(sources)
    draws = planned(dataset, 100, draws=20).draws
    real = [sample["__datasetname__"] for sample in islice(dataset, 20)]
    assert [draw.source for draw in draws] == real
    assert {draw.record for draw in draws} == {None}
