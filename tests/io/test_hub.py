"""hf:// through fsspec, from the hub that HF_ENDPOINT names: here a server that answers what huggingface_hub asks."""

import json
import os

from tests.io.servers import http_server

LINES = b"".join(b'{"n": %d}\n' % number for number in range(20))
FILES = {f"data/{number}.jsonl": LINES for number in range(2)}
COMMIT = "0" * 40

# In a process of its own: huggingface_hub looks for HF_ENDPOINT when it is imported.
CHILD = """
import json, logging, sys
logging.basicConfig(level="DEBUG")
from streamdata import JsonlIterableDataset, MergedDataset, to_state
from streamdata.errors import ShardError
def opened(path):
    return MergedDataset([JsonlIterableDataset(path, name="a", percent=1)], cyclic=False)
samples = list(opened("hf://datasets/some/data/data"))
again = opened("hf://datasets/some/data/data/*.jsonl")
again.set_dataloader_states(to_state([samples[:11]]))
try:
    opened("hf://datasets/some/data/data/2.jsonl")
except ShardError as error:
    missing = str(error)
numbers = [sample["n"] for sample in samples]
rest = [sample["n"] for sample in again]
urls = sorted({sample["__url__"] for sample in samples})
states = json.dumps(to_state([samples]))
print(json.dumps({"numbers": numbers, "rest": rest, "urls": urls, "states": states, "missing": missing}))
"""


def answered(server, query=""):
    """What the hub says of a repository: <https://huggingface.co/docs/hub/api>; with a query it sends on to that."""
    objects = server._found

    def found(request, *, ignore_range):
        kind = {"Content-Type": "application/json"}
        if request.path == "api/datasets/some/data" or request.path.startswith("api/datasets/some/data/revision"):
            about = {"_id": "1", "id": "some/data", "sha": COMMIT, "siblings": [], "tags": [], "private": False}
            return 200, kind, json.dumps(about).encode()
        if request.path.startswith("api/datasets/some/data/tree/"):
            folder = request.path.split("/", 6)[6] if request.path.count("/") > 5 else ""
            return 200, kind, json.dumps(_tree(folder, FILES)).encode()
        if "/resolve/" in request.path and query and not request.path.startswith("signed/"):
            return 302, {"Location": f"{server.url}/signed/{request.path}?{query}"}, b""
        if "/resolve/" in request.path:
            name = request.path.split("/resolve/")[1].partition("/")[2]
            return objects(request._replace(path=name), ignore_range=ignore_range)
        return 404, kind | {"X-Error-Code": "EntryNotFound"}, b"{}"

    return found


def _tree(folder, files):
    entry = {"type": "file", "size": len(LINES), "oid": "1" * 40}
    inside = [{**entry, "path": path} for path in files if path.rpartition("/")[0] == folder]
    return inside or [{"type": "directory", "size": 0, "oid": "2" * 40, "path": "data"}]


# The hub's own file system would repeat the second one itself.
ONE_ATTEMPT = """
import asyncio, json, time
from streamdata.io.remote.requests import Asked
from streamdata.io.remote.addresses import NO_OPTIONS
from streamdata.io.remote.file_client import FileClient
url, found = "hf://datasets/some/data/data/0.jsonl", {}
for begin in (0, 1, 2, 0):
    began = time.monotonic()
    try:
        found[begin] = asyncio.run(FileClient(NO_OPTIONS, 1).fetch(Asked("fetch", url, begin, 10))).data.decode()
    except Exception as error:
        found[begin] = f"{type(error).__name__}: {error}"
    found[f"{begin} took"] = time.monotonic() - began
print(json.dumps(found))
"""


def test_a_range_of_the_hub_is_asked_for_once_in_an_attempt(tmp_path, python):
    """What fails is repeated by this package alone; a range that is ignored is an error."""
    faults = {"bytes=1-9": "503", "bytes=2-9": "ignore_range"}
    with http_server(FILES, lambda request: faults.get(request.headers.get("range"))) as server:
        server._found = answered(server)
        environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path)}
        done = python("-c", ONE_ATTEMPT, env=environment)
        assert done.returncode == 0, done.stderr
        asked = [request.headers["range"] for request in server.log if "range" in request.headers]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["0"] == LINES[:10].decode()
    assert found["1"].startswith("FailureError")
    assert found["2"].startswith("RangesIgnoredError")
    assert asked == ["bytes=0-9", "bytes=1-9", "bytes=2-9", "bytes=0-9"]


def test_a_folder_of_the_hub_is_read_from_the_endpoint_of_the_environment(tmp_path, python):
    """Whole, again from a state, and one shard that is not there; the endpoint is in nothing that is kept.

    Nor is a signature in a log: the hub sends on to signed urls.
    """
    with http_server(FILES) as server:
        server._found = answered(server, "X-Amz-Signature=CANARY")
        environment = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "STREAMDATA_CACHE": str(tmp_path / "own")}
        done = python("-c", CHILD, env=os.environ | environment)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert sorted(found["numbers"]) == sorted([*range(20)] * 2)
        assert found["rest"] == found["numbers"][11:]
        assert found["urls"] == [f"hf://datasets/some/data/data/{number}.jsonl" for number in range(2)]
        assert "2.jsonl" in found["missing"]
        kept = b"".join(path.read_bytes() for path in (tmp_path / "own").rglob("*") if path.is_file())
        assert server.url not in found["states"] + found["missing"] + repr(found["urls"])
        assert server.url.encode() not in kept
        assert "/signed/datasets/some/data/resolve/main/data/0.jsonl?…" in done.stderr
        assert "CANARY" not in done.stdout + done.stderr
