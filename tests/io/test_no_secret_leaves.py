"""Keys, passwords and signatures are in nothing that a run leaves behind or says, whatever a store answers."""

import json
import os
import traceback
from contextlib import suppress

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, to_state
from streamdata.io.remote import requests, web_client
from streamdata.io.remote.addresses import Address, StorageOptions, bare_url, beside
from streamdata.io.remote.network import Network, _network
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.io.servers import http_server, s3_server

CANARY = "k4N/ry"  # in a query or before a host it is quoted
FORMS = (b"k4N/ry", b"k4N%2Fry", b"azROL3J5", b"k4N\\/ry")  # the third is its Base64
LINES = b"".join(b'{"n": %d}\n' % number for number in range(50))
OBJECTS = {f"bucket/{number}.jsonl": LINES for number in range(3)}
KINDS = ["401", "403 AccessDenied", "404", "418", "503 SlowDown", "stall", "half", "cut", "reset", "html", "redirect"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    """Waits of some hundredths of a second instead of minutes, keys, and what a run leaves behind in one folder."""
    monkeypatch.setattr(requests, "DEADLINE_S", 0.1)
    monkeypatch.setattr(requests, "_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(requests, "_LONGEST_WAIT_S", 0.02)
    monkeypatch.setattr(web_client, "STALL_S", 0.05)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "indexes"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setattr(_network, "made", network := Network(4))
    yield
    network.close()


@pytest.fixture(params=["http", "s3"])
def stored(request):
    """A server, what leads to its shards by number, and settings."""
    if request.param == "s3":
        with s3_server(OBJECTS) as server:
            server.secret = CANARY
            yield server, "s3://bucket/{}.jsonl", {"storage_options": {"endpoint": server.url}}
        return
    with http_server(OBJECTS) as server:
        quoted = CANARY.replace("/", "%2F")
        root = server.url.replace("//", f"//{quoted}:{quoted}@")
        yield server, f"{root}/bucket/{{}}.jsonl?X-Amz-Signature={quoted}&token={quoted}", {}


def opened(stored, numbers, tmp_path):
    """A stream of those shards, with a cache."""
    _, pattern, settings = stored
    cache = {"path": str(tmp_path / "pages"), "max_bytes": 10**8}
    paths = [pattern.format(number) for number in numbers]
    source = JsonlIterableDataset(paths, name="a", percent=1, cache=cache, **settings)
    return MergedDataset([source], cyclic=False)


def break_it(server, kind):
    """Let it answer so from now on; a redirect leads to a signed url that is not there."""
    if kind != "redirect":
        server.fault = lambda request: kind
        return
    target = f"{server.url}/gone?X-Amz-Signature={CANARY}"
    server.secret = ""
    server._found = lambda request, *, ignore_range: (
        (404, {}, b"") if request.path == "gone" else (302, {"Location": target}, b"")
    )


def left(folder):
    """Names and contents of all files."""
    for _ in range(20):
        paths = [path for path in folder.rglob("*") if path.is_file()]
        with suppress(FileNotFoundError):  # a page was published meanwhile, and has another name now
            return b"\n".join(os.fsencode(path) + b"\n" + path.read_bytes() for path in paths)
    raise AssertionError(f"the files below {folder} change all the time")


def said(error):
    """All that a log may show of it: its chain, its notes."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.args)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_store_answers_no_secret_is_told(stored, kind, tmp_path, caplog):
    """At a cold start, and in a run: neither errors, logs of all libraries, nor files; samples and states before."""
    server, *_ = stored
    caplog.set_level("DEBUG")
    whole = list(opened(stored, [0], tmp_path))
    assert len(whole) == 50
    begun = opened(stored, [1], tmp_path)
    break_it(server, kind)
    told = [json.dumps(to_state([whole])), repr(whole), repr(begun)]
    for read in (lambda: list(begun), lambda: opened(stored, [2], tmp_path)):
        with pytest.raises((OSError, ValueError)) as caught:
            read()
        told.append(said(caught.value))
    everything = "\n".join([*told, caplog.text]).encode() + left(tmp_path)
    assert [form for form in FORMS if form in everything] == []


def test_a_manifest_that_is_made_of_signed_shards_has_no_secret(stored, tmp_path, caplog):
    """Nor does what is said while it is made."""
    _server, pattern, settings = stored
    caplog.set_level("DEBUG")
    options = StorageOptions(**settings.get("storage_options", {}))
    make_manifest(take_stock([pattern.format(0)], str(tmp_path / "here.manifest"), options), num_processes=1)
    everything = left(tmp_path) + caplog.text.encode()
    assert b"here.manifest" in everything
    assert [form for form in FORMS if form in everything] == []


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("http://u:p@k4N@h/x", "http://h/x"),
        ("HTTP://h/x?sig=k4N", "HTTP://h/x"),
        (" http://h/x?sig=k4N", " http://h/x"),
        ("zip://a.jsonl::http://u:k4N@h/f.zip?sig=k4N", "zip://a.jsonl::http://h/f.zip"),
        ("abfss://c:k4N@a/x", "abfss://c@a/x"),
        ("wasbs://c:k4N@a/x", "wasbs://c@a/x"),
        ("oci://bucket@space/x", "oci://bucket@space/x"),
        ("github://owner:name@ref/x", "github://owner:name@ref/x"),
        ("http://u:p/k4N@h/x", "http://h/x"),
        *((url, url) for url in ("http://h:80/@a/b@c", "http://[::1]:80/a@b", "s3://b/k:v@x?.tar", "abfs://c@a/x")),
    ],
)
def test_a_bare_url_has_no_secret(url: str, bare: str) -> None:
    """Those without secrets are their own."""
    assert bare_url(url) == bare


def test_what_lies_beside_a_url_with_a_password_is_reached_with_it() -> None:
    """Also where the container stays before the host."""
    assert beside(Address("abfss://c:k4N@a/x"), "abfss://c@a/y").signed == "abfss://c:k4N@a/y"  # type: ignore[attr-defined]
    assert beside(Address("http://u:k4N@h/x?s=1"), "http://h/y").signed == "http://u:k4N@h/y?s=1"  # type: ignore[attr-defined]
