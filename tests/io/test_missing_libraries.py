"""Stores without the library that reads them: the message names the extra that brings it."""

import sys

import pytest

from streamdata.io.remote.addresses import Address, StorageOptions
from streamdata.io.remote.once import fetch_once
from streamdata.run.lane_link import network_counts

_CASES = [
    ("http://127.0.0.1:9/a", "aiohttp", "http,s3"),
    ("s3://bucket/a", "aiohttp", "http,s3"),
    ("gs://bucket/a", "obstore", "azure,gcs"),
    ("az://bucket/a", "obstore", "azure,gcs"),
]
_SIGNED = Address("s3://bucket/a", StorageOptions(endpoint="http://127.0.0.1:9"))


@pytest.fixture
def hidden(monkeypatch):
    """Makes a package as if it were not installed."""

    def hide(package):
        for name in [*sys.modules]:
            if name.partition(".")[0] == package or name.endswith(("web_client", "s3_client", "object_client")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize(("url", "package", "extra"), _CASES)
def test_the_extra_of_a_store_is_named(hidden, sender, url, package, extra):
    """At the first request, which is not tried again."""
    hidden(package)
    with pytest.raises(ImportError, match=rf"needs the package {package}\n.*torch-streamdata\[{extra}\]"):
        sender.submit(Address(url, StorageOptions(anonymous=True)), 0, 9).result(9)
    assert network_counts().retries == 0


def test_signing_needs_the_extra_of_s3(hidden):
    """Also before a fork; who reads anonymously does without."""
    hidden("botocore")
    with pytest.raises(ImportError, match=r"with credentials needs .* botocore\n.*torch-streamdata\[s3\]"):
        fetch_once(_SIGNED, 0, 9)
