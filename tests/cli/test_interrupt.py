import os
import signal
import time

import pytest

from streamdata.cli.interrupt import Interrupt, leave_interrupts_to_trainer


def press_ctrl_c() -> None:
    """As the terminal does."""
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_becomes_a_request_that_raises_nothing() -> None:
    """Not later either, once it was met."""
    with Interrupt(patience_s=0.5) as interrupt:
        assert not interrupt.requested()
        press_ctrl_c()
        assert interrupt.requested()
        time.sleep(0.6)


def test_patience_ends_when_no_batch_comes() -> None:
    """A worker that hangs does not hold the command."""
    with Interrupt(patience_s=0.05):
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    """Without waiting for the batch."""
    with Interrupt():
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()


def test_handlers_are_as_before_afterwards() -> None:
    """Also if Ctrl-C was pressed."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with Interrupt():
        press_ctrl_c()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_workers_ignore_ctrl_c() -> None:
    """Their trainer ends them."""
    before = signal.getsignal(signal.SIGINT)
    try:
        leave_interrupts_to_trainer(0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
