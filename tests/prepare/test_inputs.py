import gzip
import json
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamdata.errors import ShardError
from streamdata.prepare import PrepareError, inputs
from streamdata.prepare.inputs import Task, TaskInput, plan_tasks
from streamdata.prepare.run_directory import make_manifest
from tests.io.servers import http_server
from tests.prepare.runs import write


def read(task: Task) -> tuple[list[str], list[object], str]:
    """Locations and records of a task, and the digest of what was read."""
    source = TaskInput(task)
    found = [
        (source.location(number), record)
        for batch in source.batches()
        for number, record in enumerate(batch.records, batch.first)
        if record is not None
    ]
    return [location for location, _ in found], [record for _, record in found], source.digest()


LINES = st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=12)
FIRST = [b"{}", b"\xef\xbb\xbf{}", b"x"]
"""What a file begins with is not anything: it might be that of another format."""


@given(first=st.sampled_from(FIRST), lines=LINES, is_ended=st.booleans(), task_bytes=st.integers(1, 40))
def test_every_line_is_in_the_task_where_it_starts(
    tmp_path_factory: pytest.TempPathFactory, first: bytes, lines: list[bytes], is_ended: bool, task_bytes: int
) -> None:
    """Once, in order, with its number in the file, however the file is cut."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    data = b"\n".join([first, *lines]) + (b"\n" if is_ended else b"")
    path.write_bytes(data)
    tasks = plan_tasks([str(path)], task_bytes)
    assert [task.begin for task in tasks[1:]] == [task.end for task in tasks[:-1]]
    found = [(place, record) for task in tasks for place, record in zip(*read(task)[:2], strict=True)]
    whole = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [(f"{path}:{number}", line) for number, line in enumerate(whole, 1) if line.strip(b" \t\r\n")]
    assert found == expected


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_a_compressed_file_is_one_task_of_the_same_records(tmp_path: Path, suffix: str) -> None:
    """And of the same content, whatever the compression."""
    plain = Path(write(tmp_path / "plain.jsonl", [{"n": number} for number in range(100)]))
    packed = tmp_path / f"packed{suffix}"
    compress = gzip.compress if suffix.endswith("gz") else zstandard.ZstdCompressor().compress
    packed.write_bytes(compress(plain.read_bytes()))
    (task,) = plan_tasks([str(packed)], 10)
    (whole,) = plan_tasks([str(plain)], 1 << 20)
    assert read(task)[1:] == read(whole)[1:]


@pytest.mark.parametrize("start", ["", "\ufeff \n"])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson", "a.dat"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_one_task_of_its_elements(
    tmp_path: Path, indent: int | None, name: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name, and however long its lines are; lines of JSON by that name are cut as others are."""
    rows = [{"n": number} for number in range(40)]
    (tmp_path / name).write_text(start + json.dumps(rows, indent=indent))
    (task,) = plan_tasks([str(tmp_path / name)], 100)
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 100)
    places, records, _ = read(task)
    assert [json.loads(record) for record in records] == rows
    assert places[-1] == f"{tmp_path}/{name}:40"
    write(tmp_path / name, rows)
    assert len(plan_tasks([str(tmp_path / name)], 100)) > 1


def test_a_remote_json_array_is_one_task() -> None:
    """Whatever its name; planning reads no more of it than what it begins with."""
    rows = [{"n": number} for number in range(9)] + [{"text": "x" * 100_000}]
    with http_server({"a.jsonl": json.dumps(rows).encode()}) as server:
        (task,) = plan_tasks([f"{server.url}/a.jsonl"], 100)
        ranges = [request.headers["range"] for request in server.log if request.method == "GET"]
        assert ranges[-1] == "bytes=0-65535"
        assert [json.loads(record) for record in read(task)[1]] == rows


def test_what_was_read_adds_up_to_the_files(tmp_path: Path) -> None:
    """RunProgress compares it with their sizes; compressed and columnar files hold more than these say."""
    records = [{"n": "much the same " * 9} for _ in range(3000)]
    plain = Path(write(tmp_path / "a.jsonl", records))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "c.parquet", row_group_size=800)
    for task in plan_tasks([str(tmp_path)], 1 << 30):
        read_bytes = sum(batch.size_bytes for batch in TaskInput(task).batches())
        assert read_bytes == pytest.approx(task.end - task.begin, abs=len(records))


@pytest.mark.parametrize("task_bytes", [300, 1000, 1 << 20])
def test_parquet_is_cut_by_its_row_groups(tmp_path: Path, task_bytes: int) -> None:
    """Each is in the task where it starts; rows count from 1 over the file."""
    path = tmp_path / "a.parquet"
    rows = [{"text": f"row {number}" * 9, "tags": ["a", "b"]} for number in range(50)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=7)
    places, records = [], []
    for task in plan_tasks([str(path)], task_bytes):
        found = read(task)
        places += found[0]
        records += found[1]
    assert records == rows
    assert places == [f"{path}:{number}" for number in range(1, 51)]


def test_tasks_depend_on_names_and_sizes_alone(tmp_path: Path) -> None:
    """Not on the order in which inputs are named; an empty file has one task too."""
    names = [write(tmp_path / f"{name}.jsonl", ["{}"] * count) for name, count in zip("cab", (5, 0, 9), strict=True)]
    tasks = plan_tasks(names, 10)
    assert tasks == plan_tasks(names[::-1], 10) == plan_tasks(str(tmp_path), 10)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    sizes = [(Path(task.url).stem, task.end - task.begin) for task in tasks]
    assert sizes == [("a", 0), ("b", 10), ("b", 10), ("b", 7), ("c", 10), ("c", 5)]


def test_a_file_that_changed_since_it_was_planned_is_refused(tmp_path: Path) -> None:
    """Its tasks would not fit together."""
    path = write(tmp_path / "a.jsonl", ["{}"] * 9)
    tasks = plan_tasks([path], 10)
    write(tmp_path / "a.jsonl", ["{}"] * 10)
    with pytest.raises(ShardError, match="was replaced or modified"):
        read(tasks[0])


def test_a_pipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on has to read its input again."""
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    with pytest.raises(PrepareError, match="expected files, got 'pipe:cat x', which cannot be read again"):
        plan_tasks(["pipe:cat x"], 10)


def test_a_line_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a file that is not JSON Lines; in the task where it starts, and when the next looks for its end."""
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 100)
    path = write(tmp_path / "a.jsonl", [json.dumps("x" * (1 << 21))])
    for task in plan_tasks([path], 1 << 20)[:2]:
        with pytest.raises(PrepareError, match=r"the line at offset \d+: expected a record of at most 100 bytes"):
            read(task)


def test_a_row_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a line is; by its number."""
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 100)
    monkeypatch.setattr(inputs, "MAX_BATCH_BYTES", 10)
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"] * 8 + ["x" * 200, "x"]}), path, row_group_size=3)
    tasks = plan_tasks([str(path)], 40)
    with pytest.raises(PrepareError, match=r"a.parquet:9: expected a record of at most 100 bytes, got more"):
        [read(task) for task in tasks]


def test_long_rows_come_few_at_a_time(tmp_path: Path) -> None:
    """However the rows of a file differ: about a megabyte, so that memory stays bounded."""
    path = tmp_path / "a.parquet"
    sizes = [10, 10, 600_000, 700_000, 10, 10, 2_000_000] + [10] * 500
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"{size:d}" * (size // 2) for size in sizes]}), path)
    batches = list(TaskInput(plan_tasks([str(path)], 1 << 30)[0]).batches())
    assert max(len(row["text"]) for batch in batches for row in batch.records) > 2_000_000
    assert all(len(batch.records) == 1 or sum(len(row["text"]) for row in batch.records) < 1 << 20 for batch in batches)
    assert sum(len(batch.records) for batch in batches) == len(sizes)
    assert len(batches) < 60


def test_digests_tell_contents_apart(tmp_path: Path) -> None:
    """Each task's, and the file's made of them."""
    digests = []
    for text in ("a", "b", "b"):
        path = write(tmp_path / f"{len(digests)}.jsonl", [json.dumps(text)] * 5)
        digests.append([read(task)[2] for task in plan_tasks([path], 8)])
    assert digests[0] != digests[1] == digests[2]
    files = [file_digest(found) for found in digests]
    assert [one == other for one, other in pairwise(files)] == [False, True]


def file_digest(digests: list[str]) -> str:
    """The digest of a file that the manifest has, from those of its tasks."""
    empty: dict[str, object] = {"counts": {}, "dropped": {}, "bad": {}, "files": {}}
    markers = [empty | {"input": {"url": "a", "digest": digest}} for digest in digests]
    (entry,) = make_manifest({"inputs": [{"url": "a"}]}, markers)["inputs"]
    return str(entry["digest"])


def test_the_categories_of_a_column_are_no_part_of_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be larger than any record, and do not make batches small."""
    kinds = [f"{number:0100d}" for number in range(90)]
    table = pyarrow.table({"text": ["x"] * 90, "kind": pyarrow.array(kinds).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (task,) = plan_tasks([str(tmp_path / "a.parquet")], 1 << 20)
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(inputs, "MAX_BATCH_BYTES", 900)
    source = TaskInput(task)
    batches = [batch.records for batch in source.batches()]
    assert [row for batch in batches for row in batch] == table.to_pylist()
    assert max(map(len, batches)) > 3


@pytest.mark.parametrize("keep", [0, -30])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, keep: int) -> None:
    """Empty, or without its end."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"] * 9}), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ShardError, match=r"a.parquet': expected a parquet file"):
        read(plan_tasks([str(path)], 1 << 20)[0])


def test_an_input_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """By a glob, say, and by itself."""
    path = write(tmp_path / "a.jsonl", ["{}"])
    with pytest.raises(PrepareError, match=r"inputs: shards: expected '.*a.jsonl' once"):
        plan_tasks([path, f"{tmp_path}/*.jsonl"], 10)


def test_a_value_that_python_cannot_hold_is_told_with_its_place(tmp_path: Path) -> None:
    """Also in a column that nobody asks for."""
    times = pyarrow.array([1, 1001], pyarrow.timestamp("ns"))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "time": times}), tmp_path / "a.parquet")
    (task,) = plan_tasks([str(tmp_path / "a.parquet")], 1 << 20)
    with pytest.raises(PrepareError, match=r"a\.parquet.* here and in 1 rows after it, got: .*\n  Write the column"):
        read(task)


def test_the_padding_of_parquet_is_left_out(tmp_path: Path) -> None:
    """Arrow gives each dict of a column the keys of all the others; a field that is null, and JSON's nulls, stay."""
    rows = [{"tools": [{"x": {"type": "int"}}], "t": None}, {"tools": [{"y": None, "z": [None, 1]}], "t": "a"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (task,) = plan_tasks([str(tmp_path / "a.parquet")], 1 << 20)
    assert read(task)[1] == [rows[0], {"tools": [{"z": [None, 1]}], "t": "a"}]
    (task,) = plan_tasks([write(tmp_path / "a.jsonl", rows)], 1 << 20)
    assert [json.loads(line) for line in read(task)[1]] == rows


def test_columns_of_json_are_decoded(tmp_path: Path) -> None:
    """HF's `Json()`: their nulls stay, as those of JSON Lines do."""
    texts = pyarrow.array(['{"x": null}', '["a", 1]'])
    column = pyarrow.ExtensionArray.from_storage(pyarrow.json_(), texts)
    pyarrow.parquet.write_table(pyarrow.table({"j": column}), tmp_path / "a.parquet")
    (task,) = plan_tasks([str(tmp_path / "a.parquet")], 1 << 20)
    assert read(task)[1] == [{"j": {"x": None}}, {"j": ["a", 1]}]


@pytest.mark.parametrize("line", [b"<html>", b'\xef\xbb\xbf{"text": "b"}'])
def test_what_a_later_task_begins_with_says_nothing_of_the_file(tmp_path: Path, line: bytes) -> None:
    """Neither a format nor a byte order mark; it is a record like any other, broken or not."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"text": "a"}', line, line, line, b""]))
    for task_bytes in (14, 1000):
        tasks = plan_tasks(str(path), task_bytes)
        batches = [batch for task in tasks for batch in TaskInput(task).batches()]
        assert [record for batch in batches for record in batch.records] == [b'{"text": "a"}', line, line, line]


@pytest.mark.parametrize(("name", "head"), [("a.jsonl", b"PAR1"), ("a.jsonl.gz", b""), ("a.jsonl.zst", b"<html>")])
def test_a_file_that_is_not_what_its_name_says_is_an_error(tmp_path: Path, name: str, head: bytes) -> None:
    """Not a broken record, of which some may be passed over."""
    (tmp_path / name).write_bytes(head)
    with pytest.raises(ShardError, match=rf"{name}': expected .* got (a parquet|a file of 0 bytes|an HTML)"):
        [list(TaskInput(task).batches()) for task in plan_tasks(str(tmp_path / name), 100)]
