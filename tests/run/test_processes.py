"""Other processes: what they do, and how they end."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest

from streamdata.run.processes import ProcessDiedError, ProcessError, forks, processes


def square(task, report):
    """Reports who did it."""
    report(os.getpid())
    return task * task


def fail(task, report):
    """The error of the task."""
    raise task


def end(task, report):
    """As a crash does."""
    os._exit(task)


class OddError(Exception):
    """Is pickled, and cannot be unpickled."""

    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


@pytest.mark.parametrize(("ahead", "here"), [(1, None), (4, None), (1, lambda task: task * task)])
def test_each_task_is_done_once(ahead, here):
    """By whichever process has time, this one too; results come with their tasks."""
    reports = []
    with processes(square, 2) as team:
        found = dict(team.run(range(50), ahead=ahead, here=here, report=reports.append))
        assert found == {task: task * task for task in range(50)}
        assert len(set(reports)) == 2
        assert dict(team.run([3])) == {3: 9}


def test_without_processes_this_one_does_all():
    """What it does it with need not be one that can be pickled."""
    with processes(lambda task, _: task, 0) as team:
        assert list(team.run(range(5), here=str)) == [(task, str(task)) for task in range(5)]


def test_the_processes_are_gone_afterwards():
    """Also after an error of this one."""
    reports = []

    def stop(pid):
        reports.append(pid)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), processes(wait_long, 2) as team:
        list(team.run(range(9), report=stop))
    assert all(not pathlib.Path(f"/proc/{pid}").exists() for pid in reports)


def test_what_the_function_raises_is_raised_here():
    """With its notes; one that would not survive the way comes as its text."""
    error = ValueError("no")
    error.add_note("task 7")
    with processes(fail, 1) as team:
        with pytest.raises(ValueError, match="no") as caught:
            list(team.run([error]))
        assert caught.value.__notes__ == ["task 7"]


def test_an_error_that_cannot_be_unpickled_comes_as_its_text():
    """Instead of an error of the pickle."""
    with processes(raise_odd, 1) as team, pytest.raises(ProcessError, match="OddError: 1 2"):
        list(team.run([1]))


def raise_odd(task, report):
    """An error that only its process can hold."""
    raise OddError(task, 2)


def test_a_process_that_dies_is_an_error():
    """It says at which task, and how."""
    with processes(end, 2) as team, pytest.raises(ProcessError, match=r"^it died with exit code 3$") as caught:
        list(team.run([3]))
    assert caught.value.task == 3


@pytest.mark.parametrize("start", [processes, forks])
def test_other_sockets_timeouts_are_not_theirs(start):
    """Each waits for its tasks as long as it takes."""
    socket.setdefaulttimeout(2)
    try:
        with start(same, 1) as team:
            time.sleep(0.3)  # in which it waits for a task
            assert list(team.run([0])) == [(0, 0)]
    finally:
        socket.setdefaulttimeout(None)


def same(task, report):
    """Reports nothing."""
    return task


def end_at_third(task, report):
    """As `end`, after three reports."""
    for number in range(3):
        report.mark(f"{task}: {number}")
        report.send(number)
    if task:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_fork_that_dies_leaves_what_it_sent_and_marked_last():
    """Whatever ended it."""
    sent = []
    with forks(end_at_third, 1) as team:
        assert list(team.run([0])) == [(0, None)]
        with pytest.raises(ProcessDiedError, match=r"^it died with exit code -9$") as caught:
            list(team.run([5], report=sent.append))
    assert (caught.value.task, caught.value.marked, sent) == (5, "5: 2", [0, 1, 2])


def interrupt(task, report):
    """As a function that asks to end all."""
    report.mark("at one")
    raise GeneratorExit(f"a\n{'b' * 500}")


def test_what_would_end_a_fork_is_told_once(capfd):
    """By the error alone."""
    with (
        forks(interrupt, 1) as team,
        pytest.raises(ProcessDiedError, match=r"^it was ended by GeneratorExit: a\\nb{97}$") as caught,
    ):
        list(team.run([1]))
    assert (caught.value.task, caught.value.marked, capfd.readouterr().err) == (1, "at one", "")


def end_at_once(task, report):
    """Before it marks anything."""
    if task == 2:
        os._exit(3)
    report.mark("at one")


def test_a_mark_is_of_its_task_alone():
    """That of the task before does not count."""
    with forks(end_at_once, 1) as team, pytest.raises(ProcessDiedError) as caught:
        list(team.run([1, 2]))
    assert (caught.value.task, caught.value.marked) == (2, "")


def end_within_a_message(task, report):
    """As a kill does that comes while a long result is being sent."""
    os.write(int(sys.argv[1]), (1000).to_bytes(4, "big") + b"the first bytes")
    os._exit(task)


def test_a_process_that_dies_while_it_sends_is_an_error():
    """The same as of one that sends nothing."""
    with processes(end_within_a_message, 1) as team, pytest.raises(ProcessError, match=r"exit code 3$") as caught:
        list(team.run([3]))
    assert caught.value.task == 3


def test_a_process_that_cannot_start_is_an_error(monkeypatch):
    """And however large the function is, nobody waits for a process to read it."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with processes(partial(square, b"x" * 10_000_000), 2) as team, pytest.raises(ProcessError, match="exit code 1"):
        list(team.run(range(9)))


def test_a_function_that_cannot_be_pickled_is_an_error():
    """Before anything starts."""
    with pytest.raises(ProcessError, match="lambda"), processes(lambda *_: None, 1):
        pass


SCRIPT = """
    import os, sys, time
    from tests.run.test_processes import square, wait_long
    from streamdata.run.processes import ProcessError, processes
    {more}
    with processes({function}, 2) as team:
        print("started", flush=True)
        print(dict(team.run([2], report=lambda pid: print(pid, flush=True))))
"""


def wait_long(task, report):
    """Ends only if it is ended."""
    report(os.getpid())
    time.sleep(60)


def script(tmp_path, function, more=""):
    """Starts a script without a `__main__` guard."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).format(function=function, more=more))
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, path], env=environment, text=True, start_new_session=True, **pipes)


def test_a_script_needs_no_main_guard(tmp_path):
    """It is not run again; a function of the script itself is an error that says so."""
    with script(tmp_path, "square") as found:
        out, _ = found.communicate()
    assert out.count("started") == 1
    assert out.endswith("{2: 4}\n")
    with script(tmp_path, "own", "def own(task, report): return task") as found:
        _, errors = found.communicate()
    assert "ProcessError: AttributeError: " in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(tmp_path, number):
    """Ctrl-C reaches all of the terminal, and only the script says so; a kill only the script."""
    with script(tmp_path, "wait_long") as found:
        assert found.stdout.readline() == "started\n"
        pid = int(found.stdout.readline())
        os.kill(found.pid, number) if number == signal.SIGKILL else os.killpg(found.pid, number)
        _, errors = found.communicate(timeout=60)  # until the last process has closed it
    assert errors.count("Traceback") == (number == signal.SIGINT)
    wait_for_end(pid)


def wait_for_end(pid, within_s=60):
    """A process closes its files a moment before it has ended; ended is also one that nobody has waited for yet."""
    deadline = time.monotonic() + within_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


def is_alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
