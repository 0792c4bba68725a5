"""Shared facts of the processes that use a cache directory: `page → who fetches it, and room for it`.

One file holds how many bytes the pages take, and its bytes are locks, which the kernel lets go of however a process
dies, and which a fork does not inherit: one for that sum; one for each page, held by whoever fetches it; and one for
each folder of shards, shared by all who read from it.

The sum is never too low. What a killed process had reserved stays in it until the bound is reached, and the blocks of
all files are counted. Then those shards make room, the oldest first, that nobody will read: of folders that no process
reads from, and other versions of those that this process reads.

An epoch reads everything once. So a node that reads all of a source can have no more hits in an epoch than it had pages
at its start: no page makes room for another of the same source, and the hit rate is the cached fraction, the best there
is.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from streamdata.io.cache.shard_file import DISK_BLOCK, FOLDER, SUFFIX, URL, VERSION, charge_of
from streamdata.io.remote.requests import STALL_S

_STATE: Final = struct.Struct("<qd")  # bytes that pages take, and when they were counted
_POLL_S: Final = 0.002
_COUNT_AGAIN_S: Final = 60.0
_FREE_SHARE: Final = 10
_SPARE_SHARE: Final = 64
"""Where shards are removed, so much of the bound is made free: to look at all files may take a second."""


class Room:
    """Keeps the pages of a cache directory within a bound, across processes.

    Args:
        folder: The directory; it is made.
        max_bytes: What its pages may take; by default a tenth of that and of what is free.

    Raises:
        OSError: The directory cannot be written.
    """

    def __init__(self, folder: Path, max_bytes: int | None) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._versions: dict[str, str] = {}
        """The version of each shard that this process reads."""
        self._threads = threading.Lock()  # the locks of a process do not keep its own threads apart
        # It stays open: to close any descriptor of the file would let go of all locks of this process.
        self._fd = os.open(folder / "pages.lock", os.O_RDWR | os.O_CREAT, 0o666)
        with self._locked_sum():
            if not os.fstat(self._fd).st_size:
                self._store(sum(size for _, _, size in self._files()), 0.0)
            self.max_bytes = max_bytes or (shutil.disk_usage(folder).free + self._state()[0]) // _FREE_SHARE
            if self._state()[0] > self.max_bytes:
                self._make_room(0)

    def hold(self, shard: str) -> None:
        """Keep the pages of a shard, named by `shard_key`, and of others in its folder, until this process ends."""
        if self._versions.get(shard[URL]) != shard[VERSION]:
            with self._threads:  # one that makes room lets go of the locks of folders that were unused when it began
                # Another process may make room now. Then this is tried again: what is removed lives on in its maps.
                if self.lock(shard[FOLDER], fcntl.LOCK_SH | fcntl.LOCK_NB):
                    self._versions[shard[URL]] = shard[VERSION]

    def lock(self, name: str, kind: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
        """Take the lock of this name, if no other process has it, or let go of it; return whether that was done."""
        byte = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
        with suppress(OSError):  # EACCES or EAGAIN: another process has it
            fcntl.lockf(self._fd, kind, 1, byte)
            return True
        return False

    def may_fit(self, page_size: int) -> bool:
        """Whether a page of this size is likely to find room."""
        used, counted_at = self._state()
        return used + charge_of(page_size) <= self.max_bytes or abs(time.time() - counted_at) > _COUNT_AGAIN_S

    def reserve(self, page_size: int, allocate: Callable[[], None]) -> bool:
        """Make room for a page; return whether there is any.

        Args:
            page_size: Its bytes.
            allocate: Takes the blocks on the disk, so that whoever counts them next finds them.

        Raises:
            OSError: The directory cannot be written, or the disk is full.
        """
        charge = charge_of(page_size)
        with self._locked_sum():
            if self._state()[0] + charge > self.max_bytes and self.may_fit(page_size):
                self._make_room(charge)
            used, counted_at = self._state()
            if used + charge > self.max_bytes:
                return False
            # First the sum: whoever is killed between the two leaves too much in it, and not too little.
            self._store(used + charge, counted_at)
            allocate()
            return True

    def _make_room(self, charge: int) -> None:
        """Count what is there, and remove shards that nobody will read until some more fits."""
        files = self._files()
        used = sum(size for _, _, size in files)
        goal = self.max_bytes - max(charge, self.max_bytes // _SPARE_SHARE)
        others = {name[FOLDER] for _, name, _ in files} - {url[FOLDER] for url in self._versions}
        unused = {folder for folder in others if self.lock(folder)}
        for _, name, size in sorted(files):
            if used <= goal:
                break
            if name[FOLDER] in unused or self._versions.get(name[URL], name[VERSION]) != name[VERSION]:
                (self._folder / name).unlink(missing_ok=True)
                used -= size
        for folder in unused:
            self.lock(folder, fcntl.LOCK_UN)
        self._store(used, time.time())

    def _files(self) -> list[tuple[float, str, int]]:
        """When each shard was written last, its file's name, and the bytes that it takes."""
        with os.scandir(self._folder) as entries:
            found = [(entry.stat(), entry.name) for entry in entries if entry.name.endswith(SUFFIX)]
        return [(status.st_mtime, name, status.st_blocks * 512 + DISK_BLOCK) for status, name in found]

    def _state(self) -> tuple[int, float]:
        return _STATE.unpack(os.pread(self._fd, _STATE.size, 0))

    def _store(self, used: int, counted_at: float) -> None:
        os.pwrite(self._fd, _STATE.pack(used, counted_at), 0)

    @contextmanager
    def _locked_sum(self) -> Iterator[None]:
        with self._threads:
            patience = time.monotonic() + STALL_S
            while not self.lock(""):
                if time.monotonic() > patience:
                    raise OSError(errno.EBUSY, f"another process has held its lock for {STALL_S:.0f} s")
                time.sleep(_POLL_S)
            try:
                yield
            finally:
                self.lock("", fcntl.LOCK_UN)
