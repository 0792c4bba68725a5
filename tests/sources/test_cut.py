"""How shards are cut into blocks: by bytes or by records, and states of another cut."""

from itertools import islice
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    StateError,
    instantiate_from_yaml,
    to_state,
)
from streamdata.sources.files.shard_source import BlockSource
from streamdata.sources.order.blocks import cut_shards, describe_cut
from tests.shard_files import write_jsonl, write_tars
from tests.streams import plain, resumed

MIB = 1 << 20


def shards(*pairs):
    """What a cut depends on: records and mean bytes of each shard."""
    records, sizes = np.array(pairs, np.int64).reshape(-1, 2).T
    return SimpleNamespace(num_records=records, sizes=records * sizes)


def cut(shards, block_size, block_bytes):
    """The shards as a source, cut."""
    return BlockSource("any", shards, cut_shards(shards, block_size, block_bytes), 0)


def all_runs(source):
    """Shard, first record and count of each block."""
    columns = source._runs(np.arange(source.num_blocks))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_each_shard_is_cut_by_its_own_mean_record():
    """So that blocks have about the same bytes; one that holds a larger record has that one."""
    found = cut(shards((10**6, 1000), (10**6, 30_000), (10**4, 500_000), (10, 10**9)), None, MIB)
    counts = {shard: count for shard, first, count in all_runs(found) if not first}
    assert counts == {0: 1048, 1: 34, 2: 2, 3: 1}


@pytest.mark.parametrize(
    ("record_bytes", "records"), [(1000, 64), (30_000, 64), (100_000, 41), (500_000, 8), (10**7, 1)]
)
def test_the_default_is_4_mib_and_64_records_at_most(record_bytes, records):
    """In a large source: an object store serves 30 KB records in less than 0.05 requests each."""
    of = shards(*[(10**6, record_bytes)] * 100)
    assert describe_cut(of.num_records, cut_shards(of, None, None)) == f"blocks of {records}"


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 8 * MIB)), max_size=20),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 8 * MIB)), max_size=3),
)
def test_a_source_has_512_blocks_where_there_are_as_many_records(large, small):
    """However its records are spread; a block has at most 64 records and 4 MiB, or one record of more."""
    of = shards(*large, *small)
    sizes, num_records = cut_shards(of, None, None), int(of.num_records.sum())
    found = BlockSource("any", of, sizes, 0)
    assert min(512, num_records) <= found.num_blocks <= num_records
    assert sizes.max(initial=1) <= 64
    means = of.sizes / np.maximum(1, of.num_records)
    assert np.all((sizes == 1) | (sizes * means <= 4 * MIB))


def test_a_source_of_few_large_records_and_many_small_ones_is_cut_by_records():
    """Of its bytes the large ones have most."""
    found = cut(shards((3, 10**9), (5120, 10)), None, None)
    assert found.num_blocks == 3 + 512


@pytest.mark.parametrize(
    ("size", "records"), [((8000, 30_000), 15), ((100_000, 2400), 64), ((800, 300_000), 1), ((2000, 120_000), 3)]
)
def test_240_mb_are_cut_into_about_512_blocks_or_small_ones(size, records):
    """So that a store is asked for 450 KB at once, where records are large enough for it."""
    assert cut_shards(shards(size), None, None).tolist() == [records]


@pytest.mark.parametrize("size", [(100, 30_000), (5000, 30_000), (100_000, 1000), (3_000_000, 50)])
def test_block_bytes_are_at_most_a_2048th_of_the_source(size):
    """Of blocks that have less it has as many, about, or blocks of one record."""
    found = cut(shards(size, size), None, 8 * MIB)
    assert min(2048, 2 * size[0]) <= found.num_blocks <= 2 * 2048


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**8)), min_size=1), st.integers(1, 10**9))
def test_what_is_given_is_taken_as_ever(pairs, block_bytes):
    """Sizes of a cut that a recipe asks for have not changed since it could."""
    of = shards(*pairs)
    means = np.maximum(1, -(-of.sizes // np.maximum(1, of.num_records)))
    limit = min(block_bytes, int(of.sizes.sum()) // 2048)
    assert cut_shards(of, None, block_bytes).tolist() == np.maximum(1, limit // means).tolist()
    assert set(cut_shards(of, block_bytes, None).tolist()) == {block_bytes}


def test_block_size_is_taken_exactly():
    """However small the source; the last block of a shard has what is left."""
    of = shards((5, 100), (0, 0), (7, 10**6))
    assert all_runs(cut(of, 3, None)) == [(0, 0, 3), (0, 3, 2), (2, 0, 3), (2, 3, 3), (2, 6, 1)]
    assert describe_cut(of.num_records, cut_shards(of, 3, None)) == "blocks of 3"


def test_blocks_hold_each_record_once():
    """Of shards of several sizes, empty ones among them."""
    of = shards((90_000, 300), (0, 0), (1, 17), (50_000, 2000), (0, 0))
    seen = [np.zeros(count, int) for count in of.num_records]
    for shard, first, count in all_runs(cut(of, None, 4000)):
        assert count > 0
        seen[shard][first : first + count] += 1
    assert all((counts == 1).all() for counts in seen)


def test_the_cut_is_part_of_what_determines_the_order():
    """Two cuts of as many blocks, with the same smallest and largest, differ in their description."""
    records = np.array([100, 100, 100])
    one, other = (describe_cut(records, np.array(sizes)) for sizes in ([2, 4, 4], [4, 2, 4]))
    assert one != other
    assert one.startswith("blocks of 2 to 4 ")
    assert describe_cut(records, np.array([4, 4, 4])) == "blocks of 4"


def test_a_window_has_about_as_many_records_as_the_shuffle_buffer(tmp_path):
    """Though its blocks are of several sizes."""
    for name, size, repeat in (("a", 4000, 1), ("b", 1000, 20)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"x": "{"y" * 90 * repeat}"}}\n' * size)
    source = JsonlIterableDataset(str(tmp_path), block_bytes=10**6, shuffle_buffer=400, name="s", percent=1)
    windows: dict[int, int] = {}
    states: dict = {}
    for sample in MergedDataset([source], cyclic=False):
        states = to_state(sample)
        window = states["cursor/0/0/0/0/s"]["window"]
        windows[window] = windows.get(window, 0) + 1
    assert len(windows) in range(11, 16)  # 5000 records, of which the last window may have few


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "tar"])
def test_both_ways_to_cut_at_once_are_refused(tmp_path, suffix):
    """Whatever kind of shards it would be, before any is looked at."""
    make = MetaDistributedWebDataset if suffix == "tar" else JsonlIterableDataset
    with pytest.raises(ValueError, match=r"expected block_size \(records\) or block_bytes, got both: 64 and 1048576"):
        make(str(tmp_path / f"missing.{suffix}"), block_size=64, block_bytes=MIB)


def mixture(folder, **options):
    return MergedDataset([JsonlIterableDataset(folder, name="s", percent=1, shuffle_buffer=12, **options)], seed=3)


@pytest.mark.parametrize("options", [{"block_bytes": 1.5}, {"block_bytes": "4 MiB"}, {"block_size": True}])
def test_a_cut_is_by_whole_numbers(tmp_path, options):
    """Refused where the source is made, not where it is read."""
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"expected a whole number as {name}, got {value!r}"):
        JsonlIterableDataset(str(tmp_path), **options)


def test_the_way_on_from_states_of_another_cut_is_its_block_size(tmp_path):
    """The error shows it; with it the stream goes on."""
    folder = write_jsonl(tmp_path, [40, 1, 30])
    samples = list(islice(mixture(folder, block_size=4), 40))
    states = to_state(samples[:15])
    with pytest.raises(StateError, match=r"expected .* blocks of 4,.*\n.*\n.* its former shuffle_buffer, block_size"):
        mixture(folder).set_dataloader_states(states)
    again = islice(resumed(lambda: mixture(folder, block_size=4), states), 25)
    assert [plain(sample) for sample in again] == [plain(sample) for sample in samples[15:]]


@pytest.mark.parametrize("write", [write_jsonl, write_tars])
def test_added_shards_go_on_as_another_source(tmp_path, write):
    """As the error says; each record of both comes once. What was appended to a shard is refused, too."""
    make, kind = (JsonlIterableDataset, "jsonl") if write is write_jsonl else (MetaDistributedWebDataset, "tar")

    def stream(**sources):
        kinds = [make(urls, name=name, percent=1) for name, urls in sources.items()]
        return MergedDataset(kinds, cyclic=False, stop="all_exhausted")

    write(tmp_path, [20, 15, 10])
    former, added = [[str(path) for path in sorted(tmp_path.glob(f"0000{which}.{kind}"))] for which in ("[01]", "2")]
    begun = list(islice(stream(s=former), 9))
    states = to_state(begun)
    with pytest.raises(StateError, match=r"3 shards(.|\n)*shards or records added since as another source"):
        stream(s=former + added).set_dataloader_states(states)
    rest = list(resumed(lambda: stream(s=former, more=added), states))
    keys = [(sample["__url__"], sample["__key__"]) for sample in begun + rest]
    assert (len(keys), len(set(keys))) == (45, 45)
    write(tmp_path, [20, 16, 10])
    with pytest.raises(StateError, match=r"36 records(.|\n)*shards or records added since as another source"):
        stream(s=former).set_dataloader_states(states)


def test_other_data_or_another_seed_have_no_way_on(tmp_path):
    """Another cut beside them does not hide that."""
    states = to_state(list(islice(mixture(write_jsonl(tmp_path / "a", [40, 1, 30]), block_size=4), 5)))
    with pytest.raises(StateError, match="Resume with the recipe, seed and data"):
        mixture(write_jsonl(tmp_path / "b", [40, 1, 29])).set_dataloader_states(states)


@pytest.mark.parametrize(
    ("make", "write", "options"),
    [(JsonlIterableDataset, write_jsonl, {"block_bytes": 4000}), (MetaDistributedWebDataset, write_tars, {})],
)
def test_a_bucket_gives_the_order_of_a_local_copy(tmp_path, make, write, options):
    """So a run may move from one to the other."""
    folder = write(tmp_path, [3000, 1, 2500])
    bucket = fsspec.filesystem("memory")
    for path in tmp_path.glob("*[lr]"):
        bucket.pipe(f"/{tmp_path.name}/{path.name}", path.read_bytes())
    streams = []
    for path in (folder, f"memory://{tmp_path.name}"):
        urls = [f"{path}/{name.name}" for name in sorted(tmp_path.glob("0000?.*")) if ".meta." not in name.name]
        dataset = MergedDataset([make(urls, name="s", percent=1, shuffle_buffer=100, **options)])
        samples = list(islice(dataset, 400))
        keys = [(sample["__url__"].rpartition("/")[2], sample["__key__"]) for sample in samples]
        streams.append((keys, to_state(samples)))
    assert streams[0] == streams[1]


@pytest.mark.parametrize(("target", "write"), [("JsonlIterable", write_jsonl), ("MetaDistributedWeb", write_tars)])
@pytest.mark.parametrize("cut", ["block_bytes: 300", "block_bytes: 10485760", "block_size: 7"])
def test_a_recipe_may_say_how_shards_are_cut(tmp_path, target, write, cut):
    """By any cut, each record is delivered once."""
    params = f"{{path: {write(tmp_path / 'shards', [30, 4, 11])}, name: s, percent: 1, {cut}}}"
    source = f"{{target: streamdata.{target}Dataset, params: {params}}}"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"target: streamdata.MergedDataset\nparams: {{cyclic: false, datasets: [{source}]}}\n")
    samples = list(instantiate_from_yaml(recipe))
    assert len(samples) == len({sample["__url__"] + sample["__key__"] for sample in samples}) == 45
