"""torchrun's agent, whose ranks are forks of a process that has imported torch.

A rank that is started as a command imports it anew, for two to four seconds.
"""

import importlib
import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.ranks import fork_workers

CONTEXT = multiprocessing.get_context("forkserver")
Job = multiprocessing.process.BaseProcess


def launch(output: Path, size: int, entry: Callable[..., object], *arguments: object) -> Job:
    """Start `entry(*arguments)` in so many ranks; what they print is in `output`, and the exit code is torchrun's."""
    job = CONTEXT.Process(target=_launch, args=(str(output), size, entry, arguments))
    job.start()
    return job


def script(path: str, *options: str) -> None:
    """An entry: a script with its command line."""
    sys.path.insert(0, str(Path(path).parent))  # as Python does
    sys.argv = [path, *options]
    runpy.run_path(path, run_name="__main__")


def _launch(output: str, size: int, entry: Callable[..., object], arguments: tuple[object, ...]) -> None:
    fork_workers()  # of the ranks too, which are forks of this one
    file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    importlib.import_module("torch._dynamo")  # the first step of an optimizer does: here it is once for all ranks
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=size,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(os.getpid()),
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, entry)(*arguments)
