"""Ranges over HTTP, many at a time on one event loop: of web servers, and of S3 APIs."""

from typing import Any
from urllib.request import getproxies

from streamdata.errors import needs
from streamdata.io.remote.addresses import StorageOptions
from streamdata.io.remote.hosts import door_of
from streamdata.io.remote.requests import STALL_S, Answer, Asked, DenialError, FailureError, GoneError, described
from streamdata.io.remote.web import MAX_WORD, Prepared, answer, denied, promise, range_headers, refuse

with needs("aiohttp", "http,s3", "reading http:// and s3://"):
    import aiohttp
    import yarl

_GOOD = (200, 206)
_BUFFER = 1 << 20


class _Pool(aiohttp.TCPConnector):
    """Connections. A forked process drops its copy silently: to close it would disturb the parent's event loop."""

    def __del__(self, _warnings: Any = None) -> None:
        pass


def new_session(connections: int) -> aiohttp.ClientSession:
    """Make the session that all web clients of a process share; call it on the event loop."""
    session = aiohttp.ClientSession(
        connector=_Pool(limit=connections, limit_per_host=0),
        auto_decompress=False,
        trust_env=bool(getproxies()),  # it looks for one at each request, which takes longer than the request
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_BUFFER,
    )
    session._retry_connection = False  # noqa: SLF001  (it has no other switch, and would ask twice where we count one)
    return session


class WebClient:
    """A RangeClient over HTTP.

    Args:
        session: The connections.
        options: Of the host.
    """

    def __init__(self, session: aiohttp.ClientSession, options: StorageOptions) -> None:
        self._session, self._options = session, options

    async def get(self, url: str, begin: int, end: int, version: str) -> Answer:
        asked = Asked(url, begin, end, version)
        door = door_of(url, self._options)
        for _ in range(3):  # other credentials and another region may each be tried once
            prepared = door.prepare("GET", url, range_headers(asked))
            try:
                return await self._attempt(asked, prepared, follows=door.follows)
            except DenialError as error:
                if not door.renewed(prepared.credentials):
                    raise denied(asked, error) from None
            except _ElsewhereError as error:
                if not door.learned(url, error.headers):
                    refuse(asked, error.status, error.headers, error.body)
        raise denied(asked, DenialError("one refusal after the other", 403))

    async def _attempt(self, asked: Asked, prepared: Prepared, *, follows: bool) -> Answer:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALL_S, sock_read=STALL_S)
        try:
            async with self._session.get(
                yarl.URL(prepared.url, encoded=True), headers=prepared.headers, allow_redirects=follows, timeout=timeout
            ) as response:
                try:
                    if response.status not in _GOOD:
                        body = await response.content.read(MAX_WORD)
                        if response.headers.get("x-amz-bucket-region") and response.status in (301, 307, 400):
                            raise _ElsewhereError(response.status, response.headers, body)
                        refuse(asked, response.status, response.headers, body)
                    promised = promise(asked, response.status, response.headers)
                    data = await response.read()
                    return answer(response.status, promised, data, 0.0)
                except BaseException:
                    response.close()  # what else comes is not read
                    raise
        except GoneError:  # an OSError, too
            raise
        except (aiohttp.ClientError, OSError) as error:
            cut, closed = aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError
            raise FailureError(described(error, STALL_S, cut, closed)) from error

    async def close(self) -> None:
        """Do nothing: the session belongs to whoever made it."""


class _ElsewhereError(Exception):
    """An S3 API says that a bucket is in another region."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body
