"""Pages of a stream: forth and back give the same samples, whatever was read before."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from streamdata.tools.show import page as browse_steps
from streamdata.tools.show.page import BrowseSteps, PagePlace

NAMES = ["docs", "web.a", "docs", "web.b", "rare"]


class Stream:
    """Batches of 3 samples, numbered; it notes where reading began, and which steps were read."""

    def __init__(self, num_steps=10_000):
        self.num_steps, self.began, self.steps = num_steps, [], []

    def read(self, step, rank):
        self.began.append(step)
        for number in range(step, self.num_steps):
            self.steps.append(number)
            samples = range(3 * number, 3 * number + 3)
            yield number, [{"__datasetname__": NAMES[n % 5] if n % 100 == 4 else NAMES[n % 4], "n": n} for n in samples]

    def pages(self, per_page=6):
        return BrowseSteps(self.read, lambda sample, number, step: (sample["n"], number, step), per_page)


def numbers(page):
    """Of the samples in the stream."""
    return [view[0] for view in page.samples]


def test_forth_goes_on_with_what_is_open():
    """Reading begins once."""
    stream = Stream()
    pages = stream.pages()
    first = pages.page(PagePlace(step=4))
    second = pages.page(first.after)
    assert numbers(first) + numbers(second) == list(range(12, 24))
    assert [view[1:] for view in first.samples] == [(0, 4), (1, 4), (2, 4), (3, 5), (4, 5), (5, 5)]
    assert stream.began == [4]


def test_requests_at_the_same_time_read_once(monkeypatch):
    """One reads, the others wait for it and get what it has read."""
    stream = Stream()
    quick = stream.read

    def slow(step, rank):
        time.sleep(0.05)
        yield from quick(step, rank)

    monkeypatch.setattr(stream, "read", slow)
    pages = stream.pages()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(pages.page, [PagePlace(step=4)] * 4))
    assert all(page is found[0] for page in found)
    assert stream.began == [4]


@pytest.mark.parametrize("per_page", [1, 2, 4, 7])
def test_a_page_has_as_many_samples_as_were_asked_for(per_page):
    """A step that does not fit is divided; forth and back none is left out, and none comes twice."""
    pages, at, shown = Stream(num_steps=10).pages(per_page), PagePlace(step=0), []
    while at is not None:
        shown.append(pages.page(at))
        at = shown[-1].after
    assert [n for page in shown for n in numbers(page)] == list(range(30))
    assert {len(page.samples) for page in shown[:-2]} == {per_page}


def test_back_leads_to_what_was_shown_without_reading():
    """Through several pages, and forth again."""
    stream = Stream()
    pages, at, shown = stream.pages(4), PagePlace(step=1), []
    for _ in range(4):
        shown.append(pages.page(at))
        at = shown[-1].after
    for earlier, page in pairwise(shown):
        assert pages.page(page.before) is earlier
    assert shown[0].before is None
    assert stream.began == [1]


@pytest.mark.parametrize("source", ["", "docs"])
def test_back_from_a_jump_leads_as_many_steps_back_as_the_page_has(source):
    """But not beyond the first one."""
    page = Stream().pages().page(PagePlace(step=100, source=source))
    assert page.before == PagePlace(step=100 - (page.last - 100 + 1), source=source)
    assert Stream().pages().page(PagePlace(step=2)).before == PagePlace(step=1)


def test_a_page_of_one_source_has_nothing_else():
    """And as many of it as any page."""
    page = Stream().pages().page(PagePlace(step=0, source="web.b"))
    assert len(page.samples) == 6
    assert {n % 4 for n in numbers(page)} == {3}


def test_the_end_of_the_stream_is_a_page_that_nothing_follows():
    """Also where a page begins behind it."""
    pages = Stream(num_steps=3).pages()
    assert numbers(pages.page(PagePlace(step=2))) == [6, 7, 8]
    assert pages.page(PagePlace(step=2)).after is None
    assert pages.page(PagePlace(step=7)).samples == ()


def test_looking_for_a_rare_source_ends_in_time(monkeypatch):
    """The page says where to go on."""
    monkeypatch.setattr(browse_steps, "_PATIENCE_S", -1)
    pages = Stream().pages()
    page = pages.page(PagePlace(step=5, source="none"))
    assert (page.samples, page.after.step, page.is_cut) == ((), 6, True)
    assert page.before.step == 4


def test_an_error_leaves_nothing_open():
    """The same step is read again, from its start."""
    stream = Stream()
    good = stream.read

    def broken(step, rank):
        yield next(good(step, rank))
        raise ValueError("torn")

    stream.read = broken
    pages = stream.pages()
    for _ in range(2):
        with pytest.raises(ValueError, match="torn"):
            pages.page(PagePlace(step=0))
    assert stream.began == [0, 0]


def test_what_is_kept_is_bounded(monkeypatch):
    """The page that was shown longest ago goes first."""
    monkeypatch.setattr(browse_steps, "_MAX_KEPT", 20)
    pages = Stream().pages()
    for step in range(0, 20, 2):
        pages.page(PagePlace(step=step))
    assert [place.step for place in pages._kept] == [14, 16, 18]
