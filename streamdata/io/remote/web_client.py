"""HTTP, many requests at a time on one event loop: of web servers, and the ground of S3 APIs."""

import base64
import re
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from html import unescape
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies

from streamdata.errors import needs
from streamdata.io.remote.addresses import bare_url, beside
from streamdata.io.remote.requests import MAX_WORD, STALL_S, Answer, Asked, FailureError, GoneError, Listed, Listing

with needs("aiohttp", "http,s3", "reading http:// and s3://"):
    import aiohttp
    import yarl

T = TypeVar("T")
Take = Callable[[aiohttp.ClientResponse], Awaitable[T]]
_BUFFER = 1 << 20
_HREF = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)


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


class Prepared(NamedTuple):
    """A request ready to send: its url as the host takes it, headers, and the settings by which it was signed."""

    url: str
    headers: dict[str, str]
    settings: Any = None


class WebClient:
    """A Client of web servers; a url's user name and password become a header.

    Args:
        session: The connections.
    """

    follows = True  # redirects

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def fetch(self, asked: Asked) -> Answer:
        async def take(response: aiohttp.ClientResponse) -> Answer:
            found = asked.announced(response.status, response.headers)
            return asked.completed(found, await response.read()) if found.size else found

        return await self.send(asked, take)

    async def stat(self, asked: Asked) -> Answer:
        # The first byte, not the headers alone: a server that ignores ranges is noticed before the run.
        return await self.fetch(asked._replace(what="fetch", end=1))

    async def list(self, asked: Asked) -> Listing:
        """The links of the server's page of a folder; for a deep list, its folders' pages are to be asked for, too."""
        root = bare_url(asked.url).rstrip("/") + "/"
        page = await self.send(asked._replace(url=beside(asked.url, root)), lambda response: response.read())
        links = {bare_url(urljoin(root, unescape(link))) for link in _HREF.findall(page.decode("utf-8", "replace"))}
        below = sorted(link for link in links if link.startswith(root) and link != root)
        folders = [link for link in below if link.endswith("/") and asked.deep]
        return Listing(
            [Listed(link, 0, "") for link in below if link not in folders],
            [asked._replace(url=beside(asked.url, link)) for link in folders],
        )

    async def close(self) -> None:
        """Do nothing: the session belongs to whoever made it."""

    def prepare(self, asked: Asked) -> Prepared:
        """Prepare a request."""
        parts, headers = urlsplit(asked.signed), asked.headers()
        userinfo, at, host = parts.netloc.rpartition("@")
        if at:
            token = base64.b64encode(unquote(userinfo).encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        path = quote(parts.path or "/", "/~-._%!$&'()*+,;=:@")
        return Prepared(urlunsplit((parts.scheme, host, path, parts.query, "")), headers)

    def corrected(self, asked: Asked, used: Prepared, error: Exception, headers: Any) -> bool:
        """Whether after this error, with these headers, the next request will be made in another way."""
        return False

    async def send(self, asked: Asked, take: Take[T]) -> T:
        """Send a request, and return what `take` makes of a good response."""
        for _ in range(3):  # other credentials and another region may each be tried once
            found = await self._attempt(asked, self.prepare(asked), take)
            if found is not None:
                return found[0]
        raise asked.denied("one refusal after the other")

    async def _attempt(self, asked: Asked, prepared: Prepared, take: Take[T]) -> tuple[T] | None:
        """Send it once; return what `take` makes of the response, or None where it is to be sent again."""
        url = yarl.URL(prepared.url, encoded=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALL_S, sock_read=STALL_S)
        try:
            with nullcontext() if asked.body is None else asked.body.open("rb") as body:
                sending = self._session.request(
                    asked.method,
                    url,
                    headers=prepared.headers,
                    data=body,
                    allow_redirects=self.follows,
                    timeout=timeout,
                )
                async with sending as response:
                    if response.status in (200, 206) or asked.is_empty(response.status, response.headers):
                        return (await take(response),)
                    said = await response.content.read(MAX_WORD)
                    error = asked.refusal(response.status, response.headers, said)
                    if self.corrected(asked, prepared, error, response.headers):
                        return None
                    raise error
        except GoneError:  # an OSError, too
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise FailureError(f"{_described(error)} from {url.host}:{url.port}") from error


def _described(error: Exception) -> str:
    """Describe a failure without the url, whose query may hold secrets."""
    if isinstance(error, TimeoutError):
        return f"no byte for {STALL_S:.0f} s"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "a body that was cut"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "a connection that was closed"
    reason = getattr(error, "strerror", None)
    return f"{type(error).__name__}{f' ({reason})' if isinstance(reason, str) else ''}"
