"""What a process is doing, by its stack: `frame → source, stage`.

The first frame from the inside that says it decides. Nothing of a stream is wrapped or replaced, so that what is
observed is the run as it is.
"""

import threading
from collections.abc import Iterator
from concurrent import futures
from multiprocessing import queues
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Final, NamedTuple

from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils import worker as torch_worker

import streamdata
import streamdata.sources.functions.process_functions as own_functions
from streamdata.mixing.mixture import Mixture
from streamdata.shards.parquet.run_decoder import NetworkedBytes
from streamdata.sources.foreign.map_style import MapStyleSource
from streamdata.sources.foreign.open_stream import OpenStream

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
"""Those of the readers that make records of bytes."""
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
    """What a process does at a moment."""

    source: str
    """The path of the source that it is for; empty where it is for none."""
    stage: str
    function: str = ""
    """Of `process`: which attribute of the source holds the function."""


_NOTHING: Final = Doing("", IDLE)


def doing(frame: FrameType | None) -> Doing:
    """What the thread does whose innermost frame this is."""
    inner: CodeType | None = None
    is_waiting = False
    for each in _outwards(frame):
        code = each.f_code
        is_waiting = is_waiting or code in _WAITS
        found = _told_by(each, inner, is_waiting=is_waiting)
        if found is not None:
            return found if found.source or found.stage in (PACK, SEND, IDLE) else found._replace(source=_source(each))
        inner = code
    return _NOTHING


def is_sending(frame: FrameType | None) -> bool:
    """Whether the thread of this frame sends batches to the trainer, and does not wait for one."""
    codes = [each.f_code for each in _outwards(frame)]
    return _FEEDS in codes and not _WAITS.intersection(codes)


def _told_by(frame: FrameType, inner: CodeType | None, *, is_waiting: bool) -> Doing | None:
    code = frame.f_code
    if code in (_SINGLE, _BURSTS, _PULLS):
        return _of_function(frame)
    if code is _WORKER:
        return Doing("", _OF_WORKER.get(inner, MIXING))
    stage = _OF_CODE.get(code)
    if stage is None and code.co_filename.startswith(_PACKAGE):
        stage = _of_module(code.co_filename.removeprefix(_PACKAGE), is_waiting=is_waiting)
    return None if stage is None else Doing("", stage)


def _of_function(frame: FrameType) -> Doing:
    """Within a source's or a mixture's function, or where it pulls."""
    if frame.f_code is _SINGLE:
        return Doing(frame.f_locals["tally"].name, PROCESS, "single_process_fn")
    if frame.f_code is _PULLS:
        return Doing(frame.f_locals["self"].tally.name, MIXING)
    feed = frame.f_locals["feed"]
    return Doing(feed.tally.name, PROCESS, feed.what)


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
