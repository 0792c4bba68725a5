"""What messages say of data: a terminal obeys nothing of it, and it stays short."""

import dataclasses
import io
import pickle
import tarfile
from itertools import islice
from pathlib import Path

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, ShardError
from streamdata.errors import StreamdataError, did_you_mean, listing, printable, shown, text_of, without_secrets
from streamdata.fields import lacks


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError("none")

    __repr__ = __str__


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no note."""


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("'http://u:p@CANARY@h/x.jsonl': expected", "'http://…@h/x.jsonl': expected"),
        ("'HTTP://h/x.jsonl?sig=CANARY': expected", "'HTTP://h/x.jsonl?…': expected"),
        ("simplecache::http://h/x?sig=CANARY", "simplecache::http://h/x?…"),
        ("'{http://h/x?sig=CANARY'\n  Close it.", "'{http://h/x?…'\n  Close it."),
        ("http:/u:CANARY@h/x?sig=CANARY", "http:/…@h/x?…"),
        ("pipe:curl http://u:CANARY@h/x | cat", "pipe:curl http://…@h/x | cat"),
        ("abfss://c:CANARY@a/x", "abfss://…@a/x"),
        ("'https://u:pa/CANARY@h', got", "'https://…@h', got"),
        ("'https://u:p'CANARY@h/x', got", "'https://…@h/x', got"),
        ("http://h/x?a='1'&sig=CANARY, got", "http://h/x?… got"),
        ("az://c/x?sv=1&sig=CANARY", "az://c/x?…"),
    ],
)
def test_of_a_url_in_a_text_its_secrets_are_left_out(text: str, told: str) -> None:
    """However it is spelt; its host and path stay."""
    assert without_secrets(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "http://h:80/@scope/a@b.jsonl, http://[::1]:80/a@b, s3://b/k:v@x/0.tar",
        "['s3://b/part-0?.tar'] got a@b: file:///a@b/c?.tar",
        "'https://h': expected 'a@b', got a url of http: a@b",
    ],
)
def test_what_is_no_secret_of_a_url_stays(text: str) -> None:
    """Ports, globs, and an @ in a path or after the url."""
    assert without_secrets(text) == text


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


@pytest.mark.parametrize(
    "error", [MuteError("but this"), ValueError(MuteError("inner")), FrozenError(), StopIteration(2)]
)
def test_a_failing_functions_place_is_told_whatever_its_error_can_do(tmp_path: Path, error: Exception) -> None:
    """Its class may have no text, and take no note."""
    (tmp_path / "a.jsonl").write_text("{}\n")

    def fail(record: dict) -> dict:
        raise error

    source = JsonlIterableDataset(str(tmp_path / "a.jsonl"), name="a", percent=1.0, single_process_fn=fail)
    with pytest.raises(type(error) if isinstance(error, ValueError | MuteError) else RuntimeError) as caught:
        list(MergedDataset([source]))
    assert "single_process_fn failed at" in "".join(caught.value.__notes__)


def test_an_error_without_text_is_told_by_what_it_was_made_with() -> None:
    """Torch makes an error of a worker again with the text of its traceback."""
    assert text_of(MuteError("at record 3")) == "(no text, since its __str__ raised LookupError) at record 3"
    assert text_of(ValueError("as it is")) == "as it is"
    assert "MuteError" in shown([MuteError()])
