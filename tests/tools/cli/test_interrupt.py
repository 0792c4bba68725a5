import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from streamdata.tools.cli.messages import Interrupt, TerminatedError, ends_by_signals, leave_interrupts_to_trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def press_ctrl_c() -> None:
    """As the terminal does."""
    os.kill(os.getpid(), signal.SIGINT)


def wait_for_a_batch(interrupt: Interrupt, *, wait_s: float) -> None:
    """A command that is interrupted while it waits; asked whether it was before and after."""
    with interrupt:
        interrupt.check()
        press_ctrl_c()
        time.sleep(wait_s)
        interrupt.check()
        pytest.fail("nothing ended it")


def test_ctrl_c_is_held_until_it_is_asked_for() -> None:
    """And then passed on to who handled it before, once."""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait_for_a_batch(Interrupt(patience_s=9), wait_s=0.1)
    assert 0.1 <= time.monotonic() - began < 9
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0  # its patience is over, too


def test_patience_ends_when_no_batch_comes() -> None:
    """A worker that hangs does not hold the command."""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait_for_a_batch(Interrupt(patience_s=0.05), wait_s=9)
    assert time.monotonic() - began < 9


def fail_as_workers_do(number: int) -> None:
    """A command that hears of its workers' end before it has met the signal that ended them."""
    with ends_by_signals(), Interrupt():
        os.kill(os.getpid(), number)
        raise RuntimeError("a worker was killed by a signal")


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TerminatedError)])
def test_either_signal_ends_a_command_also_where_its_worker_failed_first(number: int, kind: type) -> None:
    """A signal to all processes ends the workers, too."""
    with pytest.raises(KeyboardInterrupt) as caught:
        fail_as_workers_do(number)
    assert caught.type is kind


def hold_one(number: int) -> None:
    """A command within a batch."""
    with ends_by_signals(), Interrupt():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), SIGNALS[0])
        time.sleep(9)


def hang(number: int) -> None:
    """A command whose end takes long."""
    with ends_by_signals():
        try:
            os.kill(os.getpid(), number)
        finally:
            time.sleep(9)


def hang_briefly(number: int) -> None:
    """As `hang`, with a short deadline."""
    signals = sys.modules["streamdata.tools.cli.messages"]
    signals._MAX_END_S = 0.05  # type: ignore[attr-defined]
    hang(number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("command", "code"), [(hold_one, lambda _: -2), (hang_briefly, lambda number: 128 + number)])
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
    with pytest.raises(KeyboardInterrupt), ends_by_signals():
        wait_for_a_batch(Interrupt(), wait_s=0.0)
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
