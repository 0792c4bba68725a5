"""hf:// through fsspec, from the hub that HF_ENDPOINT names: here a server that answers what huggingface_hub asks."""

import json
import os
import subprocess
import sys

from tests.remote.servers import http_server

LINES = b"".join(b'{"n": %d}\n' % number for number in range(20))
FILES = {f"data/{number}.jsonl": LINES for number in range(2)}
COMMIT = "0" * 40

# In a process of its own: huggingface_hub looks for HF_ENDPOINT when it is imported.
CHILD = """
import json, sys
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


def answered(server):
    """What the hub says of a repository: <https://huggingface.co/docs/hub/api>."""
    objects = server._found

    def found(request, *, ignore_range):
        kind = {"Content-Type": "application/json"}
        if request.path == "api/datasets/some/data" or request.path.startswith("api/datasets/some/data/revision"):
            about = {"_id": "1", "id": "some/data", "sha": COMMIT, "siblings": [], "tags": [], "private": False}
            return 200, kind, json.dumps(about).encode()
        if request.path.startswith("api/datasets/some/data/tree/"):
            folder = request.path.split("/", 6)[6] if request.path.count("/") > 5 else ""
            return 200, kind, json.dumps(_tree(folder, FILES)).encode()
        if "/resolve/" in request.path:
            name = request.path.split("/resolve/")[1].partition("/")[2]
            return objects(request._replace(path=name), ignore_range=ignore_range)
        return 404, kind | {"X-Error-Code": "EntryNotFound"}, b"{}"

    return found


def _tree(folder, files):
    entry = {"type": "file", "size": len(LINES), "oid": "1" * 40}
    inside = [{**entry, "path": path} for path in files if path.rpartition("/")[0] == folder]
    return inside or [{"type": "directory", "size": 0, "oid": "2" * 40, "path": "data"}]


def test_a_folder_of_the_hub_is_read_from_the_endpoint_of_the_environment(tmp_path):
    """Whole, again from a state, and one shard that is not there; the endpoint is in nothing that is kept."""
    with http_server(FILES) as server:
        server._found = answered(server)
        environment = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "STREAMDATA_CACHE": str(tmp_path / "own")}
        command = [sys.executable, "-c", CHILD]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert sorted(found["numbers"]) == sorted([*range(20)] * 2)
        assert found["rest"] == found["numbers"][11:]
        assert found["urls"] == [f"hf://datasets/some/data/data/{number}.jsonl" for number in range(2)]
        assert "2.jsonl" in found["missing"]
        kept = b"".join(path.read_bytes() for path in (tmp_path / "own").rglob("*") if path.is_file())
        assert server.url not in found["states"] + found["missing"] + repr(found["urls"])
        assert server.url.encode() not in kept
