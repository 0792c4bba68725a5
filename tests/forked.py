"""Tests in several processes, which are forks of the one that has collected them: `pytest --processes N`.

To import and collect all tests takes seven seconds of a core, twelve in a fresh clone: it is done once, and so is the
start of the fork server. A process takes the next file when it has done one, and passes its reports on; warnings are
errors here, so that there are none to pass on.
"""

import multiprocessing.forkserver
import multiprocessing.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator
from itertools import chain, groupby, pairwise
from multiprocessing.connection import Connection, Pipe, wait

import pytest

NUMBER_BYTES = 2  # of a file in the queue
BEGIN, DONE, END = range(3)  # a test, with its reports, and a process: what that has started may hold its pipe open
LOOK_S = 0.5  # between looks for processes that have died, whose pipes may stay open, too
END_S = 10.0  # for a process to end what its test has started


def pytest_addoption(parser: pytest.Parser) -> None:
    """In how many processes tests run."""
    parser.addoption("--processes", type=int, default=1, metavar="N", help="forks that run the tests, file by file")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in forks, and report as if they had run here; one process is pytest's own affair."""
    config = session.config
    if config.option.processes == 1 or config.option.collectonly or session.testsfailed:
        return None
    config._tmp_path_factory.getbasetemp()  # one for all, which this process removes
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.resume_global_capture()  # what is written by processes of the fork server is read below
    multiprocessing.forkserver._forkserver.ensure_running()
    capture.suspend_global_capture(in_=True)
    files = [[*items] for _, items in groupby(session.items, key=lambda item: item.path)]
    queue, end = os.pipe()
    os.write(end, b"".join(number.to_bytes(NUMBER_BYTES) for number in range(len(files))))
    os.close(end)
    running: dict[Connection, int] = {}
    try:
        for _ in range(config.option.processes):
            reports, sender = Pipe(duplex=False)
            pid = os.fork()
            if not pid:
                for reader in (reports, *running):
                    reader.close()
                _work(session, files, queue, sender)
            sender.close()
            running[reports] = pid
        _report(session, running)
    except KeyboardInterrupt:  # of a terminal, which all of them have: a second one would cut short what they end
        _end(running.values())
        raise
    except BaseException:
        for pid in running.values():
            os.kill(pid, signal.SIGINT)
        _end(running.values())
        raise
    finally:
        written = "\n".join(capture.read_global_capture())
        if session.testsfailed:
            sys.stderr.write(written)
    return True


def _report(session: pytest.Session, running: dict[Connection, int]) -> None:
    """Pass on what the processes report until the last one has ended."""
    config, at, left = session.config, dict.fromkeys(running, "the start"), {item.nodeid for item in session.items}
    while running:
        for process in wait([*running], LOOK_S) or [one for one, pid in running.items() if _has_ended(pid)]:
            try:
                kind, nodeid, location, reports = _received(process)
            except EOFError:
                _, status = os.waitpid(running.pop(process), 0)
                session.shouldfail = f"a process ended with {os.waitstatus_to_exitcode(status)} in {at[process]}"
                raise session.Failed(session.shouldfail) from None
            if kind == BEGIN:
                at[process] = nodeid
            elif kind == END:
                os.waitpid(running.pop(process), 0)
            else:
                config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
                for data in reports:
                    report = config.hook.pytest_report_from_serializable(config=config, data=data)
                    config.hook.pytest_runtest_logreport(report=report)
                config.hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
                left.discard(nodeid)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    if left:
        session.shouldfail = f"{len(left)} tests were not run by {config.option.processes} processes: {min(left)}"
        raise session.Failed(session.shouldfail)


def _received(process: Connection) -> tuple[int, str, tuple[str, int | None, str], list[dict[str, object]]]:
    """A message of a process that has sent one or has ended."""
    if not process.poll():
        raise EOFError
    return process.recv()


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(pids: Collection[int]) -> None:
    """Wait for processes that were interrupted, and kill those that do not end."""
    patience = time.monotonic() + END_S
    for pid in pids:
        while not _has_ended(pid) and time.monotonic() < patience:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(session: pytest.Session, files: list[list[pytest.Item]], queue: int, sender: Connection) -> None:
    """A process's life: run files of the queue until it is empty."""
    status, config = 1, session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        # Its files would be those of the other processes.
        capture.stop_global_capturing()
        capture.start_global_capturing()
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Sender(config, sender))
        # It is the other process's child, which `waitpid` would not know.
        multiprocessing.forkserver._forkserver.ensure_running = lambda: None
        for item, following in pairwise(chain(_items(files, queue), [None])):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        multiprocessing.util._exit_function()  # what multiprocessing does at the end of a process
        sender.send((END, "", None, []))
        status = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)  # what fixtures have started
        status = 130  # the other process says so
    except BaseException:
        capture.stop_global_capturing()
        traceback.print_exc()
    finally:
        os._exit(status)


def _items(files: list[list[pytest.Item]], queue: int) -> Iterator[pytest.Item]:
    """The tests of one process; the next file is taken before the last test of one, whose teardown asks for it."""
    while number := os.read(queue, NUMBER_BYTES):
        yield from files[int.from_bytes(number)]


class _Sender:
    """Passes reports on to the process that has collected the tests."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self.config, self.sender = config, sender
        self.reports: list[dict[str, object]] = []

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.sender.send((BEGIN, nodeid, location, []))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.sender.send((DONE, nodeid, location, self.reports))
        self.reports = []
