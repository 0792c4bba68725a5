"""What is asked of a store and what it answers: `url, range, version → bytes, version, size`, or an error."""

from pathlib import Path
from typing import NamedTuple, Protocol

from streamdata.errors import ShardError
from streamdata.io.remote.addresses import bare_url


class Answer(NamedTuple):
    """Bytes of an object.

    Attributes:
        data: The bytes; fewer than asked for where the object ends.
        version: What the store calls this version (its ETag), "" where it has no name for it.
        size: Bytes of the whole object.
        status: Of HTTP; 206 where there is none.
        waited: Seconds from the first attempt to the last byte.
    """

    data: bytes
    version: str
    size: int
    status: int
    waited: float


class Stat(NamedTuple):
    """An object without its bytes: its size in bytes, and its version ("" where the store has no name for it)."""

    size: int
    version: str


class Listed(NamedTuple):
    """An object in a list of its store, or a folder, whose url ends in a slash."""

    url: str
    size: int
    version: str


class Asked(NamedTuple):
    """A request, whatever it is sent by.

    Attributes:
        url: With its secrets.
        begin: The first byte; None for a request of no bytes, such as a list.
        end: After the last byte; None for all.
        version: Which version it has to be, "" for any.
        body: The local file whose bytes are to be written there; None to read.
    """

    url: str
    begin: int | None = None
    end: int | None = None
    version: str = ""
    body: Path | None = None

    @property
    def is_range(self) -> bool:
        """Whether it is for some bytes only."""
        return self.end is not None

    def describe(self) -> str:
        """The shard and the range, for messages."""
        where = f": bytes {self.begin} to {self.end}" if self.is_range else ""
        return f"{'shard' if self.body is None else 'object'} '{bare_url(self.url)}'{where}"

    @property
    def aim(self) -> str:
        """What is expected of the answer, for messages."""
        return "its bytes" if self.body is None else "to write it"


class RangeClient(Protocol):
    """One attempt at a range of an object; whoever calls it tries again."""

    async def get(self, url: str, begin: int, end: int, version: str) -> Answer:
        """The bytes [begin, end) of the object, of this version ("" for any).

        Raises:
            FailureError: It may succeed later.
            ShardError: It will not.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class ReplacedError(ShardError):
    """An object is not the version that was asked for."""


class RangesIgnoredError(ShardError):
    """A server sends whole files where ranges were asked for, or pages of a web site."""


class DeniedError(ShardError):
    """A store does not let us read: 401 or 403."""


class GoneError(ShardError, FileNotFoundError):
    """There is no such object."""


class DeadStoreError(ShardError):
    """A store went on failing until the deadline."""


class FailureError(Exception):
    """An attempt that failed, and may succeed when it is made again.

    Attributes:
        status: Of HTTP, 0 where there was no answer.
        word: What the server says, or what happened.
        wait: Seconds that the server asks us to wait.
    """

    def __init__(self, word: str, status: int = 0, wait: float = 0.0) -> None:
        super().__init__(word)
        self.word, self.status, self.wait = word, status, wait


class DenialError(Exception):
    """An attempt that was refused for its credentials; others may be tried.

    Attributes:
        status: Of HTTP.
        word: What the server says.
    """

    def __init__(self, word: str, status: int) -> None:
        super().__init__(word)
        self.word, self.status = word, status
