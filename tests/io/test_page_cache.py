"""What a page cache keeps, of what, for whom; and what becomes of it."""

import fcntl
import logging
import mmap
import os
import random
import signal
import threading
import time
from bisect import bisect_left
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from streamdata.errors import ShardError
from streamdata.io.cache import page_cache, room, shard_file
from streamdata.io.cache.page_cache import PageCache
from streamdata.io.cache.shard_file import ShardFile, charge_of, shard_key
from streamdata.run.per_process import open_files
from tests.io.child import forked

URL, MB = "https://store/data/a.tar", 1 << 20


class Store:
    """A stand-in for the network: one shard, its requests counted."""

    def __init__(self, size, seed=0):
        self.data = (random.Random(seed).randbytes(4099) * (size // 4099 + 1))[:size]
        self.asked, self.failure = [], None

    def __call__(self, begin, end):
        self.asked.append((begin, end))
        answer = Future()
        if self.failure:
            answer.set_exception(self.failure)
        else:
            answer.set_result(self.data[begin:end])
        return answer

    @property
    def bytes(self):
        return sum(end - begin for begin, end in self.asked)

    def key(self, version="v1", url=URL):
        return shard_key(url, version, len(self.data))

    def read(self, cache, begin, end, version="v1", url=URL):
        memory = cache.read(self.key(version, url), len(self.data), begin, end, self)
        memory = memory.result(timeout=60) if isinstance(memory, Future) else memory
        assert (memory if isinstance(memory, bytes) else memory[begin:end]) == self.data[begin:end]


def below(folder):
    """The bytes that the shards of a directory take on its disk."""
    size = 0
    for path in folder.glob("*.shard"):
        with suppress(FileNotFoundError):
            size += 512 * path.stat().st_blocks
    return size


def pages(folder):
    """The shard and the number of each page that is there."""
    found = []
    for path in folder.glob("*.shard"):
        content = path.read_bytes()
        size = bisect_left(range(len(content)), len(content), key=lambda size: ShardFile("", "0", size).end)
        marks = content[ShardFile("", "0", size).marks :]
        found += [(path.stem, page) for page, mark in enumerate(marks) if mark]
    return sorted(found)


def close_all():
    """Let go of all maps, so that pages are read as in another process."""
    for key in list(open_files):
        open_files.forget(key)


def damage(folder, shard, at):
    """Write over a byte of a shard that no map of this thread has any more."""
    close_all()
    with (folder / f"{shard}.shard").open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def counted_at_once(monkeypatch):
    """Files are counted whenever the bound is reached, not once a minute."""
    monkeypatch.setattr("streamdata.io.cache.room._COUNT_AGAIN_S", -1.0)


def test_what_was_fetched_once_is_read_from_disk(folder):
    """Whole pages are fetched, the last one shorter; any range of them is then there, but for a request of one byte."""
    store, cache = Store(9 * MB + 5), PageCache(str(folder), 64 * MB)
    store.read(cache, 3 * MB, 9 * MB + 5)
    assert sorted(store.asked) == [(0, 4 * MB), (4 * MB, 8 * MB), (8 * MB, 9 * MB + 5)]
    for begin, end in ((16, 17), (3 * MB, 9 * MB), (16383, 16385), (9 * MB + 4, 9 * MB + 5)):
        store.read(cache, begin, end)
    assert len(store.asked) == 3


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 200_000])
def test_any_range_of_a_page_is_checked(folder, size):
    """Within a chunk of checksums, over some, at their bounds and at the end: damage in it is not served."""
    store, cache = Store(size), PageCache(str(folder), 64 * MB)
    store.read(cache, 0, size)
    bounds = sorted({0, 1, size // 3, size // 2, 65535, 65536, 65537, 131072, size - 1, size})
    ranges = [(a, b) for a in bounds for b in bounds if 0 <= a < b <= size]
    for begin, end in ranges:
        store.read(cache, begin, end)
    assert not [one for one in store.asked[1:] if one != (0, 1)]
    for begin, end in ranges:
        for at in (begin, end - 1):
            damage(folder, store.key(), at)
            store.asked.clear()
            store.read(PageCache(str(folder), 64 * MB), begin, end)
            assert store.asked == [(0, size)]


def test_what_this_process_wrote_is_not_checked_again(folder):
    """What checksums are for is a crash, which it would not have outlived."""
    store, cache = Store(MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 1, MB)
    damage(folder, store.key(), MB // 2)
    assert cache.read(store.key(), MB, MB // 2, MB, store)[MB // 2 : MB] != store.data[MB // 2 :]
    store.read(PageCache(str(folder), 64 * MB), 1, MB)
    assert store.asked == [(0, MB)] * 2


def test_what_is_there_is_a_slice_of_a_map(folder):
    """Of all pages of a shard together, and of none of them where one is missing. What was read is counted."""
    cache, store = PageCache(str(folder), 64 * MB), Store(9 * MB + 77)
    version = store.key(), len(store.data)
    store.read(cache, 16, 8 * MB)
    for begin, end in ((5, 3 * MB), (4 * MB - 5, 4 * MB + 9), (MB, 8 * MB)):
        memory = cache.read(*version, begin, end, store)
        assert isinstance(memory, mmap.mmap)
        assert memory[begin:end] == store.data[begin:end]
    assert (cache.reads, cache.hits) == (3, 3 * MB - 5 + 14 + 7 * MB)
    assert isinstance(cache.read(*version, 7 * MB, 9 * MB, store).result(), bytes)


def test_another_run_finds_the_pages(folder):
    """By url and version; another version of a shard is another shard."""
    store = Store(MB)
    store.read(PageCache(str(folder), 64 * MB), 16, MB)
    again = PageCache(str(folder), 64 * MB)
    store.read(again, 16, MB)
    assert len(store.asked) == 1
    store.read(again, 16, MB, version="v2")
    store.read(again, 16, MB, url="https://store/data/b.tar")
    assert len(store.asked) == 3


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_page_is_fetched_again(folder, caplog, cut):
    """Said once, however many there are; a file that was cut short has no pages."""
    store, cache = Store(9 * MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 16, 9 * MB)
    for at in (MB, 5 * MB):
        damage(folder, store.key(), at)
    if cut:
        os.truncate(folder / f"{store.key()}.shard", MB)
    store.asked.clear()
    cache = PageCache(str(folder), 64 * MB)
    store.read(cache, 16, 9 * MB)
    pieces = [(0, 4 * MB), (4 * MB, 8 * MB), (8 * MB, 9 * MB)]
    assert sorted(store.asked) == pieces[: 3 if cut else 2]
    assert len([line for line in caplog.messages if "is not what was written" in line]) == (not cut)
    store.asked.clear()
    store.read(cache, 16, 9 * MB)
    assert not store.asked


def test_an_error_reaches_the_reader_and_leaves_nothing(folder):
    """What could not be fetched is asked for again by the next read."""
    store, cache = Store(9 * MB), PageCache(str(folder), 64 * MB)
    store.failure = ShardError("gone")
    with pytest.raises(ShardError, match="gone"):
        store.read(cache, 16, 9 * MB)
    assert not pages(folder)
    store.failure = None
    store.read(cache, 16, 9 * MB)
    assert len(pages(folder)) == 3


def test_a_read_that_is_cancelled_takes_nothing_from_others(folder):
    """They wait for the same page."""
    answer, version = Future(), (shard_key(URL, "v1", 9), 9)
    cache = PageCache(str(folder), 64 * MB)
    first, second = (cache.read(*version, 1, 5, lambda *_: answer) for _ in range(2))
    first.cancel()
    answer.set_result(b"123456789")
    memory = second.result(timeout=60)
    assert (memory if isinstance(memory, bytes) else memory[1:5]) == b"2345"


def test_pages_whose_readers_have_gone_are_not_fetched(folder):
    """Of a lane that is closed those are that were asked for, and no more."""
    cache, answers, before = PageCache(str(folder), 128 * MB), [], set(threading.enumerate())
    ask = lambda *_: answers.append(Future()) or answers[-1]  # noqa: E731
    version = shard_key(URL, "v1", 80 * MB), 80 * MB
    reads = [cache.read(*version, 4 * number * MB, 4 * number * MB + 9, ask) for number in range(20)]
    while len(answers) < page_cache._MAX_FETCHED:
        time.sleep(0.001)
    assert all(read.cancel() for read in reads)
    for answer in answers:
        answer.set_result(bytes(4 * MB))
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert len(answers) == page_cache._MAX_FETCHED


def test_many_readers_of_a_page_keep_no_other_from_being_fetched(folder):
    """They wait for who fetches it, and not in the place of who fetches another."""
    cache, asked = PageCache(str(folder), 128 * MB), []
    version = shard_key(URL, "v1", 80 * MB), 80 * MB
    ask = lambda begin, end: asked.append((begin, Future())) or asked[-1][1]  # noqa: E731
    reads = [cache.read(*version, number, number + 9, ask) for number in range(2 * page_cache._MAX_FETCHED)]
    reads.append(cache.read(*version, 4 * MB, 4 * MB + 9, ask))
    give_up = time.monotonic() + 60
    while len(asked) < 2 and time.monotonic() < give_up:
        time.sleep(0.001)
    for _, answer in asked:
        answer.set_result(bytes(4 * MB))
    assert not wait(reads, 60).not_done
    assert sorted(begin for begin, _ in asked) == [0, 4 * MB]


def test_where_no_thread_can_be_started_the_next_read_tries_again(folder, monkeypatch):
    """It does not wait for a page that nobody fetches."""
    store, cache = Store(9), PageCache(str(folder), 64 * MB)

    def fail(*_):
        raise RuntimeError("no thread")

    with monkeypatch.context() as patched:
        patched.setattr("threading._start_new_thread", fail)
        with pytest.raises(RuntimeError, match="no thread"):
            store.read(cache, 1, 9)
    store.read(cache, 1, 9)


def test_the_bound_holds_and_what_has_no_room_is_read_as_it_is_wanted(folder):
    """A page makes no room for another of its source; of pages that are not kept what is wanted is fetched."""
    store, cache = Store(40 * MB), PageCache(str(folder), 17 * MB)
    for at in (0, 10, 20, 30):
        store.read(cache, at * MB + 1, (at + 1) * MB)
    assert len(pages(folder)) == 4
    store.read(cache, 36 * MB + 1, 36 * MB + 9)  # files are counted: nothing may go
    store.asked.clear()
    store.read(cache, 16 * MB - 10, 16 * MB + 10)
    store.read(cache, 10 * MB, 10 * MB + 5)
    store.read(cache, 12 * MB - 5, 12 * MB + 5)
    assert store.asked == [(16 * MB - 10, 16 * MB + 10), (12 * MB, 12 * MB + 5)]
    assert below(folder) <= 17 * MB


@pytest.mark.parametrize("kept", [10, 20, 40])
def test_the_second_epoch_has_the_cached_share(folder, monkeypatch, kept):
    """Pages are read in another order each time, in blocks that are no pages; none makes room for another."""
    page, block = 16 << 10, 15 << 10
    monkeypatch.setattr(page_cache, "PAGE_BYTES", page)
    monkeypatch.setattr(shard_file, "PAGE_BYTES", page)
    monkeypatch.setattr(shard_file, "_CHUNK_BYTES", page // 4)
    store, cache = Store(40 * page), PageCache(str(folder), kept * charge_of(page))
    of_first = []
    for epoch in range(2):
        blocks = list(range(0, 40 * page, block))
        random.Random(epoch).shuffle(blocks)
        store.asked.clear()
        for begin in blocks:
            store.read(cache, begin, min(begin + block, 40 * page))
        of_first = of_first or pages(folder)
    fetched = sum(end - begin for begin, end in store.asked if end > 1)
    assert fetched == (40 - len(of_first)) * page
    assert pages(folder) == of_first
    assert len(of_first) >= kept


def test_small_files_are_charged_what_they_take(folder, counted_at_once):
    """Thousands of tiny shards fill blocks of the disk."""
    cache, store = PageCache(str(folder), 50 * 4096), Store(100)
    for number in range(70):
        store.read(cache, 1, 2, url=f"https://store/{number}")
    assert 20 <= len(pages(folder)) <= 50


def test_a_smaller_bound_removes_shards_at_the_start(folder):
    """Also before anything is read, the oldest first."""
    store, urls = Store(8 * MB), [f"https://store/data/{number}" for number in range(4)]
    for number, url in enumerate(urls):
        store.read(PageCache(str(folder), 64 * MB), 1, 8 * MB, url=url)
        os.utime(folder / f"{store.key(url=url)}.shard", (number, number))
    PageCache(str(folder), 17 * MB)
    assert {shard for shard, _ in pages(folder)} == {store.key(url=url) for url in urls[2:]}


def test_pages_of_earlier_versions_make_room(folder, counted_at_once):
    """Of the shards that are read again, though their folder is in use; the others' stay."""
    old, new, cache = Store(8 * MB), Store(8 * MB, seed=1), PageCache(str(folder), 17 * MB + MB // 2)
    old.read(cache, 1, 8 * MB)
    old.read(cache, 1, 8 * MB, url="https://store/data/b.tar")
    new.read(cache, 1, 8 * MB, version="v2")
    assert {shard for shard, _ in pages(folder)} == {new.key("v2"), old.key("v1", "https://store/data/b.tar")}


def test_pages_of_folders_that_nobody_reads_make_room(folder, counted_at_once):
    """Not those of a folder that another process reads from, until it ends."""
    store, other, bound = Store(16 * MB), "https://store/other/b.tar", 17 * MB
    receiver, sender = os.pipe()

    def reads():
        store.read(PageCache(str(folder), bound), 1, 16 * MB)
        os.write(sender, b"1")
        signal.pause()

    pid = forked(reads)
    os.read(receiver, 1)
    cache = PageCache(str(folder), bound)
    store.read(cache, 16, 16 * MB, url=other)
    assert {shard for shard, _ in pages(folder)} == {store.key()}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    store.read(cache, 16, 16 * MB, url=other)
    assert {shard for shard, _ in pages(folder)} == {store.key(url=other)}


def test_many_threads_fetch_a_page_once(folder):
    """Single flight within a process."""
    store, cache = Store(8 * MB), PageCache(str(folder), 64 * MB)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.read(cache, 16 + number, 8 * MB), range(16)))
    assert sorted(store.asked) == [(0, 4 * MB), (4 * MB, 8 * MB)]


def test_a_full_disk_means_no_caching_and_is_said_once(folder, caplog, monkeypatch):
    """What was fetched is delivered all the same, and nothing is left behind; what is there is read."""
    store, cache = Store(16 * MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 1, 9)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    for number in range(4):
        store.read(cache, 4 * number * MB + 20, 4 * number * MB + 29)
    assert store.asked == [(0, 4 * MB), (4 * MB, 8 * MB), (8 * MB + 20, 8 * MB + 29), (12 * MB + 20, 12 * MB + 29)]
    assert len([line for line in caplog.messages if "cannot be written" in line]) == 1
    assert len(pages(folder)) == 1


def test_of_a_shard_that_found_no_room_nothing_is_mapped(folder, monkeypatch):
    """On a full tmpfs, to read a hole of a map ends the process."""
    store, cache = Store(16 * MB), PageCache(str(folder), 64 * MB)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    store.read(cache, 1, 9)
    assert [path.stat().st_size for path in folder.glob("*.shard")] == [0]


def test_of_all_processes_of_a_node_one_says_it(folder, caplog):
    """As long as it lives."""
    cache = PageCache(str(folder), 64 * MB)
    receiver, sender = os.pipe()

    def says():
        PageCache(str(folder), 64 * MB)._say("damaged", "")
        os.write(sender, b"1")
        signal.pause()

    pid = forked(says)
    os.read(receiver, 1)
    cache._say("damaged", "from here")
    cache._say("off", "another thing")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert "from here" not in caplog.text
    assert "another thing" in caplog.text


def test_without_a_bound_it_is_a_tenth_of_what_is_free(folder, caplog, monkeypatch):
    """Its own pages count as free."""
    caplog.set_level(logging.INFO)
    Store(8 * MB).read(PageCache(str(folder), 10**9), 1, 8 * MB)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**8 - below(folder)))
    PageCache(str(folder), None)
    assert "0.0 GB, a tenth" in caplog.text
    assert len(pages(folder)) == 2


def test_processes_fetch_each_page_once(folder, tmp_path):
    """Single flight on the node: who comes second waits for the first."""

    class Slow(Store):
        def __call__(self, begin, end):
            with (tmp_path / "asked").open("a") as file:
                file.write(f"{begin}\n")
            threading.Event().wait(0.05)
            return super().__call__(begin, end)

    def reads():
        store, cache = Slow(32 * MB), PageCache(str(folder), 64 * MB)
        for begin in range(16, 32 * MB, 4 * MB):
            store.read(cache, begin, begin + 1)

    for pid in [forked(reads) for _ in range(3)]:
        os.waitpid(pid, 0)
    assert sorted(map(int, (tmp_path / "asked").read_text().split())) == list(range(0, 32 * MB, 4 * MB))
    assert len(pages(folder)) == 8


def test_a_page_that_a_killed_process_was_fetching_is_fetched_by_the_next(folder):
    """Who waits for it, too."""
    asked = folder.parent / "asked"

    def never(_begin, _end):
        asked.touch()
        return Future()

    store = Store(4 * MB)
    version = store.key(), 4 * MB
    pid = forked(lambda: PageCache(str(folder), 64 * MB).read(*version, 1, 2, never).result())
    while not asked.exists():
        time.sleep(0.005)
    waiting = PageCache(str(folder), 64 * MB).read(*version, 1, 2, store)
    time.sleep(0.05)
    assert not store.asked
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert waiting.result(timeout=60) == store.data[1:2]


def test_a_page_that_a_suspended_process_was_fetching_is_fetched_beside_it(folder, monkeypatch):
    """It may be suspended for hours; what is fetched meanwhile is not kept."""
    monkeypatch.setattr(page_cache, "STALL_S", 0.1)
    store, (receiver, sender) = Store(9), os.pipe()

    def fetches():
        assert PageCache(str(folder), 64 * MB)._room.lock(f"{store.key()}-0")
        os.write(sender, b"1")
        signal.pause()

    pid = forked(fetches)
    os.read(receiver, 1)
    store.read(PageCache(str(folder), 64 * MB), 1, 9)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not pages(folder)


def test_a_process_that_is_suspended_while_it_counts_stops_no_other(folder, caplog, monkeypatch):
    """What is there is read; nothing more is kept."""
    monkeypatch.setattr(room, "STALL_S", 0.1)
    store, cache, (receiver, sender) = Store(9), PageCache(str(folder), 64 * MB), os.pipe()

    def counts():
        its = PageCache(str(folder), 64 * MB)._room
        assert its.lock(store.key()[:12])
        assert its.lock("")
        os.write(sender, b"1")
        signal.pause()

    pid = forked(counts)
    os.read(receiver, 1)
    store.read(cache, 1, 9)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not pages(folder)
    assert "another process has held its lock" in caplog.text


def test_what_a_killed_process_leaves_is_no_page_and_makes_room(folder, counted_at_once):
    """It was killed while it wrote one, whose blocks were taken."""

    def writes():
        ShardFile.write = lambda *_: signal.pause()
        Store(4 * MB).read(PageCache(str(folder), 17 * MB), 1, 2)

    pid = forked(writes)
    while below(folder) < 4 * MB:
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not pages(folder)
    Store(16 * MB).read(PageCache(str(folder), 17 * MB), 1, 16 * MB, url="https://store/other")
    assert len(pages(folder)) == 4
    assert below(folder) <= 17 * MB


def test_the_bound_holds_at_any_moment_with_many_processes(folder, counted_at_once):
    """Four of them, which make room for their pages all the time, and one that is killed."""
    bound = 80 * 4096

    def reads(process):
        store = Store(100)
        for number in range(20 if process else 10**6):
            cache = PageCache(str(folder), bound)
            for shard in range(10):
                store.read(cache, 1, 2, url=f"https://store/{process}-{number}/{shard}")
            fcntl.lockf(cache._room._fd, fcntl.LOCK_UN)  # as if this process had ended

    folder.mkdir()
    killed, *others = [forked(partial(reads, process)) for process in range(4)]
    most = 0
    while others:
        most = max(most, below(folder))
        others = [pid for pid in others if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        time.sleep(0.001)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    PageCache(str(folder), bound)
    assert bound // 4 < most <= bound
