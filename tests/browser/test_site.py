"""The site in a real Chromium: navigation, search, both modes, by keyboard, on a telephone; what axe finds."""

import http.server
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: make test-browser")
pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
ROOT = Path(__file__).parents[2]
PAGES = [
    *("index.html", "start/your-mixture.html", "guides/weights.html", "concepts/clock.html", "how-fast.html"),
    *("how-do-i.html", "reference/api.html"),
]
FOUND = ".md-search-result__item a"
TAB, ENTER = "\ue004", "\ue007"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)], cwd=ROOT, check=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser, site):
    """The front page; after each test nothing was asked of other hosts, and the console is clean."""
    browser.prefer(prefers_color_scheme="light")
    browser.open(f"{site}index.html")
    yield browser
    assert browser.errors() == []
    assert [url for url in browser.requests() if not url.startswith((site, "blob:"))] == []


def wait_for(browser, selector):
    """The first such element, once it is there."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser.driver, 10).until(lambda driver: driver.find_elements("css selector", selector))[0]


def test_navigation_leads_to_each_kind_of_page(page, site):
    """From the front page, by its links."""
    page.click("a[href='start/your-mixture.html']")
    assert "ten minutes" in page.text("h1")
    page.open(f"{site}index.html")
    page.click(".md-nav a[href='questions.html']")
    assert "Questions" in page.text("h1")


def test_search_works_without_a_server_of_its_own(page):
    """A word that one guide explains is found there, among others."""
    page.run("document.querySelector('[data-md-toggle=search]').click()")
    page.run("document.querySelector('.md-search__input').focus()")
    page.press("holdout")
    wait_for(page, FOUND)
    assert any(
        "validation" in link for link in page.run(f"return [...document.querySelectorAll('{FOUND}')].map(a => a.href)")
    )


def test_search_finds_a_word_in_brackets(page):
    """A word for a task that stands there alone."""
    page.run("document.querySelector('[data-md-toggle=search]').click()")
    page.run("document.querySelector('.md-search__input').focus()")
    page.press("bucketing")
    assert "how-do-i" in wait_for(page, FOUND).get_attribute("href")


def test_search_opens_by_a_key(page):
    """`/`, then words, then Enter."""
    page.run("document.activeElement.blur()")
    page.press("/")
    page.press("packer")
    wait_for(page, FOUND)
    assert page.run("return document.querySelector('[data-md-toggle=search]').checked")


def test_keyboard_reaches_the_content_first(page):
    """The first stop is a link past the navigation."""
    page.run("document.activeElement.blur()")
    page.press(TAB)
    assert page.run("return document.activeElement.classList.contains('md-skip')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(page, site, axe, name, scheme):
    """In both modes, which the system's preference chooses."""
    page.prefer(prefers_color_scheme=scheme)
    page.open(site + name)
    page.run("localStorage.clear()")  # where the mode of the test before is kept
    page.open(site + name)
    assert page.run("return document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
    assert page.violations() == []


@pytest.mark.parametrize("name", PAGES)
def test_telephone_scrolls_down_alone(page, site, name):
    """360 pixels wide; tables and code scroll within themselves."""
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        page.open(site + name)
        assert page.run("return document.documentElement.scrollWidth") <= 360
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
