"""What a cache saves, by the orders that lanes read in; against a cache that lets go of what was used longest ago."""

import os
import signal
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from streamdata.io.cache import account, page_cache
from streamdata.io.cache.page_cache import PageCache
from streamdata.io.cache.pages import charge_of, file_size_of, shard_key
from streamdata.run import Lane
from streamdata.sources.order.blocks import BlockOrder, SourceOutlook
from tests.io.child import forked

PAGE = 16 << 10
ACCOUNT = 8192
"""Bytes of the directory and its account."""


class Node:
    """A node's lanes, which read one shard through a cache of so many pages; what they fetch is counted."""

    def __init__(self, folder, pages, kept, block, node=0, nodes=1):
        self.size, self.block, self.fetched, self.used = pages * PAGE, block, 0, OrderedDict()
        blocks, self.kept = -(-self.size // block), kept
        self.cache = PageCache(str(folder), kept * charge_of(file_size_of(PAGE)) + ACCOUNT)
        lane = Lane(dp_size=nodes, dp_rank=node, num_workers=1, worker=0)
        self.order = BlockOrder(blocks, lane, (7, "name", 0), shuffle=True)
        sizes, ends = np.array([self.size]), np.array([blocks])
        own = range(node, node + 1)
        self.outlook = SourceOutlook(sizes, ends, self.order, own, reads_all=nodes == 1)
        self.cache.expect([shard_key("u", "v", self.size)], self.outlook)

    def fetch(self, begin, end):
        self.fetched += (end - begin) * (end > 1)  # not the request that asks for the version
        answer = Future()
        answer.set_result(bytes(end - begin))
        return answer

    def epoch(self, epoch):
        """Read it; return which share of the bytes was not fetched, and of blocks that LRU would have had."""
        wanted, before, hits, touched = 0, self.fetched, 0, 0
        for number, block in enumerate(self.order.blocks(epoch, 0, self.order.num_blocks).tolist()):
            self.outlook.now = self.order.number(epoch, number)
            begin, end = block * self.block, min((block + 1) * self.block, self.size)
            self.cache.read("u", "v", self.size, begin, end, self.fetch).result(timeout=60)
            wanted += end - begin
            while self.cache.account._fetched:
                time.sleep(0.0001)
            for page in range(begin // PAGE, -(-end // PAGE)):
                touched, hits = touched + 1, hits + (page in self.used)
                self.used[page] = self.used.pop(page, None)
                if len(self.used) > self.kept:
                    self.used.popitem(last=False)
        return 1 - (self.fetched - before) / wanted, hits / touched


def below(folder):
    """All bytes below a directory, its own included; a file that goes meanwhile counts or not."""
    size = folder.stat().st_size
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            size += path.lstat().st_size
    return size


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """So that a test writes little."""
    for module in (page_cache, account):
        monkeypatch.setattr(module, "PAGE_BYTES", PAGE)


@pytest.mark.parametrize("block", [PAGE, PAGE * 15 // 16, PAGE // 5])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_the_second_epoch_has_the_cached_share(tmp_path, block, share):
    """Whatever the size of blocks; where all of it fits, nothing is fetched again."""
    node = Node(tmp_path, pages=40, kept=int(40 * share), block=block)
    node.epoch(0)
    found, by_recency = node.epoch(1)
    assert found == pytest.approx(share, abs=0.01)
    if block == PAGE:
        assert by_recency < share / 2


def test_where_all_of_it_fits_each_byte_is_fetched_once(tmp_path):
    """In the first epoch already."""
    node = Node(tmp_path, pages=40, kept=40, block=PAGE // 5)
    node.epoch(0)
    assert node.fetched == node.size
    assert node.epoch(1)[0] == 1.0


def test_of_several_nodes_each_keeps_what_it_reads_next(tmp_path):
    """After some epochs a quarter of the pages serves more than half; those used last would serve far fewer."""
    node = Node(tmp_path, pages=120, kept=30, block=PAGE, nodes=4)
    found = [node.epoch(epoch) for epoch in range(12)]
    own, by_recency = np.mean(found[6:], axis=0)
    assert own > 0.45
    assert by_recency < 0.7 * own


def test_of_many_nodes_none_fetches_what_it_will_not_read(tmp_path):
    """A block is a fifth of a page: to fetch all of it would be five times the bytes."""
    node = Node(tmp_path, pages=120, kept=120, block=PAGE // 5, nodes=100)
    assert node.epoch(0)[0] == pytest.approx(0.0, abs=0.01)


def test_the_bound_holds_at_any_moment_with_many_processes(tmp_path):
    """Eight of them, which make room for their pages all the time, and one that is killed; nothing is left over."""
    bound = 10 * charge_of(file_size_of(PAGE)) + ACCOUNT

    def reads(process):
        node = Node(tmp_path / "cache", pages=100, kept=10, block=PAGE, node=process, nodes=8)
        for epoch in range(3 if process else 10**6):
            node.epoch(epoch)

    (tmp_path / "cache").mkdir()
    killed, *others = [forked(partial(reads, process)) for process in range(8)]
    most = 0
    while others:
        most = max(most, below(tmp_path / "cache"))
        time.sleep(0.001)
        others = [pid for pid in others if os.waitpid(pid, os.WNOHANG) == (0, 0)]
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    assert bound // 2 < most <= bound
    assert PageCache(str(tmp_path / "cache"), bound).account.used <= bound
    assert not list((tmp_path / "cache").glob(".*"))
