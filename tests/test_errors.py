"""What messages say of data: a terminal obeys nothing of it, and it stays short."""

import io
import pickle
import tarfile
from itertools import islice
from pathlib import Path

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, ShardError
from streamdata.errors import StreamdataError, did_you_mean, listing, printable, shown
from streamdata.fields import lacks

ESCAPE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", "'abc'"),
        ("a" * 100, repr("a" * 100)),
        ("a\x1b[31m\n\u202e\udc80", r"'a\x1b[31m\n\u202e\udc80'"),
        (b"\x1b", r"b'\x1b'"),
        (7, "7"),
        (None, "None"),
        ({"a": [1]}, "{'a': [1]}"),
    ],
)
def test_what_is_short_is_shown_as_python_writes_it(value: object, text: str) -> None:
    """Escaped, since that is what Python does."""
    assert shown(value) == text


@pytest.mark.parametrize("value", ["a" * 10**6, "\x1b" * 10**6, b"a" * 10**6, [["a" * 10**6] * 1000], 10**1000])
def test_what_is_long_is_cut(value: object) -> None:
    """Whatever it is."""
    assert 50 < len(shown(value)) <= 101
    assert "…" in shown(value) or "..." in shown(value)


def test_lists_and_guesses_are_escaped_and_cut() -> None:
    """They are of names out of data."""
    for text in (listing([ESCAPE, "b" * 999]), did_you_mean("axb", [ESCAPE, "ab"]), lacks([ESCAPE, "c" * 999], "d")):
        assert printable(text) == text
        assert len(text) < 250


def test_errors_of_ours_are_printable() -> None:
    """Also where a message has a name as it is; they are still pickled."""
    error = pickle.loads(pickle.dumps(ShardError(f"shard '{ESCAPE}'\n  Do this.")))
    assert str(error) == r"shard '\x1b]0;owned\x07'" + "\n  Do this."
    assert isinstance(error, StreamdataError)


def test_a_members_name_sends_no_escape_codes(tmp_path: Path) -> None:
    """Nor does the key of a record, in an error about either."""
    for names in ([f"{ESCAPE}.a", f"{ESCAPE}.A"], [f"{ESCAPE}.a", "b.a", f"{ESCAPE}.b"], [f"{ESCAPE * 40}.__key__"]):
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        with pytest.raises(ShardError) as caught:
            MetaDistributedWebDataset(str(tmp_path / "a.tar"))
        assert printable(str(caught.value)) == str(caught.value)
        assert r"\x1b" in str(caught.value)
        assert len(str(caught.value)) < 800


def test_a_failing_function_tells_no_escape_codes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it raises may be of the data; it is logged where it is forgiven."""
    (tmp_path / "a.jsonl").write_text('{"a": "\\u001b[31m"}\n{"a": "b"}\n')

    def fail(record: dict) -> dict:
        if record["a"] != "b":
            raise ValueError(record["a"])
        return record

    source = JsonlIterableDataset(str(tmp_path / "a.jsonl"), name="a", percent=1.0, single_process_fn=fail)
    source.max_bad = 9
    assert [sample["a"] for sample in islice(MergedDataset([source]), 3)] == ["b"] * 3
    assert r"\x1b[31m" in caplog.text
    assert "\x1b" not in caplog.text
