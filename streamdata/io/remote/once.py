"""Requests whose answer the caller waits for: what is read before a process forks, lists, and what is written."""

from pathlib import Path
from typing import Any

from streamdata.errors import ShardError
from streamdata.io.remote.addresses import bare_url, signed_url
from streamdata.io.remote.hosts import kind_of
from streamdata.io.remote.network import network
from streamdata.io.remote.requests import Answer, Asked, Listed, Listing


def fetch_once(url: str, begin: int, end: int, version: str = "") -> Answer:
    """Fetch the bytes [begin, end) of an object.

    Raises:
        ShardError: See `Network.submit`.
    """
    found: Answer = _wait_for(Asked("fetch", url, begin, end, version))
    return found


def stat_once(url: str) -> Answer:
    """Find an object's size and version; a web server is asked for the first byte, which also tests ranges.

    Raises:
        ShardError: See `Network.submit`.
    """
    found: Answer = _wait_for(Asked("stat", url))
    return found


def list_once(url: str, *, deep: bool = True) -> list[Listed]:
    """List what is below a folder; for a web server, what its page of the folder links to.

    Args:
        url: The folder.
        deep: Look into its folders, too; otherwise these are listed by urls that end in a slash.

    Raises:
        ShardError: See `Network.submit`.
    """
    found, left = [], [Asked("list", url, deep=deep)]
    while left:
        page: Listing = _wait_for(left.pop())
        found += page.entries
        left += page.more
    return found


def put_once(url: str, body: Path) -> None:
    """Write an object in one step, if its host can: readers see the old object or the new one.

    Args:
        url: The object.
        body: A local file, whose bytes it gets.

    Raises:
        ShardError: See `Network.submit`; also if the host cannot be written to, or not as much at once.
    """
    check_can_put(url)
    _wait_for(Asked("put", url, body=body))


def check_can_put(url: str) -> None:
    """Raise ShardError if the url's kind of host cannot be written to, whatever the permissions."""
    if kind_of(signed_url(url)) == "web":
        raise ShardError(
            f"object '{bare_url(url)}': expected an object store that can be written (such as s3, gs, az), got a web "
            "server\n"
            "  Write it to a disk, and copy it to where the server has its files."
        )


def _wait_for(asked: Asked) -> Any:
    future = network().ask(asked)
    try:
        return future.result()
    finally:
        future.cancel()  # where the wait was interrupted
