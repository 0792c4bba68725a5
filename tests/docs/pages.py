"""Runs what a page shows, block by block, in one folder.

- A block with a title (```` ```python title="train.py" ````) is a file, which is written there.
- A block of Python without one runs as a script.
- Of a console block each line that begins with `$ ` is a command, and what follows is its output: `…` stands for any
  text, as a line of its own for any lines. Commands are streamdata's, `python FILE`, and what a POSIX system has.

A comment before a block says otherwise: `<!-- varies -->`, numbers of the output are others each time;
`<!-- fails -->`, the last command ends with an error; `<!-- not run: REASON -->`.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from streamdata.tools.cli.main import app
from tests.ranks import apart

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "yaml", "console", "json", "jsonl", "text", "toml", "bash"}
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INCLUDED = re.compile(r'^--8<--(?: "(.+)"|\n(.+)\n--8<--)\n', re.MULTILINE)
"""On one line, which is an expression to a formatter of Python, or there on three."""
_NUMBER = re.compile(r"(?:≈ )?\d[\d,.]*(?: [kMGT]?B?\b)?")  # with its unit: 1.2 M, 30 kB


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str | None
    text: str
    mark: str
    line: int


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, with files that it includes in place."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        indent = len(found["indent"])
        body = "".join(line[indent:] or "\n" for line in found["text"].splitlines(keepends=True))
        body = _INCLUDED.sub(lambda name: (ROOT / (name[1] or name[2])).read_text(encoding="utf-8"), body)
        yield Block(
            found["language"], found["title"], body, found["mark"] or "", text.count("\n", 0, found.start()) + 1
        )


def run_page(page: Path) -> None:
    """Run all blocks of a page in the working directory.

    Raises:
        AssertionError: A command or a script fails, or its output is another; the message names the block's line.
    """
    for number, block in enumerate(blocks_of(page)):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: expected one of {sorted(LANGUAGES)}, got {block.language}"
        if block.mark.startswith("not run: "):
            continue
        if block.title is not None:
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            script = Path(f"block-{number}.py")
            script.write_text(block.text, encoding="utf-8")
            status, output = _run_script([str(script)])
            assert status == 0, f"{where}: the script fails:\n{output}"
        elif block.language == "console":
            _run_console(block, where)


def _run_console(block: Block, where: str) -> None:
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not parts[0], f"{where}: expected a command first, got {parts[0]!r}"
    for number, part in enumerate(parts[1:], 1):
        command, _, expected = part.partition("\n")
        status, output = run_command(command)
        fails = "fails" in block.mark and number == len(parts) - 1
        assert (status != 0) == fails, f"{where}: '{command}' ended with {status}:\n{output}"
        if expected.strip():
            assert matches(expected, output, varies="varies" in block.mark), (
                f"{where}: '{command}': expected\n{expected}\ngot\n{output}"
            )


def run_command(command: str) -> tuple[int, str]:
    """The exit status and all output of a command, as in a terminal of 80 columns."""
    words = shlex.split(command, comments=True)
    if words[0] == "streamdata":
        result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80", "NO_COLOR": "1"})
        return result.exit_code, result.stdout if result.exit_code == 0 else result.output  # without what is on the way
    if words[0] == "python":
        return _run_script(words[1:])
    done = subprocess.run(["sh", "-c", f"{command} 2>&1"], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def _run_script(words: list[str]) -> tuple[int, str]:
    """In a process of its own, which need not import torch anew."""
    said = Path("said.txt")
    try:
        apart(_script, words, str(said))
        status = 0
    except AssertionError:
        status = 1
    return status, said.read_text(encoding="utf-8")


def _script(words: list[str], said: str) -> None:
    sys.argv = words
    sys.path.insert(0, os.getcwd())
    with open(said, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except BaseException:
            traceback.print_exc()
            raise


def matches(expected: str, output: str, *, varies: bool = False) -> bool:
    """Whether the output is what a page shows."""
    lines = [_comparable(line, varies) for line in expected.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r" *\n" for line in lines
    )
    text = "".join(f"{_comparable(line, varies)}\n" for line in output.strip("\n").splitlines())
    return re.fullmatch(pattern, text) is not None


def _comparable(line: str, varies: bool) -> str:
    """A line without spaces at its end; where numbers vary, without them and how they are aligned."""
    return re.sub(r"\s+", " ", _NUMBER.sub("0", line)).strip() if varies else line.rstrip()
