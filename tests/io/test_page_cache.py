import logging
import os
import random
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from streamdata.errors import ShardError
from streamdata.io.cache.account import PageList
from streamdata.io.cache.page_cache import PageCache
from streamdata.io.cache.pages import PAGE_BYTES, PageDamageError, PageFiles, PageKey, shard_key
from tests.io.child import forked

URL, MB = "https://store/a.tar", 1 << 20


class Store:
    """A stand-in for the network: one shard, its requests counted."""

    def __init__(self, size, seed=0):
        self.data, self.asked, self.failure = (
            (random.Random(seed).randbytes(4099) * (size // 4099 + 1))[:size],
            [],
            None,
        )

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

    def read(self, cache, begin, end, version="v1", url=URL):
        data = cache.read(url, version, len(self.data), begin, end, self).result(timeout=60)
        assert isinstance(data, bytes)
        assert data == self.data[begin:end]


class Fixed:
    """An outlook: how many bytes of each page are wanted in this epoch, the next one …, by shard and page."""

    def __init__(self, *shards, reads_all=False):
        self.shards, self.reads_all = shards, reads_all

    def wanted(self, shard, begin, end):
        return self.shards[shard][begin // PAGE_BYTES]


def below(folder):
    """All bytes below a directory, its own included."""
    return sum(path.lstat().st_size for path in [folder, *folder.rglob("*")])


def pages(folder):
    return sorted(path.name for path in folder.glob("*.page"))


def settled(cache):
    """Wait until what was fetched is published."""
    while cache.account._fetched:
        threading.Event().wait(0.001)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def test_what_was_fetched_once_is_read_from_disk(folder):
    """Whole pages are fetched, the last one shorter; any range of them is then there, but for a request of one byte."""
    store, cache = Store(9 * MB + 5), PageCache(str(folder), 64 * MB)
    store.read(cache, 3 * MB, 9 * MB + 5)
    assert store.asked == [(0, 4 * MB), (4 * MB, 8 * MB), (8 * MB, 9 * MB + 5)]
    for begin, end in ((1, 2), (3 * MB, 9 * MB), (16383, 16385), (9 * MB + 4, 9 * MB + 5)):
        store.read(cache, begin, end)
    assert len(store.asked) == 3


@pytest.mark.parametrize("size", [1, 16383, 16384, 16385, 50_000])
def test_any_range_of_a_page_is_checked(folder, size):
    """Within a chunk of checksums, over some, at their bounds and at the end; damage in any byte of it shows."""
    store, cache = Store(size), PageCache(str(folder), 64 * MB)
    store.read(cache, 0, size)
    settled(cache)
    bounds = sorted({0, 1, size // 3, size // 2, 16383, 16384, 16385, 32768, size - 1, size})
    ranges = [(a, b) for a in bounds for b in bounds if 0 <= a < b <= size]
    for begin, end in ranges:
        store.read(cache, begin, end)
    assert not [one for one in store.asked[1:] if one != (0, 1)]
    key = PageKey(shard_key(URL, "v1", size), 0)
    for begin, end in ranges:
        for at in (begin, end - 1):
            with (folder / pages(folder)[0]).open("r+b") as file:
                file.seek(at)
                file.write(bytes([store.data[at] ^ 1]))
                file.flush()
                with pytest.raises(PageDamageError):
                    PageFiles(str(folder)).read(key, size, begin, end)
                file.seek(at)
                file.write(store.data[at : at + 1])


def test_pieces_are_read_straight_into_memory(folder, caplog):
    """Of pages that are there and not damaged; a damaged one is removed, and said."""
    cache, store = PageCache(str(folder), 64 * MB), Store(9 * MB + 77)
    store.read(cache, 1, 8 * MB)
    while cache.account._fetched:
        time.sleep(0.001)
    shard, memory = shard_key(URL, "v1", 9 * MB + 77), memoryview(bytearray(9 * MB))
    rng = random.Random(0)
    begins = [rng.randrange(7 * MB) for _ in range(50)]
    pieces = [(begin, end := begin + rng.randrange(1, MB), memory[begin:end]) for begin in begins]
    assert all(cache.read_into(shard, 9 * MB + 77, pieces))
    assert all(view == store.data[begin:end] for begin, end, view in pieces)
    with open(folder / PageKey(shard, 1).name, "r+b") as file:
        file.seek(20_000)
        file.write(b"another")
    pieces = [(begin, begin + 30_000, memory[:30_000]) for begin in (5, 4 * MB - 5, 4 * MB + 40_000, 8 * MB + 1)]
    assert cache.read_into(shard, 9 * MB + 77, pieces) == [True, False, False, False]
    assert not cache.has(shard, [0, 1])
    assert cache.has(shard, [0])
    assert "damaged" in caplog.text


def test_another_run_finds_the_pages(folder):
    """By url and version; another version of a shard is another shard."""
    store = Store(MB)
    first = PageCache(str(folder), 64 * MB)
    store.read(first, 1, MB)
    settled(first)
    del first  # the locks of a process are its own, whichever object took them: it has one for a directory
    again = PageCache(str(folder), 64 * MB)
    store.read(again, 1, MB)
    assert len(store.asked) == 1
    store.read(again, 1, MB, version="v2")
    store.read(again, 1, MB, url="https://store/b.tar")
    assert len(store.asked) == 3


def test_the_first_byte_asks_whether_the_version_is_still_this(folder):
    """One conditional request per pass; what it says fails the read."""
    store, cache = Store(MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 0, MB)
    settled(cache)
    store.read(cache, 0, MB)
    assert store.asked == [(0, MB), (0, 1)]
    store.failure = ShardError("replaced")
    with pytest.raises(ShardError, match="replaced"):
        store.read(cache, 0, 10)


def test_without_a_version_nothing_is_kept(folder, caplog):
    """It could be another shard by the next run; said once."""
    store, cache = Store(MB), PageCache(str(folder), 64 * MB)
    for _ in range(2):
        store.read(cache, 5, 10, version="")
    assert store.asked == [(5, 10)] * 2
    assert len([line for line in caplog.messages if "no version" in line]) == 1


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_page_is_fetched_again(folder, caplog, cut):
    """Said once, however many there are."""
    store, cache = Store(9 * MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 1, 9 * MB)
    settled(cache)
    for name in pages(folder)[:2]:
        with (folder / name).open("r+b") as file:
            file.seek(MB)
            file.write(b"damage")
            if cut:
                file.truncate(MB)
    caplog.clear()
    store.read(cache, 1, 9 * MB)
    settled(cache)
    assert sorted(store.asked[3:]) == [(0, 4 * MB), (4 * MB, 8 * MB)]
    assert len([line for line in caplog.messages if "damaged" in line]) == 1
    store.read(cache, 1, 9 * MB)
    assert len(store.asked) == 5


def test_an_error_reaches_the_reader_and_leaves_nothing(folder):
    """What could not be fetched is asked for again by the next read."""
    store, cache = Store(MB), PageCache(str(folder), 64 * MB)
    store.failure = ShardError("gone")
    with pytest.raises(ShardError, match="gone"):
        store.read(cache, 1, 2)
    settled(cache)
    assert os.listdir(folder) == ["account"]
    store.failure = None
    store.read(cache, 1, 2)


def test_an_answer_of_another_size_is_an_error(folder):
    """It is neither used nor kept."""
    store, cache = Store(MB), PageCache(str(folder), 64 * MB)
    with pytest.raises(ShardError, match="expected 1048577 bytes"):
        cache.read(URL, "v", MB + 1, 1, 2, store).result(timeout=60)
    settled(cache)
    assert not pages(folder)


def test_the_bound_holds_and_what_has_no_room_is_read_as_it_is_wanted(folder):
    """A page makes no room for another; bytes of pages that are not kept are fetched alone, neighbours at once."""
    store, cache = Store(40 * MB), PageCache(str(folder), 17 * MB)
    for at in (0, 10, 20, 30):
        store.read(cache, at * MB + 1, (at + 1) * MB)
    settled(cache)
    assert len(pages(folder)) == 4
    store.asked.clear()
    store.read(cache, 16 * MB - 10, 16 * MB + 10)
    store.read(cache, 10 * MB, 10 * MB + 5)
    assert store.asked == [(16 * MB - 10, 16 * MB + 10)]
    assert below(folder) <= 17 * MB


def test_small_files_are_charged_what_they_take(folder):
    """Thousands of tiny shards fill blocks of the disk, and a directory."""
    cache = PageCache(str(folder), 17 * MB)
    store = Store(100)
    for number in range(50):
        cache.read(f"https://store/{number}", "v", 100, 1, 2, store).result(timeout=60)
    settled(cache)
    assert len(pages(folder)) == 50
    assert sum(path.stat().st_blocks * 512 for path in folder.iterdir()) <= cache.account.used


def test_files_of_others_count_and_stay(folder):
    """The bound is of everything below the directory."""
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "theirs").write_bytes(bytes(14 * MB))
    store, cache = Store(8 * MB), PageCache(str(folder), 17 * MB)
    store.read(cache, 1, 8 * MB)
    settled(cache)
    assert below(folder) <= 17 * MB
    assert not pages(folder)


def test_a_smaller_bound_removes_pages_at_the_start(folder):
    """At any moment: also before anything is read."""
    store, cache = Store(32 * MB), PageCache(str(folder), 64 * MB)
    store.read(cache, 1, 32 * MB)
    settled(cache)
    del cache
    PageCache(str(folder), 17 * MB)
    assert below(folder) <= 17 * MB
    assert len(pages(folder)) == 4


def test_pages_of_earlier_versions_make_room(folder):
    """Nobody asks for them again; those of shards that this run does not name stay while they are in use."""
    old, cache = Store(16 * MB), PageCache(str(folder), 17 * MB + MB // 2)
    old.read(cache, 1, 16 * MB)
    settled(cache)
    del cache
    new, other = Store(16 * MB, seed=1), Store(MB)
    cache = PageCache(str(folder), 17 * MB + MB // 2)
    other.read(cache, 1, MB, url="https://store/b.tar")
    cache.expect([shard_key(URL, "v2", 16 * MB)], Fixed(reads_all=True))
    new.read(cache, 1, 16 * MB, version="v2")
    settled(cache)
    assert {name.split("-")[0] for name in pages(folder)} >= {shard_key(URL, "v2", 16 * MB)}
    new.asked.clear()
    new.read(cache, 1, 12 * MB, version="v2")
    assert not new.asked


def test_a_page_that_is_wanted_before_another_takes_its_room(folder):
    """By the known order: the one that is wanted last goes; one that is not wanted before that stays out."""
    store, cache = Store(24 * MB), PageCache(str(folder), 17 * MB)
    page = PAGE_BYTES
    soon, later, never = [0, page, 0, 0], [0, 0, 0, page], [0, 0, 0, 0]
    cache.expect([shard_key(URL, "v1", 24 * MB)], Fixed([later, soon, soon, soon, soon, never]))
    store.read(cache, 1, 16 * MB)
    settled(cache)
    store.read(cache, 20 * MB, 24 * MB)
    store.read(cache, 16 * MB, 20 * MB)
    settled(cache)
    assert [name.split("-")[1] for name in pages(folder)] == ["1.page", "2.page", "3.page", "4.page"]


def test_a_page_whose_rest_is_not_wanted_is_not_fetched(folder):
    """Of thousands of nodes each reads a little of a page per epoch: all of it would be fetched for nothing."""
    store, cache = Store(8 * MB), PageCache(str(folder), 64 * MB)
    cache.expect([shard_key(URL, "v1", 8 * MB)], Fixed([[0, MB, MB, MB, MB], [0, 0, 0, 0]]))
    store.read(cache, MB, 2 * MB)
    store.read(cache, 5 * MB, 6 * MB)
    settled(cache)
    assert store.asked == [(0, 4 * MB), (5 * MB, 6 * MB)]


def test_many_threads_fetch_a_page_once(folder):
    """Single flight within a process."""
    store, cache = Store(8 * MB), PageCache(str(folder), 64 * MB)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.read(cache, 1 + number, 8 * MB), range(16)))
    assert sorted(store.asked) == [(0, 4 * MB), (4 * MB, 8 * MB)]


def test_a_full_disk_means_no_caching_and_is_said_once(folder, caplog, monkeypatch):
    """What was fetched is delivered all the same, and nothing is left behind."""

    def full(*_):
        raise OSError(28, "No space left on device")

    store, cache = Store(16 * MB), PageCache(str(folder), 64 * MB)
    monkeypatch.setattr("streamdata.io.cache.account.write_page", full)
    for number in range(4):
        store.read(cache, 4 * number * MB + 1, 4 * number * MB + 9)
        settled(cache)
    assert store.bytes == 4 * MB + 3 * 8
    assert len([line for line in caplog.messages if "cannot be written" in line]) == 1
    assert os.listdir(folder) == ["account"]


def test_said_once_on_a_node(folder):
    """Of all its processes one says it, until the cache comes into use again."""
    cache = PageCache(str(folder), 64 * MB)
    assert [cache.account.say(2), cache.account.say(2), cache.account.say(1)] == [True, False, True]
    del cache
    assert PageCache(str(folder), 64 * MB).account.say(2)


def test_without_a_bound_it_is_a_tenth_of_what_is_free(folder, caplog, monkeypatch):
    """What the first process found holds for the others; its own pages count as free."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**12))
    cache = PageCache(str(folder), None)
    assert cache.account.max_bytes == 10**11
    assert "100.0 GB, a tenth" in caplog.text


class Never(Store):
    """A store that does not answer."""

    def __call__(self, begin, end):
        return Future()


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
        for begin in range(1, 32 * MB, 4 * MB):
            store.read(cache, begin, begin + 1)
        settled(cache)

    for pid in [forked(reads) for _ in range(3)]:
        os.waitpid(pid, 0)
    assert sorted(map(int, (tmp_path / "asked").read_text().split())) == list(range(0, 32 * MB, 4 * MB))
    assert len(pages(folder)) == 8


def killed_while_fetching(folder, bound):
    """Let a process be killed while it fetches a page."""
    pid = forked(lambda: Never(32 * MB).read(PageCache(str(folder), bound), 1, 2))
    while not [path for path in folder.glob(".*.tmp") if path.stat().st_size]:
        threading.Event().wait(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_what_a_killed_process_leaves_is_found_and_removed(folder):
    """Its temporary file counts until then; the page is fetched by whoever wants it next."""
    killed_while_fetching(folder, 64 * MB)
    assert below(folder) > 4 * MB
    store, cache = Store(32 * MB), PageCache(str(folder), 64 * MB)
    assert below(folder) < MB
    store.read(cache, 1, 2)
    assert cache.account.used < 5 * MB


def test_what_a_user_draws_does_not_depend_on_which_pages_may_make_room():
    """They are looked at at random."""
    known, before = PageList(), random.getstate()
    for number in range(9):
        known.add(PageKey("shard", number))
    assert len({*known.some(5)}) == 5
    assert random.getstate() == before


def test_room_that_a_killed_process_held_is_found_while_others_go_on(folder, monkeypatch):
    """Not only at the next start."""
    cache, store = PageCache(str(folder), 17 * MB), Store(16 * MB)
    killed_while_fetching(folder, 17 * MB)
    monkeypatch.setattr("streamdata.io.cache.account._COUNT_AGAIN_S", 0.0)
    store.read(cache, 1, 16 * MB, url="https://store/other")
    settled(cache)
    assert len(pages(folder)) == 4
