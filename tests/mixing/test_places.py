"""Which record a worker was at when it was killed."""

import copy
import os
import signal

import pytest
import torch

from streamdata import MergedDataset, StreamLoader, named
from streamdata.mixing.control import WorkerPlaces
from streamdata.run.per_process import shared_numbers
from streamdata.sources.functions.process_functions import Feed, run_bursts
from streamdata.sources.functions.tally import Tally


def test_of_those_who_died_the_last_record_is_known() -> None:
    """Not of those who live, nor of those who came to their end, nor of earlier ones."""
    places = WorkerPlaces()
    for worker, (ends, killed) in enumerate([(False, True), (True, True), (False, False)]):
        if not os.fork():
            place = places.of(worker)
            note = place.noting("a")
            note({"__url__": "x.tar", "__key__": "0" * 900})
            note({"__url__": "x\udcff\33.tar", "__key__": f"k{worker}"})
            if ends:
                place.clear()
            os.kill(os.getpid(), signal.SIGKILL if killed else signal.SIGSTOP)
    pids = [int(os.waitpid(-1, os.WUNTRACED)[0]) for _ in range(3)]
    assert [*places.of_dead().values()] == ["source 'a', x?\\x1b.tar, key k0"]
    for pid in pids:
        if os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    places.clear()
    assert places.of_dead() == {}


def fatal(record: dict) -> dict:
    """As a decoder that runs out of memory."""
    if record["data"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return record


def test_the_error_of_a_killed_worker_names_source_and_record() -> None:
    """Beside the process, which torch names."""
    sources = [
        named(range(50), name="a", percent=1, single_process_fn=fatal),
        named(range(50), name="b", percent=1),
    ]
    loader = StreamLoader(MergedDataset(sources), 2, 1, multiprocessing_context="fork")
    with pytest.raises((RuntimeError, OSError)) as caught:
        list(zip(loader, range(100), strict=False))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise it again in whatever test comes next
    assert "was killed; a function of it was last given source 'a', index 7\n" in "".join(caught.value.__notes__)


def test_a_stream_function_is_noted_what_it_is_given() -> None:
    """As it pulls it."""
    tally, noted = Tally("a", 0), []
    tally.note = noted.append
    records = [({"__index__": n}, (0, 0, n + 1, 0)) for n in range(3)]
    feed = Feed(iter(records), (0, 0, 0, 0), 0, tally, "process_fn")
    assert len(list(run_bursts(lambda pulled: pulled, feed, None))) == 3
    assert noted == [record for record, _ in records]


def test_a_process_forked_from_one_whose_torch_has_threads_makes_its_own() -> None:
    """A dataset, a copy of one that it received, and shared numbers: work for such threads never ends there."""
    pid = os.fork()
    if not pid:  # it gets the threads, which this process is to be without
        torch.set_num_threads(2)
        torch.ones(1 << 20).add_(1)
        if not (pid := os.fork()):
            made = MergedDataset([named(range(50), name="a", percent=1)])
            copy.copy(made).set_epoch(1)
            shared_numbers(10_000)
            os._exit(7)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
        signal.alarm(60)
        os._exit(os.waitpid(pid, 0)[1] >> 8)
    assert os.waitpid(pid, 0)[1] >> 8 == 7
