"""A headless Chromium with Debian's driver, and what tests ask of a page."""

import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

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
        """The urls that pages asked for since this was last asked, without data: and what the browser begins with."""
        lines = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        urls = [line["params"]["request"]["url"] for line in lines if line["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "chrome:"))]

    def run(self, script, *arguments):
        """What a script returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        """Of the first element."""
        return self.run("return document.querySelector(arguments[0])?.textContent.trim()", selector)

    def comes_to(self, heading):
        """Assert that the page has a heading, within 5 s: a key may lead to another page."""
        deadline = time.monotonic() + 5
        while (got := self.text("h1")) != heading and time.monotonic() < deadline:
            time.sleep(0.01)
        assert got == heading

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
        """A field, and submit its form by Enter; the next page is there afterwards, also where scripts are off."""
        field = self.driver.find_element("css selector", selector)
        field.clear()
        before = self.driver.current_url
        field.send_keys(text, "\ue007")
        deadline = time.monotonic() + 5
        while self.driver.current_url == before and time.monotonic() < deadline:
            time.sleep(0.01)

    def violations(self):
        """What axe finds."""
        if not self.run("return 'axe' in window"):
            self.run(AXE.read_text(encoding="utf-8"))
        return self.driver.execute_async_script(ACCESSIBLE)

    def prefer(self, **features):
        """Let media queries see these, such as prefers_color_scheme='dark'."""
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})


@contextmanager
def chromium():
    """One, until the block ends.

    Raises:
        ImportError: Selenium is not installed.
        FileNotFoundError: Chromium or its driver is not.
    """
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location, driver = shutil.which("chromium") or "", shutil.which("chromedriver")
    if not options.binary_location or not driver:
        raise FileNotFoundError("chromium or its driver is not installed: apt-get install chromium chromium-driver")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in ("--headless=new", "--disable-dev-shm-usage", "--window-size=1280,900", "--hide-scrollbars"):
        options.add_argument(argument)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")  # its own sandbox refuses root
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        started = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            yield Browser(started)
        finally:
            started.quit()
