"""Page files as they are read: what is checked, how often, and what happens to them meanwhile."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from streamdata.io.cache import pages as cache_pages
from streamdata.io.cache.page_cache import PageCache
from streamdata.io.cache.pages import PAGE_BYTES, PageDamageError, PageFiles, PageKey, reserve, shard_key, write_page
from streamdata.io.remote.addresses import _MIN_BYTES
from streamdata.run.per_process import MAX_OPEN_FILES
from tests.io.child import forked
from tests.io.test_page_cache import MB, URL, Store, below, pages, settled

KEY = PageKey("0" * 24, 0)


@pytest.fixture
def page(tmp_path):
    """A page of 100,000 bytes, not changed for some time."""
    data = random.Random(0).randbytes(100_000)
    write_page(reserve(tmp_path, KEY, len(data)), KEY, data)
    time.sleep(0.06)
    return data


@pytest.fixture
def hashed(monkeypatch):
    """The sizes of whole chunks whose sums were looked at."""
    sizes, digest = [], cache_pages.xxh3_64_intdigest
    monkeypatch.setattr(
        cache_pages, "xxh3_64_intdigest", lambda data, seed: sizes.append(len(data)) or digest(data, seed)
    )
    return sizes


def read(files, begin, end, size=100_000):
    """Both ways give the same."""
    memory = memoryview(bytearray(end - begin))
    files.read_into(KEY, size, [(begin, end, memory)])
    data = files.read(KEY, size, begin, end)
    assert data == memory
    return data


def test_a_chunk_is_checked_once(tmp_path, page, hashed):
    """By a process, whichever of its threads opens the page."""
    files = PageFiles(str(tmp_path))
    for _ in range(3):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(read, files, 0, len(page)).result() == page
        assert read(files, 16_000, 66_000) == page[16_000:66_000]
    assert len(hashed) == len(page) // 16384


def test_a_page_that_is_open_at_the_end_of_the_process_is_closed_in_silence(tmp_path, page, monkeypatch):
    """When modules have no content any more."""
    opened = PageFiles(str(tmp_path))._opened(KEY, len(page))
    monkeypatch.setattr(cache_pages, "os", None)
    fd = opened._fd
    del opened  # what it raises is an error of this test
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("keeps_time", [False, True])
def test_damage_after_a_check_is_seen(tmp_path, page, keeps_time):
    """As before it, also where the time of the last write is set back."""
    files, path = PageFiles(str(tmp_path)), tmp_path / KEY.name
    read(files, 0, len(page))
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(40_000)
        file.write(b"damage")
    if keeps_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PageDamageError):
        files.read(KEY, len(page), 39_000, 41_000)


def test_another_page_under_the_same_name_is_checked(tmp_path, page, hashed):
    """It was evicted, and fetched again, while the one before it was open."""
    files = PageFiles(str(tmp_path))
    read(files, 0, 16384)
    write_page(reserve(tmp_path, KEY, len(page)), KEY, page[::-1])
    assert read(files, 0, 16384) == page[::-1][:16384]
    assert len(hashed) > 1


def test_what_was_changed_a_moment_ago_is_checked_again(tmp_path, hashed):
    """Another change within the same tick of the clock would not show."""
    write_page(reserve(tmp_path, KEY, 16384), KEY, bytes(16384))
    hashed.clear()
    files = PageFiles(str(tmp_path))
    for _ in range(2):
        files.read(KEY, 16384, 0, 16384)
    assert len(hashed) == 2


def test_what_changes_while_it_is_read_is_read_again(tmp_path, page, monkeypatch):
    """Though all of it had been checked before."""
    files, path = PageFiles(str(tmp_path)), tmp_path / KEY.name
    read(files, 0, len(page))
    pread = os.pread

    def damaging(*arguments):
        monkeypatch.setattr(os, "pread", pread)
        with path.open("r+b") as file:
            file.write(b"damage")
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", damaging)
    with pytest.raises(PageDamageError):
        files.read(KEY, len(page), 0, 10)


def open_pages(folder):
    """Status of each page below a directory that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if ".page" in (path := os.readlink(link)) and path.startswith(str(folder)):
                found.append(link.stat())
    return found


def test_what_is_removed_takes_no_room_though_it_is_open(tmp_path):
    """By whichever process; it is fetched again where it is read."""
    folder = tmp_path / "cache"
    store, cache = Store(9 * MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 1, 9 * MB)
    settled(cache)
    shard, memory = shard_key(URL, "v1", 9 * MB), memoryview(bytearray(9 * MB))
    assert cache.read_into(shard, 9 * MB, [(0, 9 * MB, memory)]) == [True]
    assert len(open_pages(tmp_path)) == 3
    cache.account.remove(PageKey(shard, 1))
    links_and_room = sorted((one.st_nlink, one.st_size > 0) for one in open_pages(tmp_path))
    assert links_and_room == [(0, False), (1, True), (1, True)]
    assert cache.read_into(shard, 9 * MB, [(5 * MB, 6 * MB, memory[:MB])]) == [False]
    assert len(open_pages(tmp_path)) == 2
    store.read(cache, 5 * MB, 6 * MB)
    settled(cache)
    assert cache.read_into(shard, 9 * MB, [(5 * MB, 6 * MB, memory[:MB])]) == [True]
    assert len(store.asked) == 4


def test_a_bounded_number_stays_open_and_is_seen_to_be_in_use(tmp_path):
    """However many are read: those that were read last. Their time is that of ten minutes ago at most."""
    files, keys = PageFiles(str(tmp_path)), [PageKey("0" * 24, number) for number in range(MAX_OPEN_FILES + 9)]
    memory = memoryview(bytearray(9))
    for key in keys:
        write_page(reserve(tmp_path, key, 9), key, bytes(9))
        files.read_into(key, 9, [(start := key.number * PAGE_BYTES, start + 9, memory)])
    assert len(open_pages(tmp_path)) == MAX_OPEN_FILES
    for key in (keys[0], keys[-1]):
        os.utime(tmp_path / key.name, (1, 1))
        files.read_into(key, 9, [(start := key.number * PAGE_BYTES, start + 9, memory)])
        assert time.time() - (tmp_path / key.name).stat().st_mtime < 60


def test_the_smallest_bound_has_room_for_a_page(tmp_path):
    """And what is below the directory stays within it."""
    folder = tmp_path / "cache"
    store, cache = Store(9 * MB), PageCache(str(folder), _MIN_BYTES)
    for begin in (1, 4 * MB, 8 * MB):
        store.read(cache, begin, begin + 9)
        settled(cache)
    assert len(pages(folder)) == 1
    assert below(folder) <= _MIN_BYTES


def evict(folder):
    """Remove and damage pages until killed."""
    rng = random.Random(1)
    while True:
        for path in folder.glob("*.page"):
            if rng.random() < 0.3:
                path.unlink(missing_ok=True)
            elif rng.random() < 0.1:
                with path.open("r+b") as file:
                    file.truncate(rng.randrange(MB))
        time.sleep(0.002)


@pytest.mark.parametrize("size", [1, 16_385, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 9 * MB + 77])
def test_whatever_happens_to_pages_what_is_read_is_right(tmp_path, size):
    """While another process removes and cuts them: both ways to read, spans over pages and at their ends."""
    folder, rng = tmp_path / "cache", random.Random(size)
    store, cache = Store(size), PageCache(str(folder), 64 * MB)
    pid, memory, shard = forked(lambda: evict(folder)), memoryview(bytearray(size)), shard_key(URL, "v1", size)
    try:
        for _ in range(40):
            near = rng.choice([0, PAGE_BYTES, size, rng.randrange(size)])
            begin = min(max(0, near - rng.randrange(40_000)), size - 1)
            end = min(size, begin + 1 + rng.randrange(60_000))
            if cache.read_into(shard, size, [(begin, end, memory[begin:end])])[0]:
                assert memory[begin:end] == store.data[begin:end]
            store.read(cache, begin, end)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
