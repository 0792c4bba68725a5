"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """Tests press Ctrl-C in processes that they start, which would not notice where this one was started to ignore it.

    A shell starts what it runs in the background so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
