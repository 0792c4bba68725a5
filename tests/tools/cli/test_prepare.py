import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from streamdata import StreamdataError
from streamdata.tools.cli.messages import Ticker
from tests.prepare.conftest import without_waiting_for_the_disk  # noqa: F401 (a fixture)
from tests.prepare.runs import PRETRAIN, documents, tree, write
from tests.stores.tiny_stores import write_old_bin
from tests.text.chat_templates import chat_tokenizer
from tests.tools.cli.test_main import words

Streamdata = Callable[..., Result]
SFT = {"train_type": "sft", "sections": [{"field": "q", "action": "mask"}, {"field": "a", "action": "train"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    chat_tokenizer(folder / "draft").save_pretrained(folder / "saved")
    return str(folder / "saved")


@pytest.fixture
def options(tmp_path: Path, tokenizer: str) -> Callable[..., list[str]]:
    """Writes a config, gives the options that name it and the tokenizer."""

    def write_config(config: dict) -> list[str]:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return ["-c", str(path), "--tokenizer", tokenizer]

    return write_config


def test_a_run_ends_with_its_counts(streamdata: Streamdata, options: Callable, tmp_path: Path) -> None:
    """One command from JSONL to a store; again, it finds it done."""
    path = write(tmp_path / "a.jsonl", documents(30))
    packed = PRETRAIN | {"packing": "simple", "max_packed_len": 100, "min_chars": 500}
    for _ in range(2):
        done = streamdata("prepare", path, "-o", tmp_path / "out", *options(packed), "--workers", 1)
        assert done.exit_code == 0, done.output
        first, rows, left = done.stdout.splitlines()
        assert re.fullmatch(r"30 records in, \d+ sequences out; [\d,]+ tokens, 100.00 % of them trained", first)
        assert re.fullmatch(r"\d+ rows, [\d.]+ % full, \d+ tokens of padding, \d+ documents cut", rows)
        assert re.fullmatch(r"\d+ dropped: fewer than min_chars \d+", left)


def test_parts_and_their_merge(streamdata: Streamdata, options: Callable, tmp_path: Path) -> None:
    """They are the whole."""
    path = write(tmp_path / "a.jsonl", documents(30))
    given = options(PRETRAIN | {"task_bytes": 9000})
    for name, more in (
        ("0", ["--shard", "0/2"]),
        ("1", ["--shard", "1/2", "--workers", "1"]),
        ("whole", ["--workers", "1"]),
    ):
        assert streamdata("prepare", path, "-o", tmp_path / name, *given, *more, "--format", "h5").exit_code == 0
    done = streamdata("prepare", "merge", tmp_path / "0", tmp_path / "1", "-o", tmp_path / "merged")
    assert done.stdout.startswith("30 records in")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")
    assert any(name.endswith(".h5") for name in tree(tmp_path / "whole"))


def test_what_another_run_left_is_overwritten_where_that_is_asked_for(
    streamdata: Streamdata, options: Callable, tmp_path: Path
) -> None:
    """By a run, and by a merge."""
    given = [write(tmp_path / "a.jsonl", documents(9)), "-o", tmp_path / "out", "--workers", 1]
    assert streamdata("prepare", *given, *options(PRETRAIN)).exit_code == 0
    part = [*given[:2], tmp_path / "part", *options(PRETRAIN | {"packing": "simple", "max_packed_len": 64})]
    assert streamdata("prepare", *part, "--shard", "0/1").exit_code == 0
    merge = ["prepare", "merge", tmp_path / "part", "-o", tmp_path / "out"]
    for again in (merge, ["prepare", *given, *options(PRETRAIN)]):
        refused = streamdata(*again)
        assert (refused.exit_code, "--overwrite" in refused.stderr) == (1, True)
        assert streamdata(*again, "--overwrite").exit_code == 0


def test_the_engine_is_the_one_that_is_named(
    streamdata: Streamdata, options: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here ray's, which is not there."""
    monkeypatch.setitem(sys.modules, "ray", None)
    path = write(tmp_path / "a.jsonl", documents(1))
    done = streamdata("prepare", path, "-o", tmp_path / "out", *options(PRETRAIN), "--engine", "ray")
    assert done.exit_code == 1
    assert "pip install torch-streamdata[ray]" in done.stderr


def test_progress_is_plain_lines_where_it_is_no_terminal(
    streamdata: Streamdata, options: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, tokens a second, megabytes a second, time left."""
    monkeypatch.setattr("streamdata.tools.cli.data.Ticker", partial(Ticker, plain_interval_s=0))
    path = write(tmp_path / "a.jsonl", documents(30))
    given = options(PRETRAIN | {"task_bytes": 9000})
    done = streamdata("prepare", path, "-o", tmp_path / "out", *given, "--workers", 1)
    lines = [line for line in done.stderr.splitlines() if "tokens/s" in line]
    assert len(lines) > 2
    assert re.fullmatch(r"100%  30 records  [\d,]+ tokens/s  \S+ MB/s  0:00:00 left", lines[-1])


def test_a_dry_run_shows_what_is_trained_and_where_rows_end(
    streamdata: Streamdata, options: Callable, tmp_path: Path
) -> None:
    """And writes nothing."""
    path = write(tmp_path / "a.jsonl", [{"q": f"q{number} ", "a": "yes"} for number in range(9)])
    packed = options(SFT | {"packing": "bfd", "max_packed_len": 12, "max_seq_len": 12})
    done = streamdata("prepare", path, *packed, "--dry-run", 3)
    assert done.exit_code == 0
    assert done.stdout.count("── row") == 2
    assert "q0 «yes»│" in done.stdout
    assert done.stdout.count("┃\npieces: ") == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.jsonl", "config.json"]


def test_padding_is_shown_as_its_number(streamdata: Streamdata, options: Callable, tmp_path: Path) -> None:
    """Of a dry run, and of a store; a row may be nearly all of it."""
    path = write(tmp_path / "a.jsonl", [{"q": "ask ", "a": "yes"}])
    packed = options(SFT | {"packing": "bfd", "max_packed_len": 4000, "max_seq_len": 4000})
    shown = streamdata("prepare", path, *packed, "--dry-run", 1).stdout
    assert re.match(
        r"── row 0\nsequence  int64 \(4000\)  4,000 tokens, \d trained, 1 document, 3,99\d padding\n", shown
    )
    assert re.search(r"\nask «yes»│<pad> × 3,99\d┃\npieces: ", shown)
    assert streamdata("prepare", path, "-o", tmp_path / "out", *packed, "--workers", 1).exit_code == 0
    assert "│<pad> × 3,99" in streamdata("show", tmp_path / "out").stdout


def test_the_first_bad_record_is_shown(streamdata: Streamdata, options: Callable, tmp_path: Path) -> None:
    """What is wrong with it is mostly wrong with all: its reason and its fields, at the end and in the error."""
    path = write(tmp_path / "a.jsonl", [{"text": 7, "id": 1}, {"text": "x"}, {"txt": "y"}])
    for max_bad, code in ((2, 0), (1, 1)):
        config = options(PRETRAIN | {"max_bad": max_bad})
        done = streamdata("prepare", path, "-o", tmp_path / f"{max_bad}", *config, "--workers", 1)
        assert done.exit_code == code
        first = f"  The first is {path}:1: text: wrong type: expected a text, got 7\n  Its fields are 'text', 'id'.\n"
        assert first in (done.stderr if code else done.stdout)


def test_what_is_trained_is_green_in_a_terminal(
    streamdata: Streamdata, options: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the rest is dim; tokens side by side have two shades."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    path = write(tmp_path / "a.jsonl", [{"q": "ask ", "a": "yes"}])
    shown = streamdata("prepare", path, *options(SFT), "--dry-run", 1).stdout
    assert "\x1b[2ma\x1b[0m" in shown
    assert "\x1b[32my\x1b[0m\x1b[92me\x1b[0m\x1b[32ms\x1b[0m" in shown
    assert "\u00ab" not in shown


def test_show_and_verify_a_finished_store(streamdata: Streamdata, options: Callable, tmp_path: Path) -> None:
    """With the tokenizer that its manifest names."""
    path = write(tmp_path / "a.jsonl", [{"q": f"q{number} ", "a": "yes"} for number in range(9)])
    assert streamdata("prepare", path, "-o", tmp_path / "out", *options(SFT)).exit_code == 0
    shown = streamdata("show", tmp_path / "out", "--step", 5, "-n", 1).stdout
    assert re.match(r"── step 5  out  index 4\nsequence  int\d+ \(\d+\)  \d+ tokens, \d+ trained\nq4 «yes»┃\n", shown)
    assert streamdata("verify", tmp_path / "out").stdout == f"{tmp_path / 'out'}: no problems\n"
    for sums in (tmp_path / "out" / "data").rglob("*.sums"):
        sums.unlink()
    assert streamdata("verify", tmp_path / "out").exit_code == 1  # they are files of the run
    next((tmp_path / "out" / "data").rglob("sequence.bin")).write_bytes(b"xx")
    damaged = streamdata("verify", tmp_path / "out")
    assert damaged.exit_code == 1
    assert "sequence.bin': expected" in damaged.stderr


def test_sums_are_written_for_a_store_that_has_none(streamdata: Streamdata, tmp_path: Path) -> None:
    """If nothing else is wrong with it; from then on its damage is noticed."""
    shard = write_old_bin(tmp_path / "shard_0000", {"sequence": np.arange(20, dtype=np.uint16)}, {"sequence": [0, 9]})
    assert streamdata("verify", tmp_path).stdout == (
        f"{tmp_path}: no problems\nfiles without sums, in which damage is read in silence: 1; --write-sums adds them\n"
    )
    assert not shard.joinpath("sequence.bin.sums").exists()
    for count in (1, 0):
        done = streamdata("verify", tmp_path, "--write-sums")
        assert done.stdout == f"{tmp_path}: no problems\nfiles that got sums: {count}\n"
    assert streamdata("verify", tmp_path).stdout == f"{tmp_path}: no problems\n"
    with shard.joinpath("sequence.bin").open("r+b") as file:
        file.write(b"\1")
    damaged = streamdata("verify", tmp_path, "--write-sums")
    assert damaged.exit_code == 1
    assert "expected the block of 4096 bytes at 0 to be as it was written" in damaged.stderr


def test_the_schema_is_json(streamdata: Streamdata) -> None:
    """Without any other argument."""
    schema = json.loads(streamdata("prepare", "--schema").stdout)
    assert "sections" in schema["properties"]


def test_errors_are_their_messages(streamdata: Streamdata, options: Callable, tmp_path: Path) -> None:
    """Of a config, of a record, of an output; without a traceback."""
    path = write(tmp_path / "a.jsonl", [{"txt": "x"}])
    given = ["prepare", path, "-o", tmp_path / "out"]
    wrong = streamdata(*given, *options(PRETRAIN | {"pcking": "bfd"}))
    assert (wrong.exit_code, "did you mean 'packing'" in wrong.stderr) == (1, True)
    bad = streamdata(*given, *options(PRETRAIN), "--workers", 1)
    assert bad.exit_code == 1
    assert f"error: {path}:1: text: missing field" in bad.stderr
    assert "Traceback" not in bad.stderr
    assert isinstance(bad.exception.__cause__, StreamdataError | None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["prepare", "x.jsonl"], "missing --output, --config, --tokenizer"),
        (["prepare", "--shard", "2/2", "x"], "missing"),
        (["prepare", "x", "-o", "o", "--tokenizer", "t", "-c", "chats"], "did you mean 'chat'? The presets are:"),
        (["show", "gone"], "does not exist"),
    ],
)
def test_usage_errors_have_their_own_exit_code(streamdata: Streamdata, arguments: list[str], told: str) -> None:
    """2, as everywhere."""
    done = streamdata(*arguments)
    assert done.exit_code == 2
    assert told in words(done.stderr)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--bogus"], ["x.jsonl"]], ids=str)
def test_usage_lines_name_no_other_command(streamdata: Streamdata, arguments: list[str]) -> None:
    """`prepare INPUTS…` is how it is called."""
    done = streamdata("prepare", *arguments)
    assert "Usage: streamdata prepare [OPTIONS] [INPUTS]" in words(done.stdout + done.stderr).replace(
        "root", "streamdata"
    )


def test_what_is_not_there_is_told_without_a_traceback(
    streamdata: Streamdata, options: Callable, tmp_path: Path
) -> None:
    """An input, a tokenizer, a directory to write to."""
    path, given = write(tmp_path / "a.jsonl", documents(1)), options(PRETRAIN)
    (tmp_path / "file").touch()
    for inputs, output in ((tmp_path / "gone.jsonl", "out"), (path, "file/out")):
        done = streamdata("prepare", inputs, "-o", tmp_path / output, *given)
        assert done.exit_code == 1
        assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("more", [["--shard", "2/2"], ["--shard", "x"], ["--engine", "spark"]], ids=" ".join)
def test_impossible_options_are_usage_errors(
    streamdata: Streamdata, options: Callable, tmp_path: Path, more: list[str]
) -> None:
    """Nothing is written."""
    path = write(tmp_path / "a.jsonl", documents(1))
    done = streamdata("prepare", path, "-o", tmp_path / "out", *options(PRETRAIN), *more)
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()
