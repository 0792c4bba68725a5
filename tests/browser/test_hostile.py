"""What strangers write into data does nothing in a browser: it is text."""

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset
from streamdata.tools.show.page import write_page
from streamdata.tools.show.streams import MixtureSamples, Place
from tests.browser.looked_at import HOSTILE, hostile, served

pytest.importorskip("selenium", reason="selenium is not installed: make test-browser")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of it."""
    return hostile(tmp_path_factory.mktemp("hostile"))


def mixture(place):
    """Sources whose names are hostile, too."""
    name = "<img src=x onerror=window·harmed=1>"
    sources = [
        JsonlIterableDataset([str(path) for path in place.glob("*.jsonl")], name=name, percent=0.5),
        MetaDistributedWebDataset([str(path) for path in place.glob("*.tar")], name=f"'\">{name}", percent=0.5),
    ]
    return MergedDataset(sources)


@pytest.fixture(scope="module")
def url(place):
    """Of a server."""
    with served(MixtureSamples(mixture(place), Place()).browsed(HOSTILE[0], 60)) as url:
        yield url


def assert_harmless(browser, url, scripts):
    """No alert, no script of theirs, no request to elsewhere, no attribute that does something."""
    assert browser.run("return window.harmed") is None
    assert browser.run("return [...document.scripts].map((script) => script.src)") == scripts
    assert browser.count("iframe, object, embed, base, meta[http-equiv=refresh], svg script, body style") == 0
    found = "return [...document.querySelectorAll('*')].flatMap((each) => each.getAttributeNames())"
    assert [name for name in browser.run(found) if name.startswith("on") or name == "style"] == []
    sources = browser.run("return [...document.images].map((image) => image.src)")
    assert all(source.startswith(("data:image/png", "data:image/jpeg")) for source in sources)
    links = browser.run("return [...document.links].map((link) => link.href)")
    assert all(str(link.get("baseVal") if isinstance(link, dict) else link).startswith(url[:16]) for link in links)
    assert all(asked.startswith(url) for asked in browser.requests())
    assert browser.errors() == []


@pytest.mark.parametrize("path", ["", "?step=5&source="])
def test_hostile_samples_are_text(browser, url, path):
    """On each page; the first has each of the texts, whole."""
    browser.open(url + path)
    if not path:
        text = browser.run("return document.body.textContent")
        assert [hostile for hostile in HOSTILE[:-1] if hostile not in text] == []
        assert r"\x1b[2J\x00\x07\u202egnp.exe\u2066\u200f\ufeff\x9b31m\x7f" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert_harmless(browser, url, [f"{url}page.js"])


def test_hostile_samples_are_text_in_the_file(browser, place, tmp_path):
    """The one that `--html` writes."""
    path = tmp_path / "page.html"
    write_page(MixtureSamples(mixture(place), Place()).page(HOSTILE[0], 60), path)
    browser.open(f"file://{path}")
    assert [hostile for hostile in HOSTILE[:-1] if hostile not in browser.run("return document.body.textContent")] == []
    assert_harmless(browser, f"file://{path}", [])


def test_what_hovers_and_what_has_focus_does_nothing(browser, url):
    """Every element is hovered over by an event of its own."""
    browser.open(url)
    browser.run("document.querySelectorAll('*').forEach((each) => ['mouseover', 'focus', 'click', 'load', 'error'].map("
                "(name) => each.closest('a, button, summary') ?? each.dispatchEvent(new Event(name))))")  # fmt: skip
    assert_harmless(browser, url, [f"{url}page.js"])


def test_an_inline_script_would_not_run(browser, url):
    """Were one of them to get into the page, the policy is the second wall."""
    browser.open(url)
    for script in ("document.body.innerHTML = '<b>'", "document.createElement('img').setAttribute('onerror', 'a')",
                   "document.createElement('script').text = 'window.harmed = 1'"):  # fmt: skip
        with pytest.raises(Exception, match=r"Trusted(HTML|Script)"):
            browser.run(script)
    assert browser.errors()


def test_an_error_of_the_data_is_text(browser, url):
    """What is asked for comes back as it was typed."""
    browser.open(f"{url}?step=1&source=%3Cscript%3Ewindow.harmed%3D1%3C%2Fscript%3E%00")
    assert browser.text("h1") == "This cannot be read"
    assert r"'<script>window.harmed=1</script>\x00'" in browser.text(".message")
    assert browser.run("return window.harmed") is None
