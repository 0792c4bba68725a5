"""Files of cached shards as they are read: what is checked, how often, and what happens to them meanwhile."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from streamdata.io.cache import shard_file
from streamdata.io.cache.page_cache import PageCache
from streamdata.io.cache.shard_file import PAGE_BYTES, CachedShard, ShardFile
from streamdata.io.remote.addresses import _MIN_BYTES
from streamdata.run.per_process import MAX_OPEN_FILES
from tests.io.child import forked
from tests.io.test_page_cache import MB, Store, pages

SHARD, SIZE = "0" * 36, 5 * MB
DATA = random.Random(0).randbytes(SIZE)


@pytest.fixture
def file(tmp_path):
    """Has both pages of a shard."""
    found = ShardFile(str(tmp_path), SHARD, SIZE)
    for page in (1, 0):
        with found.open() as opened:
            found.allocate(opened, page)
            found.write(opened, page, memoryview(DATA)[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
    return found


def damage(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"damage")


def test_a_chunk_is_checked_once(file, monkeypatch):
    """Whoever has its mark does not look at it again."""
    sizes, digest = [], shard_file.xxh3_64_digest
    monkeypatch.setattr(shard_file, "xxh3_64_digest", lambda data, seed: sizes.append(len(data)) or digest(data, seed))
    opened, checked = CachedShard(file), bytearray(file.num_chunks)
    for _ in range(3):
        opened.damaged_page(60_000, 200_000, checked)
    assert sizes == [65536] * 4
    opened.damaged_page(0, SIZE, checked)
    assert len(sizes) == SIZE // 65536
    assert opened.memory[:SIZE] == DATA


def test_a_file_under_another_name_is_damaged(file):
    """Its sums are of its own shard."""
    other = file._replace(shard="1" * 36)
    Path(file.path).rename(other.path)
    assert CachedShard(other).damaged_page(5, 9, bytearray(file.num_chunks)) == 0


def test_damage_names_its_page(file):
    """And pages beside it are read."""
    damage(file.path, PAGE_BYTES + 70_000)
    opened, checked = CachedShard(file), bytearray(file.num_chunks)
    assert opened.damaged_page(0, PAGE_BYTES + 65_000, checked) is None
    assert opened.damaged_page(0, SIZE, checked) == 1


def test_a_map_shows_what_other_processes_write_and_take_back(file):
    """It is not opened again for that."""
    opened = CachedShard(file)
    file.drop(1)
    assert opened.has(0, PAGE_BYTES)
    assert not opened.has(PAGE_BYTES - 1, PAGE_BYTES + 1)
    with file.open() as again:
        file.write(again, 1, memoryview(DATA)[PAGE_BYTES:])
    assert opened.has(0, SIZE)


def test_a_map_outlives_its_file(file):
    """Which is removed to make room, or by hand."""
    opened = CachedShard(file)
    Path(file.path).unlink()
    assert opened.damaged_page(0, SIZE, bytearray(file.num_chunks)) is None
    assert opened.memory[:SIZE] == DATA
    with pytest.raises(FileNotFoundError):
        CachedShard(file)


def test_a_file_that_is_cut_short_is_none(file):
    """As one that is just being made."""
    os.truncate(file.path, SIZE)
    with pytest.raises(FileNotFoundError):
        CachedShard(file)


def open_shards(folder):
    """How many shards below a directory this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += ".shard" in (path := os.readlink(link)) and path.startswith(str(folder))
    return found


def test_a_bounded_number_stays_open(tmp_path):
    """However many are read: those that were read last."""
    store, cache = Store(9), PageCache(str(tmp_path), 64 * MB)
    for number in range(MAX_OPEN_FILES + 9):
        for _ in range(2):
            store.read(cache, 1, 9, url=f"https://store/data/{number}")
    assert open_shards(tmp_path) == MAX_OPEN_FILES


def test_the_smallest_bound_has_room_for_a_page(tmp_path):
    """Of a recipe."""
    store, cache = Store(9 * MB), PageCache(str(tmp_path), _MIN_BYTES)
    for begin in (1, 4 * MB, 8 * MB):
        store.read(cache, begin, begin + 9)
    assert len(pages(tmp_path)) == 1


def evict(file):
    """Remove pages, files and checksums until killed."""
    rng = random.Random(1)
    while True:
        with suppress(FileNotFoundError):
            if rng.random() < 0.3:
                Path(file.path).unlink()
            elif rng.random() < 0.5:
                file.drop(rng.randrange(-(-file.size // PAGE_BYTES)))
            else:
                damage(file.path, file.size + rng.randrange(8))
        time.sleep(0.002)


@pytest.mark.parametrize("size", [1, 65_537, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 9 * MB + 77])
def test_whatever_happens_to_pages_what_is_read_is_right(tmp_path, size):
    """While another process removes them, and their checksums: spans over pages and at their ends."""
    folder, rng = tmp_path / "cache", random.Random(size)
    store, cache = Store(size), PageCache(str(folder), 64 * MB)
    pid = forked(lambda: evict(ShardFile(str(folder), store.key(), size)))
    try:
        for _ in range(60):
            near = rng.choice([0, PAGE_BYTES, size, rng.randrange(size)])
            begin = min(max(0, near - rng.randrange(40_000)), size - 1)
            store.read(cache, begin, min(size, begin + 1 + rng.randrange(60_000)))
        assert "off" not in cache._said
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
