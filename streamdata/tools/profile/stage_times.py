"""How long a process does what: `a timer's signal, some hundred times a second → seconds by source and stage`.

The first frame of the stack, from the inside, that tells a stage decides. Nothing of a stream is wrapped or replaced:
the signal comes to the main thread between two of its steps, so that what it reads, draws and delivers stays what it
is. Each moment counts for the time since the one before, so that all stages together are the time that passed. A
thread would not do: it is let in where the main thread waits, and would see it waiting there.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent import futures
from multiprocessing import queues
from pathlib import Path, PurePath
from random import Random
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, Self

from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils import worker as torch_worker

import streamdata
import streamdata.sources.functions.process_functions as own_functions
from streamdata.mixing.mixture import Mixture
from streamdata.shards.parquet.run_decoder import NetworkedBytes
from streamdata.sources.foreign.map_style import MapStyleSource
from streamdata.sources.foreign.own_stream import OpenStream

READ: Final = "read"
DECODE: Final = "decode"
PROCESS: Final = "process"
WAIT: Final = "wait"
PACK: Final = "pack"
SEND: Final = "send"
MIXING: Final = "mixing"
"""Clocks, orders, states: what is left."""
IDLE: Final = "idle"
"""The trainer, or waiting for it."""
STAGES: Final = (READ, DECODE, PROCESS, WAIT, PACK, SEND, MIXING)

_PACKAGE: Final = str(PurePath(streamdata.__file__).parent) + "/"
_NETWORK: Final = ("io/remote/", "io/cache/")
_READERS: Final = ("io/", "shards/")
_DECODERS: Final = ("shards/jsonl/", "shards/parquet/", "shards/tar/", "shards/sequential.", "io/streams.")
"""Modules among the readers that make records of bytes."""
_DECODED_AHEAD: Final = tuple(f"shards/parquet/{name}." for name in ("decode_ahead", "file", "run_decoder"))
_ROOMS: Final = {"io": READ, "shards": READ, "stores": READ, "mixing": MIXING, "states": MIXING}
_WAITS: Final = frozenset((threading.Condition.wait.__code__, futures.Future.result.__code__))
_PULLS: Final = own_functions.Feed.__next__.__code__
_DRAWS: Final = Mixture.draw.__code__
_SINGLE: Final = own_functions.call_per_record.__code__
_BURSTS: Final = own_functions.run_bursts.__code__
_OF_CODE: Final = {
    # Where a dataset of others is asked for a record: all of that is reading, whatever it does.
    MapStyleSource._singly.__code__: READ,  # noqa: SLF001
    MapStyleSource._ahead.__code__: READ,  # noqa: SLF001
    OpenStream.pull.__code__: READ,
    NetworkedBytes.read.__code__: WAIT,
    torch_fetch._IterableDatasetFetcher.fetch.__code__: PACK,  # noqa: SLF001
    torch_fetch._MapDatasetFetcher.fetch.__code__: PACK,  # noqa: SLF001
}
_WORKER: Final = torch_worker._worker_loop.__code__  # noqa: SLF001
_OF_WORKER: Final[dict[CodeType | None, str]] = {queues.Queue.get.__code__: IDLE, queues.Queue.put.__code__: SEND}
_FEEDS: Final = queues.Queue._feed.__code__  # type: ignore[attr-defined]  # noqa: SLF001


class Doing(NamedTuple):
    """The activity of a process at a moment."""

    source: str
    """The path of the source that it is for; empty where it is for none."""
    stage: str
    function: str = ""
    """The attribute of the source with the function of `process`; empty of other stages."""


def doing(frame: FrameType | None) -> Doing:
    """Tell what a thread does by its innermost frame."""
    inner: CodeType | None = None
    is_waiting = False
    for each in _outwards(frame):
        code = each.f_code
        is_waiting = is_waiting or code in _WAITS
        found = _told_by(each, inner, is_waiting=is_waiting)
        if found is not None:
            return found if found.source or found.stage in (PACK, SEND, IDLE) else found._replace(source=_source(each))
        inner = code
    return Doing("", IDLE)


def is_sending(frame: FrameType | None) -> bool:
    """Whether the thread of this frame sends batches to the trainer, and does not wait for one."""
    codes = [each.f_code for each in _outwards(frame)]
    return _FEEDS in codes and not _WAITS.intersection(codes)


def _told_by(frame: FrameType, inner: CodeType | None, *, is_waiting: bool) -> Doing | None:
    code = frame.f_code
    # Within a source's or a mixture's function, or where it pulls.
    if code is _SINGLE:
        return Doing(frame.f_locals["tally"].name, PROCESS, "single_process_fn")
    if code is _PULLS:
        return Doing(frame.f_locals["self"].tally.name, MIXING)
    if code is _BURSTS:
        feed = frame.f_locals["feed"]
        return Doing(feed.tally.name, PROCESS, feed.what)
    if code is _WORKER:
        return Doing("", _OF_WORKER.get(inner, MIXING))
    stage = _OF_CODE.get(code)
    if stage is None and code.co_filename.startswith(_PACKAGE):
        stage = _of_module(code.co_filename.removeprefix(_PACKAGE), is_waiting=is_waiting)
    return None if stage is None else Doing("", stage)


def _of_module(path: str, *, is_waiting: bool) -> str | None:
    # Before a fork, answers are waited for without futures; of the rest of these, whoever asks says what it does.
    if path.startswith(_NETWORK):
        return WAIT if is_waiting or path == "io/remote/once.py" else None
    # Parquet is decoded ahead by a thread: who waits for that waits for no store.
    if is_waiting and path.startswith(_READERS) and not path.startswith(_DECODED_AHEAD):
        return WAIT
    return DECODE if path.startswith(_DECODERS) else _ROOMS.get(path.partition("/")[0])


def _source(frame: FrameType) -> str:
    """The source that a frame works for: the one that the mixture around it draws from."""
    for each in _outwards(frame.f_back):
        if each.f_code is _DRAWS:
            known = each.f_locals
            number = known.get("i")
            return str(known["keys"][number].path) if number is not None and not known["nested"][number] else ""
    return ""


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


INTERVAL_S: Final = 0.002
"""Between two moments, on average."""
_LEAST_S: Final = 1e-4
_WRITTEN_S: Final = 0.2
"""Seconds after which a worker writes what it has: it is ended without being asked."""

Seconds = Mapping[Doing, float]


class StageTimes:
    """Observes the main thread of a process; in Python's main thread alone, as all signal handlers.

    Args:
        path: Where a worker writes what it has so far.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.seconds: defaultdict[Doing, float] = defaultdict(float)
        self._path, self._last, self._random = path, 0.0, Random(0)
        self._written = 0.0

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGALRM, self._note)
        self._last = self._written = time.perf_counter()
        self._set_timer()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _set_timer(self) -> None:
        # Without memory, as radioactive decay: however the process has come to be where it was seen last, each later
        # moment is as likely. Even intervals come in step with functions by turns, and with a scheduler that puts the
        # process aside. Of a generator of its own: a run's are not to be drawn from.
        signal.setitimer(signal.ITIMER_REAL, max(_LEAST_S, self._random.expovariate(1 / INTERVAL_S)))

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        del signal_number
        now = time.perf_counter()
        passed = now - self._last
        main = doing(frame)
        others = (other for other in sys._current_frames().values() if other is not frame)  # noqa: SLF001
        # A worker's queue has a thread that pickles batches, and writes them to the trainer's pipe.
        if any(map(is_sending, others)):
            # Both want the one lock of the interpreter: each is taken to have had half of the time.
            share = 1.0 if main.stage == IDLE else 0.5
            self.seconds[Doing("", SEND)] += passed * share
            passed -= passed * share
        if passed:
            self.seconds[main] += passed
        if self._path is not None and now > self._written + _WRITTEN_S:
            self._written = now
            self._write(self._path)
        # What this itself takes passes where the process is: it may even be put aside meanwhile.
        self._last = time.perf_counter()
        self.seconds[main] += self._last - now
        self._set_timer()

    def _write(self, path: Path) -> None:
        rows = [[*each, seconds] for each, seconds in self.seconds.items()]
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(rows))
        temporary.replace(path)


def observe_worker(path: Path, worker: int) -> None:
    """Observe this DataLoader worker until it ends, if it is the first, and write its stages to a path."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    if worker == 0:
        StageTimes(path).__enter__()


def read_times(path: Path) -> Seconds:
    """Read the seconds that a worker has written; none where it wrote nothing."""
    if not path.exists():
        return {}
    rows: list[list[Any]] = json.loads(path.read_text())
    return {Doing(source, stage, function): seconds for source, stage, function, seconds in rows}
