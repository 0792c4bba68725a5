"""Ctrl-C and SIGTERM in commands that work for long: `python -m tests.faults.interrupts`.

Of each: how long until it has ended, its exit code, and what it leaves of processes, temporary files and shared memory.
It ends with an error where one takes more than 5 s, or leaves any of these.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults.started import alive, in_shared_memory, seconds_until, tagged
from tests.prepare.runs import PRETRAIN, documents
from tests.shard_files import write_tars
from tests.text.chat_templates import chat_tokenizer

MAX_S = 5.0
START = """
import sys
method = sys.argv.pop(1)
if __name__ == "__main__":
    if method:
        import torch.multiprocessing
        torch.multiprocessing.set_start_method(method)
    from streamdata.tools.cli.main import app
    app()
"""
RECIPE = """
target: streamdata.MergedDataset
params:
  datasets: [{{target: streamdata.JsonlIterableDataset, params: {{path: {path}}}, name: a, percent: 1}}]
"""


class Command(NamedTuple):
    """What is started, and a file of its that shows that it is at work; or the begin of what it says then."""

    name: str
    method: str
    arguments: list[str]
    at_work: str


class Ended(NamedTuple):
    """How a command ended."""

    seconds: float
    code: int
    left: list[str]
    says: str


def commands(folder: Path) -> Iterator[Command]:
    """Those of which each works for many seconds, in files below the folder."""
    recipe = str(folder / "recipe.yaml")
    options = ["-c", str(folder / "config.json"), "--tokenizer", str(folder / "tokenizer"), "-o", str(folder / "out")]
    for workers in ("1", "2"):
        arguments = ["prepare", str(folder / "texts.jsonl"), *options, "--workers", workers]
        yield Command(f"prepare --workers {workers}", "", arguments, "out/tasks/*[0-9].json")
    for method in ("fork", "spawn", "forkserver"):
        yield Command(f"run --workers 2, {method}", method, ["run", recipe, "--workers", "2"], "samples/s")
    yield Command("run --workers 0", "", ["run", recipe], "samples/s")
    for jobs in ("1", "2"):
        yield Command(f"index --jobs {jobs}", "", ["index", str(folder / "shards"), "-j", jobs], "cache/indexes/*/*")
    for jobs in ("1", "2"):
        yield Command(f"check --data --jobs {jobs}", "", ["check", str(folder / "tars.yaml"), "--data", "-j", jobs], "")


def make_files(folder: Path) -> None:
    """What the commands read."""
    with (folder / "texts.jsonl").open("w") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents(20_000))
    (folder / "config.json").write_text(json.dumps(PRETRAIN | {"task_bytes": 200_000}))
    chat_tokenizer(folder / "draft").save_pretrained(folder / "tokenizer")
    (folder / "recipe.yaml").write_text(RECIPE.format(path=folder / "texts.jsonl"))
    tars = RECIPE.format(path=folder / "shards")
    (folder / "tars.yaml").write_text(tars.replace("JsonlIterableDataset", "MetaDistributedWebDataset"))
    first = Path(write_tars(folder / "shards", [5_000], sidecars=False), "00000.tar")
    for number in range(1, 1000):
        os.link(first, folder / "shards" / f"{number:05}.tar")


def end(command: Command, folder: Path, send: Callable[[int], None]) -> Ended:
    """Start a command, let `send` signal to it when it is at work, and wait until all of it has ended."""
    environment = tagged() | {"STREAMDATA_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir(exist_ok=True)
    shared, out = in_shared_memory(), folder / "said"
    line = [sys.executable, "-c", START, command.method, *command.arguments]
    with (
        out.open("w") as said,
        subprocess.Popen(line, stdout=said, stderr=said, env=environment, start_new_session=True) as process,
    ):
        is_at_work = lambda: is_working(command, folder, out) or process.poll() is not None  # noqa: E731
        seconds_until(is_at_work, 60)
        time.sleep(0.3)
        assert process.poll() is None, out.read_text()
        began = time.monotonic()
        send(process.pid)
        code = process.wait(60)
        seconds_until(lambda: not alive(environment), MAX_S)
        seconds = time.monotonic() - began
        left = [f"process {line}" for line in alive(environment).values()]
    for pid in alive(environment):
        os.kill(pid, signal.SIGKILL)
    left += sorted(in_shared_memory() - shared)
    left += [str(path.relative_to(folder)) for path in (*folder.rglob("*.tmp"), *(folder / "tmp").iterdir())]
    left += [str(path.relative_to(folder)) for path in folder.glob("out/.work/staging/*")]
    return Ended(seconds, code, left, out.read_text())


def is_working(command: Command, folder: Path, out: Path) -> bool:
    """Whether it is in the midst of its work."""
    if "*" in command.at_work:
        return any(folder.glob(command.at_work))
    return command.at_work in out.read_text() if command.at_work else out.stat().st_mtime < time.time() - 5


def to_group(number: int) -> Callable[[int], None]:
    """As a terminal sends it."""
    return lambda pid: os.killpg(pid, number)


def to_process(number: int) -> Callable[[int], None]:
    """As a scheduler sends it."""
    return lambda pid: os.kill(pid, number)


def twice(number: int) -> Callable[[int], None]:
    """By somebody who does not wait."""

    def send(pid: int) -> None:
        os.killpg(pid, number)
        time.sleep(0.02)
        os.killpg(pid, number)

    return send


WAYS = {
    "Ctrl-C": to_group(signal.SIGINT),
    "SIGINT": to_process(signal.SIGINT),
    "SIGTERM": to_process(signal.SIGTERM),
    "SIGTERM to all": to_group(signal.SIGTERM),
    "Ctrl-C twice": twice(signal.SIGINT),
    "SIGTERM twice": twice(signal.SIGTERM),
}


def main() -> None:
    """All commands, all ways."""
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for command in commands(folder):
            if sys.argv[1:] and sys.argv[1] not in command.name:
                continue
            for way, send in WAYS.items():
                for old in ("out", "cache", "tmp"):
                    subprocess.run(["rm", "-rf", str(folder / old)], check=True)
                ended = end(command, folder, send)
                last = (ended.says.splitlines() or [""])[-1][:60]
                has_traceback = "Traceback" in ended.says
                bad += ended.seconds > MAX_S or bool(ended.left) or has_traceback
                print(
                    f"{command.name:24} {way:15} {ended.seconds:5.2f} s  exit code {ended.code:4}  left "
                    f"{ended.left or 'nothing'}{'  A TRACEBACK' * has_traceback}  {last!r}",
                    flush=True,
                )
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
