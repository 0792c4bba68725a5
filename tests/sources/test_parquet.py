"""Parquet as a source: exactly once, exact resume, another topology, what a row holds, and what is decoded when."""

import json
import pickle
import sys
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from streamdata import MergedDataset, ParquetDataset, ShardError, StateError, to_state
from streamdata.errors import SourceError
from streamdata.shards.parquet.file import OpenParquet
from streamdata.shards.parquet.values import Rows, gathered
from tests.io.servers import s3_server
from tests.streams import assert_exact_resume, delivered, in_lane, loaded, resumed

SIZES = {"train-00000-of-00002": (23, 7), "train-00001-of-00002": (9, 4)}
"""Of each file: rows, and rows of a row group."""


def rows(count, first=0):
    """Rows with all that a source may have to keep."""
    return [
        {
            "id": first + number,
            "text": f"text {first + number}" if number % 5 else None,
            "tokens": list(range(number % 4)),
            "image": {"bytes": bytes([number % 256]), "path": f"{number}.jpg"},
            "messages": [{"role": "user", "content": "a"}] * (number % 3),
        }
        for number in range(count)
    ]


def write(folder: Path, sizes=None, **options) -> str:
    """Write files as the Hub lays them out; return their folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    first = 0
    for name, (count, group) in (sizes or SIZES).items():
        table = pa.Table.from_pylist(rows(count, first))
        pq.write_table(table, folder / "data" / f"{name}.parquet", row_group_size=group, **options)
        first += count
    return str(folder)


def source(path, **options):
    return ParquetDataset(path, name="s", percent=1, **options)


@pytest.fixture
def decoded(monkeypatch):
    """Which groups are decoded, one after the other."""
    noted, runs = [], OpenParquet.runs

    def note(self, facts, *args):
        noted.append((Path(self._url).name, facts.group))
        return runs(self, facts, *args)

    monkeypatch.setattr(OpenParquet, "runs", note)
    return noted


@pytest.mark.parametrize("options", [{}, {"shuffle_buffer": 0}, {"max_open_bytes": 1500}, {"max_open_bytes": 1}])
def test_every_row_is_delivered_once(tmp_path, options):
    """Over uneven lanes; all of it kept, or a few groups, or parts of one."""
    data = source(write(tmp_path), **options)
    for dp_size, num_workers in ((1, 0), (2, 3)):
        got = delivered(lambda: MergedDataset([data], cyclic=False), dp_size, num_workers)
        assert len(got) == sum(got.values()) == 32


@pytest.mark.each_value
@pytest.mark.parametrize("options", [{}, {"max_open_bytes": 1500}])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_is_exact(tmp_path, options, num_workers):
    """From every step, over two epochs."""
    data = source(write(tmp_path), **options)
    assert_exact_resume(lambda: MergedDataset([data], seed=3), steps=36, beyond=12, num_workers=num_workers)


def test_another_topology_goes_on(tmp_path):
    """What two lanes delivered and what three deliver after are one epoch."""
    path, states, keys = write(tmp_path), {}, []

    def make():
        return MergedDataset([source(path, max_open_bytes=1500)], cyclic=False)

    for batch in islice(loaded(make(), 2), 9):
        states.update(to_state(batch))
        keys += [sample["id"] for sample in batch]
    keys += [sample["id"] for batch in loaded(resumed(make, states), 3) for sample in batch]
    assert sorted(keys) == list(range(32))


@pytest.mark.parametrize(
    ("group", "kept", "each"),
    [(100, 384 << 20, 1), (100, 40_000, 1), (50, 32_000, 1), (100, 32_000, 1), (100, 25_000, 2)],
    ids=["much room", "little room", "groups in pairs", "one group at a time", "half a group"],
)
def test_a_resume_decodes_one_group_and_a_window_each_group_once(tmp_path, decoded, group, kept, each):
    """Wherever it stood; then the groups of the window as they are needed, each once in an epoch, or once per part."""
    path, states = write(tmp_path, {"a": (400, group)}), {}

    def make():
        return MergedDataset([source(path, max_open_bytes=kept)], cyclic=False)

    for batch in islice(loaded(make(), 0), 399):
        states.update(to_state(batch))
    assert Counter(decoded) == {("a.parquet", number): each for number in range(400 // group)}
    decoded.clear()
    next(iter(resumed(make, states)))
    assert len(decoded) == 1


@pytest.mark.parametrize("value", ["y" * 1000, [7] * 125])
def test_no_more_is_kept_than_max_open_bytes(tmp_path, value):
    """Though the footer says less: a dictionary's value may be repeated."""
    table = pa.table({"x": [value] * 500})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    data = source(str(tmp_path), max_open_bytes=30_000)
    got, kept = [], data.source.shards.kept.get()
    for sample in MergedDataset([data], cyclic=False):
        got.append(sample["__key__"])
        assert 0 < kept.num_bytes <= 30_000
    assert sorted(map(int, got)) == list(range(500))


@pytest.mark.parametrize("kept", [10**8, 1500])
def test_threads_that_read_at_once_share_what_is_decoded(tmp_path, decoded, kept):
    """Each gets every row in the same order; what stays is decoded once for all of them."""
    data = source(write(tmp_path, {"a": (300, 5)}), max_open_bytes=kept)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda _: [*MergedDataset([data], cyclic=False)], range(6)))
    finally:
        sys.setswitchinterval(interval)
    texts = [[(row["id"], row["text"]) for row in one] for one in found]
    assert texts == [texts[0]] * 6
    assert sorted(texts[0]) == [(row["id"], row["text"]) for row in rows(300)]
    if kept == 10**8:
        assert len(decoded) == len(set(decoded)) == 60
    kept_runs = data.source.shards.kept.get()
    assert kept_runs.num_bytes == sum(run.num_bytes for run in kept_runs.runs.values())


def test_that_footers_say_too_little_of_what_is_to_stay_is_said_once(tmp_path, caplog):
    """Its groups are decoded again; more room, which the warning asks for, leaves the order as it is."""
    labels = [f"label {number % 9} of nine" for number in range(4000)]
    pq.write_table(pa.table({"x": labels}), tmp_path / "a.parquet", row_group_size=1000)
    size = int(source(str(tmp_path)).source.shards.sizes.sum())
    little, much = source(str(tmp_path), max_open_bytes=size), source(str(tmp_path))
    kept, keys = little.source.shards.kept.get(), []
    for sample in MergedDataset([little], cyclic=False):
        keys.append(sample["__key__"])
        assert kept.num_bytes <= size
    assert caplog.text.count("Raise max_open_bytes, which leaves the order as it is") == 1
    assert keys == [sample["__key__"] for sample in MergedDataset([much], cyclic=False)]


@pytest.mark.parametrize(("ranks", "each"), [(2, 150), (6, 50)])
def test_ranks_share_the_rows_of_one_group_evenly(tmp_path, ranks, each):
    """Where it stays decoded: a block of few rows is what one rank may have more than another."""
    path = write(tmp_path, {"a": (300, 300)})
    lanes = [in_lane(MergedDataset([source(path)], cyclic=False), lane, ranks) for lane in range(ranks)]
    assert [len(list(lane)) for lane in lanes] == [each] * ranks


def written(folder, count, group, row_bytes=600):
    """The row groups of a file whose rows are as long as each other."""
    pq.write_table(
        pa.table({"x": [f"{n:0{row_bytes}}" for n in range(count)]}), folder / "a.parquet", row_group_size=group
    )
    return source(str(folder)).source.shards


def blocks_of(folder, kept):
    """How many rows each block has."""
    data = source(str(folder), max_open_bytes=kept).source
    return data._runs(np.arange(data.num_blocks))[2].tolist()


@pytest.mark.parametrize(
    ("count", "group", "rows"), [(300, 300, 1), (5000, 50, 9), (5000, 5000, 9), (40_000, 9000, 64)]
)
def test_what_fits_is_cut_as_other_shards_are(tmp_path, count, group, rows):
    """To the last byte, in however many groups: into 512 blocks or more, of up to 64 rows."""
    shards = written(tmp_path, count, group, row_bytes=60)
    blocks = blocks_of(tmp_path, int(shards.sizes.sum()))
    assert max(blocks) == rows
    assert len(blocks) >= min(512, count)
    assert blocks_of(tmp_path, 100 * int(shards.sizes.sum())) == blocks


def test_a_window_of_small_groups_has_as_many_rows_as_others(tmp_path):
    """A block is at most a group, and so many of them make a window."""
    written(tmp_path, 40_000, 20, row_bytes=60)
    assert source(str(tmp_path), shuffle_buffer=1000).source.blocks_per_window == 50


def test_states_of_another_cut_name_what_decides_it(tmp_path):
    """It is no `block_size`, which rows of parquet do not take."""
    size = int(written(tmp_path, 4000, 1000).sizes.max())
    states = to_state(next(iter(MergedDataset([source(str(tmp_path), max_open_bytes=3 * size)]))))
    with pytest.raises(StateError, match="its former shuffle_buffer, block_size or max_open_bytes"):
        MergedDataset([source(str(tmp_path))]).set_dataloader_states(states)


def test_what_does_not_fit_is_dealt_by_whole_groups_up_to_a_third(tmp_path):
    """A larger group is divided into even parts."""
    size = int(written(tmp_path, 4000, 1000).sizes.max())
    assert blocks_of(tmp_path, 3 * size) == [1000] * 4
    assert blocks_of(tmp_path, 3 * size - 3) == [500] * 8
    assert blocks_of(tmp_path, size) == [250] * 16


LONG = "y" * 4000


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.struct([("x", pa.binary()), ("n", pa.int8())]),
        pa.list_(pa.struct([("x", pa.large_string())])),
        pa.map_(pa.string(), pa.string()),
    ],
)
def test_long_values_that_may_repeat_are_what_pyarrow_says(tmp_path, kind):
    """At any depth, with missing ones; texts of a column are held once in memory. Of a codec of parquet's own."""
    long = [LONG + str(number % 90) for number in range(2000)]
    made = {"string": lambda x: x, "struct": lambda x: {"x": x.encode(), "n": 1}, "list": lambda x: [{"x": x}, None]}
    make = next((make for name, make in made.items() if str(kind).startswith(name)), lambda x: [("k", x)])
    values = [None if number % 7 == 0 else make(text) for number, text in enumerate(long)][:2000]
    pq.write_table(
        pa.table({"v": pa.array(values, kind)}), tmp_path / "a.parquet", row_group_size=1000, compression="lz4"
    )
    want = pa.array(values, kind).to_pylist()
    for options in ({}, {"max_open_bytes": 3 << 20}):
        data = source(str(tmp_path), **options)
        got = {int(row["__key__"]): row["v"] for row in MergedDataset([data], cyclic=False)}
        assert [got[number] for number in range(2000)] == want
        assert kind != pa.string() or data.source.shards.kept.get().num_bytes < 4 << 20


def test_a_damaged_small_group_is_named(tmp_path):
    """It is an error when it is due: rows of others come before it."""
    path = write(tmp_path, {"a": (4000, 50)}, write_page_checksum=True)
    data = source(path, max_open_bytes=300_000, shuffle_buffer=50)
    assert not data.source.shards.fits
    assert len({row["__key__"] for row in MergedDataset([data], cyclic=False)}) == 4000
    (file,) = Path(path, "data").iterdir()
    column = pq.read_metadata(file).row_group(33).column(0)
    content = bytearray(file.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size - 5] ^= 1
    file.write_bytes(content)
    got = []
    with pytest.raises(ShardError, match=r"in row group 33: "):
        got.extend(MergedDataset([source(path, max_open_bytes=300_000, shuffle_buffer=50)], cyclic=False))
    assert got
    assert len(got) % 50 == 0


def test_a_bomb_of_repeated_values_stays_bounded(tmp_path):
    """A page of a few bytes names a dictionary's long values a thousand times. However many come, each is its row's."""
    numbers = np.arange(1000, dtype=np.int32) % 3
    texts = pa.DictionaryArray.from_arrays(pa.array(numbers), [letter * (1 << 19) for letter in "abc"])
    pq.write_table(pa.table({"x": texts}), tmp_path / "a.parquet", store_schema=False, compression="zstd")
    data = source(str(tmp_path), max_open_bytes=8 << 20)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    tracemalloc.start()
    samples = iter(MergedDataset([data]))
    assert [len(sample["x"]) for sample in islice(samples, 20)] == [1 << 19] * 20
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    assert pool.bytes_allocated() - before < 300 << 20
    window = data.source.shards.window(*np.array([[0], [0], [1000]]))
    rows, most = range(400, 0, -1), before
    for row, record in zip(rows, window.take(rows), strict=True):
        assert record["x"][0] == "abc"[row % 3]
        most = max(most, pool.bytes_allocated())
    assert most - before < 100 << 20


def test_what_a_row_holds(tmp_path):
    """Python's types as pyarrow gives them, numbers of rows in their files as keys, lists of integers as tensors."""
    got = list(MergedDataset([source(write(tmp_path))], cyclic=False, shuffle_streaming_subsets=False))
    assert [(Path(row["__url__"]).name[:11], row["__key__"]) for row in got[21:25]] == [
        *(("train-00000", "21"), ("train-00000", "22"), ("train-00001", "0"), ("train-00001", "1"))
    ]
    for row, want in zip(got, [*rows(23), *rows(9, 23)], strict=True):
        assert (row["tokens"].dtype, row["tokens"].tolist()) == (torch.int64, want.pop("tokens"))
        assert {name: row[name] for name in want} == want


def test_columns_of_json_are_decoded(tmp_path):
    """HF's `Json()`: by itself, in lists and structs; a text that is no JSON names its row."""
    texts = ['{"a": [1, null]}', None, '"b"', "{a}"]
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))
    struct = pa.StructArray.from_arrays([json, pa.array([1, 2, 3, 4])], ["j", "n"])
    columns = {"j": json, "s": struct, "l": pa.ListArray.from_arrays([0, 0, 2, 3, 4], json)}
    pq.write_table(pa.table(columns).slice(0, 3), tmp_path / "a.parquet")
    got = list(MergedDataset([source(str(tmp_path))], cyclic=False, shuffle_streaming_subsets=False))
    one, two = {"a": [1, None]}, "b"
    assert [row["j"] for row in got] == [one, None, two]
    assert [row["s"] for row in got] == [{"j": value, "n": n} for n, value in enumerate((one, None, two), 1)]
    assert [row["l"] for row in got] == [[], [one, None], [two]]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ShardError, match=r"a\.parquet', row 3, column 'j': expected .*'{a}' in a column of JSON"):
        list(MergedDataset([source(str(tmp_path))], cyclic=False, shuffle_streaming_subsets=False))


def test_each_tensor_is_of_its_own(tmp_path):
    """One that is sent to another process takes no others along; a missing list is None."""
    lists = [[1] * 50, None, [], [2**62]]
    # Older than 26, pyarrow cannot read its own files where a list of a fixed size is missing.
    missing = None if int(pa.__version__.partition(".")[0]) >= 26 else [3, 4]
    for number, kind in enumerate((pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint8(), 2))):
        values = [[1, 2], missing] if number == 2 else [[n % 2**31 for n in one or []] for one in lists]
        pq.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / "a.parquet")
        data = MergedDataset([source(str(tmp_path))], cyclic=False, shuffle_streaming_subsets=False)
        got = [row["x"] for row in data]
        assert [None if one is None else one.tolist() for one in got] == values
        assert all(one is None or one.untyped_storage().nbytes() == 8 * len(one) for one in got)


@pytest.mark.parametrize(
    ("kind", "bad", "got"), [(pa.int32(), [1, None], "missing"), (pa.uint64(), [2**63], "not in range")]
)
def test_a_list_that_no_tensor_holds_is_an_error_of_its_row(tmp_path, kind, bad, got):
    """The rows before it come, and so would those after it."""
    lists = [[1, 2], None, [3], bad, [2**31 - 1]]
    pq.write_table(pa.table({"x": pa.array(lists, pa.list_(kind))}), tmp_path / "a.parquet")
    samples = iter(MergedDataset([source(str(tmp_path))], cyclic=False, shuffle_streaming_subsets=False))
    assert [next(samples)["x"].tolist(), next(samples)["x"], next(samples)["x"].tolist()] == [[1, 2], None, [3]]
    with pytest.raises(ShardError, match=rf"row 3, column 'x': expected a value that .* int64 tensor can hold.*{got}"):
        next(samples)
    lenient = source(str(tmp_path))
    lenient.max_bad = 1
    rest = list(MergedDataset([lenient], cyclic=False, shuffle_streaming_subsets=False))
    assert [row["x"].tolist() for row in rest if row["x"] is not None] == [[1, 2], [3], [2**31 - 1]]


LISTS = st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)
RUN = st.lists(st.tuples(st.integers(0, 99), LISTS, st.none() | st.tuples(*[st.integers(0, 9)] * 2)), min_size=1)


@given(st.lists(RUN, min_size=1, max_size=4), st.data())
@example([[(n, [n], (n, n)) for n in range(4)]], None)
def test_rows_of_several_groups_come_in_the_order_asked_for(runs, data):
    """Each with all its columns. Batches are slices, texts of some are numbers of a dictionary, not all are asked."""
    schema = pa.schema({"n": pa.int64(), "text": pa.string(), "x": pa.list_(pa.int32()), "y": pa.list_(pa.uint8(), 2)})
    batches = []
    for number, rows_of_run in enumerate(runs):
        around = [(7, [7, 7], (7, 7)), *rows_of_run, (8, None, None)]
        ns, lists, pairs = map(list, zip(*around, strict=True))
        texts = pa.array(map(str, ns))
        columns = [ns, texts.dictionary_encode() if number % 2 else texts]
        columns += [pa.array(lists, schema.field("x").type), pa.array(pairs, schema.field("y").type)]
        batches.append(pa.record_batch(columns, schema.names).slice(1, len(rows_of_run)))
    places = [(run, row) for run, rows_of_run in enumerate(runs) for row in range(len(rows_of_run))]
    some = st.permutations(places) | st.just(places) | st.lists(st.sampled_from(places), min_size=1)
    asked = data.draw(some) if data else [(0, 0), (0, 2), (0, 1), (0, 3)]
    run_of, numbers = np.array(asked).T
    columns = gathered([Rows(batch) for batch in batches], run_of, numbers, schema)
    plain = [columns[name].to_pylist() for name in ("n", "text")]
    plain += [[None if one is None else one.tolist() for one in columns[name]] for name in ("x", "y")]
    want = [runs[run][row] for run, row in asked]
    assert [*zip(*plain, strict=True)] == [(n, str(n), x, None if y is None else [*y]) for n, x, y in want]


def test_columns_are_chosen(tmp_path):
    """Only these are read, also one whose name has a dot in it, and one of a struct."""
    pq.write_table(pa.table({"a": [1], "b.c": [2], "b": [{"c": 3}], "__url__": [4]}), tmp_path / "a.parquet")
    (row,) = MergedDataset([source(str(tmp_path), columns=["b", "a"])], cyclic=False)
    assert [name for name in row if not name.startswith("__")] == ["b", "a"]
    with pytest.raises(ShardError, match=r"a\.parquet': expected the column 'aa', got none .* did you mean 'a'"):
        source(str(tmp_path), columns=["aa"])
    with pytest.raises(ShardError, match=r"beside the fields that streamdata sets, got \['__url__'\]"):
        source(str(tmp_path))
    for wrong in ("a", [], ["a", "a"], [1]):
        with pytest.raises(ValueError, match="expected columns to be a list of different names"):
            source(str(tmp_path), columns=wrong)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"x": ["a"]}), r"b\.parquet': column 'x': expected int64, as in '.*a\.parquet', got string"),
        (pa.table({"y": [1]}), r"b\.parquet': expected the columns of '.*a\.parquet', got .*\['x', 'y'\]"),
    ],
)
def test_a_file_of_another_schema_is_an_error(tmp_path, table, message):
    """At the start; types whose values are Python's same ones are alike, and nulls go with all."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(ShardError, match=message):
        source(str(tmp_path))
    for alike in (pa.array([2], pa.int8()), pa.nulls(1)):
        pq.write_table(pa.table({"x": alike}), tmp_path / "b.parquet")
        assert source(str(tmp_path)).source.num_records == 2


def test_groups_without_rows_are_passed_over(tmp_path):
    """Files of no rows too; a source of none is an error."""
    schema = pa.schema([("x", pa.int64())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for values in ([], [1, 2], [], [3]):
            writer.write_table(pa.table({"x": values}, schema))
    pq.write_table(pa.table({"x": []}, schema), tmp_path / "b.parquet")
    assert sorted(row["x"] for row in MergedDataset([source(str(tmp_path))], cyclic=False)) == [1, 2, 3]
    with pytest.raises(Exception, match="expected at least one record"):
        next(iter(MergedDataset([source(str(tmp_path / "b.parquet"))])))


def test_parts_depend_on_the_row_alone(tmp_path):
    """Not on the row groups; train and valid are disjoint, and complete."""
    found = {}
    for group in (3, 100):
        path = write(tmp_path, {"a": (100, group)})
        for part in ("train", "valid"):
            data = source(path, holdout=0.3, part=part)
            found[group, part] = {row["id"] for row in MergedDataset([data], cyclic=False)}
    assert found[3, "train"] == found[100, "train"]
    assert found[3, "train"] | found[3, "valid"] == set(range(100))
    assert not found[3, "train"] & found[3, "valid"]


def test_rows_are_left_out_by_file_and_number(tmp_path):
    """A key beyond the last row is an error."""
    (path,) = Path(write(tmp_path, {"a": (30, 10)})).rglob("*.parquet")
    skip = [{"source": "s", "url": str(path), "key": "12"}]
    rest = {row["id"] for row in MergedDataset([source(str(path))], cyclic=False, skip=skip)}
    assert rest == set(range(30)) - {12}
    with pytest.raises(ValueError, match="expected the number of one of the lines 0 to 29"):
        MergedDataset([source(str(path))], skip=[{**skip[0], "key": "30"}])


def test_states_of_other_files_or_another_cut_are_refused(tmp_path):
    """Other row groups are other blocks."""
    states = {}
    for batch in islice(loaded(MergedDataset([source(write(tmp_path))]), 0), 3):
        states.update(to_state(batch))
    write(tmp_path, {name: (count, 5) for name, (count, _) in SIZES.items()})
    with pytest.raises(StateError, match="'s'"):
        next(iter(resumed(lambda: MergedDataset([source(str(tmp_path))]), states)))


def test_a_file_that_changes_in_a_run_is_an_error(tmp_path):
    """Though its rows could be read."""
    path = write(tmp_path, {"a": (300, 100)})
    samples = iter(MergedDataset([source(path, max_open_bytes=40_000)]))
    next(samples)
    write(tmp_path, {"a": (301, 100)})
    with pytest.raises(ShardError, match=r"a\.parquet': it was replaced or modified"):
        list(islice(samples, 300))


def test_remote_files_are_those_here(tmp_path):
    """The same order and samples; each group is one request, the footer another, and a copy in a process reads on."""
    folder = Path(write(tmp_path, {"a": (300, 100), "b": (200, 50)}))
    objects = {f"bucket/{path.name}": path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}
    for kept in ({}, {"max_open_bytes": 40_000}):
        with s3_server(objects) as server:
            options = {"endpoint": server.url, "anonymous": True}
            far = source("s3://bucket/*.parquet", storage_options=options, columns=["id", "tokens"], **kept)
            near = source(path=str(folder), columns=["id", "tokens"], **kept)
            assert len(server.log) <= 4  # a list, and the end of each file
            server.log.clear()
            got = [row["id"] for row in MergedDataset([far], cyclic=False)]
            assert got == [row["id"] for row in MergedDataset([near], cyclic=False)]
            assert len(server.log) <= 7 + 2 + 2
            lane = in_lane(MergedDataset([pickle.loads(pickle.dumps(far))], cyclic=False), 1, 2)
            assert {row["id"] for row in lane} < set(range(500))
            server.objects["bucket/a.parquet"] = objects["bucket/b.parquet"]
            with pytest.raises(ShardError, match=r"s3://bucket/a\.parquet': it was replaced"):
                list(MergedDataset([pickle.loads(pickle.dumps(far))], cyclic=False))


def damaged(data: bytes):
    """Ways in which a file is cut, with what the error says."""
    yield b"", "of 0 bytes"
    yield data[: len(data) // 2], "in its footer: .*magic bytes not found"
    yield data[:-4], "in its footer: .*magic bytes not found"
    yield data[:-8] + (2**31).to_bytes(4, "little") + b"PAR1", "in its footer: .*2147483648"
    yield b'{"text": "a line of JSON"}\n', "in its footer"
    yield data[:4] + data[-2000:], "within the first"


@pytest.mark.parametrize("number", range(6))
def test_a_damaged_footer_is_an_error_with_its_file(tmp_path, number):
    """Before anything is read."""
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(2000)}), tmp_path / "a.parquet", row_group_size=500)
    data, message = list(damaged((tmp_path / "a.parquet").read_bytes()))[number]
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(ShardError, match=rf"shard '.*a\.parquet'.*{message}"):
        source(str(tmp_path))


def test_a_damaged_group_is_an_error_with_its_place(tmp_path):
    """A page whose bytes are others."""
    table = pa.table({"x": np.random.default_rng(0).random(2000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, write_page_checksum=True, compression="none")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[len(data) // 2] ^= 255
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(ShardError, match=r"a\.parquet': expected a parquet file, got .* in row group [12]:"):
        list(MergedDataset([source(str(tmp_path))], cyclic=False))


def test_counts_that_contradict_each_other_are_an_error(tmp_path):
    """A footer may say anything."""
    pq.write_table(pa.table({"x": [1] * 1000}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    varint = bytes([0xD0, 0x0F])  # 1000, twice as large for its sign
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[end:].replace(varint, bytes([0xD2, 0x0F]), 2)
    (tmp_path / "a.parquet").write_bytes(data[:end] + footer)
    with pytest.raises(ShardError, match=r"a\.parquet': row group 0: expected 100. rows"):
        list(MergedDataset([source(str(tmp_path))], cyclic=False))


def test_a_column_without_bytes_is_an_error(tmp_path):
    """A footer that says so of a column with rows is damaged."""
    pq.write_table(pa.table({"x": [1] * 1000}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    size = 2 * pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).total_compressed_size
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[end:].replace(bytes([size & 127 | 128, size >> 7]), bytes([128, 0]))
    (tmp_path / "a.parquet").write_bytes(data[:end] + footer)
    with pytest.raises(
        ShardError, match=r"a\.parquet': row group 0: expected 1000 rows within .* of 1000 values in bytes"
    ):
        source(str(tmp_path))


def save_to_disk(folder: Path, counts=(23, 9), batch=7) -> str:
    """Write Arrow streams and notes as Hugging Face's `save_to_disk` does, and a cache beside them."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(counts):05d}.arrow" for number in range(len(counts))]
    for number, (name, count) in enumerate(zip([*names, "cache-1a2b.arrow"], [*counts, 3], strict=True)):
        table = pa.Table.from_pylist(rows(count, sum(counts[:number])))
        with pa.ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(table, batch)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1a2b", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    (folder / "dataset_info.json").write_text('{\n  "features": {}\n}')
    return str(folder)


@pytest.mark.parametrize("options", [{}, {"max_open_bytes": 1500}, {"max_open_bytes": 1}])
def test_what_save_to_disk_wrote_is_exact_and_once(tmp_path, options):
    """All of it kept, or a few batches, or parts of one; what lies beside it is not read."""
    data = source(save_to_disk(tmp_path / "saved"), **options)
    got = delivered(lambda: MergedDataset([data], cyclic=False), 2, 3)
    assert len(got) == sum(got.values()) == 32
    assert_exact_resume(lambda: MergedDataset([data], seed=3), steps=36, beyond=3, num_workers=2)
    want = {row["id"]: row["text"] for row in [*rows(23), *rows(9, 23)]}
    assert {sample["id"]: sample["text"] for sample in MergedDataset([data], cyclic=False)} == want


def test_what_save_to_disk_wrote_has_columns_and_must_be_whole(tmp_path):
    """A batch that is cut off, or is no Arrow, is an error with its file; so is a file that is not there."""
    folder = Path(save_to_disk(tmp_path / "saved"))
    sample = next(iter(MergedDataset([source(str(folder), columns=["text", "id"])])))
    assert {name for name in sample if not name.startswith("__")} == {"text", "id"}
    data = source(str(folder))
    data.source.shards.facts[0] = data.source.shards.facts[0]._replace(num_rows=9)  # in its header, when it was opened
    with pytest.raises(ShardError, match=r"cannot read in batch 0: expected 9 rows, got \d"):
        list(MergedDataset([data], cyclic=False))
    path = folder / "data-00001-of-00002.arrow"
    content = path.read_bytes()
    for broken in (content[:-900], b"ARROW1" + content, content[:64]):
        path.write_bytes(broken)
        with pytest.raises(ShardError, match=r"data-00001-of-00002\.arrow': expected an Arrow stream, got"):
            source(str(folder))
    path.write_bytes(content[:-8])
    with pytest.raises(ShardError, match="expected the mark of its end after 2 record batches"):
        source(str(folder))
    path.unlink()
    with pytest.raises(FileNotFoundError, match="data-00001"):
        source(str(folder))


@pytest.mark.parametrize(("counts", "got"), [((), "none"), ((0,), "an empty source")])
def test_what_save_to_disk_wrote_of_nothing_is_empty(tmp_path, counts, got):
    """With no file, or with one that has no rows."""
    with pytest.raises((FileNotFoundError, SourceError), match=f"got {got}"):
        list(MergedDataset([source(save_to_disk(tmp_path / "saved", counts))], cyclic=False))


def test_splits_that_save_to_disk_wrote_are_named(tmp_path):
    """Of a DatasetDict; and rows that indices choose have to be written."""
    save_to_disk(tmp_path / "both" / "train")
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=r"expected one split, .*\n.*both/train, .*both/test"):
        source(str(tmp_path / "both"))
    state = tmp_path / "both" / "train" / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(ValueError, match=r"expected all rows, got indices of some\n.*flatten_indices"):
        source(str(tmp_path / "both" / "train"))
