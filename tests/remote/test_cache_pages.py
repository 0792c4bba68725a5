"""Page files as they are read: what is checked, how often, and what happens to them meanwhile."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from streamdata.remote import cache_pages
from streamdata.remote.cache_files import PAGE_BYTES, PageDamageError, PageKey, reserve, shard_key, write_page
from streamdata.remote.cache_pages import CheckedPages, OpenPage
from streamdata.remote.cache_settings import _MIN_BYTES
from streamdata.remote.page_cache import PageCache
from tests.remote.child import forked
from tests.remote.test_page_cache import MB, URL, Store, below, pages, settled

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


def test_a_chunk_is_checked_once(tmp_path, page, hashed):
    """By a process, whichever of its readers opens the page."""
    checked = CheckedPages()
    for _ in range(3):
        assert OpenPage(str(tmp_path), KEY, len(page), checked).read(0, len(page)) == page
        memory = memoryview(bytearray(50_000))
        OpenPage(str(tmp_path), KEY, len(page), checked).read_into(memory, 16_000)
        assert memory == page[16_000:66_000]
    assert len(hashed) == len(page) // 16384


@pytest.mark.parametrize("keeps_time", [False, True])
def test_damage_after_a_check_is_seen(tmp_path, page, keeps_time):
    """As before it, also where the time of the last write is set back."""
    checked, path = CheckedPages(), tmp_path / KEY.name
    OpenPage(str(tmp_path), KEY, len(page), checked).read(0, len(page))
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(40_000)
        file.write(b"damage")
    if keeps_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(PageDamageError):
        OpenPage(str(tmp_path), KEY, len(page), checked).read(39_000, 41_000)


def test_another_page_under_the_same_name_is_checked(tmp_path, page, hashed):
    """It was evicted, and fetched again."""
    checked = CheckedPages()
    OpenPage(str(tmp_path), KEY, len(page), checked).read(0, 16384)
    write_page(reserve(tmp_path, KEY, len(page)), KEY, page[::-1])
    assert OpenPage(str(tmp_path), KEY, len(page), checked).read(0, 16384) == page[::-1][:16384]
    assert len(hashed) == 2


def test_what_was_changed_a_moment_ago_is_checked_again(tmp_path, hashed):
    """Another change within the same tick of the clock would not show."""
    write_page(reserve(tmp_path, KEY, 16384), KEY, bytes(16384))
    checked = CheckedPages()
    for _ in range(2):
        OpenPage(str(tmp_path), KEY, 16384, checked).read(0, 16384)
    assert len(hashed) == 2


def test_no_page_stays_open(tmp_path):
    """What is removed would take its room for as long."""
    folder = tmp_path / "cache"
    store, cache = Store(9 * MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 1, 9 * MB)
    settled(cache)
    memory = memoryview(bytearray(9 * MB))
    shard = shard_key(URL, "v1", 9 * MB)
    assert all(cache.read_into(shard, 9 * MB, [(1, 9 * MB, memory[1:]), (5, 6, memory[:1])]))
    assert not [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if path.endswith(".page")]


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
