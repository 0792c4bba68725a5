"""Servers on 127.0.0.1 that start and end with a test: objects over HTTP, an S3 API, a slow proxy before either.

Each runs in a thread of the test's process. `python -m tests.io.servers SIZE_MB` serves one object of that size
from a process of its own, for what is measured; with two more numbers, behind a proxy with that delay in s and rate in
MB/s.
"""

import asyncio
import hashlib
import hmac
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from email.utils import formatdate
from functools import cache
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_STEP = 1 << 16
_REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 412: "Precondition Failed",
            416: "Range Not Satisfiable"}  # fmt: skip


class Request(NamedTuple):
    """What a server was asked; `number` counts the requests for this path, from 0."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    number: int
    target: str  # path and query as they were sent


Fault = str | None
"""A status such as "503", with a code of S3 after a space; or one of: stall (no byte), half (of the body, then none),
drip (byte by byte), cut (half of the body, then the end), cut_chunked, cut_unsized, reset, ignore_range,
other_range, html."""


@cache  # what a bytes object hashes to is kept in it
def tag_of(data: bytes) -> str:
    """The ETag of an object; a server may have another function, which may give an empty text for none."""
    return f'"{hashlib.md5(data).hexdigest()}"'  # noqa: S324  (as S3 does)


class ObjectServer:
    """Objects by path, without the first slash; in an S3 API the path is the bucket and the key."""

    def __init__(self, objects: dict[str, bytes], *, s3: bool = False) -> None:
        self.objects, self.s3 = dict(objects), s3
        self.fault: Callable[[Request], Fault] = lambda request: None
        self.tag_of = tag_of
        self.obeys_if_match = True
        self.page_size = 1000  # of lists
        self.more_headers: dict[str, str] = {}  # of objects
        self.secret = ""  # with which requests have to be signed
        self.log: list[Request] = []
        self.url = ""
        self.most_at_once = 0  # connections
        self.most_in_flight = 0  # requests
        self.delay_s = 0.0  # before each answer
        self._connections: set[asyncio.StreamWriter] = set()
        self._asking: set[asyncio.StreamReader] = set()

    @property
    def counts(self) -> "Counter[str]":
        """Requests by method."""
        return Counter(request.method for request in self.log)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        self.most_at_once = max(self.most_at_once, len(self._connections))
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                request = self._parse(head)
                self.log.append(request)
                body = await reader.readexactly(int(request.headers.get("content-length", 0)))
                self._asking.add(reader)
                # Without those whose client has gone, and may ask for something else.
                self.most_in_flight = max(self.most_in_flight, sum(not each.at_eof() for each in self._asking))
                try:
                    await asyncio.sleep(self.delay_s)
                finally:
                    self._asking.discard(reader)  # before the answer: who has it may ask again before this goes on
                goes_on = await self._answer(request, body, writer)
                if not goes_on:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # it has gone, or the server ends
        finally:
            self._connections.discard(writer)
            writer.close()

    def _parse(self, head: str) -> Request:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        parts = urlsplit(target)
        path = unquote(parts.path).removeprefix("/")
        number = sum(request.path == path for request in self.log)
        return Request(method, path, parts.query, headers, number, target)

    async def _answer(self, request: Request, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Send one answer; whether the connection goes on."""
        fault = self.fault(request) or ""
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "stall":
            await asyncio.sleep(3600)
        if fault == "html":
            return await _send(writer, 200, {"Content-Type": "text/html"}, b"<!DOCTYPE html><p>log in")
        if re.match(r"\d{3}", fault):
            status, _, code = fault.partition(" ")
            text = f"<Error><Code>{code}</Code><Message>the server's word</Message></Error>" if code else ""
            return await _send(writer, int(status), {"Content-Type": "application/xml"}, text.encode())
        if self.secret and not _is_signed(request, body, self.secret):
            return await _send(writer, 403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if request.method == "PUT":
            self.objects[request.path] = body
            return await _send(writer, 200, {"ETag": self.tag_of(body)}, b"")
        status, headers, data = self._found(request, ignore_range=fault == "ignore_range")
        if fault == "other_range":
            headers["Content-Range"] = "bytes 1-2/9"
        if request.method == "HEAD":
            headers.setdefault("Content-Length", str(len(data)))
            data = b""
        return await _send(writer, status, headers, data, fault)

    def _found(self, request: Request, *, ignore_range: bool) -> tuple[int, dict[str, str], bytes]:
        query = parse_qs(request.query)
        if self.s3 and "list-type" in query:
            return 200, {"Content-Type": "application/xml"}, self._listing(request.path.strip("/"), query)
        data = self.objects.get(request.path)
        if data is None:
            text = "<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>"
            return 404, {"Content-Type": "application/xml"}, text.encode()
        tag = self.tag_of(data)
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        headers |= self.more_headers | ({"ETag": tag} if tag else {})
        if self.obeys_if_match and request.headers.get("if-match") not in (None, "*", tag):
            return 412, {"Content-Type": "application/xml"}, b"<Error><Code>PreconditionFailed</Code></Error>"
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if match is None or ignore_range:
            return 200, headers, data
        begin, end = int(match[1]), min(len(data), int(match[2] or len(data)) + 1)
        if begin >= len(data):
            return 416, {"Content-Range": f"bytes */{len(data)}"}, b""
        return 206, headers | {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, data[begin:end]

    def _listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """A page of ListObjectsV2: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>."""
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        paths = sorted(path for path in self.objects if path.startswith(f"{bucket}/{prefix}"))
        keys = [path.partition("/")[2] for path in paths]
        folders = {prefix + key[len(prefix) :].partition("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]}
        if "delimiter" not in query:
            folders = set()
        keys = [key for key in keys if not key.startswith(tuple(folders))]
        page = [key for key in keys if key > after][: self.page_size]
        more = bool(page) and page[-1] != keys[-1]
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        contents = "".join(
            f"<Contents><Key>{quote(key)}</Key><Size>{len(data)}</Size><ETag>{escape(self.tag_of(data))}</ETag>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
            for data in [self.objects[f"{bucket}/{key}"]]
        )
        contents += "".join(f"<CommonPrefixes><Prefix>{quote(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        space = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
        truncated = str(more).lower()
        return (
            f'<?xml version="1.0"?><ListBucketResult {space}><Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount>'
            f"<IsTruncated>{truncated}</IsTruncated>{token}{contents}</ListBucketResult>"
        ).encode()


def _is_signed(request: Request, body: bytes, secret: str) -> bool:
    """By https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html."""
    fields = dict(re.findall(r"(\w+)=([^,\s]+)", request.headers.get("authorization", "")))
    path, _, query = request.target.partition("?")
    names = fields.get("SignedHeaders", "").split(";")
    headers = "".join(f"{name}:{request.headers.get(name)}\n" for name in names)
    canonical = (request.method, path, "&".join(sorted(query.split("&"))), headers, ";".join(names))
    digest = hashlib.sha256("\n".join([*canonical, hashlib.sha256(body).hexdigest()]).encode()).hexdigest()
    scope = fields.get("Credential", "").partition("/")[2]
    text = f"AWS4-HMAC-SHA256\n{request.headers.get('x-amz-date')}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex() == fields.get("Signature")


async def _send(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, str], data: bytes, fault: str = ""
) -> bool:
    """Whether the connection goes on."""
    length = {"Content-Length": str(len(data))}
    if fault == "cut_chunked":
        length = {"Transfer-Encoding": "chunked"}
    elif fault == "cut_unsized":
        length = {"Connection": "close"}
    lines = {"Date": formatdate(usegmt=True)} | length | headers
    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Fault')}\r\n"
    writer.write((head + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n").encode("latin-1"))
    is_whole = fault not in ("half", "cut", "cut_chunked", "cut_unsized")
    data = data if is_whole else data[: len(data) // 2]
    for byte in data if fault == "drip" else b"":
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)
    data = b"" if fault == "drip" else data
    writer.write(b"%x\r\n%b\r\n" % (len(data), data) if fault == "cut_chunked" else data)
    await writer.drain()
    if fault == "half":
        await asyncio.sleep(3600)
    return is_whole


class _Loop:
    """An event loop in a thread, with servers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[object] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def listen(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> int:
        """The port on which connections are served."""

        def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # No coroutine: one that is cancelled before it began would leave its connection behind.
            self._writers.add(writer)
            task = self._loop.create_task(served(reader, writer))
            self._tasks.add(task)  # the loop alone does not keep one that waits for a connection at rest
            task.add_done_callback(self._tasks.discard)

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer)
            self._writers.discard(writer)

        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(kept, "127.0.0.1", 0, limit=_STEP, backlog=1024), self._loop
        )
        self._server = starting.result()
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for listening in self._server.sockets:  # no more are accepted, and those that were become connections: of a
            self._loop.remove_reader(listening.fileno())  # server that is closed meanwhile they fail, and stay open
        for _ in range(9):
            await asyncio.sleep(0)
        self._server.close()
        writers = list(self._writers)  # whose tasks take them off when they are cancelled
        # Again: one that was about to go on takes the first for the end of what it waited for.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
        for writer in writers:  # closed, it would wait until the client has read what is in it
            writer.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def _listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]) -> Iterator[int]:
    loop = _Loop()
    try:
        yield loop.listen(serve)
    finally:
        loop.close()


@contextmanager
def http_server(objects: dict[str, bytes], fault: Callable[[Request], Fault] | None = None) -> Iterator[ObjectServer]:
    """Objects under `server.url` + "/" + their path. `server.fault` may be set at any time."""
    server = ObjectServer(objects)
    server.fault = fault or server.fault
    with _listening(server.serve) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


@contextmanager
def s3_server(objects: dict[str, bytes], fault: Callable[[Request], Fault] | None = None) -> Iterator[ObjectServer]:
    """An S3 API at the endpoint `server.url`; paths of objects are "bucket/key"."""
    server = ObjectServer(objects, s3=True)
    server.fault = fault or server.fault
    with _listening(server.serve) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


@contextmanager
def slow_proxy(url: str, delay: float, rate: float) -> Iterator[str]:
    """The url of a proxy before a server: `delay` in s for each request, `rate` in bytes/s of each connection."""
    parts = urlsplit(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above = None
        try:
            above_reader, above = await asyncio.open_connection(parts.hostname, parts.port, limit=_STEP)
            ways = _forward(reader, above, delay, None), _forward(above_reader, writer, 0, rate)
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # either end has gone
            for task in tasks:
                task.cancel()
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            if above is not None:
                above.close()

    with _listening(serve) as port:
        yield f"http://127.0.0.1:{port}"


async def _forward(reader, writer, delay, rate):
    due = 0.0
    with suppress(asyncio.CancelledError, ConnectionError):
        while data := await reader.read(_STEP):
            now = asyncio.get_running_loop().time()
            if delay:
                await asyncio.sleep(delay)
            if rate is not None:
                due = max(now - 0.01, due) + len(data) / rate
                if due > now:
                    await asyncio.sleep(due - now)
            writer.write(data)
            await writer.drain()


def main() -> None:
    """Serve until the standard input ends."""
    size, *slow = (float(text) for text in sys.argv[1:])
    with ExitStack() as stack:
        server = stack.enter_context(s3_server({"bucket/object": bytes(int(size) << 20)}))
        url = stack.enter_context(slow_proxy(server.url, slow[0], slow[1] * 1e6)) if slow else server.url
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
