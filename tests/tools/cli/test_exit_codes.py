"""How commands end on odd input: 0, 1 with one message of at most twelve lines, or 2 where they are called wrongly."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import Result

from streamdata.tools.cli.messages import messages

Streamdata = Callable[..., Result]
MAX_LINES = 12


@pytest.fixture(autouse=True)
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of which none is what a command asks for."""
    monkeypatch.chdir(tmp_path)
    contents = {
        "broken.yaml": "a: [1", "empty.yaml": "", "binary.yaml": "\x00\x01", "list.yaml": "- 1\n",
        "function.yaml": "target: streamdata.DecodeImages\nparams: {fields: [jpg], size: 8}\n",
        "gone.yaml": "target: streamdata.MergedDataset\nparams: {datasets: [{target: streamdata.JsonlIterableDataset, "
        "params: {path: gone.jsonl}, name: a, percent: 1}]}\n",
        "a.jsonl": '{"text": "a"}\n', "html.jsonl": "<html>\n", "cut.tar": "no tar", "states.json": "not JSON",
        "other.json": '{"a": 1}', "store/meta.json": "{", "store/sequence.bin": "x", "empty/x/y": "",
        "damaged/tokenizer.json": "{",
    }  # fmt: skip
    for name, content in contents.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)


MESSAGES = [
    "run broken.yaml", "run empty.yaml", "run binary.yaml", "run list.yaml", "run function.yaml", "run gone.yaml",
    "check broken.yaml", "check empty.yaml", "check binary.yaml", "check list.yaml", "check function.yaml",
    "check gone.yaml", "check gone.yaml --no-files --resume",
    "plan broken.yaml --samples 9", "plan list.yaml --samples 9", "plan gone.yaml --samples 9", "profile gone.yaml",
    "index gone", "index empty", "index html.jsonl", "index cut.tar", "index a.jsonl -o empty/x/y/z.manifest",
    "state states.json", "state other.json", "state empty", "state states.json -o out.json",
    "show store", "show empty", "show html.jsonl",
    "show cut.tar", "show broken.yaml", "show gone.yaml", "verify empty", "verify store",
    "prepare gone.jsonl -c pretrain --tokenizer ./gone -o out", "prepare cut.tar -c pretrain --tokenizer ./gone -o out",
    "prepare a.jsonl -c broken.yaml --tokenizer ./gone -o out", "prepare a.jsonl -c pretrain --tokenizer ./gone -o out",
    "prepare merge empty store -o out", "prepare a.jsonl -c pretrain --tokenizer damaged -o out",
]  # fmt: skip
USAGE = [
    "run nowhere.yaml", "run empty", "check nowhere.yaml", "check empty", "state nowhere", "show nowhere",
    "show nowhere.yaml", "verify nowhere", "run function.yaml --batches 0", "run function.yaml --var x", "index",
    "prepare a.jsonl -c presett --tokenizer ./gone -o out", "nonsense",
    "state states.json -o out.json --json", "index a.jsonl -o out.txt",
    "plan source.yaml", "plan nowhere.yaml --samples 9",
    "plan source.yaml --samples 9 --tokens 9", "profile nowhere.yaml", "profile source.yaml --workers 999",
]  # fmt: skip


@pytest.mark.parametrize("command", MESSAGES)
def test_what_is_wrong_with_data_is_one_message(streamdata: Streamdata, command: str) -> None:
    """Exit code 1, no traceback."""
    done = streamdata(*command.split())
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    assert 1 <= len(done.output.splitlines()) <= MAX_LINES, done.output
    assert not done.exception or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("command", USAGE)
def test_what_is_wrong_with_the_call_is_usage(streamdata: Streamdata, command: str) -> None:
    """Exit code 2."""
    done = streamdata(*command.split())
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output


def import_what_is_missing() -> None:
    """As a command that needs a library."""
    importlib.import_module("no_such_library")


@pytest.mark.parametrize(
    ("fails", "first"),
    [
        (lambda: int("x"), "error: ValueError: invalid literal"),
        (import_what_is_missing, "error: ModuleNotFoundError: No module"),
    ],
)
def test_what_a_library_raises_has_its_place(
    fails: Callable[[], None], first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its message alone says neither who nor where; ours do."""
    with pytest.raises(typer.Exit), messages(with_traceback=None):
        fails()
    message, place = capsys.readouterr().err.splitlines()
    assert message.startswith(first)
    assert place.startswith("  Raised at /")
    with pytest.raises(typer.Exit), messages(with_traceback=None):
        raise ValueError("index: expected shards, got none\n  Name some.")
    assert capsys.readouterr().err == "error: index: expected shards, got none\n  Name some.\n"
