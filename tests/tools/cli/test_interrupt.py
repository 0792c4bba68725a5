import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from streamdata.tools.cli.messages import Signals, TerminatedError, leave_interrupts_to_trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def press_ctrl_c() -> None:
    """As the terminal does."""
    os.kill(os.getpid(), signal.SIGINT)


def batches(wait_s: float, number: int = signal.SIGINT) -> Iterator[int]:
    """A first one, and a second within which a signal comes."""
    yield 1
    os.kill(os.getpid(), number)
    time.sleep(wait_s)
    yield 2


def receive(signals: Signals, items: Iterable[int]) -> list[int]:
    """What a command receives until it is interrupted, outside of which nothing is held."""
    received: list[int] = []
    with pytest.raises(KeyboardInterrupt), signals:
        received.extend(signals.held_within(items))
    return received


def test_a_signal_is_held_until_the_batch_has_come() -> None:
    """And then raised, instead of giving the batch."""
    began = time.monotonic()
    assert receive(Signals(patience_s=9), batches(0.1)) == [1]
    assert 0.1 <= time.monotonic() - began < 9
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # its patience is over, too


def test_patience_ends_when_no_batch_comes() -> None:
    """A worker that hangs does not hold the command."""
    began = time.monotonic()
    assert receive(Signals(patience_s=0.05), batches(9)) == [1]
    assert time.monotonic() - began < 9


def test_between_batches_a_signal_is_raised_at_once() -> None:
    """The loop may take long."""
    received: list[int] = []
    with pytest.raises(KeyboardInterrupt), Signals(patience_s=9) as signals:
        use_each(signals.held_within(range(9)), received)
    assert received == [0]


def use_each(items: Iterable[int], received: list[int]) -> None:
    """A loop that is interrupted."""
    for item in items:
        received.append(item)
        press_ctrl_c()


def fail_as_workers_do(number: int) -> Iterator[int]:
    """A loader that hears of its workers' end before the command has met the signal that ended them."""
    os.kill(os.getpid(), number)
    raise RuntimeError("a worker was killed by a signal")
    yield 1


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_either_signal_ends_a_command_also_where_its_worker_failed_first(number: int, kind: type) -> None:
    """A signal to all processes ends the workers, too."""
    with pytest.raises(KeyboardInterrupt) as caught, Signals() as signals:
        list(signals.held_within(fail_as_workers_do(number)))
    assert caught.type is kind


class Loader:
    """Ends workers when it goes, as torch's iterators do."""

    def __init__(self, ended: list[object]) -> None:
        self._ended = ended

    def __iter__(self) -> Iterator[int]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield 1

    def __del__(self) -> None:
        self._ended.append(signal.getsignal(signal.SIGCHLD))


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_command_leaves_is_ended_before_its_handlers(*, fails: bool) -> None:
    """The handler of torch would raise for workers that the same signal ended, and a hang needs the deadline."""
    ended: list[object] = []

    def received(loader: Loader) -> Iterator[int]:
        yield from loader
        if fails:
            raise RuntimeError("a worker was killed by a signal")

    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        with pytest.raises(TerminatedError), Signals() as signals:
            list(signals.held_within(received(Loader(ended))))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert ended == [signal.SIG_DFL]


def hold_two(number: int) -> None:
    """A command that gets two signals within a batch."""

    def batch() -> Iterator[int]:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGINT)
        yield 1

    with Signals() as signals:
        list(signals.held_within(batch()))


def hang(number: int) -> None:
    """A command whose end takes long."""
    with Signals(max_end_s=0.05):
        try:
            os.kill(os.getpid(), number)
        finally:
            time.sleep(9)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("command", "code"), [(hold_two, lambda _: -2), (hang, lambda number: 128 + number)])
def test_a_second_signal_or_the_deadline_end_the_process(
    number: int, command: Callable[[int], None], code: Callable[[int], int]
) -> None:
    """The second at once, by its default action; a hang after a while, with the signal's exit code."""
    pid = os.fork()
    if not pid:
        command(number)
        os._exit(0)
    began = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code(number)
    assert time.monotonic() - began < 9


def test_handlers_are_as_before_afterwards() -> None:
    """Also if Ctrl-C was pressed."""
    numbers = (*SIGNALS, signal.SIGALRM, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    receive(Signals(), batches(0.0))
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_workers_ignore_ctrl_c() -> None:
    """Their trainer ends them."""
    before = signal.getsignal(signal.SIGINT)
    try:
        leave_interrupts_to_trainer(0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
