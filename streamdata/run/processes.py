"""Other processes that call one function: `function, tasks → processes → results as they come`.

A process of `processes` runs `main` of this module alone. Those of `multiprocessing` cannot be used there: they run a
script without a `__main__` guard again, and the workers of a DataLoader, which are daemonic, may not start any. A
command, which is neither, may use `forks`: they begin at once, and what they were at when they died is known.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from mmap import ACCESS_READ, mmap
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar

from streamdata.errors import one_line, text_of
from streamdata.run.trainer import end_when_closed, end_with_trainer

T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[Any], None]
Function = Callable[[T, Report], R]

_TEXT_BYTES: Final = 1024
"""Size of the text that a fork marks: cut, or filled up with zeros."""


_MAX_WHY: Final = 100
"""Characters of what a function ended its process with."""


class ProcessError(Exception):
    """A process cannot do its task: it died, or cannot import the function.

    Attributes:
        task: What it was to do.
    """

    task: Any = None


class ProcessDiedError(ProcessError):
    """A process died while it did a task; others may do the other tasks.

    Attributes:
        marked: What a fork had marked last in this task, "" for nothing.
    """

    marked = ""


class ForkReport(NamedTuple):
    """Functions by which a fork reports on the way.

    Attributes:
        send: Sends a value to `Team.run`.
        mark: Takes a text in place of the one before, at no cost: it is known where the fork dies.
    """

    send: Report
    mark: Callable[[str], None]


class _Mark:
    """A text in memory that a fork shares with its parent."""

    def __init__(self) -> None:
        self._memory = mmap(-1, 1 + 2 * _TEXT_BYTES)

    def write(self, text: str) -> None:
        # Beside the text before, which counts until this one is complete: a fork may be killed at any instruction.
        place = 1 - self._memory[0]
        marked = text.encode(errors="replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        self._memory[1 + place * _TEXT_BYTES : 1 + (place + 1) * _TEXT_BYTES] = marked
        self._memory[0] = place

    def read(self) -> str:
        begin = 1 + self._memory[0] * _TEXT_BYTES
        return self._memory[begin : begin + _TEXT_BYTES].rstrip(b"\0").decode(errors="replace")


class _Process(NamedTuple):
    wait: Callable[[], int | None]  # for its end; returns the exit code
    connection: "Connection[Any, Any]"
    tasks: "deque[Any]"  # sent and not done yet, in the order in which they will be done
    mark: _Mark | None = None

    def send(self, task: Any) -> None:
        if self.mark is not None and not self.tasks:
            self.mark.write("")  # that of the task before: it may die before it begins this one
        self.tasks.append(task)
        try:
            self.connection.send(task)
        except ConnectionError as error:
            raise self._died() from error

    def receive(self) -> tuple[str, Any]:
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError) as error:  # the latter if it died while it was sending a long message
            raise self._died() from error
        # Apart from reading it: an error of unpickling does not mean that the process died, and its end may not come.
        kind, value = pickle.loads(message)  # noqa: S301  # our own process's
        return kind, self._placed(value) if isinstance(value, ProcessError) else value

    def _died(self) -> ProcessError:
        return self._placed(ProcessDiedError(f"it died with exit code {self.wait()}"))

    def _placed(self, error: ProcessError) -> ProcessError:
        error.task = self.tasks[0]
        if isinstance(error, ProcessDiedError) and self.mark is not None:
            error.marked = self.mark.read()
        return error


class Team(Generic[T, R]):
    """The processes that `processes` has started."""

    def __init__(self, members: list[_Process]) -> None:
        self._members = members

    def run(
        self,
        tasks: Iterable[T],
        *,
        ahead: int = 1,
        here: Callable[[T], R] | None = None,
        report: Report = lambda _: None,
    ) -> Iterator[tuple[T, R]]:
        """Do tasks, which are begun in their order; yield each with its result, in the order in which they end.

        Args:
            tasks: What the function takes.
            ahead: How many tasks a process has at most, the one that it is at included. With more than one, tasks or
                results must be small: if both sides send more than a socket's buffer holds, each waits for the other.
            here: Does tasks in this process too, one at a time between looking for results.
            report: Called with what the function reports on the way.

        Raises:
            ProcessDiedError: A process died.
            ProcessError: It cannot import the function.
            Exception: What the function raised.
        """
        waiting = iter(tasks)
        while True:
            for member in self._members:
                for task in islice(waiting, ahead - len(member.tasks)):
                    member.send(task)
            own = list(islice(waiting, 1 if here is not None else 0))
            busy: dict[Any, _Process] = {member.connection: member for member in self._members if member.tasks}
            if not own and not busy:
                return
            for connection in wait(busy, 0 if own else None):
                member = busy[connection]
                kind, value = member.receive()
                if kind == "error":
                    raise value
                if kind == "report":
                    report(value)
                else:
                    yield member.tasks.popleft(), value
            if own and here is not None:
                yield own[0], here(own[0])


@contextmanager
def processes(function: Function[T, R], count: int) -> Iterator[Team[T, R]]:
    """Start processes that call a function, and kill them at the end.

    Args:
        function: Called with a task and with what takes its reports; both it and its results are pickled.
        count: How many; without any, `Team.run` does all tasks `here`.

    Raises:
        ProcessError: The function cannot be pickled.
    """
    with ExitStack() as stack:
        members: list[_Process] = []
        if count > 0:
            # A file without a name: a function with a tokenizer in it would fill a pipe until a process begins to read.
            with TemporaryFile() as file, _interrupts_blocked():
                try:
                    pickle.dump(function, file)
                except Exception as error:  # whatever its parts raise when they are pickled
                    raise ProcessError(f"{type(error).__name__}: {text_of(error)}") from error
                file.flush()
                members = [_start(file, stack) for _ in range(count)]
        yield Team(members)


@contextmanager
def forks(function: Callable[[T, ForkReport], R], count: int) -> Iterator[Team[T, R]]:
    """Start forks of this process, see `processes`: nothing but results and errors is pickled.

    Args:
        function: Called with a task, and with what takes its reports.
        count: How many.
    """
    with ExitStack() as stack:
        with _interrupts_blocked():
            members = [_fork(function, stack) for _ in range(count)]
        yield Team(members)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal, a scheduler's SIGTERM all of a job: who starts here has both blocked.

    To ignore them in `main` would be too late for one that comes while a process imports. In this process they wait, so
    that none is started that nobody ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(file: IO[bytes], stack: ExitStack) -> _Process:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    # One thread each: there are as many processes as were asked for.
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    connection, theirs = Pipe()
    stack.enter_context(connection)
    with theirs:
        fds = [theirs.fileno(), file.fileno()]
        command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *map(str, fds)]
        # The pipe is never written to: that it closes when this process ends, in whatever way, is what ends the other.
        child = subprocess.Popen(command, env=environment, pass_fds=fds, stdin=subprocess.PIPE)  # noqa: S603  # our own
    stack.enter_context(child)
    stack.callback(child.kill)
    return _Process(child.wait, connection, deque())


def _fork(function: Callable[[Any, ForkReport], Any], stack: ExitStack) -> _Process:
    connection, theirs = Pipe()
    stack.enter_context(connection)
    mark = _Mark()

    def work() -> None:
        end_with_trainer()
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        if (torch := sys.modules.get("torch")) is not None:
            # Of the threads that its parent may have used a fork has none, and would wait for them.
            torch.set_num_threads(1)
        _work(function, theirs, mark)

    # The next fork must have no copy of theirs: that it closes is how the death of this one is known.
    with theirs:
        child = get_context("fork").Process(target=work)
        child.start()

    def wait_for_end() -> int | None:
        child.join()
        return child.exitcode

    # Before its connection is closed, with which it would end in order, after the task that it is at.
    stack.callback(wait_for_end)
    stack.callback(child.kill)
    return _Process(wait_for_end, connection, deque(), mark)


def main() -> None:
    """Do the parent's tasks until it ends this process, or ends itself."""
    end_when_closed(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # `input` in the function would else wait for what is never written
    try:
        # The processes share one file and so its position, which a mapping has no part in.
        with open(int(sys.argv[2]), "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            function: Function[Any, Any] = pickle.loads(content)  # noqa: S301  # our own parent's, whose file no other has
    except Exception as error:  # of whatever it imports: the parent gets it as the answer to its first task
        why = f"{type(error).__name__}: {text_of(error)}"

        def function(*_: Any) -> Any:
            raise ProcessError(why)

    _work(function, Connection(int(sys.argv[1])))


def _work(function: Callable[[Any, Any], Any], parent: "Connection[Any, Any]", mark: _Mark | None = None) -> None:
    def send(value: Any) -> None:
        parent.send(("report", value))

    report = send if mark is None else ForkReport(send, mark.write)
    with suppress(EOFError, ConnectionError):
        while True:
            task = parent.recv()
            try:
                outcome = "done", function(task, report)
            except Exception as error:  # whatever it is, the parent raises it
                outcome = "error", error
                try:  # some errors can be pickled and not unpickled, where the parent would fail
                    pickle.loads(pickle.dumps(error))  # noqa: S301  # it was made here
                except Exception:
                    outcome = "error", ProcessError(f"{type(error).__name__}: {text_of(error)}")
            except BaseException as error:  # as one that ends it: it says why, and Python prints no traceback of it
                why = one_line(text_of(error))[:_MAX_WHY]
                outcome = "error", ProcessDiedError(f"it was ended by {type(error).__name__}: {why}")
            parent.send(outcome)
