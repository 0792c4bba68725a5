"""Ten thousand tiny shards of a store, without and with a manifest: requests, time, memory.

`python -m tests.io.many_shards [--shards 10000]` prints a line for each start; it takes about a minute.
"""

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from streamdata import JsonlIterableDataset, MergedDataset
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.io.servers import s3_server
from tests.memory import peak

RECORDS = 2  # of a shard


def read_all(path: str, options: dict[str, object], num_shards: int) -> None:
    """An epoch; each record once."""
    source = JsonlIterableDataset(path, storage_options=options, name="tiny", percent=1)
    found = Counter(sample["n"] for sample in MergedDataset([source], cyclic=False))
    assert found == Counter(range(num_shards * RECORDS)), "a record is missing, or came twice"


def main(num_shards: int) -> None:
    """Cold, a second start from the indexes on disk, and by a manifest."""
    with TemporaryDirectory() as name:
        os.environ["STREAMDATA_CACHE"] = f"{name}/cache"
        folder = Path(name) / "tiny"
        folder.mkdir()
        for shard in range(num_shards):
            lines = "".join(f'{{"n": {shard * RECORDS + row}}}\n' for row in range(RECORDS))
            (folder / f"{shard:06}.jsonl").write_text(lines)
        objects = {f"bucket/tiny/{path.name}": path.read_bytes() for path in folder.iterdir()}
        make_manifest(take_stock([str(folder)]), num_processes=1)
        manifest = {"bucket/listed/" + path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        with s3_server(objects | manifest) as server:
            options = {"endpoint": server.url, "anonymous": True}
            for what, path in (("cold", "tiny"), ("second start", "tiny"), ("by a manifest", "listed")):
                server.log.clear()
                began = time.monotonic()
                read_all(f"s3://bucket/{path}", options, num_shards)
                memory = peak() >> 20
                took = time.monotonic() - began
                print(f"{what}: {num_shards:,} shards, {len(server.log):,} requests, {took:.1f} s, {memory} MB at most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000)
    main(parser.parse_args().shards)
