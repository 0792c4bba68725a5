"""Ranges of remote files, for what may be read before a process forks: no thread and no event loop stays behind."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from streamdata.io.remote import Answer, DeniedError, RangesIgnoredError, fetch_once, network
from streamdata.io.storage import FileStamp, stamp_of_answer

_MAX_REQUESTS = 16


class Fetched(NamedTuple):
    """Some bytes of a remote file, and which version of it they are of."""

    data: bytes
    stamp: FileStamp
    tag: str


def fetch(url: str, begin: int, end: int) -> Fetched | None:
    """The bytes [begin, end) of a file, fewer at its end; None where there is none, or a page instead."""
    try:
        with network().waiting():
            answer = fetch_once(url, begin, end)
    except (FileNotFoundError, DeniedError, RangesIgnoredError):  # some servers say so of what is not there
        return None
    return Fetched(answer.data, stamp_of_answer(answer), answer.version)


def fetch_many(url: str, spans: Sequence[tuple[int, int]], tag: str) -> list[bytes]:
    """Several ranges of one file of a known version."""
    with network().waiting():
        if network().is_running:  # it may use all connections that this process has
            return _submitted(url, spans, tag)
        if len(spans) == 1:
            return [fetch_once(url, spans[0][0], spans[0][1], tag).data]
        with ThreadPoolExecutor(min(_MAX_REQUESTS, network().connections, len(spans))) as threads:
            return [answer.data for answer in threads.map(lambda span: fetch_once(url, span[0], span[1], tag), spans)]


def _submitted(url: str, spans: Sequence[tuple[int, int]], tag: str) -> list[bytes]:
    """The same over the network of this process; with the first error the others are cancelled."""
    asked: list[Future[Answer]] = []
    try:
        asked.extend(network().submit(url, begin, end, tag) for begin, end in spans)
        return [one.result().data for one in asked]
    finally:
        for one in asked:
            one.cancel()
