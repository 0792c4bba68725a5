import json
import os
import pickle
import re
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamdata.errors import ShardError
from streamdata.recipe.limits import ShardLimits
from streamdata.shards.jsonl import lines as json_lines
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.sequential import SequentialJsonl
from tests.shards.conftest import read_all, read_from_start, whole

INTEGERS = st.integers(-(2**63), 2**64 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.dictionaries(st.text(max_size=5).filter(lambda name: name not in {"__url__", "__key__"}), VALUES, max_size=4)


def fields(record):
    return {name: value for name, value in record.items() if name not in {"__url__", "__key__"}}


def both_ways(url):
    """All records by the index, which are also those read from the start."""
    records = read_all(JsonlShards([url]))
    assert list(SequentialJsonl([url]).stream(0)) == records
    return records


def both_fail(url, message):
    """Both ways of reading raise an error that matches `message`."""
    with pytest.raises(ShardError, match=message):
        read_all(JsonlShards([url]))
    with pytest.raises(ShardError, match=message):
        read_from_start(SequentialJsonl([url]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROWS, max_size=12), end=st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\r\n"]), seed=st.integers(0)
)
def test_rows_come_back_as_they_were_written(write_jsonl, rows, end, seed):
    """Any objects with any line ends, in any order of reading: equal values of equal types, numbered by line."""
    url = write_jsonl(rows, end=end)
    window = whole(JsonlShards([url]))
    order = np.random.default_rng(seed).permutation(len(rows))
    records = list(window.take(order))
    assert [repr(fields(record)) for record in records] == [repr(rows[place]) for place in order]
    assert [record["__key__"] for record in records] == [str(place * end.count(b"\n")) for place in order]
    assert list(SequentialJsonl([url]).stream(0)) == [records[place] for place in np.argsort(order)]


def test_blank_lines_count_as_lines_but_are_no_records(write_jsonl, caplog):
    """Keys are numbers of physical lines; blank lines are skipped, counted and logged."""
    url = write_jsonl([b"", {"a": 0}, b"  \t", b"\r", {"a": 1}, b""])
    assert [(record["__key__"], record["a"]) for record in both_ways(url)] == [("1", 0), ("4", 1)]
    assert JsonlShards([url]).anomalies() == {"blank lines": 4}
    assert "4 blank lines, the first line 1" in caplog.text
    sequential = SequentialJsonl([url])
    assert len(list(sequential.stream(0))) == 2
    assert sequential.anomalies() == {"blank lines": 4}


def test_a_byte_order_mark_is_accepted_at_the_beginning_only(write_jsonl):
    """A BOM before the first line belongs to no record; later on it is an error."""
    assert fields(both_ways(write_jsonl([b'\xef\xbb\xbf{"a": 1}']))[0]) == {"a": 1}
    assert both_ways(write_jsonl([b"\xef\xbb\xbf"])) == []
    both_fail(write_jsonl([b"{}", b'\xef\xbb\xbf{"a": 1}']), r"00000\.jsonl:2:1: ")


def test_a_complete_last_line_needs_no_line_feed(write_jsonl):
    """The last row is read without a line feed; cut short, it is an error with its place."""
    assert [record["a"] for record in both_ways(write_jsonl([b'{"a": 1}\n{"a": 2}'], end=b""))] == [1, 2]
    both_fail(write_jsonl([b'{"a": 1}\n{"a": 2'], end=b""), r"00000\.jsonl:2:8: ")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\x1f\x8b\x08", "gzip data"),
        (b"\x28\xb5\x2f\xfd\x04", "Zstandard data"),
        (b"BZh91AY&SY", "bzip2 data"),
        (b"\xfd7zXZ\0", "xz data"),
        (b"PAR1\x15", "a parquet file"),
        (b"PK\x03\x04", "a zip archive"),
        (b"0.txt".ljust(257, b"\0") + b"ustar\00000", "a tar archive"),
        (b"\n <!DOCTYPE html>\n", "an HTML or XML page"),
        (b'\xef\xbb\xbf<?xml version="1.0"?><Error>', "an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        ('{"n": 1}'.encode("utf-16"), "UTF-16 text"),
    ],
)
@pytest.mark.parametrize("name", ["0.jsonl", "0.jsonl.lz4", "0.JSONL.GZ"])
def test_a_file_of_another_format_is_an_error_that_says_which(write_jsonl, head, what, name):
    """By its first bytes, where a name is spelt out; not as a broken line of JSON."""
    both_fail(write_jsonl([head], name), rf"{name}': expected JSON Lines, got {what}, which begins with ")


def test_an_empty_file_has_no_records(write_jsonl):
    """No lines, no records, no error."""
    assert both_ways(write_jsonl([])) == []


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        (b'{"a": }', 7, "JSON object on one line"),
        (b'{"a": 1', 8, "unexpected end of data"),
        ('{"é": "日本", x}'.encode(), 13, "JSON object"),
        (b'{"a": NaN}', 7, "JSON"),
        (b'{"a": Infinity}', 7, "JSON"),
        (b'{"a": -Infinity}', 8, "JSON"),
        (b'{"a": 1e999}', 7, "infinity"),
        (b'{"a": 1} {"b": 2}', 10, "unexpected content"),
        (b"[1, 2]", 1, "a JSON object, got list"),
        (b'"text"', 1, "a JSON object, got str"),
        (b"12", 1, "a JSON object, got int"),
        (b"null", 1, "a JSON object, got null"),
        ("{'é': 1}".encode(), 2, "JSON object"),
        ('{"é": "'.encode() + b'\xff"}', 8, "UTF-8"),
        (b"\xff", 1, "UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', 8, "UTF-8"),
        (b'{"__key__": "x"}', 1, "'__key__', which streamdata sets itself"),
        (b'{"__index__": 0, "__states__": []}', 1, "'__index__' and '__states__', which streamdata sets itself"),
        (b'{"n": 18446744073709551616}', 7, "2\\^64"),
        (b'{"n": [1, -9223372036854775809]}', 11, "-2\\^63"),
        ('{"é": "1", "n": 123456789012345678901234567890}'.encode(), 17, "123456789012345678901234567890"),
        (b'{"n": ' + b"9" * 5000 + b"}", 7, "infinity"),
        (b'{"a": 1}\x00', 9, "unexpected content"),
    ],
)
def test_broken_lines_are_errors_with_line_and_column(write_jsonl, line, column, message):
    """Lines from 1, columns in characters from 1, behind a blank line and between good ones."""
    url = write_jsonl([{"ok": 1}, b"", line, b"", {"ok": 2}])
    both_fail(url, rf"00000\.jsonl:3:{column}: .*{message}")


def test_a_field_that_each_sample_gets_is_refused_in_a_row(write_jsonl):
    """It would be overwritten in silence."""
    window = JsonlShards([write_jsonl([{"__seed__": 7}])]).window(*(np.array([one]) for one in (0, 0, 1)))
    with pytest.raises(ShardError, match=r"00000\.jsonl:1:1: .*'__seed__', which streamdata sets itself"):
        next(window.take([0], {"__seed__": 1}))


@pytest.mark.parametrize("broken", [0, 1, 15, 16, 21, 39])
def test_the_rows_before_a_broken_line_are_given(write_jsonl, broken):
    """Though many are parsed at once."""
    url = write_jsonl([b'{"n": ' if number == broken else {"n": number} for number in range(40)])
    shards = JsonlShards([url])
    records = shards.window(*(np.array([one]) for one in (0, 0, 40))).take(range(40))
    assert [record["n"] for record in islice(records, broken)] == list(range(broken))
    with pytest.raises(ShardError, match=rf"00000\.jsonl:{broken + 1}:7: "):
        next(records)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 2**63, 10**19, 9999999999999999999, -(10**18), 0])
def test_integers_of_64_bits_are_exact(write_jsonl, number):
    """The outermost integers come back as integers, wherever they stand in the buffer."""
    for padding in range(8):
        (record,) = both_ways(write_jsonl([{"p" * padding: 1, "n": [number]}]))
        assert record["n"] == [number]
        assert type(record["n"][0]) is int


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**20, -(10**19), -9999999999999999999, 10**30])
def test_integers_beyond_64_bits_are_errors_wherever_they_stand(write_jsonl, number):
    """No alignment within the buffer, nor the end of the file, hides one."""
    for padding in range(24):
        both_fail(write_jsonl([{"p" * padding: 1, "n": number}], end=b""), r":1:\d+: expected an integer")
        both_fail(
            write_jsonl([{"a": 1}, {"p" * padding: number}, {"b": 12345678901234567}]), r":2:\d+: expected an int"
        )


def test_digits_that_are_no_integers_pass(write_jsonl):
    """Fractions, exponents and texts may have any number of digits."""
    rows = [
        b'{"a": 0.123456789012345678901234567890}',
        b'{"a": 12345678901234567890123456789.5}',
        b'{"a": 123456789012345678901234567890e-5}',
        b'{"a": "123456789012345678901234567890"}',
        b'{"123456789012345678901234567890": "-9999999999999999999"}',
        b'{"a": "\\"123456789012345678901234567890"}',
    ]
    assert [fields(record) for record in both_ways(write_jsonl(rows))] == [json.loads(row) for row in rows]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=st.dictionaries(st.text(st.sampled_from("0123456789-."), max_size=24), st.integers() | st.floats(0, 1)))
def test_integers_are_exact_or_errors(write_jsonl, row):
    """Whatever integers a row holds, it is never read with other values."""
    url = write_jsonl([row])
    if all(isinstance(value, float) or -(2**63) <= value < 2**64 for value in row.values()):
        assert repr(fields(both_ways(url)[0])) == repr(row)
    else:
        both_fail(url, "expected an integer")


@pytest.mark.parametrize("cap", [0, 1 << 20])
def test_windows_read_runs_of_several_shards(write_jsonl, cap):
    """Rows of runs in any order, whether the window is kept in memory or read take by take."""
    urls = [write_jsonl([{"n": f"{s}-{n}"} for n in range(9)], f"{s}.jsonl") for s in range(3)]
    shards = JsonlShards(urls, max_kept_bytes=cap)
    window = shards.window(np.array([2, 0, 2, 1]), np.array([4, 0, 0, 7]), np.array([3, 2, 1, 0]))
    expected = ["2-4", "2-5", "2-6", "0-0", "0-1", "2-0"]
    order = [5, 0, 3, 3, 1, 2, 4]
    assert [record["n"] for record in window.take(order)] == [expected[place] for place in order]
    assert next(window.take([5]))["__url__"] == urls[2]


def test_long_rows_are_read(write_jsonl):
    """Rows of more than a few kilobytes, and of more than the chunks that an index is built of."""
    rows = [{"text": letter * size} for letter, size in zip("abc", (10, 5_000_000, 100_000), strict=True)]
    assert [fields(record) for record in both_ways(write_jsonl(rows))] == rows


def test_readers_are_picklable(write_jsonl):
    """A reader that went through pickle reads the same."""
    shards = JsonlShards([write_jsonl([{"a": 1}, {"a": 2}])])
    copy = pickle.loads(pickle.dumps(shards))
    assert read_all(copy) == read_all(shards)
    assert copy.identity() == [("00000.jsonl", 2)]


def test_open_files_are_bounded(write_jsonl):
    """A window over 300 shards holds no more than the bounded numbers open."""
    url = write_jsonl([{"a": 1}])
    urls = [str(shutil.copy2(url, url.replace("00000", f"{number:05d}"))) for number in range(1, 301)]
    window = whole(JsonlShards(urls))
    before = len(os.listdir("/proc/self/fd"))
    assert len(list(window.take(np.arange(300)))) == 300
    assert len(os.listdir("/proc/self/fd")) < before + 300


def replace_by_rename(path):
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b'{"a": 8}\n{"a": 9}\n')


def overwrite(path):
    path.write_bytes(b'{"a": 8}\n{"a": 9}\n')
    os.utime(path, ns=(1, 1))


def shrink(path):
    os.truncate(path, 9)


@pytest.mark.parametrize("change", [replace_by_rename, overwrite, shrink, Path.unlink])
@pytest.mark.parametrize("cap", [0, 1 << 20])
def test_a_shard_that_changes_while_it_is_read_is_an_error(write_jsonl, change, cap):
    """A shard renamed over, written over, shrunk or removed gives an error at the next window or take."""
    url = write_jsonl([{"a": 1}, {"a": 2}])
    shards = JsonlShards([url], max_kept_bytes=cap)
    list(whole(shards).take([0]))
    change(Path(url))
    with pytest.raises(ShardError, match=re.escape(url)):
        read_all(shards)


def test_a_shard_written_over_is_an_error_within_a_window(write_jsonl):
    """Also rows that are in memory already are not handed out once their shard has changed."""
    url = write_jsonl([{"a": 1}, {"a": 2}])
    window = whole(JsonlShards([url]))
    list(window.take([0]))
    overwrite(Path(url))
    with pytest.raises(ShardError, match="replaced or modified"):
        list(window.take([1]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(ROWS, max_size=12),
    indent=st.sampled_from([None, 1]),
    ends=st.tuples(*[st.sampled_from(["", " \n"])] * 2),
)
def test_elements_of_an_array_are_records(tmp_path, rows, indent, ends):
    """Whatever texts and brackets they hold, in whatever pieces the file is read, by the index or from the start."""
    path = tmp_path / "a.json"
    path.write_text("\ufeff" + ends[0] + json.dumps(rows, indent=indent) + ends[1])
    with pytest.MonkeyPatch.context() as small:
        small.setattr(json_lines, "_CHUNK", 7)
        records = both_ways(str(path))
    assert [repr(fields(record)) for record in records] == [repr(row) for row in rows]
    assert [record["__key__"] for record in records] == [str(number) for number in range(len(rows))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1},\n{"a"', "after element 1 of its array: expected ',' or '[]]', got the end of the file"),
        ("[{},\n, {}]", "after element 1 of its array: expected another one, got none"),
        ("[{}, ]", "after element 1 of its array: expected another one, got none"),
        ('[{"a": 1}, {"a": 2}}', "after element 2 of its array: expected ',' or '[]]', got '}'"),
        ("[{}] {}", "after element 1 of its array: expected the end of the file, got b'{}'"),
        ('[{}, {\n"a": x}]', r"a\.json:element 2:9: expected a JSON object"),
        ("[{}, 7]", r"a\.json:element 2:1: expected a JSON object, got int"),
        ('[{}, {"__key__": 1}]', r"a\.json:element 2:1: expected other field names"),
        ("[1]\n[2]", r"a\.json:1:1: expected a JSON object, got list"),
    ],
)
def test_an_array_that_is_broken_is_an_error_with_the_element(tmp_path, text, message):
    """Lines that are lists are still lines."""
    (tmp_path / "a.json").write_text(text)
    both_fail(str(tmp_path / "a.json"), message)


def test_an_element_has_the_bound_of_a_line(tmp_path):
    """Over however many lines it goes, also where the index was made under another bound."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{}, {"a": ["x"] * 40}], indent=1))
    message = r"a\.json:element 2: expected a line of at most 99 bytes"
    with pytest.raises(ShardError, match=message):
        read_from_start(SequentialJsonl([str(path)], limits=ShardLimits(line_bytes=99)))
    JsonlShards([str(path)])
    with pytest.raises(ShardError, match=message):
        read_all(JsonlShards([str(path)], limits=ShardLimits(line_bytes=99)))
