"""The cache of this node: where it lies, locks, and files made once by one process and published in one step."""

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from streamdata.errors import SourceError, shown
from streamdata.io.storage import LocalShard
from streamdata.recipe.limits import open_regular, refusal_of_directory
from streamdata.run.publish import publish_made

logger = logging.getLogger(__name__)
_CHUNK_BYTES = 16 << 20
_DIGEST = re.compile(rb"[0-9a-f]{32}")


def cache_directory() -> Path:
    """The directory of streamdata's caches: $STREAMDATA_CACHE, by default ~/.cache/streamdata."""
    named = os.environ.get("STREAMDATA_CACHE")
    return Path(named) if named else Path("~/.cache/streamdata").expanduser()


@contextmanager
def locked(*names: str) -> Iterator[None]:
    """Hold a lock, named by `names`, against the other processes of this node.

    Where the cache cannot be written there is no lock, which is said: each process then does it for itself.
    """
    digest = hashlib.blake2b("\n".join(names).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = cache_directory() / "locks" / digest
    with ExitStack() as until_end:
        try:
            until_end.enter_context(_holding(path, names[0]))
        except OSError as error:
            logger.warning("%s: no lock in '%s' (%s), so that each process of this node may work on its own; set "
                           "STREAMDATA_CACHE to a directory that can be written",
                           names[0], path.parent, error)  # fmt: skip
        yield


@contextmanager
def _holding(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file, which stays: whoever deleted it between another's open and lock let two hold one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("%s: another process of this node is at it; waiting", what)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)  # the kernel unlocks when a process dies, however it dies


FileVersion = tuple[str, int, int, int]


def version_of(path: str) -> FileVersion:
    """The version of a file, found without reading it: its path, size, mtime in ns and inode.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    found = os.stat(path)
    return os.path.abspath(path), found.st_size, found.st_mtime_ns, found.st_ino


def open_cached(path: Path) -> LocalShard:
    """Open a file of the cache for reading.

    Raises:
        FileNotFoundError: The cache was deleted since; a note says how to make it again.
    """
    try:
        return LocalShard(str(path))
    except FileNotFoundError as error:
        error.add_note("  The next start makes it again, and so does resume_dataset_state() of an unpickled dataset.")
        raise


class FileCache:
    """A directory of files that can be made again. It may be deleted between runs; nothing else cleans it.

    Args:
        directory: Its path; `prompts` below $STREAMDATA_CACHE or ~/.cache/streamdata where it is None.

    Raises:
        ValueError: A recipe that is built under `allow` may not write there.
    """

    def __init__(self, directory: str | None = None) -> None:
        if directory and (refusal := refusal_of_directory(directory, cache_directory())):
            raise ValueError(f"cache: {refusal}")
        self.directory = Path(directory).expanduser() if directory else cache_directory() / "prompts"

    def get(self, name: str, make: Callable[[Path], object]) -> Path:
        """The path of the file `name`; if it is missing, `make(temporary path)` makes it first.

        Raises:
            SourceError: The directory cannot be written.
        """
        path = self.directory / name
        if not path.exists():
            with self.lock(name):
                if not path.exists():  # another process may have made it while this one waited
                    self.publish(name, make)
        return path

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold a lock on `name` against the other processes of this machine that would make it."""
        with ExitStack() as until_end:
            try:
                until_end.enter_context(_holding(self.directory / f"{name}.lock", name))
            except OSError as error:
                raise SourceError(
                    f"cache '{self.directory}': expected a directory that can be written, got {error}\n"
                    "  Set cache_dir, or the environment's STREAMDATA_CACHE, to one that can."
                ) from error
            yield

    def publish(self, name: str, make: Callable[[Path], object]) -> Path:
        """Let `make` write a temporary file, then rename it to `name` in one step."""
        path = self.directory / name
        publish_made(path, make)
        return path

    def digest(self, path: str) -> str:
        """A hash of a file's content, 32 hexadecimal digits.

        It is remembered under the file's path, size, mtime and inode: reading a file of some GB takes seconds. So a
        change that keeps all four is not noticed.

        Raises:
            FileNotFoundError: There is no such file.
            SourceError: What is remembered is damaged.
        """
        name = hashlib.blake2b(repr(version_of(path)).encode(), digest_size=16).hexdigest()
        found = self.get(f"digests/{name}", lambda target: target.write_text(_hash_content(path), "ascii"))
        content = found.read_bytes()
        if not _DIGEST.fullmatch(content):
            raise SourceError(
                f"'{found}': expected a hash of 32 hexadecimal digits, got {shown(content[:40])}\n"
                "  Delete the file; the next start makes it again."
            )
        return content.decode("ascii")


def _hash_content(path: str) -> str:
    """BLAKE2b (RFC 7693) of the BLAKE2b hashes of chunks, which several threads compute."""
    with open_regular(path, SourceError) as file, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        fd, size = file.fileno(), os.fstat(file.fileno()).st_size

        def hashed(offset: int) -> bytes:
            return hashlib.blake2b(os.pread(fd, _CHUNK_BYTES, offset), digest_size=32).digest()

        chunks = threads.map(hashed, range(0, size, _CHUNK_BYTES))
        return hashlib.blake2b(b"".join(chunks) + size.to_bytes(8, "little"), digest_size=16).hexdigest()
