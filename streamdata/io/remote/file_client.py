"""Ranges through fsspec: of whatever has no client here, such as hf:// and memory://.

It has no preconditions, so each range is followed by a look at the file, past what listings said of it: what was read
is of the version that is there afterwards.

Bytes of the hub are asked for by huggingface_hub's session itself: its file system repeats a range up to five times.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar

from streamdata.errors import ShardError, shown, without_secrets
from streamdata.io.remote.addresses import NO_OPTIONS, StorageOptions
from streamdata.io.remote.hosts import file_system
from streamdata.io.remote.requests import STALL_S, Answer, Asked, FailureError, Listed, Listing

T = TypeVar("T")
_MAX_THREADS = 16
_FINAL = (AttributeError, ImportError, NotImplementedError, TypeError, ValueError)
# Where the file systems of fsspec say which version of a file this is, the most exact first.
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "content_md5", "crc32c", "mtime", "LastModified", "last_modified",
             "updated", "created")  # fmt: skip
_LOGGERS_OF_URLS = ("httpx", "httpx2", "httpcore.http11", "httpcore2.http11", "huggingface_hub.utils._http")


def _without_queries(record: logging.LogRecord) -> bool:
    """Leave the queries of urls out of what a library logs: the hub sends readers on to signed urls."""
    record.msg, record.args = without_secrets(record.getMessage()), None
    return True


class FileClient:
    """A Client over fsspec, in threads.

    Args:
        options: None of them applies.
        threads: How many requests are made at the same time at most.
    """

    def __init__(self, options: StorageOptions, threads: int) -> None:
        if options != NO_OPTIONS:  # fsspec has settings of its own for each file system
            raise ValueError(
                "storage_options: expected them for s3, gs or az, got a url that is read through fsspec\n"
                "  Leave them out, and set up its file system by fsspec's configuration files."
            )
        self._pool = ThreadPoolExecutor(min(threads, _MAX_THREADS), "streamdata fsspec")

    async def fetch(self, asked: Asked) -> Answer:
        return await self._in_thread(_fetch, asked)

    async def stat(self, asked: Asked) -> Answer:
        return await self._in_thread(_stat, asked)

    async def list(self, asked: Asked) -> Listing:
        return await self._in_thread(_list, asked)

    async def put(self, asked: Asked) -> None:
        await self._in_thread(lambda filesystem, path, _: filesystem.put_file(str(asked.body), path), asked)

    async def _in_thread(self, attempt: Callable[[Any, str, Asked], T], asked: Asked) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, _attempted, attempt, asked)

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _attempted(attempt: Callable[[Any, str, Asked], T], asked: Asked) -> T:
    """Make an attempt with the url's file system and the path in it; raise ours for errors of fsspec."""
    try:
        return attempt(*file_system(asked.signed), asked)
    except (FailureError, ShardError, *_FINAL):
        raise
    except FileNotFoundError as error:
        raise asked.refusal(HTTPStatus.NOT_FOUND) from error
    except PermissionError as error:
        raise asked.denied("no permission") from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)  # as Hugging Face's errors have it
        if isinstance(status, int):
            raise asked.refusal(status) from error
        reason = getattr(error, "strerror", None)
        word = f"{type(error).__name__}{f' ({reason})' if isinstance(reason, str) else ''}"
        raise FailureError(word) from error


def _fetch(filesystem: Any, path: str, asked: Asked) -> Answer:
    if "hf" in ((filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol):
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # its documentation names it

        for name in _LOGGERS_OF_URLS:
            logging.getLogger(name).addFilter(_without_queries)
        # The tag of what it sends is another one than it tells of the file, which is looked at afterwards.
        of_any = asked._replace(version="")
        headers = build_hf_headers(token=filesystem.token) | of_any.headers()
        with get_session().stream("GET", filesystem.url(path), headers=headers, timeout=STALL_S) as answer:
            if answer.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise asked.refusal(answer.status_code)
            of_any.announced(answer.status_code, answer.headers)
            data = bytes(answer.read())
    else:
        data = bytes(filesystem.cat_file(path, start=asked.begin, end=asked.end))
    found = _stat(filesystem, path, asked)
    asked.check_version(found.version)
    return found._replace(data=data)


def _list(filesystem: Any, path: str, asked: Asked) -> Listing:
    filesystem.invalidate_cache()
    found = filesystem.find(path, maxdepth=None if asked.deep else 1, withdirs=not asked.deep, detail=True)
    above, root = path.rstrip("/"), asked.url.rstrip("/")
    listed = [
        Listed(root + name[len(above) :] + "/" * (details["type"] != "file"), details.get("size") or 0, "")
        for name, details in found.items()
        if name.rstrip("/") != above
    ]
    return Listing(listed, [])


def _stat(filesystem: Any, path: str, asked: Asked) -> Answer:
    # What a listing said of the file, for a glob say, may be as old as the process: the file itself is asked.
    filesystem.invalidate_cache(path)
    filesystem.invalidate_cache(path.rpartition("/")[0])  # some forget the folder of a path by themselves, not all
    details = filesystem.info(path)
    size = details.get("size")
    if not isinstance(size, int):
        raise ValueError(f"{asked.describe()}: its server tells no size, got {shown(size)}")
    return Answer(b"", next((str(details[name]) for name in _VERSIONS if details.get(name)), ""), size)
