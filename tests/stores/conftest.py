import os

import pytest


@pytest.fixture(scope="package", autouse=True)
def _quick_disk():
    """Stores of the tests need not survive a crash; what is synced in which order is tested with `publish`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield
