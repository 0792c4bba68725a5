"""What each control of the pages does, in a real Chromium; what axe finds on them."""

import time
from itertools import islice

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, StreamLoader, mixed_collate
from streamdata.tools.show.page import write_page
from streamdata.tools.show.streams import MixtureSamples, Place
from tests.browser.looked_at import photographs, served

pytest.importorskip("selenium", reason="selenium is not installed: make test-browser")
PAINTED = """
const isSeen = (box) => box.top < innerHeight && box.bottom > 0;
const seen = [...document.images].filter((image) => isSeen(image.getBoundingClientRect()));
Promise.all(seen.map((image) => image.decode())).then(() => requestAnimationFrame(() => arguments[0](seen.length)));
"""
"""How many images are in sight, once all of them are painted."""
LEFT, RIGHT, ESCAPE = "\ue012", "\ue014", "\ue00c"


def browsed_sources(folder):
    """Photographs and texts, half of each."""
    if not (folder / "photographs.tar").exists():
        photographs(folder)
        (folder / "texts.jsonl").write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(500)))
    return [
        MetaDistributedWebDataset(f"{folder}/photographs.tar", name="photographs", percent=0.5),
        JsonlIterableDataset(f"{folder}/texts.jsonl", name="texts", percent=0.5),
    ]


def browsed(folder, per_page=20):
    """A run of them, with states of two of its steps."""
    sources = browsed_sources(folder)
    loader, states = StreamLoader(MergedDataset(sources), batch_size=4, collate=mixed_collate), {}
    for number, _ in enumerate(islice(loader, 60), 1):
        if number in (20, 60):
            states[f"step {number}"] = loader.state_dict()
    place = Place(states=[*states.values()], batch=4, step=1)
    return MixtureSamples(MergedDataset(sources), place).browsed("both.yaml", per_page)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Of a server for all tests."""
    with served(browsed(tmp_path_factory.mktemp("both"))) as url:
        yield url


@pytest.fixture
def page(browser, url):
    """The first page, with no focus left by the test before; after each test the console is clean."""
    browser.prefer(prefers_color_scheme="light")
    browser.open(url)
    browser.run("document.activeElement.blur()")
    yield browser
    assert browser.errors() == []
    assert [asked for asked in browser.requests() if not asked.startswith(url)] == []


def shown(browser):
    """Which records, in their order."""
    return browser.run("return [...document.querySelectorAll('.sample .where')].map((each) => each.textContent)")


def test_forth_and_back_by_mouse(page):
    """Back is exactly what was shown."""
    first = shown(page)
    page.comes_to("Steps 1 to 5")
    assert len(first) == 20
    page.click("#forth")
    page.comes_to("Steps 6 to 10")
    assert not set(shown(page)) & set(first)
    page.click("#back")
    page.comes_to("Steps 1 to 5")
    assert shown(page) == first
    assert page.count("#back") == 0


def test_forth_and_back_by_keys(page):
    """With the arrows; in a field these move in it."""
    page.press(RIGHT)
    page.comes_to("Steps 6 to 10")
    page.press(RIGHT)
    page.press(LEFT)
    page.comes_to("Steps 6 to 10")
    page.press("g")
    page.press(LEFT)
    page.comes_to("Steps 6 to 10")


def test_focus_stays_on_what_was_pressed(page):
    """Enter on Forth again and again goes on; the status says what has come."""
    page.driver.find_element("id", "forth").send_keys("\ue007")
    assert page.run("return document.activeElement.id") == "forth"
    page.press("\ue007")
    page.comes_to("Steps 11 to 15")
    assert page.text("#status") == "Steps 11 to 15: 20 samples."


def test_a_jump_to_a_step(page):
    """By the field, which `g` leads to; back from there ends where it was."""
    page.press("g")
    assert page.run("return document.activeElement.id") == "step"
    page.fill("#step", "37")
    page.comes_to("Steps 37 to 41")
    page.press(LEFT)
    page.comes_to("Steps 37 to 41")
    page.press(ESCAPE)
    page.press(LEFT)
    page.comes_to("Steps 32 to 36")


def test_one_source_alone(page):
    """Chosen by name; forth and back keep to it."""
    page.press("s")
    page.press("t")  # one letter: between several the list may have begun anew
    page.click("form button")
    page.comes_to("Steps 1 to 10, texts")
    page.click("#forth")
    page.comes_to("Steps 11 to 20, texts")
    assert page.count(".sample[data-source=texts]") == page.count(".sample") == 20


def test_places_of_states_are_on_the_line(page):
    """Links at where they lie, for the keyboard too."""
    marks = page.driver.find_elements("css selector", ".line a")
    assert [mark.accessible_name for mark in marks] == ["step 20", "step 60"]
    across = [float(mark.find_element("css selector", "circle").get_attribute("cx")) for mark in marks]
    assert (across[1] - 10) / (across[0] - 10) == pytest.approx(3, abs=0.01)
    marks[0].send_keys("\ue007")
    page.comes_to("Steps 21 to 25")


def test_keys_are_told_and_can_be_turned_off(page):
    """A person who speaks to the machine needs that."""
    page.press("?")
    assert page.run("return document.getElementById('keys').open")
    page.click("#keys-on")
    page.press(ESCAPE)
    page.press(RIGHT)
    page.comes_to("Steps 1 to 5")
    page.click("#keys-on")
    page.press(ESCAPE)
    page.press(RIGHT)
    page.comes_to("Steps 6 to 10")


def test_it_works_without_scripts(browser, url):
    """Links and forms do all of it."""
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(url)
        browser.click("#forth")
        assert browser.driver.title.startswith("Steps 6 to 10")
        browser.fill("#step", "40")
        assert browser.driver.title.startswith("Steps 40 to 44")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["", "?step=20&source=texts", "?step=x"])
def test_axe_finds_nothing(browser, axe, url, path, scheme):
    """On each kind of page, in both colours; the list of keys is open, too."""
    browser.prefer(prefers_color_scheme=scheme)
    browser.open(url + path)
    assert browser.violations() == []
    browser.click("#keys summary")
    assert browser.violations() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_file(browser, axe, tmp_path, scheme):
    """The page that `--html` writes: it loads without an error, and asks for nothing else."""
    sources = browsed_sources(tmp_path)
    page = MixtureSamples(MergedDataset(sources), Place()).page("both.yaml", 20)
    write_page(page, tmp_path / "page.html")
    browser.prefer(prefers_color_scheme=scheme)
    browser.open(f"file://{tmp_path}/page.html")
    assert browser.violations() == []
    assert browser.errors() == []
    assert browser.requests() == [f"file://{tmp_path}/page.html"]


def test_200_samples_with_images_appear_in_2_seconds(browser, tmp_path):
    """What is in sight is painted, the reading included; and so is the last one after a jump to the end."""
    with served(browsed(tmp_path, per_page=200)) as url:
        browser.open(f"{url}page.css")  # the browser is warm, the data was not touched
        started = time.perf_counter()
        browser.open(f"{url}?step=1&source=photographs")
        assert browser.driver.execute_async_script(PAINTED) > 0
        seconds = time.perf_counter() - started
        assert browser.count(".sample img") == 200
        browser.run("document.querySelector('.sample:last-child').scrollIntoView()")
        assert browser.driver.execute_async_script(PAINTED) > 0
    assert seconds < 2, seconds
