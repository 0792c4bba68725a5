"""Ranges over one pool of connections: what is good, what is tried again, what is an error, and what it says."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streamdata.io.remote import requests, s3_client
from streamdata.io.remote.addresses import NO_OPTIONS, Address, StorageOptions
from streamdata.io.remote.file_client import FileClient
from streamdata.io.remote.network import Network, _network
from streamdata.io.remote.once import fetch_once, list_once
from streamdata.io.remote.requests import (
    Asked,
    DeadHostError,
    DeniedError,
    FailureError,
    GoneError,
    HostHealth,
    Patience,
    RangesIgnoredError,
    ReplacedError,
)
from streamdata.run.lane_link import network_counts
from tests.io.servers import http_server, s3_server

DATA = bytes(range(256)) * 40
pytestmark = pytest.mark.usefixtures("short_waits")


def first(kind, times):
    """A fault of the first requests for each path."""
    return lambda request: kind if request.number < times else None


def ask(sender, url, version="", options=StorageOptions()):  # noqa: B008  (frozen)
    """Some bytes of the object."""
    return sender.submit(Address(url, options), 10, 5000, version).result(30)


def test_a_range_comes_with_its_version_and_the_size_of_the_whole(sender):
    """One request."""
    with http_server({"a b.tar": DATA}) as server:
        answer = ask(sender, f"{server.url}/a%20b.tar")
        assert answer[:3] == (DATA[10:5000], server.tag_of(DATA), len(DATA))
        assert 0 < network_counts().seconds < 5
        assert ask(sender, f"{server.url}/a%20b.tar", answer.version).data == answer.data
        assert server.log[-1].headers["if-match"] == answer.version
        assert (network_counts().requests, network_counts().retries, len(server.log)) == (2, 0, 2)


@pytest.mark.parametrize("kind", ["503", "500", "429", "reset", "cut", "cut_chunked", "cut_unsized"])
def test_what_may_pass_is_tried_again(sender, kind):
    """And no byte of a bad answer is used."""
    with http_server({"a": DATA}, first(kind, 2)) as server:
        assert ask(sender, f"{server.url}/a").data == DATA[10:5000]
        assert (network_counts().requests, network_counts().retries, len(server.log)) == (3, 2, 3)


@pytest.mark.usefixtures("stalls_soon")
@pytest.mark.parametrize("kind", ["stall", "half"])
def test_what_sends_nothing_more_is_tried_again(sender, kind):
    """As is what was cut."""
    test_what_may_pass_is_tried_again(sender, kind)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("404", GoneError, "404"),
        ("401", DeniedError, "credentials expired or no permission"),
        ("403", DeniedError, "credentials expired or no permission"),
        ("ignore_range", RangesIgnoredError, "ignores ranges"),
        ("other_range", RangesIgnoredError, "expected this range"),
        ("html", RangesIgnoredError, "web page"),
        ("418", ValueError, "418"),
    ],
)
def test_what_will_not_pass_is_an_error_at_once(sender, kind, error, words):
    """One request; the message has shard, range and status, and no secret."""
    with http_server({"a.tar": DATA}, lambda _: kind) as server:
        url = server.url.replace("//", "//user:SECRET@") + "/a.tar?X-Amz-Signature=SECRET"
        with pytest.raises(error, match=words) as caught:
            ask(sender, url)
        assert len(server.log) == 1
        message = str(caught.value)
        assert f"shard '{server.url}/a.tar': bytes 10 to 5000" in message
        assert message.count("(attempts 1)") == 1
        assert "SECRET" not in message


def test_a_network_without_its_thread_closes_without_a_word(monkeypatch):
    """As Python ends no thread can be started."""
    sender = Network(4)
    monkeypatch.setattr(Thread, "start", raising := Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(RuntimeError, match="new thread"):
        sender.submit("http://localhost/a", 0, 9)
    raising.assert_called_once()
    assert not sender._running
    sender.close()


@pytest.mark.parametrize("obeys", [True, False])
def test_another_version_is_an_error_before_a_byte_is_used(sender, obeys):
    """Whether the server knows If-Match or not; and where it has weak tags, which match nothing."""
    with http_server({"a": DATA}) as server:
        server.obeys_if_match = obeys
        version = ask(sender, f"{server.url}/a").version
        server.objects["a"] = DATA[::-1]
        with pytest.raises(ReplacedError, match="replaced or modified"):
            ask(sender, f"{server.url}/a", version)
        server.tag_of = lambda data: f'W/"{len(data)}"'
        version = ask(sender, f"{server.url}/a").version
        assert ask(sender, f"{server.url}/a", version).data == DATA[::-1][10:5000]
        server.objects["a"] = DATA + b"x"
        with pytest.raises(ReplacedError, match="replaced or modified"):
            ask(sender, f"{server.url}/a", version)


@pytest.mark.usefixtures("dies_soon")
def test_a_dead_store_ends_within_the_deadline_after_a_bounded_number_of_requests(sender, monkeypatch):
    """However many wait for it; the error has the server's word."""
    monkeypatch.setattr(requests, "_FREE_ATTEMPTS", 20)
    monkeypatch.setattr(requests, "_MAX_ATTEMPTS", 40)
    with http_server({"a": DATA}, lambda _: "503 SlowDown") as server:
        begin = time.monotonic()
        futures = [sender.submit(f"{server.url}/a", 0, 10) for _ in range(50)]
        with pytest.raises(DeadHostError, match=r"(?s)status 503.*SlowDown.*attempts"):
            futures[0].result(30)
        assert time.monotonic() - begin < 20  # one deadline for each that waits would be 50 s
        assert 20 < len(server.log) <= 45
        server.fault = lambda _: None
        kinds = [type(future.exception(30)) for future in futures]
        assert kinds.count(DeadHostError) >= 50 - 16  # what was in flight when it was well again has its answer
        assert set(kinds) <= {DeadHostError, type(None)}
        time.sleep(0.1)  # a part of the deadline, in which it stays dead
        assert len(server.log) <= 45
        assert ask(sender, f"{server.url}/a").data  # who asks later asks anew


@pytest.mark.usefixtures("dies_soon")
def test_a_host_that_does_not_answer_is_named(sender):
    """It may be another than the one that is meant, as Amazon's where no endpoint is set; without what is secret."""
    options = StorageOptions(endpoint="http://user:SECRET@127.0.0.1:1", anonymous=True)
    with pytest.raises(
        DeadHostError, match=r"'s3://bucket/a'.*: expected an answer, got .* from 127.0.0.1:1 \("
    ) as caught:
        ask(sender, "s3://bucket/a", "", options)
    assert "SECRET" not in str(caught.value)
    assert "Look whether this is the host that is meant" in str(caught.value)


@pytest.mark.usefixtures("dies_soon")
def test_a_store_that_dies_in_full_use_gets_300_requests_at_most(sender, monkeypatch):
    """By the bounds as they are, after it has answered: 500 futures over 16 connections, and others that come later."""
    monkeypatch.setattr(requests, "_DEAD_SHARE", 100)  # who comes within this is not to ask anew, on a slow machine too
    monkeypatch.setattr(requests, "DEADLINE_S", 2.5)  # a longer pause between failures begins the count anew
    with http_server({"a": DATA}) as server:
        assert ask(sender, f"{server.url}/a").data
        server.fault = lambda _: "503 SlowDown"
        futures = [sender.submit(f"{server.url}/a", 0, 10) for _ in range(500)]
        assert {type(future.exception(30)) for future in futures} == {DeadHostError}
        num_requests = len(server.log)
        assert type(sender.submit(f"{server.url}/a", 0, 10).exception(30)) is DeadHostError
        assert len(server.log) == num_requests <= 300


def test_an_s3_api_is_asked_with_a_signature(sender, monkeypatch):
    """Keys come from the environment; a name may have spaces; without them nothing is signed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    with s3_server({"bucket/a b+c.tar": DATA}) as server:
        server.secret = "SECRET"
        options = StorageOptions(endpoint=server.url)
        assert ask(sender, "s3://bucket/a b+c.tar", "", options).data == DATA[10:5000]
        assert list_once(Address("s3://bucket/a b", options)) == []
        server.secret = ""
        options = StorageOptions(endpoint=server.url, anonymous=True)
        assert ask(sender, "s3://bucket/a b+c.tar", "", options).data == DATA[10:5000]
        assert "Credential=one/" in server.log[0].headers["authorization"]
        assert "authorization" not in server.log[-1].headers


def test_a_profile_gives_keys_region_and_endpoint(sender, monkeypatch, tmp_path):
    """One that is not there is an error that names it."""
    with s3_server({"bucket/a": DATA}) as server:
        (tmp_path / "config").write_text(
            f"[profile own]\nregion=eu-here-1\nendpoint_url={server.url}\n"
            "aws_access_key_id=mine\naws_secret_access_key=SECRET\n"
        )
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        server.secret = "SECRET"
        assert ask(sender, "s3://bucket/a", "", StorageOptions(profile="own")).data == DATA[10:5000]
        assert "Credential=mine/" in server.log[0].headers["authorization"]
        assert "/eu-here-1/s3/" in server.log[0].headers["authorization"]
        with pytest.raises(ValueError, match=r"profile.*other"):
            ask(sender, "s3://bucket/a", "", StorageOptions(profile="other"))


def test_a_bucket_of_another_region_says_so(sender, monkeypatch):
    """It is asked there, and from then on at once."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    with s3_server({"bucket/a": DATA}) as server:
        original = server._found

        def found(request, *, ignore_range):
            if "/eu-there-1/" not in request.headers["authorization"]:
                return 400, {"x-amz-bucket-region": "eu-there-1"}, b""
            return original(request, ignore_range=ignore_range)

        server._found = found
        for count in (2, 3):
            assert ask(sender, "s3://bucket/a", "", StorageOptions(endpoint=server.url)).data == DATA[10:5000]
            assert len(server.log) == count


def test_credentials_that_expired_are_renewed_once(sender, monkeypatch):
    """Once in a minute; then the error names both possibilities."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")

    def fault(request):
        if "old" in request.headers["authorization"]:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
            return "400 ExpiredToken"
        return "403 AccessDenied" if "locked" in request.path else None

    with s3_server({"bucket/a": DATA, "bucket/locked": DATA}, fault) as server:
        options = StorageOptions(endpoint=server.url)
        assert ask(sender, "s3://bucket/a", "", options).data == DATA[10:5000]
        assert len(server.log) == 2
        with pytest.raises(DeniedError, match=r"AccessDenied.*: credentials expired or no permission"):
            ask(sender, "s3://bucket/locked", "", options)
        assert len(server.log) == 3


def test_credentials_are_renewed_again_after_a_minute(sender, monkeypatch):
    """As often as they expire, and not more often."""
    now, asked_for = [1000.0], []
    monkeypatch.setattr(s3_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")

    def fault(request):
        asked_for.append(re.search(r"Credential=(\w+)", request.headers["authorization"])[1])
        return None if asked_for[-1] == os.environ["AWS_ACCESS_KEY_ID"] else "403 ExpiredToken"

    with s3_server({"bucket/a": DATA}, fault) as server:
        options = StorageOptions(endpoint=server.url)
        for name, seconds in (("first", 0.0), ("second", 0.0), ("third", 59.0)):
            now[0] += seconds
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
            if name != "third":
                assert ask(sender, "s3://bucket/a", "", options).data == DATA[10:5000]
                continue
            with pytest.raises(DeniedError):
                ask(sender, "s3://bucket/a", "", options)
        now[0] += 2.0
        assert ask(sender, "s3://bucket/a", "", options).data == DATA[10:5000]
    assert asked_for == ["first", "first", "second", "second", "second", "third"]


@contextmanager
def endless():
    """A server that answers with all of a large object, whatever is asked for: its url, and what it could send."""
    sent, body = [], bytes(1 << 20)

    def serve():
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n" % (64 * len(body)))
            for _ in range(64):
                connection.sendall(body)
                sent.append(len(body))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", sent
        thread.join(9)
        assert not thread.is_alive(), "it was let go of"


def test_of_an_ignored_range_the_body_is_not_read_on(sender):
    """What the server sends until then fills buffers of the kernel and the client."""
    with endless() as (url, sent), pytest.raises(RangesIgnoredError):
        ask(sender, f"{url}/a.tar")
    assert sum(sent) <= 16 << 20


def test_no_more_requests_are_in_flight_than_connections(sender):
    """The others wait."""
    with http_server({"a": DATA}) as server:
        futures = [sender.submit(f"{server.url}/a", 0, 10) for _ in range(100)]
        assert {future.result(30).data for future in futures} == {DATA[:10]}
        assert 1 < server.most_at_once <= 16


@pytest.mark.parametrize(
    ("status", "error"), [(404, GoneError), (401, DeniedError), (400, ValueError), (503, FailureError)]
)
def test_errors_of_fsspec_are_what_their_status_means(monkeypatch, status, error):
    """As those of Hugging Face have it; others may pass."""

    def read(*_, **__):
        failure = OSError("https://host/?SECRET")
        failure.response = SimpleNamespace(status_code=status)
        raise failure

    monkeypatch.setattr(MemoryFileSystem, "cat_file", read)
    with pytest.raises(error) as caught:
        asyncio.run(FileClient(NO_OPTIONS, 1).fetch(Asked("fetch", "memory://x/0.tar", 0, 9)))
    assert "SECRET" not in str(caught.value)
    assert str(status) in str(caught.value) or caught.value.status == status


@pytest.mark.usefixtures("dies_soon")
def test_a_store_that_nobody_has_asked_since_it_failed_has_its_whole_deadline(monkeypatch):
    """Who saw it fail was cancelled; an attempt that takes long says for how long it went on."""
    health = HostHealth()
    Patience(Asked("fetch", "s3://bucket/a"), health).failed(FailureError("no", 503))
    later = time.monotonic() + 100
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: later))
    patience = Patience(Asked("fetch", "s3://bucket/a"), health)
    assert patience.begin() is None
    patience.failed(FailureError("no", 503))
    assert patience.begin() is not None
    assert 0.5 < patience.limit_s <= 1


def test_an_answer_to_what_was_asked_before_a_store_failed_does_not_begin_its_count_anew():
    """A hundred threads have requests on their way when it dies."""
    health = HostHealth()
    early, late = Patience(Asked("fetch", "s3://bucket/a"), health), Patience(Asked("fetch", "s3://bucket/b"), health)
    assert early.begin() is late.begin() is None
    late.failed(FailureError("no", 503))
    since = health.failing_since
    early.succeeded()
    assert health.failing_since == since is not None
    again = Patience(Asked("fetch", "s3://bucket/a"), health)
    while again.begin() is not None:
        pass
    again.succeeded()
    assert health.failing_since is None


def test_an_attempt_without_an_end_says_how_long_it_was(sender, monkeypatch):
    """Not what was left of the time when it was over."""
    monkeypatch.setattr(requests, "DEADLINE_S", 1.2)
    with (
        http_server({"a": DATA}, lambda _: "stall") as server,
        pytest.raises(DeadHostError, match="no end of it after 1 s"),
    ):
        ask(sender, f"{server.url}/a")


def test_what_waits_to_be_asked_again_holds_no_connection():
    """A store that fails does not keep others from being asked."""
    with http_server({"a": b"0123456789"}, fault=lambda request: "503") as dead, http_server({"a": b"abc"}) as good:
        one = Network(connections=1)
        try:
            asked = one.submit(f"{dead.url}/a", 0, 3)
            while not dead.log:
                time.sleep(0.001)
            assert one.submit(f"{good.url}/a", 0, 3).result(9).data == b"abc"
            assert not asked.done()
        finally:
            one.close()


_LEFT = """
import asyncio, gc, logging, sys
from streamdata.io.remote.network import Network
from streamdata.io.remote.requests import Patience

def leave(patience):
    signed = "reset by peer: https://b.s3.example/a?X-Amz-Signature=CANARY"
    asyncio.get_running_loop().create_future().set_exception(ConnectionResetError(signed))

log = logging.getLogger("streamdata.io.remote.network")
log.setLevel(logging.DEBUG)
log.addHandler(logging.StreamHandler(sys.stdout))
Patience.succeeded = leave
network = Network(2)
network.submit(sys.argv[1], 0, 10).result(30)
network.close()
gc.collect()
"""


def python(code, *words):
    """Run a program that ends as any other; what it wrote."""
    command = [sys.executable, "-W", "ignore", "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def test_an_error_that_nobody_asks_for_is_a_line_of_the_log_at_debug():
    """Whoever asked for bytes has an error of its own: what else the event loop reports is no line on stderr."""
    with http_server({"a": DATA}) as server:
        done = python(_LEFT, f"{server.url}/a")
    assert done.stderr == ""
    assert "Future exception was never retrieved: ConnectionResetError: reset by peer" in done.stdout
    assert "CANARY" not in done.stdout


def test_no_thread_is_there_while_a_process_forks(sender, monkeypatch):
    """It ends before, and starts again with the next request."""
    monkeypatch.setattr(_network, "made", sender)
    with http_server({"a": DATA}) as server:
        url = f"{server.url}/a"
        for begin in (0, 5):
            assert fetch_once(url, begin, 9).data == DATA[begin:9]
            assert sender._running
            if pid := os.fork():
                assert os.waitpid(pid, 0)[1] == 0
            else:
                names = [thread.name for thread in threading.enumerate()]
                os._exit(sender._running or "streamdata network" in names)
            assert not sender._running


def test_what_is_in_flight_while_a_process_forks_is_answered(sender, monkeypatch):
    """It may be another thread that forks."""
    monkeypatch.setattr(_network, "made", sender)
    with http_server({"a": DATA}) as server:
        server.delay_s = 0.1
        asked = sender.submit(f"{server.url}/a", 0, 9)
        if not (pid := os.fork()):
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert asked.result(9).data == DATA[:9]


_FORKED = """
import os, sys
from streamdata.io.remote.network import network

def ask():
    return len(network().submit(sys.argv[1], 0, 10).result(30).data)

ask()
if pid := os.fork():
    print(os.waitpid(pid, 0)[1], ask())
"""


def test_a_forked_child_ends_without_a_word_to_its_parents_loop():
    """It waited 15 s for that loop, which runs in the parent alone, and wrote a traceback."""
    with http_server({"a": DATA}) as server:
        done = python(_FORKED, f"{server.url}/a")
    assert (done.stdout, done.stderr) == ("0 10\n", "")
