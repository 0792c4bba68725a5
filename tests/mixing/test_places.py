"""Which record a worker was at when it was killed."""

import os
import signal
from collections.abc import Iterator

import pytest

from streamdata import MergedDataset, StreamLoader, named
from streamdata.mixing.places import WorkerPlaces


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


def fatal_stream(records: Iterator[dict]) -> Iterator[dict]:
    """The same of a stream function."""
    return map(fatal, records)


@pytest.mark.parametrize("function", [{"single_process_fn": fatal}, {"process_fn": fatal_stream}])
def test_the_error_of_a_killed_worker_names_source_and_record(function: dict) -> None:
    """Beside the process, which torch names."""
    sources = [named(range(50), name="a", percent=1, **function), named(range(50), name="b", percent=1)]
    loader = StreamLoader(MergedDataset(sources), 2, 1, multiprocessing_context="fork")
    with pytest.raises((RuntimeError, OSError)) as caught:
        list(zip(loader, range(100), strict=False))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise it again in whatever test comes next
    assert "was killed; a function of it was last given source 'a', index 7\n" in "".join(caught.value.__notes__)
