"""The trainer that a worker works for."""

import fcntl
import multiprocessing
import os
import signal
from multiprocessing.connection import wait


def end_with_trainer() -> None:
    """End this worker process as soon as its trainer has gone, however that went. Calling it again changes nothing.

    A DataLoader's own watchdog looks at the process's parent, which under forkserver is the server: it outlives a
    trainer that was killed, and so would the worker. The sentinel is a pipe that the trainer holds open. When it
    closes, the kernel sends SIGIO, whose default action ends the process: no thread that could disturb its normal
    end.
    """
    trainer = multiprocessing.parent_process()
    if trainer is None:
        return
    fcntl.fcntl(trainer.sentinel, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(trainer.sentinel, fcntl.F_GETFL)
    fcntl.fcntl(trainer.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    if wait([trainer.sentinel], timeout=0):  # it closed before the kernel was asked
        os.kill(os.getpid(), signal.SIGIO)
