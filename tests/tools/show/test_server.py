"""Who may read the pages, and what a browser may do with them."""

import http.client
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from streamdata.tools.show.server import PageAnswer, PageServer


@contextmanager
def serving(respond=lambda path, query: PageAnswer(f"{path} {dict(query)}".encode())):
    """A server in a thread; its threads and its port are gone afterwards."""
    server, before = PageServer(respond), threading.active_count()
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.fixture(scope="module")
def server():
    """One for all tests that only ask."""
    with serving() as server:
        yield server


def parts(server):
    """The port and the path with the token."""
    port, _, path = server.url.removeprefix("http://127.0.0.1:").partition("/")
    return int(port), "/" + path


def asked(server, path=None, method="GET", **headers):
    """A response, and its body as text."""
    port, own = parts(server)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, own if path is None else path, headers=headers)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response, body


def sent(server, text):
    """What comes back for bytes that no client library would send."""
    with socket.create_connection(("127.0.0.1", parts(server)[0]), timeout=60) as connection:
        connection.sendall(text.encode())
        return connection.makefile("rb").read().decode()


def test_the_url_opens_the_pages(server):
    """By both names; a path and a query reach the function, a `+` and control characters as they are meant."""
    port, own = parts(server)
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}"):
        response, body = asked(server, own + "find?record=a%2Fb%00", Host=host)
        assert (response.status, body) == (200, "find {'record': 'a/b\\x00'}")


def test_the_token_is_long_and_new_each_time(server):
    """More than 128 bits in its 43 characters of 6 bits."""
    with serving() as other:
        tokens = {parts(each)[1].strip("/") for each in (server, other)}
    assert len(tokens) == 2
    assert all(len(token) == 43 for token in tokens)


@pytest.mark.parametrize(
    "path", ["/", "/x/", "/{own}x/", "/é/", "/../{own}/", "//{own}/x", "/{half}/", "http://a/{own}/"]
)
def test_without_the_token_nothing_is_told(server, path):
    """Nothing, another one, a part of it, or one in another place."""
    own = parts(server)[1].strip("/")
    target = path.format(own=own, half=own[:-1]).encode().decode("latin-1")
    answer = sent(server, f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{parts(server)[0]}\r\n\r\n")
    allowed = path == "//{own}/x"  # one slash too many is still its path
    assert answer.startswith("HTTP/1.0 200" if allowed else "HTTP/1.0 403")
    assert own not in answer


@pytest.mark.parametrize("hosts", [[], [""], ["127.0.0.1"], ["evil.example:{port}"], ["127.0.0.1:1"], ["[::1]:{port}"],
                                   ["127.0.0.1.evil.example:{port}"], ["localhost.:{port}"],
                                   ["127.0.0.1:{port}", "evil.example:{port}"]])  # fmt: skip
def test_another_host_is_refused_with_the_token(server, hosts):
    """So that no page elsewhere reads ours by a name of its own that leads here."""
    port, own = parts(server)
    lines = "".join(f"Host: {host.format(port=port)}\r\n" for host in hosts)
    assert sent(server, f"GET {own} HTTP/1.1\r\n{lines}\r\n").startswith("HTTP/1.0 403")


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"])
def test_other_methods_are_refused(server, method):
    """Also with the token."""
    response, body = asked(server, method=method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET"
    assert "{}" not in body


@pytest.mark.parametrize("request_line", ["GET", "GET {own} HTTP/9", "GET {own} HTTP/x", "GET {own}", "\x16\x03\x01"])
def test_what_is_no_request_gets_a_status_alone(server, request_line):
    """Nothing of it comes back."""
    answer = sent(server, request_line.format(own=parts(server)[1]) + "\r\nX: <script>\r\n\r\n")
    assert answer.startswith(("HTTP/1.0 40", "HTTP/1.0 505"))
    assert "default-src 'none'" in answer
    assert "<" not in answer


def test_every_answer_allows_nothing_inline_and_nothing_from_elsewhere(server):
    """Pages, refusals and what is not there."""
    with serving(lambda path, query: None) as empty:
        responses = [asked(server)[0], asked(server, "/")[0], asked(server, method="POST")[0], asked(empty)[0]]
    assert [response.status for response in responses] == [200, 403, 405, 404]
    for response in responses:
        policy = dict(rule.split(" ", 1) for rule in response.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert "unsafe" not in str(policy)
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert response.headers["Server"] == "streamdata"


def test_it_listens_on_one_socket_of_this_machine(server):
    """Not on its other addresses."""
    listening = server.socket
    assert listening.family == socket.AF_INET
    assert listening.getsockname()[0] == "127.0.0.1"


def test_too_many_fields_of_a_query_are_refused(server):
    """And a query of any kind does not end the server."""
    assert asked(server, parts(server)[1] + "?" + "a=1&" * 50)[0].status == 400
    assert asked(server, parts(server)[1] + "?%ff=%")[0].status == 200


def test_who_reads_or_says_nothing_does_not_hold_the_end():
    """A browser opens connections ahead, and a read may hang: the port is free at once for the next server."""
    done, asked_for = threading.Event(), threading.Semaphore(0)

    def respond(path, query):
        asked_for.release()
        done.wait(60)

    with serving(respond) as server:
        port, path = parts(server)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for waiting in clients[:2]:
            waiting.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            assert asked_for.acquire(timeout=60)
        started = time.monotonic()
        server.shutdown()
        server.server_close()
        assert time.monotonic() - started < 30  # not until those who hang go on
        PageServer(respond, port).server_close()
        done.set()
        for waiting in clients:
            waiting.close()


def test_a_taken_port_is_a_message(server):
    """With the number and what to do."""
    with pytest.raises(ValueError, match=r"--port \d+: expected a port that is free.*\n  Give another one"):
        PageServer(lambda path, query: None, parts(server)[0])
