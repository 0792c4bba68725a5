"""Page files as they are read: what is checked, how often, and what happens to them meanwhile."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from streamdata.io.cache import pages as cache_pages
from streamdata.io.cache.page_cache import PageCache
from streamdata.io.cache.pages import PAGE_BYTES, PageDamageError, PageKey, read_page, write_page
from streamdata.io.remote.addresses import _MIN_BYTES
from streamdata.run.per_process import MAX_OPEN_FILES
from tests.io.child import forked
from tests.io.test_page_cache import MB, Store, pages, settled

KEY = PageKey("0" * 36, 0)


def write(folder, data, key=KEY):
    """Publish a page."""
    write_page(folder / "temporary", folder / key.name, key.seed, memoryview(data))


def read(folder, begin, end, size=100_000, key=KEY):
    """What is read of a page; None if it is not there."""
    memory = memoryview(bytearray(end - begin))
    at = key.number * PAGE_BYTES
    return bytes(memory) if read_page(str(folder), key, size, [(at + begin, at + end, memory)]) else None


@pytest.fixture
def page(tmp_path):
    """A page of 100,000 bytes, not changed for some time."""
    data = random.Random(0).randbytes(100_000)
    write(tmp_path, data)
    time.sleep(0.02)  # a change within one tick of the clock does not show in a file's time
    return data


@pytest.fixture
def hashed(monkeypatch):
    """The sizes of chunks whose sums were looked at."""
    sizes, digest = [], cache_pages.xxh3_64_digest
    monkeypatch.setattr(cache_pages, "xxh3_64_digest", lambda data, seed: sizes.append(len(data)) or digest(data, seed))
    return sizes


def test_a_chunk_is_checked_once(tmp_path, page, hashed):
    """While the page is open."""
    for _ in range(3):
        assert read(tmp_path, 16_000, 66_000) == page[16_000:66_000]
    assert hashed == [16384] * 5
    assert read(tmp_path, 0, len(page)) == page
    assert read(tmp_path, 40_000, 90_000) == page[40_000:90_000]
    assert set(hashed) == {16384, 100_000 % 16384}


def test_a_page_under_another_name_is_damaged(tmp_path, page):
    """Its sums are of its own."""
    other = PageKey("0" * 36, 1)
    (tmp_path / KEY.name).rename(tmp_path / other.name)
    with pytest.raises(PageDamageError):
        read(tmp_path, 5, 9, key=other)


@pytest.mark.parametrize("keeps_time", [False, True])
def test_damage_after_a_check_is_seen(tmp_path, page, keeps_time):
    """As before it, also where the time of the last write is set back."""
    path = tmp_path / KEY.name
    assert read(tmp_path, 0, len(page)) == page
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(40_000)
        file.write(b"damage")
    if keeps_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PageDamageError):
        read(tmp_path, 39_000, 41_000)


def test_another_page_under_the_same_name_is_checked(tmp_path, page, hashed):
    """It was removed, and fetched again, while the one before it was open."""
    read(tmp_path, 0, 16384)
    write(tmp_path, page[::-1])
    hashed.clear()
    assert read(tmp_path, 0, 16384) == page[::-1][:16384]
    assert hashed == [16384]
    (tmp_path / KEY.name).unlink()
    assert read(tmp_path, 0, 16384) is None


def test_what_changes_while_it_is_read_is_not_served(tmp_path, page, monkeypatch):
    """Though all of it had been checked before."""
    read(tmp_path, 0, len(page))
    preadv = os.preadv

    def damaging(*arguments):
        monkeypatch.setattr(os, "preadv", preadv)
        with (tmp_path / KEY.name).open("r+b") as file:
            file.write(b"damage")
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", damaging)
    with pytest.raises(PageDamageError):
        read(tmp_path, 0, 10)


def open_pages(folder):
    """How many pages below a directory this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += ".page" in (path := os.readlink(link)) and path.startswith(str(folder))
    return found


def test_a_bounded_number_stays_open(tmp_path):
    """However many are read: those that were read last."""
    for number in range(MAX_OPEN_FILES + 9):
        write(tmp_path, bytes(9), key := PageKey("0" * 36, number))
        assert read(tmp_path, 0, 9, 9, key) == bytes(9)
    assert open_pages(tmp_path) == MAX_OPEN_FILES


def test_a_page_that_is_open_at_the_end_of_the_process_is_closed_in_silence(tmp_path, page, monkeypatch):
    """When modules have no content any more."""
    opened = cache_pages._OpenPage(str(tmp_path / KEY.name), KEY, len(page))
    monkeypatch.setattr(cache_pages, "os", None)
    fd = opened._fd
    del opened  # what it raises is an error of this test
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_smallest_bound_has_room_for_a_page(tmp_path):
    """Of a recipe."""
    store, cache = Store(9 * MB), PageCache(str(tmp_path), _MIN_BYTES)
    for begin in (1, 4 * MB, 8 * MB):
        store.read(cache, begin, begin + 9)
    assert len(pages(tmp_path)) == 1


def evict(folder):
    """Remove and damage pages until killed."""
    rng = random.Random(1)
    while True:
        for path in folder.glob("*.page"):
            if rng.random() < 0.3:
                path.unlink(missing_ok=True)
            elif rng.random() < 0.1:
                with suppress(FileNotFoundError), path.open("r+b") as file:
                    file.truncate(rng.randrange(MB))
        time.sleep(0.002)


@pytest.mark.parametrize("size", [1, 16_385, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 9 * MB + 77])
def test_whatever_happens_to_pages_what_is_read_is_right(tmp_path, size):
    """While another process removes and cuts them: both ways to read, spans over pages and at their ends."""
    folder, rng = tmp_path / "cache", random.Random(size)
    store, cache = Store(size), PageCache(str(folder), 64 * MB)
    pid, memory = forked(lambda: evict(folder)), memoryview(bytearray(size))
    try:
        for _ in range(40):
            near = rng.choice([0, PAGE_BYTES, size, rng.randrange(size)])
            begin = min(max(0, near - rng.randrange(40_000)), size - 1)
            end = min(size, begin + 1 + rng.randrange(60_000))
            if cache.read_into(store.key(), size, [(begin, end, memory[begin:end])])[0]:
                assert memory[begin:end] == store.data[begin:end]
            store.read(cache, begin, end)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    settled(cache)
