"""The trainer that a worker works for."""

import fcntl
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import wait

from streamdata.run.per_process import PerProcess


def end_with_trainer() -> None:
    """End this worker process as soon as its trainer is gone, even if killed. Calling it again changes nothing.

    A DataLoader's own watchdog looks at the process's parent, which under forkserver is the server: it outlives a
    trainer that was killed, and so would the worker. The sentinel is a pipe that the trainer holds open.
    """
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        end_when_closed(trainer.sentinel)


def _look_for_trainer() -> bool:
    data = sys.modules.get("torch.utils.data")  # not imported: who has not imported it is no worker
    is_worker = data is not None and data.get_worker_info() is not None
    if is_worker:
        end_with_trainer()
    return is_worker


_has_trainer = PerProcess(_look_for_trainer)


def end_worker_with_trainer() -> None:
    """End this process with its trainer, if it is a DataLoader worker; cheap enough to call with every batch.

    A dataset that a worker only indexes is told by nobody that it is in one.
    """
    _has_trainer.get()


def has_ended(pid: int) -> bool:
    """Whether a process no longer exists, or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # After the name, which may hold anything: Z and X are those that nobody has waited for yet.
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def end_when_closed(pipe: int) -> None:
    """End this process as soon as the other end of a pipe is closed.

    The kernel then sends SIGIO, whose default action ends the process: no thread that could disturb its normal end. The
    pipe may be no other process's too: of those that share one, only the last to ask is sent the signal.
    """
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], timeout=0):  # it closed before the kernel was asked
        os.kill(os.getpid(), signal.SIGIO)
