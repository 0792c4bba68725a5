import os
import runpy
import subprocess
import sys
import textwrap
from unittest.mock import patch

import numpy as np
import pytest

from streamdata.chats import lengths
from streamdata.chats.lengths import NOT_MEASURED, measure_rows
from streamdata.errors import SourceError


class Squares:
    """Measures a number as its square, and notes who did."""

    def __init__(self, folder=None, bad=()):
        self.folder, self.bad = folder, bad

    def measure(self, index):
        """Its square."""
        if index in self.bad:
            raise ZeroDivisionError(f"row {index}")
        if self.folder:
            (self.folder / str(os.getpid())).touch()
        return index * index


def measured(reader, count, workers, **limits):
    """The lengths of the first rows."""
    values = np.full(count, NOT_MEASURED, dtype=np.int32)
    with patch.dict(vars(lengths), limits):
        measure_rows(reader, np.arange(count), values, workers)
    return values.tolist()


@pytest.mark.parametrize("workers", [1, 3])
def test_each_row_is_measured_in_its_place(workers, tmp_path):
    """By as many processes as were asked for, whoever is first."""
    found = measured(Squares(tmp_path), 500, workers, WORTH_A_PROCESS=1, CHUNK=3)
    assert found == [number * number for number in range(500)]
    assert 1 <= len(list(tmp_path.iterdir())) <= workers


def test_the_others_measure_too(tmp_path):
    """Where this process waits for them."""
    found = measured(Squares(tmp_path), 30, 2, WORTH_A_PROCESS=1, CHUNK=3, AHEAD=1000)
    assert found == [number * number for number in range(30)]
    assert [int(path.name) != os.getpid() for path in tmp_path.iterdir()] == [True]


def test_the_others_need_no_torch():
    """To import it would take most of the time in which they begin."""
    code = "import sys, streamdata.chats.lengths; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_terminal_shows_how_far_it_is(monkeypatch, capsys):
    """Rows of all rows; where there is no terminal, nothing."""
    measured(Squares(), 40, 1)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    measured(Squares(), 40, 1)
    shown = capsys.readouterr().err
    assert "measuring prompts" in shown
    assert "40/40" in shown


def test_few_rows_start_no_process(tmp_path, monkeypatch):
    """They are measured before it would have begun."""
    monkeypatch.setattr(subprocess, "Popen", None)
    assert len(measured(Squares(tmp_path), 100, 8)) == 100


@pytest.mark.parametrize("ahead", [0, 1000])
def test_a_failure_is_that_of_the_row(ahead):
    """Whichever process met it."""
    with pytest.raises(ZeroDivisionError, match="row 70"):
        measured(Squares(bad=(70,)), 100, 2, WORTH_A_PROCESS=1, AHEAD=ahead)


def run_as_main(script, output):
    """As the command does; what it, and the processes that it starts, print is in a file."""
    file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SourceError as error:
        sys.stderr.write(str(error))


def test_what_others_cannot_import_says_so(tmp_path):
    """A class of the script itself, which is not run again for them; no `__main__` guard is needed otherwise."""
    from tests.chats.prompts.prompt_files import sums
    from tests.ranks import apart  # neither of them by the processes that the other tests start

    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from streamdata.chats import lengths
            from streamdata.chats.prompts import RLHFDataset
            from tests.sources.tiny_processors import tiny_tokenizer
            lengths.WORTH_A_PROCESS, lengths.AHEAD = 1, 1000
            def render(messages, **kwargs):
                return messages[0]["content"]
            config = {{"filter_overlong_prompts_workers": 2}}
            print("kept", len(RLHFDataset({sums(tmp_path / "a.parquet")!r}, tiny_tokenizer(), config)))
            RLHFDataset({sums(tmp_path / "a.parquet")!r}, tiny_tokenizer(), {{**config, "chat_template_func": render}})
            """
        )
    )
    apart(run_as_main, script, tmp_path / "printed")
    printed = (tmp_path / "printed").read_text()  # several processes write there: their lines come in any order
    assert "kept 12" in printed
    assert "filter_overlong_prompts_workers: 1" in printed


def test_a_function_that_cannot_be_sent_is_refused(tokenizer, tmp_path):
    """Where others measure, since they need it."""
    from streamdata.chats.prompts import RLHFDataset
    from tests.chats.prompts.prompt_files import sums

    path, config = sums(tmp_path / "a.parquet"), {"chat_template_func": lambda messages, **_: "short"}
    assert len(RLHFDataset(path, tokenizer, {**config, "filter_overlong_prompts_workers": 1})) == 12
    limits = patch.dict(vars(lengths), WORTH_A_PROCESS=1)
    with limits, pytest.raises(SourceError, match=r"one that cannot: .*pickle.*\n  Define what they need at"):
        RLHFDataset(path, tokenizer, {**config, "filter_overlong_prompts_workers": 2})


def test_a_process_that_dies_is_noticed():
    """Instead of waiting for it for ever."""
    with pytest.raises(SourceError, match="it died with exit code 1\n"):
        measured(Dies(), 100, 2, WORTH_A_PROCESS=1, AHEAD=1000)


class Dies:
    """Ends the process that measures."""

    def measure(self, index):
        """Never returns."""
        os._exit(1)
