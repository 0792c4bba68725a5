import math
import subprocess
import sys

import pyarrow as pa
import pytest

from streamdata.errors import SourceError
from streamdata.io.storage import LocalShard
from streamdata.shards.parquet.stored_rows import StoredRows, write_rows
from tests.chats.prompts.prompt_files import sums

NESTED = [
    pa.array(["a", None, "é"]),
    pa.array([[1], [], [2, 3]], pa.list_(pa.int8())),
    pa.array([[{"x": 1}], None, [{"x": None}, {"x": 2}]]),
    pa.array([{"x": [{"y": "a"}], "z": None}, {"x": [], "z": 1.5}, {"x": None, "z": 2.0}]),
    pa.array([{"x": 1}, None, {"x": 3}]),
    pa.array([[["a"], []], [], [["b", "c"], None]]),
    pa.array([[{"x": {"y": [1, 2]}}], [{"x": {"y": []}}], []]),
    pa.array([[("k", 1)], [], [("l", 2)]], pa.map_(pa.string(), pa.int64())),
    pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
    pa.array([["a"], ["b", "c"], []], pa.large_list(pa.string())),
    pa.array(["a", "", "\u00e9\U0001f98a"]),
    pa.array(["", "", ""]),
    pa.array([1, -(2**63), 2**63 - 1]),
    pa.array([1, 2, 3], pa.uint64()),
    pa.array([0.1, 2.0, -3.5]),
    pa.array([0.1, None, -0.0], pa.float32()),
    pa.array([[0.1], None, [math.inf, 5e-324]]),
    pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    pa.array([{"x": b"a"}, None, {"x": None}]),
    pa.array([{"image": {"bytes": b"a", "path": None}}] * 3),
    pa.array(["a", None, "b"], pa.large_string()),
    pa.StructArray.from_arrays([pa.array([1, 2, 3]), pa.array([4, 5, 6])], ["a", "é"]),
    pa.array([True, False, True]),
    pa.array([b"a", b"", b"c"]),
    pa.array([None, None, None]),
]


def stored(path, *batches):
    """The rows of Arrow batches in a file."""
    write_rows(path, "0a", batches[0].schema, batches)
    return StoredRows(path, "a.parquet")


@pytest.mark.parametrize("array", NESTED, ids=lambda array: str(array.type))
@pytest.mark.parametrize("begin", [0, 1])
def test_values_are_those_of_pyarrow(array, begin, tmp_path):
    """Nested, with nulls and without, of arrays that are a part of others too; JSON holds them or not."""
    array = array.slice(begin)
    batch = pa.record_batch({"before": pa.array(range(len(array))), "value": array, "after": pa.nulls(len(array))})
    rows = stored(tmp_path / "rows", batch, batch)
    found = [rows.row(number) for number in range(len(rows))]
    assert found == 2 * batch.to_pylist()
    assert repr(found) == repr(2 * batch.to_pylist())  # types, signs of zero and the order of columns too


def test_numbers_that_json_lacks_are_kept(tmp_path):
    """NaN would be read as null."""
    batches = [pa.record_batch({"x": values}) for values in ([[0.5], [1e300]], [[math.nan], [-math.inf]])]
    rows = stored(tmp_path / "rows", *batches)
    assert [rows.row(number)["x"] for number in (0, 1, 3)] == [[0.5], [1e300], [-math.inf]]
    assert math.isnan(rows.row(2)["x"][0])


def test_a_text_that_is_no_utf_8_is_told_when_its_row_is_read(tmp_path):
    """The other rows of its batch are read."""
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    rows = stored(tmp_path / "rows", pa.record_batch({"text": broken}))
    assert rows.row(0) == {"text": "a"}
    with pytest.raises(SourceError, match=r"a\.parquet', row 1, column 'text': expected a value"):
        rows.row(1)


def test_a_row_costs_few_others(tmp_path, monkeypatch):
    """However large its file: its batch is read, once for rows that follow one another."""
    rows = stored(tmp_path / "rows", pa.record_batch({"x": ["y" * 1000] * 500, "z": [None, *range(499)]}))
    sizes, read = [], LocalShard.read
    monkeypatch.setattr(LocalShard, "read", lambda file, size, at: [sizes.append(size), read(file, size, at)][1])
    assert [rows.row(number) for number in (300, 301)] == [{"x": "y" * 1000, "z": number} for number in (299, 300)]
    assert len(sizes) == 1
    assert sizes[0] < 12_000


def test_any_damage_is_an_error_when_it_is_read(tmp_path):
    """Any byte, and cut anywhere; never other rows."""
    rows = stored(tmp_path / "rows", pa.record_batch({"x": [1, 22], "y": [b"a", b"b"]}))
    expected, data = [rows.row(0), rows.row(1)], (tmp_path / "rows").read_bytes()
    flips = [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(0, len(data), 3)]
    cuts = [data[:at] for at in range(0, len(data), 30)]
    for damage in [*flips, *cuts, data + b"x"]:
        (tmp_path / "rows").write_bytes(damage)
        with pytest.raises(SourceError, match="expected rows as they were written"):
            assert [StoredRows(tmp_path / "rows", "").row(number) for number in (0, 1)] == expected


READ_WHILE_CUT = """
import os, sys
from streamdata.errors import SourceError
from streamdata.shards.parquet.rows import ParquetRows

rows = ParquetRows(sys.argv[1])
first = rows[0]
os.truncate(rows.files[0].stored, int(sys.argv[2]))
try:
    rows[11]
except SourceError as error:
    print(error)
"""


@pytest.mark.parametrize("size", [0, 1000])
def test_a_file_cut_short_under_its_reader_is_an_error(size, tmp_path):
    """In place, while it is open: no signal ends the process."""
    path = sums(tmp_path / "a.parquet", 12, words=100)
    command = [sys.executable, "-c", READ_WHILE_CUT, path, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rows': expected rows as they were written" in done.stdout
