"""Where something is missing, these tests are skipped with its name."""

import pytest

from tests.browser.chromium import AXE, chromium


@pytest.fixture(scope="session")
def browser():
    """One for all tests."""
    try:
        with chromium() as started:
            yield started
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def axe():
    """Skip where it is not installed."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make test-browser, which needs npm")
