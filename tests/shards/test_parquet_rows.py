import gzip
import json
import math
import os
import pickle
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata import MergedDataset, ParquetDataset
from streamdata.errors import SourceError
from streamdata.io.file_cache import FileCache
from streamdata.shards.parquet import rows as module
from streamdata.shards.parquet.rows import ParquetRows
from tests.chats.prompts.prompt_files import sums, user, write
from tests.io.servers import http_server


def test_rows_are_those_of_the_parquet_file(tmp_path):
    """All columns, nested as they are, over row groups."""
    path = sums(tmp_path / "a.parquet", 13)
    assert [ParquetRows(path)[number] for number in range(13)] == pq.read_table(path).to_pylist()


def test_several_files_follow_one_another(tmp_path):
    """Files of a directory, a glob or a text with commas are sorted; each has columns of its own."""
    one, two = sums(tmp_path / "a.parquet", 3), write(tmp_path / "b.parquet", [{"prompt": user("x"), "level": 1}])
    for data_files in (str(tmp_path), str(tmp_path / "*.parquet"), [one, two], f"{two},{one}"):
        rows = ParquetRows(data_files)
        assert len(rows) == 4
        assert (rows[2]["extra_info"]["index"], rows[3]["level"]) == (102, 1)
        assert [rows.locate(number) for number in range(4)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert rows.location(3).endswith("b.parquet', row 0")


def test_a_list_keeps_its_order(tmp_path):
    """As whoever reads its files one after another; of what a glob in it finds, the names decide."""
    one, two, three = (sums(tmp_path / f"{name}.parquet", number) for number, name in enumerate("abc", 1))
    assert [file.num_rows for file in ParquetRows([three, one, two, one]).files] == [3, 1, 2, 1]
    assert [file.num_rows for file in ParquetRows([three, str(tmp_path / "[ab].parquet")]).files] == [3, 1, 2]


def test_json_lines_are_rows_too(tmp_path):
    """Compressed or not, by name, glob or folder; a field that a row lacks is None."""
    rows = [{"prompt": user("x"), "n": 2**40}, {"prompt": "two", "extra": {"a": [1, None]}}]
    text = "".join(json.dumps(row) + "\n\n" for row in rows)
    packed = tmp_path / "b.json.gz"
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "a.jsonl").write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    want = [{"prompt": None, "n": None, "extra": None, **row} for row in rows]
    for data_files in (str(lines), str(packed), str(tmp_path / "*.json.gz")):
        found = ParquetRows(data_files)
        assert [found[number] for number in range(len(found))] == want
    sums(lines / "c.parquet", 3)
    assert len(ParquetRows(str(lines))) == 3  # a folder of parquet has notes beside it
    assert len(ParquetRows([str(lines / "*.parquet"), str(lines / "a.jsonl")])) == 5
    (tmp_path / "d.json").write_text(json.dumps(rows, indent=2))
    array = ParquetRows(str(tmp_path / "d.json"))
    assert [array[number] for number in range(len(array))] == want
    (tmp_path / "e.json").write_text("[{},\n 1]")
    with pytest.raises(SourceError, match=r"e\.json:element 2:1: expected a JSON object, got int"):
        ParquetRows(str(tmp_path / "e.json"))


def test_nan_of_json_lines_is_a_value_of_its_own_column(tmp_path):
    """As it is in parquet: who reads another column does not meet it. What else is no JSON is still an error."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [{"y": NaN}], "z": "\\u00e9"}\n{"x": -Infinity, "z": null}\n')
    first, second = ParquetRows(str(path))[0], ParquetRows(str(path))[1]
    assert math.isnan(first["x"][0]["y"])
    assert (first["z"], second) == ("é", {"x": -math.inf, "z": None})
    path.write_text('{"x": 1e999, "z": [-1e999, 1]}')
    assert ParquetRows(str(path))[0] == {"x": math.inf, "z": [-math.inf, 1]}
    for line in (
        '{"x": NaN, "z": }',
        '{"x": 1e999, "z": 01}',
        '{"x": NaN, "z": "\\ud800"}',
        f'{{"x": NaN, "z": {2**70}}}',
    ):
        path.write_text(line)
        with pytest.raises(SourceError, match=r"a\.jsonl:1:\d+: expected"):
            ParquetRows(str(path))


def test_a_file_is_there_as_often_as_a_list_names_it(tmp_path):
    """Each time with uids of its own; by different words it is an error, as everywhere."""
    path = sums(tmp_path / "a.parquet", 3)
    rows = ParquetRows([path, path])
    assert [rows[number]["extra_info"]["index"] for number in range(6)] == [100, 101, 102] * 2
    assert len({rows.uid(number) for number in range(6)}) == 6
    assert rows.uid(1) == ParquetRows(path).uid(1)
    with pytest.raises(ValueError, match=r"expected .* once"):
        ParquetRows([path, str(tmp_path)])


def test_files_of_a_store_are_fetched_once(tmp_path):
    """The rows stay; a second start asks which version there is. They are those of the same file here."""
    here = ParquetRows(sums(tmp_path / "a.parquet", 3))
    with http_server({"b/a.parquet": (tmp_path / "a.parquet").read_bytes()}) as server:
        url = f"{server.url}/b/a.parquet"
        far = ParquetRows(url)
        assert [far[number] for number in range(3)] == [here[number] for number in range(3)]
        assert (far.uid(2), far.location(2)) == (here.uid(2), f"'{url}', row 2")
        server.log.clear()
        assert ParquetRows(url).digest == here.digest
        assert len(server.log) == 1


def test_a_row_belongs_to_whoever_asked(tmp_path):
    """To change one changes no other."""
    rows = ParquetRows(sums(tmp_path / "a.parquet"))
    rows[1]["extra_info"]["index"] = 0
    assert rows[1]["extra_info"]["index"] == 101


def test_the_uid_depends_on_content_and_row_alone(tmp_path):
    """Not on the file's name, or on what other files there are."""
    one, two = ParquetRows(sums(tmp_path / "a.parquet", 3)), ParquetRows(sums(tmp_path / "z.parquet", 4))
    (tmp_path / "deep").mkdir()
    os.link(tmp_path / "z.parquet", tmp_path / "deep" / "b.parquet")
    both = ParquetRows([str(tmp_path / "a.parquet"), str(tmp_path / "deep" / "b.parquet")])
    uids = [both.uid(number) for number in range(7)]
    assert uids == [*(one.uid(number) for number in range(3)), *(two.uid(number) for number in range(4))]
    assert len(set(uids)) == 7
    assert all(len(uid) == 32 for uid in uids)


def test_the_file_of_rows_is_made_once_per_content(tmp_path, monkeypatch):
    """A second start, a copy or a new name finds it; other content does not."""
    first = ParquetRows(sums(tmp_path / "a.parquet", 3))
    monkeypatch.setattr(module, "convert", lambda *_, **__: pytest.fail("made again"))
    assert ParquetRows(str(tmp_path / "a.parquet")).files == first.files
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    assert ParquetRows(str(tmp_path / "b.parquet")).files[0].stored == first.files[0].stored
    with pytest.raises(pytest.fail.Exception, match="made again"):
        ParquetRows(sums(tmp_path / "b.parquet", 4))


def test_columns_of_categories_become_values(tmp_path):
    """Each row group may have its own dictionary, of which an IPC file has but one."""
    column = pa.array(["a", "b", "a", None]).dictionary_encode()
    pq.write_table(pa.table({"kind": column}), tmp_path / "a.parquet", row_group_size=2)
    rows = ParquetRows(str(tmp_path / "a.parquet"))
    assert [rows[number]["kind"] for number in range(4)] == ["a", "b", "a", None]


@pytest.mark.parametrize("wrapped", [list, lambda values: [[value] for value in values]], ids=["bare", "list"])
@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_a_row_does_not_carry_the_values_of_others(kind, wrapped, tmp_path):
    """Arrow writes all that views and dictionaries refer to, whatever part of them is written."""
    values = pa.array([f"{number:0100}" for number in range(300)]).cast(kind).to_pylist()
    column = pa.array(wrapped(values), pa.list_(kind) if wrapped is not list else kind)
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    rows = ParquetRows(str(tmp_path / "a.parquet"))
    assert [rows[number]["x"] for number in range(300)] == wrapped(values)
    assert rows.files[0].stored.stat().st_size < 300 * 2000


CATEGORIES = [
    pa.array(["a", "b", "a", "c"]).dictionary_encode(),
    pa.array(["a", "b", "a", "c"]).cast(pa.string_view()),
]


@pytest.mark.parametrize("items", CATEGORIES, ids=["dictionary", "view"])
def test_maps_and_lists_of_one_size_hold_categories_and_views(items, tmp_path):
    """In prompts and in a source; where pyarrow takes or writes such values, it fails."""
    pairs = pa.MapArray.from_arrays(pa.array([0, 2, 4], pa.int32()), pa.array([*"klmn"]), items)
    table = pa.table({"map": pairs, "pair": pa.FixedSizeListArray.from_arrays(items, 2)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    want = table.to_pylist()
    assert list(ParquetRows(str(tmp_path))) == want
    data = MergedDataset([ParquetDataset(str(tmp_path), name="s", percent=1)], cyclic=False)
    assert sorted(([row["map"], row["pair"]] for row in data), key=str) == [[*row.values()] for row in want]


def test_columns_of_one_name_are_an_error(tmp_path):
    """A row would keep the values of one of them."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array([2])], names=["x", "x", "y"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet': expected a parquet file .* the names \['x'\]"):
        ParquetRows(str(tmp_path / "a.parquet"))


def test_lists_of_nulls_in_structs_are_read(tmp_path):
    """Pyarrow's cast of them to what they are already fails."""
    kind = pa.struct([("l", pa.list_(pa.null())), ("n", pa.int64())])
    column = pa.array([{"l": [None] * 3, "n": number} for number in range(50)], kind)
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet", row_group_size=7)
    rows = ParquetRows(str(tmp_path / "a.parquet"))
    assert [rows[number]["x"] for number in range(50)] == column.to_pylist()


def test_columns_of_json_are_decoded(tmp_path):
    """HF's `Json()`, nested too."""
    json_column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1.5}', "3"]))
    lists = pa.ListArray.from_arrays([0, 2, 2], json_column)
    pq.write_table(pa.table({"j": json_column, "l": lists}), tmp_path / "a.parquet")
    assert list(ParquetRows(str(tmp_path))) == [{"j": {"a": 1.5}, "l": [{"a": 1.5}, 3]}, {"j": 3, "l": []}]


NANOSECONDS = [0, 1_577_836_800_000_001_000, None, 1_577_836_800_000_000_001]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.duration("ns"), pa.list_(pa.timestamp("ns"))], ids=str)
def test_a_value_that_python_cannot_hold_is_told_with_its_place(kind, tmp_path):
    """Such as one finer than microseconds; the others of its column are read."""
    values = [[value] for value in NANOSECONDS] if pa.types.is_list(kind) else NANOSECONDS
    column = pa.array(values, kind)
    for name in "ab":
        pq.write_table(pa.table({"n": [1, 2, 3, 4], "made": column}), tmp_path / f"{name}.parquet", row_group_size=2)
    rows = ParquetRows(str(tmp_path))
    assert [rows[number]["made"] for number in (4, 5, 6)] == column[:3].to_pylist()
    with pytest.raises(SourceError, match=r"b.parquet', row 3, column 'made': expected .*, got: .*\n.*microseconds"):
        rows[7]


def test_rows_pickle_as_paths(tmp_path):
    """However many there are."""
    rows = ParquetRows(sums(tmp_path / "a.parquet", 500))
    _ = rows[3]
    data = pickle.dumps(rows)
    assert len(data) < 1000
    assert pickle.loads(data)[499] == rows[499]


def test_a_file_that_changes_after_it_was_hashed_is_refused(tmp_path, monkeypatch):
    """Its new rows may not be kept under the hash of the old ones."""
    path = sums(tmp_path / "a.parquet", 3)
    hash_old = FileCache.digest

    def then_change(cache, name):
        digest = hash_old(cache, name)
        sums(tmp_path / "a.parquet", 4)
        return digest

    monkeypatch.setattr(FileCache, "digest", then_change)
    with pytest.raises(SourceError, match="one that changed while it was read"):
        ParquetRows(path)


@pytest.mark.parametrize("size", [0, 8, 20, 100, -1])
def test_a_damaged_file_of_rows_says_what_to_do(size, tmp_path):
    """With its path: it is in a cache that nobody looks at."""
    path = sums(tmp_path / "a.parquet", 3)
    stored = ParquetRows(path).files[0].stored
    stored.write_bytes(stored.read_bytes()[:size])
    with pytest.raises(SourceError, match=f"'{stored}': expected rows as they were written, .*\n.*Delete the file"):
        ParquetRows(path)


def test_use_shm_reads_from_shared_memory(tmp_path, monkeypatch):
    """They are found again by the next start."""
    monkeypatch.setattr(module, "SHARED_MEMORY", str(tmp_path))
    path = sums(tmp_path / "a.parquet")
    rows = ParquetRows(path, use_shm=True)
    assert rows.files[0].stored.parent == tmp_path / f"streamdata-{os.getuid()}" / "rows"
    assert rows[4] == ParquetRows(path)[4]
    before = rows.files[0].stored.stat().st_ino
    assert ParquetRows(path, use_shm=True).files[0].stored.stat().st_ino == before


def open_to_all(place):
    """A directory into which everybody may write."""
    place.mkdir()
    place.chmod(0o777)


@pytest.mark.parametrize(
    "squat", [open_to_all, lambda place: place.symlink_to(place.parent), lambda place: place.touch()]
)
def test_shared_memory_of_others_is_refused(squat, tmp_path, monkeypatch):
    """Anybody may make a directory of our name there, and rows in it."""
    monkeypatch.setattr(module, "SHARED_MEMORY", str(tmp_path))
    squat(tmp_path / f"streamdata-{os.getuid()}")
    with pytest.raises(SourceError, match="alone can write"):
        ParquetRows(sums(tmp_path / "a.parquet"), use_shm=True)


def test_shared_memory_of_another_owner_is_refused(tmp_path, monkeypatch):
    """Though nobody else can write there."""
    monkeypatch.setattr(module, "SHARED_MEMORY", str(tmp_path))
    path, owner = sums(tmp_path / "a.parquet"), os.getuid() + 1
    monkeypatch.setattr(module.os, "getuid", lambda: owner)
    with pytest.raises(SourceError, match=f"its owner, user {owner}, alone can write, got drwx------ of user"):
        ParquetRows(path, use_shm=True)


def test_missing_shared_memory_says_what_to_do(tmp_path, monkeypatch):
    """Some systems have none."""
    monkeypatch.setattr(module, "SHARED_MEMORY", str(tmp_path / "shm"))
    with pytest.raises(SourceError, match=r"use_shm: expected .*/shm/.*, got .*No such file(.|\n)*leave use_shm"):
        ParquetRows(sums(tmp_path / "a.parquet"), use_shm=True)


def test_no_room_in_shared_memory_says_so(tmp_path, monkeypatch):
    """And leaves nothing there."""

    def full(target, *_):
        target.touch()
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "SHARED_MEMORY", str(tmp_path))
    monkeypatch.setattr(module, "write_rows", full)
    with pytest.raises(SourceError, match="No space left"):
        ParquetRows(sums(tmp_path / "a.parquet"), use_shm=True)
    assert [path.suffix for path in tmp_path.glob("streamdata-*/rows/*")] == [".lock"]


@pytest.mark.parametrize(
    ("data_files", "error", "message"),
    [
        ("none.parquet", FileNotFoundError, "expected a file or directory"),
        ("none*.parquet", FileNotFoundError, "got nothing"),
        ([], ValueError, "expected a path, got none"),
        (None, ValueError, "a path or a list of them, got None"),
        ("broken.parquet", SourceError, "expected a parquet file"),
    ],
)
def test_what_is_no_parquet_here_is_refused(data_files, error, message, tmp_path, monkeypatch):
    """With the path and what to do; nothing is left in the cache."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(error, match=message):
        ParquetRows(data_files)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


@pytest.mark.parametrize("index", [-1, 12])
def test_an_index_outside_is_an_index_error(index, tmp_path):
    """Both ends."""
    with pytest.raises(IndexError, match="expected an index in"):
        ParquetRows(sums(tmp_path / "a.parquet", 12))[index]


def test_a_missing_pyarrow_is_named_with_its_extra(tmp_path):
    """The one line that installs it."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from streamdata.shards.parquet.rows import ParquetRows\n"
        f"ParquetRows({sums(tmp_path / 'a.parquet')!r})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install torch-streamdata[parquet]" in found.stderr
