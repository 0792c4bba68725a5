"""Real ranks that meet over torch.distributed: gloo, one process each."""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
LIMIT_S = 600  # of a machine on which others work too


def run_on_ranks(folder: Path, function: Callable[[int], object], size: int = 2) -> list:
    """What a function of the rank returns in as many processes, or the text of its ValueError.

    Raises:
        AssertionError: A rank raised anything else; the message has its traceback.
    """
    processes = [CONTEXT.Process(target=serve, args=(folder, function, rank, size)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        assert process.exitcode == 0
    errors = [error.read_text() for rank in range(size) if (error := folder / f"error-of-{rank}").exists()]
    assert not errors, "\n".join(errors)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(size)]


def fork_workers() -> None:
    """Let loaders of this process fork their workers, as those of a script on Linux.

    Else their default is how this process was started: by a fork server of its own, which imports torch anew.
    """
    multiprocessing.set_start_method("fork", force=True)


def apart(function: Callable[..., object], *arguments: object) -> None:
    """Call a function in a process of its own, which has imported torch already, and wait for its good end."""
    process = CONTEXT.Process(target=_call, args=(function, arguments))
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0


def _call(function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    fork_workers()
    function(*arguments)


def serve(folder: Path, function: Callable[[int], object], rank: int, size: int) -> None:
    """One rank's process: what the function returns or raises lies in the folder afterwards."""
    fork_workers()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-of-{size}", rank=rank, world_size=size)
    result = None
    try:
        result = function(rank)
    except ValueError as error:
        result = f"{type(error).__name__}: {error}"
    except Exception:
        (folder / f"error-of-{rank}").write_text(traceback.format_exc())
    (folder / str(rank)).write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
