import gzip

import pytest

from streamdata import CsvDataset, MergedDataset, ShardError, StateError, to_state
from tests.streams import assert_exact_resume, delivered


def source(path, **options):
    return CsvDataset(str(path), name="s", percent=1, **options)


def read(path):
    samples = MergedDataset([source(path)], cyclic=False, shuffle_streaming_subsets=False)
    return [{name: value for name, value in sample.items() if name in "abc"} for sample in samples]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_header_names_the_fields_and_values_stay_text(tmp_path, end):
    """Also of quoted values with commas, quotes and line ends; blank lines are none."""
    rows = ["\ufeffa,b", "1,x", "", '"2,5","say ""hi"""', f'"two{end}lines",', ""]
    (tmp_path / "a.csv").write_bytes(end.join(rows).encode())
    want = [{"a": "1", "b": "x"}, {"a": "2,5", "b": 'say "hi"'}, {"a": f"two{end}lines", "b": ""}]
    assert read(tmp_path / "a.csv") == want
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    assert read(tmp_path / "a.csv.gz") == want
    assert read(tmp_path) == want * 2


def test_tables_have_the_delimiter_of_their_name_or_the_one_that_is_given(tmp_path):
    """A tab in .tsv; rows are counted by it, too, since it says which quotes are quotes."""
    text = 'a,x\tb\n1\t"2\n3"\n'
    for name in ("a.tsv", "b.csv"):
        (tmp_path / name).write_text(text)
    (tmp_path / "c.tsv.gz").write_bytes(gzip.compress(text.encode()))
    want = [{"a,x": "1", "b": "2\n3"}]
    for path, options in (("a.tsv", {}), ("c.tsv.gz", {}), ("b.csv", {"delimiter": "\t"})):
        found = list(source(tmp_path / path, **options).source.shards.stream(0))
        assert [{name: row[name] for name in ("a,x", "b")} for row in found] == want
        assert source(tmp_path / path, **options).num_records == 1
    (tmp_path / "b.csv").write_text('a;b\n1;"2\n3"\n')
    assert [source(tmp_path / "b.csv", delimiter=one).num_records for one in (",", ";")] == [2, 1]
    for wrong in ("tab", 0):
        with pytest.raises(ValueError, match=rf"delimiter: expected one ASCII character, got '?{wrong}"):
            source(tmp_path, delimiter=wrong)
    states = to_state(next(iter(MergedDataset([source(tmp_path / "b.csv", delimiter=";")]))))
    with pytest.raises(StateError, match="has another order"):
        MergedDataset([source(tmp_path / "b.csv", delimiter=",")]).set_dataloader_states(states)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", r"a\.csv:3: expected 2 fields, as the header has, got 1"),
        ('a,b\n"1\n2",3\n4,5,6\n', r"a\.csv:4: expected 2 fields, as the header has, got 3"),
        ('a\n"1\n', r"a\.csv:2: expected a row of CSV, got: unexpected end of data"),
        ("a,a\n1,2\n", r"a\.csv:1: expected a header that names the fields, each once, .* got \['a'\]"),
        ("a,__url__\n1,2\n", r"a\.csv:1: expected a header .* got \['__url__'\]"),
        ("", r"a\.csv:1: expected a header .* got an empty file"),
        ("PAR1", "expected CSV, got a parquet file"),
    ],
)
def test_a_row_that_is_not_as_the_header_is_an_error_with_its_line(tmp_path, text, message):
    """Physical lines, as editors count them."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ShardError, match=message):
        read(tmp_path)


def test_bytes_that_are_no_text_are_an_error_with_their_line(tmp_path):
    """Spreadsheets write other encodings."""
    (tmp_path / "a.csv").write_bytes(b"a\nx\nM\xfcller\n")
    with pytest.raises(ShardError, match=r"a\.csv:3: expected UTF-8"):
        read(tmp_path)


def test_csv_is_exact_and_once(tmp_path):
    """As any source."""
    for number, count in enumerate((7, 1, 5)):
        (tmp_path / f"{number}.csv").write_text("a\n" + "".join(f"{number}-{row}\n" for row in range(count)))
    (tmp_path / "1.csv").rename(tmp_path / "1.tsv")
    data = source(tmp_path, shuffle_buffer=4)
    assert_exact_resume(lambda: MergedDataset([data]), steps=15, beyond=8, num_workers=2)
    got = delivered(lambda: MergedDataset([data], cyclic=False), 2, 2)
    assert len(got) == sum(got.values()) == 13
