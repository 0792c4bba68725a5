"""Takers in other processes: what they may do, what is refused, and that nothing is lost or done twice."""

import json
import math
import os
import pickle
import socket
import threading
from contextlib import closing
from http.client import HTTPConnection
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import LedgerClient, MergedDataset, PromptLedger, SourceError, StaleAttempt
from streamdata.ledger import client as client_module
from streamdata.ledger import server as server_module
from streamdata.ledger.server import Requests
from tests.ledger.conftest import endless, prompts_of
from tests.ledger.test_ledger import Breaking, ids, places
from tests.streams import Numbers, plain


@pytest.fixture
def served():
    """A ledger over nine prompts, its server and a client."""
    ledger = PromptLedger(prompts_of())
    with ledger.serve() as server:
        yield ledger, server, LedgerClient(server.url, server.token)


@pytest.fixture(scope="module")
def unharmed():
    """One ledger, server and client for all that is refused; nothing is ever taken of it."""
    ledger = PromptLedger(prompts_of())
    with ledger.serve() as server:
        yield ledger, server, LedgerClient(server.url, server.token)
    assert ledger.stats()["attempts"] == 0


def post(server, path="/stats", body=b"{}", headers=None, method="POST"):
    """The status and answer of a request as anybody may send it."""
    with closing(HTTPConnection("127.0.0.1", server.server_port, timeout=5)) as connection:
        connection.request(method, path, body, {"Authorization": f"Bearer {server.token}"} | (headers or {}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_a_client_takes_and_settles(served):
    """As the ledger's own process does."""
    ledger, _, client = served
    first = client.take(9)
    assert places(first) == places(PromptLedger(prompts_of()).take(9))
    assert [plain(prompt.sample) for prompt in first] == [plain(sample) for sample in prompts_of()]
    assert {type(prompt.sample["__record__"]) for prompt in first} == {tuple}
    client.score(ids(first[:2]), [0.0, 0.5])
    client.done(ids(first[:6]))
    client.drop([first[6][:2]], "equal")
    client.retry(ids(first[7:]), after=1)
    assert client.stats() == ledger.stats() | {"oldest_s": client.stats()["oldest_s"]}
    again = client.take(3)
    assert ids(again) == ids(first[7:])
    assert [prompt.attempt for prompt in again] == [2, 2]
    client.renew(ids(again))
    assert not client.finished
    client.done(ids(again))
    assert client.finished
    assert ledger.finished
    assert ledger.stats()["done"] == 8


class Fields:
    """One record with fields of every kind."""

    name, percent = "fields", 1.0
    fields: ClassVar = {
        "text": "é\n\u2028",
        "numbers": [1, -(2**60), 0.1, 1e300, True, None],
        "nested": {"a": [{"b": torch.arange(3)}]},
        "bytes": b"\x00\xff",
        "ids": torch.arange(6).reshape(2, 3),
        "half": torch.tensor([0.5, -1.0], dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "column": torch.arange(6).reshape(2, 3)[:, 1],
        "array": np.arange(4, dtype=np.int16).reshape(2, 2),
        "words": np.array(["ab", "c"]),
        "number": np.float32(0.1),
        "double": np.float64(0.1),
        "no_rows": np.zeros((0, 2)),
    }

    def __len__(self):
        return 1

    def __getitem__(self, _):
        return dict(self.fields)


def test_samples_arrive_as_they_are():
    """Tensors and arrays with dtype and shape, bytes as bytes, numbers exactly."""
    with PromptLedger(MergedDataset([Fields()], cyclic=False)).serve() as server:
        (prompt,) = LedgerClient(server.url, server.token).take(1)
    assert plain({name: prompt.sample[name] for name in Fields.fields}) == plain(Fields.fields)
    for name, value in Fields.fields.items():
        assert type(prompt.sample[name]) is type(value)
    prompt.sample["ids"][0, 0] = prompt.sample["array"][0, 0] = 9  # it is the taker's own


@pytest.mark.parametrize(
    "value",
    [{1: "a"}, {1, 2}, object(), 1j, np.array([None]), {"dtype": 1, "shape": 2, "base64": 3}, [{"x": [{None: 1}]}]],
)
def test_a_sample_that_json_does_not_have_is_an_error(value, caplog, clock):
    """It names source and field; the prompt comes again when its lease ends."""
    source = Fields()
    source.fields = {"odd": value}
    ledger = PromptLedger(MergedDataset([source], cyclic=False))
    with (
        ledger.serve() as server,
        pytest.raises(SourceError, match=r"fields, 'odd'.*: expected dicts with texts as keys"),
    ):
        LedgerClient(server.url, server.token).take(1, lease_s=10)
    assert "take failed" in caplog.text
    clock.now += 10
    assert ledger.take(1)[0].attempt == 2


def test_another_clients_prompts_are_stale(served):
    """The ledger's own process may settle any."""
    ledger, server, client = served
    other = LedgerClient(server.url, server.token)
    mine, own = client.take(2), ledger.take(1)
    before = ledger.state_dict()
    for prompt in (*mine, *own):
        for settle in (other.done, other.retry, other.renew, lambda named: other.drop(named, "equal")):
            for named in (prompt.id, prompt[:2]):
                with pytest.raises(StaleAttempt):
                    settle([named])
    assert ledger.state_dict() == before
    ledger.done(ids(own + mine[:1]))
    client.done(ids(mine[1:]))


def test_a_slow_workers_settlement_is_stale(served, clock):
    """Its lease has run out, and another has the prompt."""
    _, server, slow = served
    quick = LedgerClient(server.url, server.token)
    (first,) = slow.take(1, lease_s=10)
    clock.now += 10
    (second,) = quick.take(1, lease_s=10)
    assert (second.id, second.attempt) == (first.id, 2)
    with pytest.raises(StaleAttempt, match="attempt 1 is over: 2 is open now"):
        slow.done([first.id])
    quick.done([second.id])


def test_a_client_that_takes_its_own_again_settles_the_newer_attempt(served, clock):
    """It sends the attempt that it took last; the older one by name is stale."""
    _, _, client = served
    (first,) = client.take(1, lease_s=10)
    clock.now += 10
    client.take(1)
    with pytest.raises(StaleAttempt):
        client.done([first[:2]])
    client.done([first.id])


def test_an_answer_in_the_trainers_hands_has_no_lease(served, clock):
    """The ledger's process keeps it; its taker may go."""
    ledger, _, client = served
    first = client.take(2, lease_s=10)
    ledger.keep(ids(first))
    clock.now += 100
    assert ids(ledger.take(1)) != ids(first[:1])
    ledger.done(ids(first))


def losing(monkeypatch, times):
    """Have so many answers be lost on their way to clients."""
    left, real = [times], HTTPConnection.getresponse

    def getresponse(self):
        response = real(self)
        if left[0]:
            left[0] -= 1
            response.read()
            raise ConnectionResetError("lost")
        return response

    monkeypatch.setattr(HTTPConnection, "getresponse", getresponse)
    monkeypatch.setattr(client_module, "_WAITS_S", (0.0, 0.0, 0.0))


def test_a_lost_answer_settles_and_takes_nothing_twice(served, monkeypatch):
    """The request is repeated, and gets the answer that it had."""
    ledger, _, client = served
    losing(monkeypatch, 2)
    first = client.take(4)
    assert ledger.stats()["attempts"] == 4
    losing(monkeypatch, 1)
    client.done(ids(first[:2]))
    losing(monkeypatch, 1)
    client.retry(ids(first[2:]))
    losing(monkeypatch, 2)
    with pytest.raises(StaleAttempt):
        client.done(ids(first[:1]))
    assert (ledger.stats()["done"], ledger.stats()["due"]) == (2, 2)


def test_a_server_that_does_not_answer_is_an_error(served, monkeypatch):
    """After several attempts; the client may go on later, and settle what it had taken."""
    ledger, _, client = served
    losing(monkeypatch, 3)
    with pytest.raises(ConnectionError, match="did not answer 3 times; the last time: lost"):
        client.take(2)
    losing(monkeypatch, 3)
    first = ledger.take(1)
    with pytest.raises(ConnectionError, match=r"LedgerClient\.done: http://127"):
        client.done(ids(first))
    assert client.stats()["open"] == 3


def test_requests_are_numbered():
    """One with an earlier number is refused: a delayed one would be done twice."""
    requests = Requests(PromptLedger(endless(("a", 50))))

    def ask(number, n, client="c"):
        asked = {"client": client, "number": number, "lease_s": 9, "n": n}
        return requests.answer("take", json.dumps(asked).encode())

    first = ask(3, n=2)
    assert first[0] == 200
    assert ask(3, n=2) is first
    assert [ask(2, n=2)[0], requests.answer("done", b"{}")[0]] == [400, 400]
    assert ask(3, n=2) is first
    assert ask(4, n=2) != first
    assert ask(3, 2, client="d")[0] == 200


def test_a_repeat_while_the_first_is_at_work_gets_its_answer():
    """A client that waited too long asks again: the ledger is asked once."""
    begun, goes_on, answers = threading.Event(), threading.Event(), []

    class Slow:
        def stats(self):
            begun.set()
            assert goes_on.wait(10)
            return {"calls": answers.append("asked")}

    requests, body = Requests(Slow()), b'{"client": "a", "number": 1}'
    got = []
    threads = [threading.Thread(target=lambda: got.append(requests.answer("stats", body))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    goes_on.set()
    for thread in threads:
        thread.join()
    assert answers == ["asked"]
    assert got[0] == got[1]


def test_answers_are_kept_of_the_clients_that_asked_last(monkeypatch):
    """So many clients come and go that memory would grow."""
    monkeypatch.setattr(server_module, "_MAX_CLIENTS", 2)
    requests = Requests(PromptLedger(endless(("a", 50))))
    ask = lambda client: requests.answer("stats", json.dumps({"client": client, "number": 1}).encode())  # noqa: E731
    first, _, again = ask("a"), ask("b"), ask("a")
    assert again is first
    ask("c")
    assert ask("a") is first
    assert len(requests._last) == 2


@pytest.mark.parametrize("headers", [{"Authorization": "Bearer x"}, {"Authorization": ""}, {"Authorization": "é" * 9}])
def test_a_wrong_token_is_refused(unharmed, headers):
    """And compared in constant time."""
    ledger, server, _ = unharmed
    before = ledger.state_dict()
    body = json.dumps({"client": "c", "number": 1, "n": 3, "lease_s": 5}).encode()
    assert post(server, "/take", body, headers)[0] == 401
    assert ledger.state_dict() == before
    with pytest.raises(PermissionError, match="401"):
        LedgerClient(server.url, server.token[:-1]).take(1)


def test_a_huge_body_is_refused(unharmed, monkeypatch):
    """By its length, whoever sends it; a client says so itself."""
    ledger, server, client = unharmed
    assert post(server, "/done", b"x" * 100, {"Content-Length": str((8 << 20) + 1)})[0] == 413
    assert post(server, "/done", b"x" * 100, {"Content-Length": "999999999999"})[0] == 413
    monkeypatch.setattr(client_module, "MAX_BODY", 1000)
    with pytest.raises(ValueError, match="expected at most 1,000 bytes in a request"):
        client.score(range(200), np.zeros(200))
    assert ledger.stats()["taken"] == 0


BODIES = [
    b"", b"{", b"null", b"[]", b"3", b"\xff", b"[" * 100_000, b'{"client": "c"}', b'{"client": "c", "number": "1"}',
    b'{"client": 3, "number": 1}', b'{"client": "c", "number": 1, "x": 1}',
    b'{"client": {"dtype": "object", "shape": [1], "base64": "AAAA"}, "number": 1}',
    b'{"client": {"dtype": "torch.load", "shape": [1], "base64": "AAAA"}, "number": 1}',
    b'{"client": {"dtype": "V9", "shape": [-9], "base64": "?"}, "number": 1}',
    b"1" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_what_is_no_request_is_refused(unharmed, body):
    """With 400, and the server goes on."""
    ledger, server, client = unharmed
    before = ledger.state_dict()
    assert post(server, "/stats", body)[0] == 400
    assert ledger.state_dict() == before
    assert client.stats()["taken"] == 0


@pytest.mark.parametrize(
    ("path", "headers", "method", "status"),
    [
        ("/stats", {"Content-Length": "x"}, "POST", 400),
        ("/stats", {"Content-Length": "-1"}, "POST", 400),
        ("/stats", {"Content-Length": "²"}, "POST", 400),
        ("/stats", {"Transfer-Encoding": "chunked"}, "POST", 400),
        ("/nothing", {}, "POST", 400),
        ("/__init__", {}, "POST", 400),
        ("/keep", {}, "POST", 400),
        ("/load_state_dict", {}, "POST", 400),
        ("/stats", {}, "GET", 400),
        ("/stats", {}, "BREW", 400),
        ("/stats", {"X": "x" * 70_000}, "POST", 431),
    ],
)
def test_odd_requests_are_refused(unharmed, path, headers, method, status):
    """The connection is closed, and nothing of it comes back."""
    _, server, client = unharmed
    body = json.dumps({"client": "c", "number": 1}).encode()
    assert (
        post(server, path, body, {name: value.encode("latin-1") for name, value in headers.items()}, method)[0]
        == status
    )
    assert client.stats()["taken"] == 0


ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([1, 600, "done"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["n", "lease_s", "ids", "reason", "after", "values", "taker"])


HARMED = PromptLedger(endless(("a", 50)))
OPEN = HARMED.take(2)


@given(st.sampled_from(list(server_module._ARGUMENTS)), st.dictionaries(NAMES, ARGUMENTS), st.booleans())
@settings(max_examples=200)
def test_no_arguments_are_a_fault_of_the_server(operation, arguments, fills_up):
    """They are refused, or done; what is open at others stays so."""
    if fills_up:
        arguments = {name: arguments.get(name, [OPEN[0].id]) for name in server_module._ARGUMENTS[operation]}
    body = json.dumps({"client": "c", "number": 1, **arguments}).encode()
    assert Requests(HARMED).answer(operation, body)[0] in (200, 400, 409)
    HARMED.renew(ids(OPEN))


def test_an_error_of_the_stream_is_told_and_logged(caplog):
    """With its text; the next call goes on."""
    source = Breaking("a", 9)
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    with ledger.serve() as server:
        client = LedgerClient(server.url, server.token)
        with pytest.raises(SourceError, match="OSError: no record"):
            client.take(9)
        source.fails = False
        assert len(client.take(9)) == 9
    assert "LedgerServer: take failed" in caplog.text


@pytest.mark.parametrize(("n", "lease_s"), [(1025, 9), (0, 9), (1, 0), (1, -math.inf), (1, math.nan)])
def test_a_client_takes_few_and_on_a_lease(unharmed, n, lease_s):
    """A call that takes all of an endless stream would be the last of the job."""
    _, _, client = unharmed
    with pytest.raises(ValueError, match="expected"):
        client.take(n, lease_s)
    assert client.stats()["taken"] == 0


def test_a_slow_client_is_cut_off(served, monkeypatch):
    """Where it says nothing for a while, within a request or before one."""
    _, server, client = served
    monkeypatch.setattr(server_module._LedgerRequest, "timeout", 0.01)
    for sent in (
        b"",
        b"POST /stats HTTP/1.1\r\nContent-Length: 100\r\n",
        b"POST /stats HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ):
        with closing(socket.create_connection(("127.0.0.1", server.server_port))) as slow:
            slow.sendall(sent)
            slow.settimeout(5)
            assert slow.recv(100) == b""  # soon
    assert client.stats()["taken"] == 0


def test_a_server_ends(monkeypatch):
    """Clients get no more answers; the ledger goes on, and may be served anew."""
    monkeypatch.setattr(client_module, "_WAITS_S", (0.0, 0.0))
    ledger = PromptLedger(prompts_of())
    server = ledger.serve()
    client = LedgerClient(server.url, server.token)
    first = client.take(2)
    server.close()
    with pytest.raises(ConnectionError, match="did not answer"):
        client.done(ids(first))
    with ledger.serve(port=server.server_port, token=server.token):
        client.done(ids(first))
    assert ledger.stats()["done"] == 2


@pytest.mark.parametrize("token", ["", "a b", "é", "a\n"])
def test_a_token_is_of_visible_characters(token):
    """It stands in a header."""
    with pytest.raises(ValueError, match="expected a token of visible ASCII characters"):
        PromptLedger(prompts_of()).serve(token=token)


@pytest.mark.parametrize("url", ["127.0.0.1:80", "https://a:80", "http://a", "", "http://"])
def test_a_url_has_a_host_and_a_port(url):
    """As the server's."""
    with pytest.raises(ValueError, match="expected a url such as"):
        LedgerClient(url, "token")


def test_another_server_is_told(served):
    """One that answers other things."""
    _, server, client = served
    server.requests.answer = lambda *_: (200, b"<html>")
    with pytest.raises(ConnectionError, match="expected a LedgerServer at http://127"):
        client.stats()


def test_in_another_process_it_is_another_client(served):
    """Sent there, or forked: requests of two are not taken for repeated ones."""
    ledger, _, client = served
    first = client.take(1)
    sent = pickle.loads(pickle.dumps(client))
    with pytest.raises(StaleAttempt):
        sent.done(ids(first))
    child = os.fork()
    if not child:
        try:
            os._exit(len(client.take(1)) == 1 and client._number == 1)
        except BaseException:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    client.done(ids(first))
    assert (ledger.stats()["done"], ledger.stats()["open"]) == (1, 1)


def test_clients_share_a_stream():
    """Each prompt goes to one, and ends once."""
    ledger, taken = PromptLedger(MergedDataset([Numbers("a", 300)], cyclic=False)), []

    def work():
        client = LedgerClient(server.url, server.token)
        while prompts := client.take(4):
            client.retry([prompt.id for prompt in prompts if prompt.attempt == 1])
            again = [prompt for prompt in prompts if prompt.attempt == 2]
            taken.extend(places(again))
            client.done(ids(again))

    with ledger.serve() as server:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(taken) == len(set(taken)) == ledger.stats()["done"]
    assert ledger.stats()["taken"] == 300
