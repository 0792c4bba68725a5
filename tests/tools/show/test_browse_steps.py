"""Pages of a stream: forth and back give the same samples, whatever was read before."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from streamdata.tools.show import reading as browse_steps
from streamdata.tools.show.reading import BrowseSteps, PagePlace

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
        return BrowseSteps(self.read, lambda sample, number, step: (sample["n"], number, step), per_page, first=0)


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
    fresh, place = Stream().pages(per_page), PagePlace(step=9, at=2)
    assert numbers(fresh.page_before(place)) == list(range(29 - per_page, 29))


def test_back_shows_what_was_shown_without_reading():
    """Through several pages, and forth again."""
    stream = Stream()
    pages, at, shown = stream.pages(), PagePlace(step=0), []
    for _ in range(4):
        shown.append(pages.page(at))
        at = shown[-1].after
    for expected in reversed(shown):
        found = pages.page_before(at)
        assert found is expected
        at = found.place
    assert stream.began == [0]


@pytest.mark.parametrize("source", ["", "docs", "web", "web.b", "rare"])
def test_back_from_a_jump_ends_where_it_was(source):
    """Where nothing was shown before: the page before it, or all that there is."""
    pages = Stream().pages()
    place = PagePlace(step=100, source=source)
    before = pages.page_before(place)
    after_it = pages.page(before.after)
    every = [sample["n"] for _, batch in islice(Stream().read(0, 0), 2000) for sample in batch
             if sample["__datasetname__"].startswith(source)]  # fmt: skip
    shown = numbers(before) + numbers(after_it)
    begin = every.index(shown[0])
    assert shown == every[begin : begin + len(shown)]
    assert before.after.step <= 100 or source == "rare"


def test_back_of_a_rare_source_goes_on_looking():
    """Each page says from where; together they have all of its samples."""
    pages, place, found = Stream().pages(), PagePlace(step=400, source="rare"), []
    while (page := pages.page_before(place)).after == place:
        found, place = [*numbers(page), *found], page.place
    every = [sample["n"] for _, batch in islice(Stream().read(0, 0), 400) for sample in batch
             if sample["__datasetname__"] == "rare"]  # fmt: skip
    assert found == [n for n in every if n >= 3 * place.step]
    assert page.place.step == 0


@pytest.mark.parametrize("source", ["", "web.b"])
def test_back_from_a_jump_reads_no_step_twice(source):
    """But the one with which a range ends, to see that it does."""
    stream = Stream()
    page = stream.pages().page_before(PagePlace(step=200, source=source))
    assert len(page.samples) == 6
    assert page.after == PagePlace(step=200, source=source)
    assert {step for step, times in Counter(stream.steps).items() if times > 1} <= {*stream.began}


def test_back_near_the_start_shows_the_first_page():
    """All of it, though it goes beyond the place."""
    assert numbers(Stream().pages().page_before(PagePlace(step=1))) == [0, 1, 2, 3, 4, 5]


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
    assert pages.page_before(PagePlace(step=50, source="none")).place.step == 26


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
