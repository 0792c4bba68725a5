"""Runs of `pytest --processes` over tests that end, fail and die in all ways."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def begun(tmp_path):
    """Begins a run of files with these tests, in their order."""

    def begin(processes, *bodies, options=()):
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        files = [tmp_path / f"test_{number}.py" for number in range(len(bodies))]
        for file, body in zip(files, bodies, strict=True):
            file.write_text(body)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.forked"]
        command += ["-c", str(tmp_path / "pytest.ini"), f"--processes={processes}", *options, *map(str, files)]
        with (tmp_path / "out").open("w") as out:  # no pipe, which lasts as long as all that a test has started
            return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)

    return begin


@pytest.fixture
def ended(tmp_path):
    """Waits for the end of a run; returns its exit status, and what it has written."""

    def end(run):
        return run.wait(), (tmp_path / "out").read_text()

    return end


def test_without_processes_nothing_has_passed(begun, ended):
    run = begun(0, "def test_one(): pass")
    status, out = ended(run)
    assert status == pytest.ExitCode.TESTS_FAILED, out
    assert "1 tests were not run" in out


def test_a_process_that_dies_ends_the_run_though_what_it_started_lives_on(begun, ended, tmp_path):
    died = f"""
import os, pathlib, signal, time
def test_dies():
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run = begun(2, died, "def test_one(): pass")
    status, out = ended(run)
    child = int((tmp_path / "child").read_text())
    os.kill(child, signal.SIGKILL)  # fails if it has ended, for which the run would have waited
    assert status == pytest.ExitCode.TESTS_FAILED, out
    assert "a process ended with -9 in test_0.py::test_dies" in out


LONG = """
import pathlib, pytest, subprocess, time
@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()
def test_long(child):
    try:
        pathlib.Path({begun!r}).touch()
        child.wait()
    finally:
        time.sleep(0.3)
        pathlib.Path({ends!r}).touch()
"""


@pytest.mark.parametrize("by", ["failure", "ctrl-c"])
def test_a_run_that_stops_lets_its_tests_end_what_they_started(begun, ended, tmp_path, by):
    begins, ends = tmp_path / "begun", tmp_path / "ends"
    fails = f"""
import pathlib, time
def test_fails():
    while not pathlib.Path({str(begins)!r}).exists():
        time.sleep(0.01)
    assert {by == "ctrl-c"}
"""
    run = begun(2, LONG.format(begun=str(begins), ends=str(ends)), "def test_one(): pass", fails, options=["-x"])
    if by == "ctrl-c":
        while not begins.exists():
            time.sleep(0.01)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        for pid in (*map(int, children), run.pid):  # as a terminal does
            os.kill(pid, signal.SIGINT)
    status, out = ended(run)
    assert status == (pytest.ExitCode.TESTS_FAILED if by == "failure" else pytest.ExitCode.INTERRUPTED), out
    assert ends.exists(), out
