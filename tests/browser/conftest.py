"""A headless Chromium with Debian's driver, and servers for it."""

import json
import os
import shutil
from pathlib import Path

import pytest

AXE = Path(__file__).parents[2] / ".venv-browser/npm/node_modules/axe-core/axe.min.js"
ACCESSIBLE = """
const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html}`))));
"""


class Browser:
    """A Chromium, and what tests ask of a page."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        """Load a page; what the browser itself complained of before is forgotten."""
        self.errors(), self.requests()
        self.driver.get(url)

    def errors(self):
        """Lines in the console that are warnings or worse, since it was last asked."""
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """The urls that pages asked for since this was last asked, but data: and what the browser itself begins with."""
        lines = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        urls = [line["params"]["request"]["url"] for line in lines if line["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "chrome:"))]

    def run(self, script, *arguments):
        """What a script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        """Of the first element."""
        return self.run("return document.querySelector(arguments[0])?.textContent.trim()", selector)

    def count(self, selector):
        """How many there are."""
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def click(self, selector):
        """As a person does; a page that it leads to is there afterwards."""
        self.driver.find_element("css selector", selector).click()

    def press(self, *keys):
        """In the page, wherever its focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def fill(self, selector, text):
        """A field, and submit its form by Enter."""
        field = self.driver.find_element("css selector", selector)
        field.clear()
        field.send_keys(text, "\ue007")

    def violations(self):
        """What axe finds."""
        if not self.run("return 'axe' in window"):
            self.run(AXE.read_text(encoding="utf-8"))
        return self.driver.execute_async_script(ACCESSIBLE)

    def prefer(self, **features):
        """Let media queries see these, such as prefers_color_scheme='dark'."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One for all tests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: make test-browser")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium or its driver is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = tmp_path_factory.mktemp("chromium")
    options.add_argument(f"--user-data-dir={profile}")
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--window-size=1280,900", "--hide-scrollbars"):
        options.add_argument(argument)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")  # its own sandbox refuses root
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield Browser(started)
    started.quit()


@pytest.fixture
def axe():
    """Skip where it is not installed."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make test-browser, which needs npm")
