"""Commands over a recipe with secrets: passwords and signatures in urls, keys where none belong, stores that fail."""

import json
import traceback
from itertools import islice
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streamdata import instantiate_from_yaml, mixed_collate, to_state
from streamdata.io.remote import requests
from streamdata.io.remote.network import Network, _network
from tests.io.servers import http_server

CANARY = "sk-canary-91c"
LINES = b"".join(b'{"n": %d}\n' % number for number in range(50))
COMMANDS = [
    ["check", "--online"],
    ["check", "--data", "-j", 1],
    ["check", "--resume"],
    ["plan", "--samples", 10],
    ["plan", "--samples", 10, "--json"],
    ["profile", "--seconds", 0.5, "--workers", 0],
    ["run", "--batches", 2],
    ["show", "-n", 2],
    ["show", "-n", 2, "--json"],
    ["show", "-n", 2, "--html", "page.html"],
    ["trace", "states.json", "--step", 1],
    ["trace", "states.json", "--step", 1, "--json"],
    ["trace", "states.json", "--find", "0.jsonl#1"],
]


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Two shards, a process that gives up soon, and a folder with whatever is left behind."""
    monkeypatch.setattr(requests, "DEADLINE_S", 0.5)
    monkeypatch.setattr(requests, "_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(requests, "_LONGEST_WAIT_S", 0.02)
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "left" / "indexes"))
    monkeypatch.setattr(_network, "made", network := Network(4))
    (tmp_path / "left").mkdir()
    monkeypatch.chdir(tmp_path / "left")
    with http_server({f"bucket/{number}.jsonl": LINES for number in range(2)}) as found:
        yield found
    network.close()


@pytest.fixture
def recipe(server, tmp_path) -> Path:
    """Over both, with a password, a signature and a cache."""
    root = server.url.replace("//", f"//{CANARY}:{CANARY}@")
    paths = [f"{root}/bucket/{number}.jsonl?X-Amz-Signature={CANARY}&token={CANARY}" for number in range(2)]
    cache = {"path": str(tmp_path / "left" / "pages"), "max_bytes": 10**8}
    source = {
        "target": "streamdata.JsonlIterableDataset",
        "params": {"path": paths, "cache": cache},
        "name": "a",
        "percent": 1,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"target": "streamdata.MergedDataset", "params": {"datasets": [source]}}))
    return path


def left(folder: Path) -> str:
    """Names and contents of all files that a run leaves behind."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return "\n".join(f"{path}\n{path.read_bytes().decode('latin-1')}" for path in found)


@pytest.mark.parametrize("fault", [None, "403 AccessDenied"])
def test_no_command_tells_a_secret_of_a_recipe(streamdata, server, recipe, tmp_path, caplog, fault) -> None:
    """Neither on the screen, nor in logs of all libraries, nor in a file; whether the store answers or not."""
    caplog.set_level("DEBUG")
    states = {}
    for batch in islice(DataLoader(instantiate_from_yaml(recipe), 4, collate_fn=mixed_collate), 2):
        states.update(to_state(batch))
    Path("states.json").write_text(json.dumps(states))
    server.fault = lambda request: fault
    said = [json.dumps(states)]
    for command, *rest in COMMANDS:
        done = streamdata(command, recipe, *rest)
        assert fault or done.exit_code == (1 if "--find" in rest else 0), done.output
        said += [done.output, repr(done.exception), repr(getattr(done.exception, "__cause__", None))]
    said += [streamdata("state", "states.json", *more).output for more in ([], ["--json"])]
    everything = "\n".join([*said, caplog.text]) + left(tmp_path / "left")
    assert [line for line in everything.splitlines() if CANARY in line] == []
    assert "0.jsonl" in everything


@pytest.mark.parametrize(
    "params",
    [
        {"storage_options": {"key": CANARY, "secret": CANARY}},
        {"storage_options": {"endpoint": f"https://user:{CANARY}@127.0.0.1:1", "regon": CANARY}},
        {"cache": {"keys": f"s3://bucket/x?Signature={CANARY}"}},
        {"block_size": f"https://user:{CANARY}@host/x"},
        {"path": [f"pipe:curl http://user:{CANARY}@host/x"]},
        {"shuffle_bufer": 1},
    ],
)
def test_no_error_of_a_recipe_tells_them(streamdata, recipe, params) -> None:
    """Nor what was written among settings of stores, which take no keys."""
    tree = json.loads(recipe.read_text())
    tree["params"]["datasets"][0]["params"] |= params
    recipe.write_text(json.dumps(tree))
    told = streamdata("check", recipe).output
    for more in ([], ["--traceback"]):
        done = streamdata("run", recipe, *more)
        assert done.exit_code == 1
        told += done.output + "".join(traceback.format_exception(done.exception))
    assert CANARY not in told


@pytest.mark.parametrize(
    "spelt",
    [
        "http://user:p@CANARY@HOST/bucket/0.jsonl",
        "HTTP://HOST/bucket/0.jsonl?X-Amz-Signature=CANARY",
        " http://u:CANARY@HOST/bucket/0.jsonl?sig=CANARY",
        "simplecache::http://HOST/bucket/0.jsonl?sig=CANARY",
        "{http://HOST/bucket/0.jsonl?sig=CANARY",
        "http:/u:CANARY@HOST/bucket/0.jsonl?sig=CANARY",
        "pipe:printf '{}' # http://u:CANARY@HOST/bucket/0.jsonl?sig=CANARY",
        "abfss://container:CANARY@account.invalid/bucket/0.jsonl",
        "http://u:pa/CANARY@HOST/bucket/0.jsonl",
        "http://HOST/bucket/0.jsonl?a='1'&sig=CANARY",
        "simplecache::http://u:CANARY@HOST/bucket/0.jsonl",
        "simplecache::ftp://u:CANARY@127.0.0.1:1/bucket/0.jsonl",
        "filecache::memory://u:CANARY@x/bucket/0.jsonl",
        "memory://u:CANARY@x/bucket/*.jsonl",
        "zip://0.jsonl::http://HOST/bucket/0.zip?sig=CANARY",
        "hf://u:CANARY@repo/bucket",
        "sftp://CANARY@127.0.0.1:1/bucket/{0..1}.jsonl",
        "http://u:CANARY@h\u2100/bucket/0.jsonl",
        "http://[u:CANARY@::1]/bucket/0.jsonl",
    ],
)
def test_no_spelling_of_a_url_tells_them(streamdata, server, recipe, caplog, monkeypatch, spelt) -> None:
    """Whether it is read, refused or not understood; what was meant is told."""
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    caplog.set_level("DEBUG")
    url = spelt.replace("HOST", server.url.partition("//")[2]).replace("CANARY", CANARY)
    tree = json.loads(recipe.read_text())
    tree["params"]["datasets"][0]["params"] = {"path": [url]}
    recipe.write_text(json.dumps(tree))
    told = ""
    for command, *rest in (["check"], ["check", "--data", "-j", 1], ["show", "-n", 1, "--json"]):
        done = streamdata(command, recipe, *rest)
        told += done.output + "".join(traceback.format_exception(done.exception))
    assert CANARY not in told + caplog.text
    assert "/bucket" in told or "@account.invalid" in told
