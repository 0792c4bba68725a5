import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.prepare.runs import PRETRAIN, documents, run, tree, write

CONFIG = PRETRAIN | {"task_bytes": 20_000, "packing": "simple", "max_packed_len": 128}
CONTEXT = multiprocessing.get_context("forkserver")


def run_in_group(errors: Path, *arguments: object, **options: object) -> None:
    """A run in a process group of its own, as a shell would start it."""
    os.setsid()
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    run(*arguments, **options)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two or three dozens of tasks of real text."""
    return write(tmp_path_factory.mktemp("large") / "texts.jsonl", documents(600))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tokenizer: str, large: str) -> dict[str, bytes]:
    """What a run writes that nobody interrupts."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(CONFIG, tokenizer, large, out)
    return tree(out)


@contextmanager
def running(tokenizer: str, large: str, out: Path, workers: int, markers: int) -> Iterator[BaseProcess]:
    """A run that others may kill, once so many tasks are done."""
    arguments = (out.parent / "errors.txt", CONFIG, tokenizer, large, out)
    process = CONTEXT.Process(target=run_in_group, args=arguments, kwargs={"workers": workers})
    process.start()
    try:
        while len(list(out.glob("tasks/*[0-9].json"))) < markers:
            assert process.is_alive(), errors_of(out)
            time.sleep(0.002)
        yield process
    finally:
        if group_is_alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def errors_of(out: Path) -> str:
    """What the run wrote to stderr."""
    return (out.parent / "errors.txt").read_text()


def group_is_alive(group: int) -> bool:
    """Whether any process of it is left; one that ended and was not waited for is none."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


def wait_for_end(group: int) -> None:
    """Workers end a moment after the run."""
    deadline = time.monotonic() + 120
    while group_is_alive(group):
        assert time.monotonic() < deadline, "a process of the run is left"
        time.sleep(0.01)


def children(process: BaseProcess) -> list[int]:
    """The workers of a run."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in listed if "streamdata.run.processes" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.parametrize(("workers", "markers"), [(1, 1), (2, 8)])
def test_a_killed_run_leaves_nothing_to_read_and_the_next_one_finishes_it(
    tokenizer: str, large: str, whole: dict, tmp_path: Path, workers: int, markers: int
) -> None:
    """Byte for byte, wherever it was; no worker outlives it."""
    out = tmp_path / "out"
    with running(tokenizer, large, out, workers, markers) as process:
        process.kill()
        process.join()
        wait_for_end(process.pid)
    assert not (out / "data").exists()
    done = len(list(out.glob("tasks/*[0-9].json")))
    assert markers <= done < len([key for key in whole if key.startswith("tasks/")])
    run(CONFIG, tokenizer, large, out)
    assert tree(out) == whole


def test_a_killed_worker_is_an_error_and_the_next_run_finishes(
    tokenizer: str, large: str, whole: dict, tmp_path: Path
) -> None:
    """The message says which input it was at."""
    out = tmp_path / "out"
    with running(tokenizer, large, out, 2, 4) as process:
        os.kill(children(process)[0], signal.SIGKILL)
        process.join(30)
        assert process.exitcode == 1
        assert "PrepareError: worker: expected it to finish bytes" in errors_of(out)
        assert "it died with exit code -9" in errors_of(out)
        wait_for_end(process.pid)
    run(CONFIG, tokenizer, large, out)
    assert tree(out) == whole


def test_ctrl_c_ends_all_at_once_and_the_next_run_finishes(
    tokenizer: str, large: str, whole: dict, tmp_path: Path
) -> None:
    """Ctrl-C reaches every process of a terminal; only the run itself says so."""
    out = tmp_path / "out"
    with running(tokenizer, large, out, 2, 4) as process:
        os.killpg(process.pid, signal.SIGINT)
        process.join(30)
        assert errors_of(out).count("Traceback") == 1
        assert errors_of(out).endswith("KeyboardInterrupt\n")
        wait_for_end(process.pid)
    run(CONFIG, tokenizer, large, out)
    assert tree(out) == whole
