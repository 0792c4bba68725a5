"""Google Cloud Storage and Azure, as a server on 127.0.0.1 plays them."""

import asyncio
import json
import os
from urllib.parse import parse_qs

import pytest

from streamdata.errors import ShardError
from streamdata.io.remote import object_client, requests
from streamdata.io.remote.addresses import Address, StorageOptions, beside
from streamdata.io.remote.once import put_once, stat_once
from streamdata.io.remote.requests import (
    Asked,
    DeadHostError,
    DeniedError,
    FailureError,
    GoneError,
    RangesIgnoredError,
    ReplacedError,
)
from tests.io.servers import http_server

DATA = bytes(range(256)) * 4


@pytest.fixture(params=["gs", "az"])
def stored(request, monkeypatch):
    """The server, and the url of an object that it has."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    with http_server({"bucket/a b.tar": DATA}) as server:
        server.more_headers = {"Last-Modified": "Sun, 22 Nov 2026 08:41:39 GMT"}
        yield server, Address(f"{request.param}://bucket/a b.tar", StorageOptions(endpoint=server.url, anonymous=True))


def test_ranges_preconditions_and_errors(sender, stored):
    """Each is the one of the other stores."""
    server, url = stored
    answer = sender.submit(url, 5, 9).result(30)
    assert answer[:3] == (DATA[5:9], server.tag_of(DATA), len(DATA))
    with pytest.raises(ReplacedError):
        sender.submit(url, 5, 9, '"another"').result(30)
    assert server.log[-1].headers["if-match"] == '"another"'
    for kind, error in (("404", GoneError), ("403", DeniedError), ("401", DeniedError)):
        server.fault = lambda _, kind=kind: kind
        with pytest.raises(error, match=f"a b.tar': bytes 5 to 9.*status {kind}"):
            sender.submit(url, 5, 9).result(30)
    server.fault = lambda _: "ignore_range"
    with pytest.raises(RangesIgnoredError):
        sender.submit(url, 5, 9).result(30)


def test_a_store_that_lacks_a_setting_says_which(sender, monkeypatch):
    """Azure has no bucket without an account."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ShardError, match=r"(?s)'az://bucket': .* Account must be specified .*AZURE_STORAGE_ACCOUNT"):
        sender.submit(Address("az://bucket/a.tar", StorageOptions(anonymous=True)), 0, 9).result(30)


def test_failures_are_counted_and_tried_again_here(sender, stored, monkeypatch):
    """Not by the client: each attempt is one request."""
    server, url = stored
    for kind in ("503", "reset", "cut"):
        server.log.clear()
        server.fault = lambda _, kind=kind: kind if len(server.log) < 3 else None
        assert sender.submit(url, 5, 9).result(30).data == DATA[5:9]
        assert len(server.log) == 3
    monkeypatch.setattr(requests, "DEADLINE_S", 0.5)
    server.fault = lambda _: "503"
    with pytest.raises(DeadHostError, match="status 503"):
        sender.submit(url, 5, 9).result(30)


def test_a_slow_body_is_no_stall(sender, stored, monkeypatch):
    """As long as bytes come; without them it fails, and is tried again."""
    monkeypatch.setattr(object_client, "STALL_S", 0.3)
    server, url = stored
    server.fault = lambda _: "drip"
    assert sender.submit(url, 5, 35).result(30).data == DATA[5:35]
    assert len(server.log) == 1
    server.fault = lambda request: "half" if request.number < 2 else None
    assert sender.submit(url, 5, 35).result(30).data == DATA[5:35]
    assert len(server.log) == 3


def test_before_a_fork_another_process_asks(stored, monkeypatch):
    """Since threads of obstore would not survive in the child."""
    monkeypatch.setattr(object_client.ObjectClient, "used_by", None)
    server, url = stored
    assert stat_once(url)[1:3] == (server.tag_of(DATA), len(DATA))
    assert object_client.ObjectClient.used_by is None


def test_a_child_of_a_process_that_read_is_refused(monkeypatch):
    """It would hang."""
    monkeypatch.setattr(object_client.ObjectClient, "used_by", os.getpid() + 1)
    with pytest.raises(RuntimeError, match="forkserver"):
        object_client.ObjectClient(StorageOptions())


def test_an_object_is_written_by_another_process_too(stored, monkeypatch, tmp_path):
    """With credentials that ask nobody for a token."""
    server, url = stored
    account = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account | {"gcs_base_url": server.url}))
    (tmp_path / "body").write_bytes(b"more")
    target = beside(url, f"{url}2")
    if url.startswith("gs"):
        target.options = StorageOptions(endpoint=server.url)
    put_once(target, tmp_path / "body")
    assert server.objects["bucket/a b.tar2"] == b"more"


def listed_by_azure(server):
    """Its answers to a list: <https://learn.microsoft.com/rest/api/storageservices/list-blobs>."""
    original = server._found

    def found(request, *, ignore_range):
        if "comp=list" not in request.query:
            return original(request, ignore_range=ignore_range)
        prefix = parse_qs(request.query).get("prefix", [""])[0]
        names = [path.partition("/")[2] for path in sorted(server.objects)]
        blobs = "".join(
            f"<Blob><Name>{name}</Name><Properties><Last-Modified>Sun, 22 Nov 2026 08:41:39 GMT</Last-Modified>"
            f"<Content-Length>{len(DATA)}</Content-Length><Content-Type>x</Content-Type><Etag>{server.tag_of(DATA)}"
            "</Etag></Properties></Blob>"
            for name in names
            if name.startswith(prefix)
        )
        page = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
        return 200, {"Content-Type": "application/xml"}, page.encode()

    return found


def test_folders_are_listed(stored):
    """With sizes and versions; what will not pass is an error at once, also of a list."""
    server, url = stored
    server.s3 = True  # as Google's list is S3's
    if url.startswith("az"):
        server._found = listed_by_azure(server)
    server.objects |= {"bucket/d/0.tar": DATA, "bucket/d/e/1.tar": DATA}
    folder = url.replace("a b.tar", "d/")
    client = object_client.ObjectClient(url.options)

    def listed():
        return asyncio.run(client.list(Asked("list", folder, deep=True))).entries

    found = listed()
    assert sorted(found) == [(f"{folder}{name}", len(DATA), server.tag_of(DATA)) for name in ("0.tar", "e/1.tar")]
    for kind, error in (("401", DeniedError), ("403", DeniedError), ("404", GoneError), ("418", ShardError)):
        server.fault = lambda _, kind=kind: kind
        with pytest.raises(error, match=f"{folder}'.*status {kind}"):
            listed()
    server.fault = lambda _: "503"
    with pytest.raises(FailureError):
        listed()
