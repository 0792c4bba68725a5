"""What is read before a fork, what is listed and what is written: answers, what is tried again, errors, secrets."""

import os
import socket
import threading
import time

import pytest

from streamdata.errors import ShardError
from streamdata.io.remote import network as network_room
from streamdata.io.remote.addresses import Address, StorageOptions, beside
from streamdata.io.remote.once import fetch_once, list_once, put_once, stat_once
from streamdata.io.remote.requests import DeadHostError, DeniedError, GoneError, RangesIgnoredError, ReplacedError
from tests.io.servers import http_server, s3_server

DATA = bytes(range(256)) * 40
pytestmark = pytest.mark.usefixtures("short_waits")


def test_ranges_and_stats_come_over_one_connection():
    """Of a web server."""
    with http_server({"a": DATA, "empty": b""}) as server:
        tag = server.tag_of(DATA)
        assert fetch_once(f"{server.url}/a", 5, 9)[:3] == (DATA[5:9], tag, len(DATA))
        assert stat_once(f"{server.url}/a")[1:3] == (tag, len(DATA))
        assert stat_once(f"{server.url}/empty").size == 0
        assert server.most_at_once == 1


@pytest.mark.parametrize("kind", ["503", "429", "reset", "cut", "cut_chunked", "cut_unsized"])
def test_what_may_pass_is_tried_again(kind):
    """And no byte of a bad answer is used."""
    with http_server({"a": DATA}, lambda request: kind if request.number < 2 else None) as server:
        assert fetch_once(f"{server.url}/a", 10, 5000).data == DATA[10:5000]
        assert len(server.log) == 3


@pytest.mark.usefixtures("stalls_soon")
@pytest.mark.parametrize("kind", ["stall", "half"])
def test_what_sends_nothing_more_is_tried_again(kind):
    """As is what was cut."""
    test_what_may_pass_is_tried_again(kind)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("404", GoneError), ("403", DeniedError), ("ignore_range", RangesIgnoredError), ("html", RangesIgnoredError)],
)
def test_what_will_not_pass_is_an_error_at_once(kind, error):
    """Its message has no secret."""
    with http_server({"a": DATA}, lambda _: kind) as server:
        with pytest.raises(error, match=r"shard 'http://127[^?]*/a': bytes 0 to 9") as caught:
            fetch_once(f"{server.url}/a?sig=SECRET", 0, 9)
        assert "SECRET" not in str(caught.value)
        assert len(server.log) == 1


def test_what_a_server_repeats_of_a_request_is_not_shown():
    """Its query, its password, plain or as it was sent."""
    with http_server({}) as server:
        said = "no access to /a?sig=SEC%2FRET for user dXNlcjpQQVNTV09SRA== PASSWORD SEC/RET"
        text = f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>"
        server._found = lambda request, *, ignore_range: (403, {}, text.encode())
        url = server.url.replace("//", "//user:PASSWORD@") + "/a?sig=SEC%2FRET"
        with pytest.raises(DeniedError, match=r"AccessDenied, no access to /a\?sig=… for … … … …\)"):
            fetch_once(url, 0, 9)


def test_tokens_are_in_no_log(monkeypatch, caplog):
    """Though what signs would write them where everything is logged."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "two")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "SECRET")
    with s3_server({"bucket/a": DATA}) as server, caplog.at_level("DEBUG"):
        assert fetch_once(Address("s3://bucket/a", StorageOptions(endpoint=server.url)), 0, 9).data == DATA[:9]
        assert server.log[0].headers["x-amz-security-token"] == "SECRET"
    assert "SECRET" not in caplog.text


@pytest.mark.usefixtures("dies_soon")
def test_a_dead_store_and_another_version():
    """Within the deadline; and before a byte is used."""
    with http_server({"a": DATA}, lambda _: "503") as server:
        with pytest.raises(DeadHostError, match="status 503"):
            fetch_once(f"{server.url}/a", 0, 9)
        server.fault = lambda _: None
        time.sleep(0.1)  # a part of the deadline, in which it stays dead
        with pytest.raises(ReplacedError):
            fetch_once(f"{server.url}/a", 0, 9, '"another"')
    with pytest.raises(DeadHostError, match="ClientConnectorError"):
        stat_once(f"{server.url}/a")


@pytest.mark.usefixtures("dies_soon")
def test_a_body_that_drips_is_no_answer():
    """Though each byte comes in time, it has an end within the deadline."""
    with http_server({"a": DATA}, lambda _: "drip") as server:
        began = time.monotonic()
        with pytest.raises(DeadHostError, match="no end of it"):
            fetch_once(f"{server.url}/a", 0, 4000)
        assert time.monotonic() - began < 20  # all of it takes 80 s


@pytest.mark.parametrize("kind", ["503", "cut", "cut_chunked", "reset"])
def test_the_page_of_a_folder_is_read_again_where_it_was_cut(kind):
    """Otherwise shards would be missing, and nobody would know."""
    page = "".join(f'<a href="{number}.tar">x</a>' for number in range(50)).encode()
    with http_server({"d/": page}, lambda request: kind if not request.number else None) as server:
        assert len(list_once(f"{server.url}/d/")) == 50


def test_folders_below_a_folder_are_asked_for_with_the_password_too():
    """And with the query; what is listed has neither."""
    with http_server({"d/": b'<a href="e/">e</a>', "d/e/": b'<a href="0.tar">x</a>'}) as server:
        url = server.url.replace("//", "//user:SECRET@")
        found = list_once(Address(f"{url}/d/?sig=1"))
        assert [one.url for one in found] == [f"{server.url}/d/e/0.tar"]
        assert [request.query for request in server.log] == ["sig=1", "sig=1"]
        assert all("authorization" in request.headers for request in server.log)


@pytest.mark.parametrize("kind", ["503", "cut", "cut_chunked", "cut_unsized"])
def test_a_page_of_a_bucket_is_read_again_where_it_was_cut(kind):
    """Also where no length of it was told."""
    with s3_server({f"bucket/{number}.tar": b"" for number in range(9)}) as server:
        server.fault = lambda request: kind if not request.number else None
        found = list_once(Address("s3://bucket/", StorageOptions(endpoint=server.url, anonymous=True)))
        assert len(found) == 9


def test_a_redirect_is_followed_without_the_password():
    """To another host."""
    with http_server({"a": DATA}) as target, http_server({}) as server:
        original = server._found

        def found(request, *, ignore_range):
            if request.path == "moved":
                return 302, {"Location": f"{target.url}/a"}, b""
            return original(request, ignore_range=ignore_range)

        server._found = found
        url = server.url.replace("//", "//user:SECRET@") + "/moved"
        assert fetch_once(url, 0, 9).data == DATA[:9]
        assert "authorization" in server.log[0].headers
        assert "authorization" not in target.log[0].headers


@pytest.mark.usefixtures("keys")
def test_a_bucket_is_listed_page_by_page():
    """Of a folder, with all below it or with its folders."""
    objects = {f"bucket/dir/{number}.tar": b"x" * number for number in range(7)}
    with s3_server(objects | {"bucket/dir/a b/8+&.tar": DATA, "bucket/dirt": b""}) as server:
        server.page_size = 3
        found = list_once(Address("s3://bucket/dir", StorageOptions(endpoint=server.url)))
        assert [(one.url, one.size) for one in found] == [
            *((f"s3://bucket/dir/{number}.tar", number) for number in range(7)),
            ("s3://bucket/dir/a b/8+&.tar", len(DATA)),
        ]
        assert len(server.log) == 3
        assert found[-1].version == server.tag_of(DATA)
        shallow = list_once(Address("s3://bucket/dir", StorageOptions(endpoint=server.url)), deep=False)
        assert {one.url for one in shallow} == {one.url for one in found[:-1]} | {"s3://bucket/dir/a b/"}


def test_a_forked_child_opens_connections_of_its_own():
    """Both use them after the fork, and neither takes the other's answers."""
    with http_server({"a": DATA}) as server:
        fetch_once(f"{server.url}/a", 0, 9)
        child = os.fork()
        if not child:
            try:
                os._exit(fetch_once(f"{server.url}/a", 7, 9).data != DATA[7:9])
            finally:  # whatever happens, this is not a second run of the tests
                os._exit(2)
        assert fetch_once(f"{server.url}/a", 3, 5).data == DATA[3:5]
        assert os.waitpid(child, 0)[1] == 0
        assert server.most_at_once == 2


def test_an_address_is_what_identifies_and_knows_how_it_is_reached():
    """Its sibling is reached the same way."""
    address = Address("https://user:SECRET@host/a/1.tar?sig=SECRET#x", StorageOptions(region="r"))
    assert address == str(address) == "https://host/a/1.tar"
    sibling = beside(address, "https://host/a/1.jsonl")
    assert sibling.signed == "https://user:SECRET@host/a/1.jsonl?sig=SECRET#x"
    assert sibling.options == address.options
    assert "SECRET" not in repr([address, address.options, f"{sibling}"])


@pytest.fixture
def body(tmp_path):
    """A file to write."""
    (tmp_path / "body").write_bytes(DATA)
    return tmp_path / "body"


@pytest.fixture
def keys(monkeypatch):
    """With which requests are signed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("kind", [None, "503", "reset"])
def test_an_object_is_written_by_one_signed_request(kind, body):
    """Its signature is of these bytes; what may pass is tried again."""
    with s3_server({}, lambda request: kind if kind and request.number < 2 else None) as server:
        server.secret = "SECRET"
        put_once(Address("s3://bucket/a b/m", StorageOptions(endpoint=server.url)), body)
        assert server.objects == {"bucket/a b/m": DATA}
        assert server.counts == {"PUT": 3 if kind else 1}
        assert not [one for one in server.log if "expect" in one.headers or "transfer-encoding" in one.headers]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("fault", "error"), [("403 AccessDenied", DeniedError), ("404 NoSuchBucket", GoneError)])
def test_what_may_not_be_written_is_an_error_that_says_so(fault, error, body):
    """At once for a bucket that is not there; after other keys were looked for where there is no permission."""
    with s3_server({}, lambda _: fault) as server:
        with pytest.raises(error, match=rf"object 's3://bucket/m': expected to write it, got status {fault[:3]}"):
            put_once(Address("s3://bucket/m", StorageOptions(endpoint=server.url)), body)
        assert server.objects == {}


def test_a_server_that_refuses_before_it_has_read_all_is_understood(tmp_path):
    """It answers, and ends the connection."""

    def refuse():
        with listener.accept()[0] as connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    (tmp_path / "large").write_bytes(bytes(16 << 20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse)
        thread.start()
        options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}", anonymous=True)
        with pytest.raises(DeniedError, match="status 403"):
            put_once(Address("s3://bucket/m", options), tmp_path / "large")
        thread.join()


@pytest.mark.usefixtures("dies_soon")
def test_a_server_that_does_not_read_what_is_written_is_dead(tmp_path, monkeypatch):
    """Though it took the connection."""
    monkeypatch.setattr(network_room, "_SLOWEST_PUT", 1e9)
    (tmp_path / "large").write_bytes(bytes(16 << 20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}", anonymous=True)
        with pytest.raises(DeadHostError, match="no end of it"):
            put_once(Address("s3://bucket/m", options), tmp_path / "large")


def test_what_a_server_does_not_read_is_sent_again_soon(tmp_path, monkeypatch):
    """Long before the deadline; a client notices only what is not answered."""

    def read_the_second():
        with listener.accept()[0], listener.accept()[0] as connection, connection.makefile("rb") as stream:
            size = next(int(line.split()[1]) for line in stream if line.lower().startswith(b"content-length"))
            for _ in iter(stream.readline, b"\r\n"):
                pass
            stream.read(size)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    monkeypatch.setattr(network_room, "_SLOWEST_PUT", 1e9)
    monkeypatch.setattr(network_room, "STALL_S", 0.5)
    (tmp_path / "large").write_bytes(bytes(16 << 20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=read_the_second)
        thread.start()
        options = StorageOptions(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}", anonymous=True)
        began = time.monotonic()
        put_once(Address("s3://bucket/m", options), tmp_path / "large")
        assert time.monotonic() - began < 30
        thread.join()


def test_where_nothing_can_be_written_is_an_error_before_a_request(body):
    """To a web server."""
    with http_server({}) as server:
        with pytest.raises(ShardError, match=r"/m': expected an object store .*got a web server\n  Write it"):
            put_once(f"{server.url}/m?sig=1", body)
        assert not server.log
